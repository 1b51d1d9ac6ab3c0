"""A headless Chromium that a test drives: the DevTools protocol over two pipes."""
import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

import needs

PROGRAMS = ["chromium-headless-shell", "chromium", "google-chrome"]
PATIENCE = 60.0  # seconds


def find() -> str:
    """Returns the program, or skips the test."""
    for program in PROGRAMS:
        if shutil.which(program):
            return program
    needs.skip("there is no Chromium; scripts/setup --tests installs it on Debian")
    raise AssertionError


class MethodFailed(Exception):
    """The browser refused a method, for example because the page went meanwhile."""


class Browser:
    """One page. Use it as a context manager. `errors`: what its console called an error."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        # Processes of Chromium may still write into it when the first one has ended.
        self._folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        commands, self._out = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe())
        self._in, answers = (fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 10) for fd in os.pipe())
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
                     f"--user-data-dir={self._folder.name}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{commands} 4>&{answers}', "bash", find(), *arguments],
            pass_fds=(commands, answers), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        os.close(commands)
        os.close(answers)
        self._received = b""
        self._number = 0
        self._session: str | None = None
        page = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ["Runtime", "Log", "Page"]:
            self.call(f"{domain}.enable")

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)
        self._folder.cleanup()

    def _read(self, deadline: float) -> dict:
        while b"\0" not in self._received:
            left = deadline - time.monotonic()
            assert left > 0 and select.select([self._in], [], [], left)[0], "Chromium is silent"
            more = os.read(self._in, 1 << 16)
            assert more, "Chromium has ended"
            self._received += more
        message, _, self._received = self._received.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict) -> None:
        method, facts = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(facts["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled" and facts["type"] in {"error", "assert"}:
            self.errors.append(json.dumps(facts["args"]))
        elif method == "Log.entryAdded" and facts["entry"]["level"] == "error":
            self.errors.append(f"{facts['entry']['text']} {facts['entry'].get('url', '')}")

    def call(self, method: str, **parameters) -> dict:
        """Calls a method of the DevTools protocol."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._read(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise MethodFailed(method, answer)
                return answer["result"]
            self._note(answer)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)

    def reload(self) -> None:
        """Returns when the former page is gone."""
        self.evaluate("window.isFormer = true")
        self.call("Page.reload")
        self.wait_for("!window.isFormer")

    def evaluate(self, expression: str):
        """Returns the value of a JavaScript expression in the page."""
        result = self.call("Runtime.evaluate", expression=expression, returnByValue=True,
                           awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def wait_for(self, condition: str):
        """Waits until the expression is true, and returns its value."""
        deadline = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(MethodFailed):
                if value := self.evaluate(condition):
                    return value
            assert time.monotonic() < deadline, (
                f"{condition} did not come; the page has:\n{self.text()}\n{self.errors}")
            time.sleep(0.02)

    def text(self) -> str:
        return self.evaluate("document.body ? document.body.innerText : ''")

    def wait_for_text(self, text: str) -> None:
        self.wait_for(f"document.body && document.body.innerText.includes({json.dumps(text)})")

    def press(self, key: str, text: str = "") -> None:
        for kind in ["keyDown", "keyUp"]:
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key,
                      windowsVirtualKeyCode={"Enter": 13, "Tab": 9, "Escape": 27}[key],
                      **({"text": text} if text and kind == "keyDown" else {}))

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height,
                  deviceScaleFactor=1, mobile=False)

    def use_colours(self, scheme: str) -> None:
        self.call("Emulation.setEmulatedMedia",
                  features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: str) -> None:
        picture = self.call("Page.captureScreenshot", format="png")
        with open(path, "wb") as file:
            file.write(base64.b64decode(picture["data"]))
