"""Looks at the page of the service in a real browser, a headless Chromium.

argv[1]: the folder of the programs. argv[2]: the root of the sources. With DDPRUN_SCREENSHOTS in
the environment, pictures of the page are written into that folder.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import urllib.request

import browser

PATIENCE = 60.0  # seconds
MARKUP = "<img src=x onerror=\"document.title='hurt'\">"
JOB = f"train {MARKUP}"
KEY = "0123456789abcdef0123456789abcdef"
# Fails in its first generation. Then it reports steps until it is told to end.
WORKER = """
import os, pathlib, sys, time
import ddprun
if ddprun.generation() == 0:
    raise RuntimeError(sys.argv[2])
step = 100
while not pathlib.Path(sys.argv[1]).exists():
    ddprun.report_progress(step)
    step += 1
    time.sleep(0.05)
"""


class Service:
    """A ddp-rendezvous, as a context manager."""

    def __init__(self, binaries: pathlib.Path, *options: str) -> None:
        self._process = subprocess.Popen(
            [binaries / "ddp-rendezvous", "--listen", "127.0.0.1:0", *options],
            stdout=subprocess.PIPE, text=True)
        self.address = self._process.stdout.readline().split()[-1]

    def __enter__(self) -> "Service":
        return self

    def __exit__(self, *_) -> None:
        self._process.terminate()
        assert self._process.wait(PATIENCE) == 0


def start_job(binaries: pathlib.Path, sources: str, address: str, go: pathlib.Path):
    worker = go.with_name("worker.py")
    worker.write_text(WORKER)
    return subprocess.Popen(
        [binaries / "ddprun", f"--rdzv-endpoint={address}", f"--rdzv-id={JOB}", "--max-restarts=3",
         "--nproc-per-node=2", sys.executable, worker, go, MARKUP],
        env=os.environ | {"PYTHONPATH": f"{sources}/python"}, stderr=subprocess.DEVNULL)


def picture(page: browser.Browser, name: str) -> None:
    folder = os.environ.get("DDPRUN_SCREENSHOTS")
    if folder:
        page.screenshot(f"{folder}/{name}.png")


def check_texts(page: browser.Browser) -> None:
    """Texts of workers and users are no markup."""
    assert page.evaluate("document.images.length") == 0
    assert page.evaluate("document.title").startswith(JOB), page.evaluate("document.title")
    assert page.evaluate("document.querySelector('h1').textContent") == JOB
    assert f"RuntimeError: {MARKUP}" in page.text(), page.text()
    reason = page.evaluate("document.getElementById('reason').textContent")
    assert reason.startswith("Generation 0 failed: rank "), reason


def check_widths(page: browser.Browser) -> None:
    for scheme, width, height in [("light", 320, 640), ("dark", 2560, 1440), ("dark", 1000, 1150),
                                  ("light", 1000, 1150)]:
        page.use_colours(scheme)
        page.resize(width, height)
        assert page.evaluate("document.documentElement.scrollWidth") <= width, width
        picture(page, f"job-{scheme}-{width}")


def check_hiding(page: browser.Browser) -> None:
    """A page that nobody sees has no connection."""
    link = "document.getElementById('link').textContent"
    page.wait_for(f"{link} === 'live'")
    for is_hidden, text in [("true", "paused; this is the state of "), ("false", "live")]:
        page.evaluate(f"Object.defineProperty(document, 'hidden', {{value: {is_hidden}, "
                      "configurable: true})")
        page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
        page.wait_for(f"{link}.startsWith('{text}')")


def look_at_a_job(binaries: pathlib.Path, sources: str) -> None:
    with Service(binaries) as service, browser.Browser() as page, \
            tempfile.TemporaryDirectory() as folder:
        page.open(f"http://{service.address}/")
        page.wait_for_text("No job is known to this service.")
        go = pathlib.Path(folder) / "go"
        job = start_job(binaries, sources, service.address, go)
        try:
            page.wait_for_text(JOB)
            page.wait_for_text("runs generation 1 with 2 ranks on 1 node")
            picture(page, "jobs")
            # The job's link is what the keyboard comes to after the one of the header.
            page.evaluate("document.getElementById('home').focus()")
            page.press("Tab")  # the table, which can be scrolled
            page.evaluate("window.former = document.activeElement")
            page.wait_for("!former.isConnected")  # the next edition's table has the focus
            assert page.evaluate("document.activeElement.className") == "scroll"
            page.press("Tab")
            page.press("Enter", "\r")
            page.wait_for_text("Nodes and ranks")
            page.wait_for_text("This job runs generation 1 with 2 ranks on 1 node.")
            check_texts(page)
            step = "Number(document.querySelector('.facts dd').textContent)"
            first = page.wait_for(f"{step} >= 100 && {step}")
            page.wait_for(f"{step} > {first}")
            page.wait_for_text("steps/s")
            check_widths(page)
            assert page.evaluate("document.querySelectorAll('.ranks .is-running').length") == 2
        finally:
            go.touch()
            assert job.wait(PATIENCE) == 0
        page.wait_for_text("This job has succeeded.")
        assert page.evaluate("document.getElementById('reason') === null"), page.text()
        check_hiding(page)
        assert page.errors == [], page.errors
        paths = page.evaluate("performance.getEntriesByType('resource').map((one) => one.name)")
        assert all(path.startswith(f"http://{service.address}/") for path in paths), paths


def give_a_token(binaries: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as folder:
        key = pathlib.Path(folder) / "key"
        key.touch(0o600)
        key.write_text(KEY)
        token = subprocess.run(
            [binaries / "ddp-rendezvous", "--rdzv-key-file", key, "--print-read-token"],
            check=True, capture_output=True, text=True).stdout.strip()
        with Service(binaries, f"--rdzv-key-file={key}") as service, browser.Browser() as page:
            page.open(f"http://{service.address}/")
            page.wait_for_text("This service has keys.")
            for text, answer in [("x", "a token has 64 digits"),
                                 ("0" * 64, "this is not the token of this service"),
                                 (token, "No job is known to this service.")]:
                page.evaluate(f"document.getElementById('token-text').value = '{text}'")
                page.evaluate("document.querySelector('#token button').click()")
                page.wait_for_text(answer)
            assert page.evaluate("document.getElementById('token').hidden")
            assert page.evaluate("document.cookie") == "", "a script must not see the cookie"
            page.reload()
            page.wait_for_text("No job is known to this service.")
            status = urllib.request.Request(f"http://{service.address}/status.json",
                                            headers={"Authorization": f"Bearer {token}"})
            assert urllib.request.urlopen(status, timeout=PATIENCE).status == 200


def main() -> None:
    browser.find()
    binaries = pathlib.Path(sys.argv[1])
    look_at_a_job(binaries, sys.argv[2])
    give_a_token(binaries)
    print("a browser shows the job, live, and what workers write stays text")


main()
