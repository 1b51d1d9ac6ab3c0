"""Presses the buttons of the page in a real browser: that of `ddprun dashboard`, and that of a
service with a key and TLS.

argv[1]: the folder of the programs.
"""
import contextlib
import http.client
import json
import os
import pathlib
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse

sys.path.append(f"{sys.path[0]}/../../support")
import browser  # noqa: E402

PATIENCE = 60.0  # seconds
MARKUP = "<img src=x onerror=\"document.title='hurt'\">"
JOB = f"train {MARKUP}"
KEY = "0123456789abcdef0123456789abcdef"
WORKER = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 0.1; done"]


@contextlib.contextmanager
def running(command: list, **options):
    """A process that is ended at the end."""
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()
        process.wait(PATIENCE)


def job_of(binaries: pathlib.Path, *options: str):
    return running([binaries / "ddprun", f"--rdzv-id={JOB}", "--nproc-per-node=2", "--no-python",
                    *options, "--", *WORKER], stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def dashboard_of(binaries: pathlib.Path, *options: str, **environment: str):
    """A dashboard, and the address that it prints."""
    with running([binaries / "ddprun", "dashboard", *options], stdout=subprocess.PIPE,
                 env=os.environ | environment) as dashboard:
        url = dashboard.stdout.readline().strip()
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/#token=[0-9a-f]{64}", url), url
        yield dashboard, url


def wait_until_it_runs(binaries: pathlib.Path, *options: str) -> None:
    """Waits until the job has workers."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        status = subprocess.run([binaries / "ddprun", "status", *options, "--json", JOB],
                                capture_output=True, text=True, timeout=PATIENCE)
        if '"phase":"running"' in status.stdout:
            return
    raise AssertionError(status)


def click(page: browser.Browser, button: str) -> None:
    page.wait_for(f"document.getElementById('{button}') "
                  f"&& !document.getElementById('{button}').disabled")
    page.evaluate(f"document.getElementById('{button}').click()")


def order(url: str, form: str, **fields: str) -> tuple[int, str]:
    """Posts the form as another program would. Returns the status and the text of the answer."""
    place = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
    connection.request("POST", "/act", form, {
        "Origin": f"http://{place.netloc}", "Content-Type": "application/x-www-form-urlencoded",
        **fields})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def connect_as_another_user(url: str) -> None:
    if os.geteuid() != 0:
        return
    place = urllib.parse.urlsplit(url)
    request = (f"exec 3<>/dev/tcp/{place.hostname}/{place.port}; "
               "printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3; cat <&3")
    for user, is_served in [(0, True), (65534, False)]:
        answer = subprocess.run(["bash", "-c", request], user=user, group=user, cwd="/",
                                capture_output=True, text=True, timeout=PATIENCE)
        assert answer.stdout.startswith("HTTP/1.") == is_served, (user, answer)


def go_to_the_job(page: browser.Browser) -> None:
    page.wait_for_text(JOB)
    page.evaluate("document.querySelector('#jobs a').click()")
    page.wait_for_text("Nodes and ranks")


def press_buttons(binaries: pathlib.Path) -> None:
    """A job without a port: its page shows it, restarts it, and stops it."""
    with job_of(binaries) as job, browser.Browser() as page, \
            browser.Browser() as other:
        wait_until_it_runs(binaries)
        with dashboard_of(binaries, "--", JOB) as (dashboard, url):
            # Another program of this host, without the cookie.
            form = urllib.parse.urlencode({"order": "stop", "job": JOB, "generation": 0},
                                          quote_via=urllib.parse.quote_plus)
            assert order(url, form)[0] == 401
            connect_as_another_user(url)
            page.open(url)
            go_to_the_job(page)
            assert "token" not in page.evaluate("location.href"), "the token is used up"
            assert page.evaluate("document.cookie") == "", "a script must not see the cookie"
            assert page.evaluate("document.images.length") == 0
            page.wait_for("document.querySelectorAll('#ranks tbody tr').length === 2")
            assert page.errors == [], page.errors

            other.open(url)
            other.wait_for_text("open the address that ddprun dashboard has printed")
            assert JOB not in other.text(), other.text()

            click(page, "do-stacks")
            page.wait_for("!document.getElementById('stacks').hidden || "
                          "document.getElementById('said').textContent.length > 6")
            click(page, "do-stop")
            click(page, "no")
            click(page, "do-restart")
            click(page, "yes")
            page.wait_for_text("generation 0 ends and is formed again on 1 node")
            page.wait_for_text("runs generation 1 with 2 ranks")
            assert job.poll() is None
            click(page, "do-stop")
            click(page, "yes")
            assert job.wait(PATIENCE) == 128 + signal.SIGTERM
            # The dashboard ends with its job, after the page was told.
            page.wait_for_text("This job has ended.")
            assert dashboard.wait(PATIENCE) == 0
            assert page.evaluate("document.title").startswith(JOB), page.evaluate("document.title")
            assert page.evaluate("document.images.length") == 0


# Prints lines, and one more for each file that appears.
TALKER = """
say() { printf '%s\\n' "$1"; }
say "rank $RANK begins: <img src=x onerror=\\"document.title='hurt'\\">"
printf '10%%\\r50%%\\r100%%\\n\\033[31mred\\033[0m \\033]0;title\\007end\\n'
echo "to stderr" >&2
i=0
while :; do
  [ ! -e "$1/go" ] || { say "rank $RANK ends"; exit 0; }
  if [ -e "$1/say$i" ]; then say "rank $RANK has seen file $i"; i=$((i + 1)); fi
  sleep 0.05
done
"""


def logs_of(dashboard: subprocess.Popen) -> list[int]:
    """The commands of ddprun that the dashboard runs."""
    children = subprocess.run(["ps", "--ppid", str(dashboard.pid), "-o", "pid=,stat="],
                              capture_output=True, text=True, timeout=PATIENCE).stdout
    return [int(line.split()[0]) for line in children.splitlines() if "Z" not in line]


def until(condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def look_at_a_rank(binaries: pathlib.Path) -> None:
    """A rank: its output while it writes, its calls, its stack, and why it was started again."""
    with tempfile.TemporaryDirectory() as folder, browser.Browser() as page, running(
            [binaries / "ddprun", f"--rdzv-id={JOB}", "--nproc-per-node=2", "--max-restarts=3",
             "--no-python", "--", "sh", "-c", TALKER, "sh", folder],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        wait_until_it_runs(binaries)
        with dashboard_of(binaries, "--", JOB) as (dashboard, url):
            output = "document.getElementById('rank-output')?.textContent ?? ''"
            page.open(url)
            go_to_the_job(page)
            page.wait_for("document.querySelectorAll('#ranks tbody tr').length === 2")
            assert logs_of(dashboard) == [], "a page without a rank costs nothing"
            page.evaluate("[...document.querySelectorAll('#ranks tbody tr')].find((row) => "
                          "row.cells[0].textContent === '1').cells[2].click()")
            page.wait_for(f"({output}).includes('rank 1 begins')")
            text = page.evaluate(output)
            assert f"rank 1 begins: {MARKUP}\n100%\nred end\n" in text, text
            assert "rank 0" not in text, text
            page.wait_for(f"({output}).includes('to stderr')")
            # A line that is written now.
            pathlib.Path(folder, "say0").touch()
            page.wait_for(f"({output}).endsWith('rank 1 has seen file 0\\n')")
            page.wait_for("document.getElementById('rank-flight').textContent.includes("
                          "': running; no call was recorded')")
            page.evaluate("document.getElementById('rank-flight').textContent = ''")
            click(page, "flight-again")
            page.wait_for("document.getElementById('rank-flight').textContent.includes("
                          "'rank 1 (local rank 1 on ')")
            click(page, "show-stack")
            page.wait_for("!document.getElementById('show-stack').disabled")
            stack = page.evaluate("document.getElementById('rank-stack').textContent")
            assert stack.startswith("rank 1 (pid "), page.text()
            assert "rank 0" not in stack, stack
            assert page.evaluate("document.images.length") == 0

            pid = int(page.evaluate("[...document.querySelectorAll('#chosen-rank dt')].find("
                                    "(one) => one.textContent === 'process')"
                                    ".nextSibling.textContent"))
            os.kill(pid, signal.SIGKILL)
            page.wait_for_text("it failed first: rank 1 ")
            reason = page.evaluate("document.getElementById('rank-restarts').innerText")
            assert "SIGKILL" in reason, reason
            # The same stream shows the next generation.
            page.wait_for(f"({output}).includes('generation 1 begins')")
            page.wait_for(f"({output}).split('rank 1 begins').length === 3")
            page.evaluate(f"location.hash = location.hash.replace('rank=1', 'rank=0')")
            page.wait_for(f"({output}).includes('rank 0 begins')")
            assert "it ended because of another rank" in page.text(), page.text()
            until(lambda: len(logs_of(dashboard)) == 1)
            click(page, "home")
            until(lambda: logs_of(dashboard) == [])
            page.evaluate("history.back()")
            page.wait_for(f"({output}).includes('rank 0 begins')")
            page.press("Escape")
            page.wait_for("document.getElementById('rank-output') === null")
            until(lambda: logs_of(dashboard) == [])

            page.evaluate("location.hash = location.hash.replace(/(&rank=.*)?$/, '&rank=7')")
            page.wait_for(f"({output}).includes('rank 7 does not run on this node')")
            page.wait_for_text("In a terminal on its host: ddprun logs -f --rank 7 -- 'train <img")
            page.wait_for("document.getElementById('rank-flight-note').textContent === "
                          "'rank 7 does not run on this node'")
            page.evaluate("location.hash = location.hash.replace('rank=7', 'rank=0')")
            page.wait_for(f"({output}).includes('rank 0 begins')")
            page.evaluate("URL.createObjectURL = (blob) => { window.saved = blob; return '#'; }")
            page.evaluate("document.getElementById('report').click()")
            report = json.loads(page.evaluate("saved.text()"))
            assert report["job"] == JOB and report["state"] == "running", report
            assert report["failed_generations"][0]["first"][0]["rank"] == 1, report
            refused = [one for one in page.errors if "/flight/7?" in one]
            assert page.errors == refused, page.errors

            wait_for_a_free_stream(page, url, dashboard)
            refuse_others(url)
            until(lambda: len(logs_of(dashboard)) == 1)
            left = logs_of(dashboard)
            dashboard.send_signal(signal.SIGINT)
            assert dashboard.wait(PATIENCE) == 128 + signal.SIGINT
            until(lambda: not pathlib.Path(f"/proc/{left[0]}").exists())


def wait_for_a_free_stream(page: browser.Browser, url: str, dashboard: subprocess.Popen) -> None:
    """A page whose stream is refused says so, and tries again by itself."""
    place = urllib.parse.urlsplit(url)
    cookies = page.call("Network.getCookies")["cookies"]
    cookie = "; ".join(f"{one['name']}={one['value']}" for one in cookies)
    click(page, "home")
    until(lambda: logs_of(dashboard) == [])
    streams = []
    for _ in range(8):
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
        connection.request("GET", "/output/0", headers={"Cookie": cookie})
        streams.append(connection.getresponse())
    assert [stream.status for stream in streams] == 8 * [200]
    page.evaluate("history.back()")
    page.wait_for("document.getElementById('rank-output-note')?.textContent === "
                  "'too many requests at a time: try again in a moment; trying again'")
    for stream in streams:
        stream.close()
    page.wait_for("document.getElementById('rank-output').textContent.includes('rank 0 begins')")


def refuse_others(url: str) -> None:
    """Who has no cookie is sent no output."""
    place = urllib.parse.urlsplit(url)
    for path in ["/output/0", "/flight/0", "/output/x", "/output/-1", "/output/"]:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
        connection.request("GET", path)
        assert connection.getresponse().status == 401, path


def open_many_streams(url: str) -> None:
    """At most 8 at a time. One that is closed gives way to another."""
    place = urllib.parse.urlsplit(url)

    def get(path: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
        connection.request("GET", path, headers={"Cookie": cookie})
        return connection.getresponse()

    connection = http.client.HTTPConnection(place.hostname, place.port, timeout=PATIENCE)
    connection.request("POST", "/token", place.fragment, {"Origin": f"http://{place.netloc}"})
    cookie = connection.getresponse().headers["Set-Cookie"].partition(";")[0]
    streams = [get(f"/output/{rank % 2}") for rank in range(8)]
    assert [stream.status for stream in streams] == 8 * [200]
    assert get("/output/0").status == 503
    assert get("/output/-1").status == 404 and get("/output/0x").status == 404
    assert get("/flight/0").headers["Content-Type"] == "application/x-ndjson", "it is not a stream"
    missing = get("/flight/7")
    assert (missing.status, missing.read()) == (409, b"rank 7 does not run on this node\n")
    streams.pop().close()
    until(lambda: get("/output/0").status == 200)
    for stream in streams:
        stream.close()


def end_by_hand(binaries: pathlib.Path) -> None:
    """Ctrl-C ends the dashboard and not the job; --open tells the address to no other user."""
    with job_of(binaries) as job, tempfile.TemporaryDirectory() as folder:
        wait_until_it_runs(binaries)
        opener = pathlib.Path(folder) / "xdg-open"
        opener.write_text('#!/bin/sh\nstat -c %a "$1" > "$0.mode"\ncat "$1" > "$0.new"\n'
                          'mv "$0.new" "$0.text"\n')
        opener.chmod(0o755)
        with dashboard_of(binaries, "--open", "--", JOB, TMPDIR=folder,
                          PATH=f"{folder}:{os.environ['PATH']}") as (dashboard, url):
            text = pathlib.Path(folder) / "xdg-open.text"
            deadline = time.monotonic() + PATIENCE
            while not text.exists():
                assert dashboard.poll() is None and time.monotonic() < deadline
                time.sleep(0.02)
            assert f"url={url}\"" in text.read_text()
            assert opener.with_name("xdg-open.mode").read_text().strip() == "600"
            open_many_streams(url)
            dashboard.send_signal(signal.SIGINT)
            assert dashboard.wait(PATIENCE) == 128 + signal.SIGINT
        assert not list(pathlib.Path(folder).glob("*.html")), "its file is gone"
        assert job.poll() is None


def make_certificate(folder: pathlib.Path) -> list[str]:
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
                    "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-keyout", folder / "tls.key", "-out", folder / "tls.crt"],
                   check=True, capture_output=True)
    return [f"--rdzv-tls-cert={folder}/tls.crt", f"--rdzv-tls-key={folder}/tls.key"]


def ask_for_a_write_token(binaries: pathlib.Path) -> None:
    """A service with a key and TLS: buttons are for those who have the write token."""
    with tempfile.TemporaryDirectory() as name, browser.Browser() as page:
        folder = pathlib.Path(name)
        key = folder / "key"
        key.touch(0o600)
        key.write_text(KEY)
        tokens = {kind: subprocess.run(
            [binaries / "ddp-rendezvous", "--rdzv-key-file", key, f"--print-{kind}-token"],
            check=True, capture_output=True, text=True).stdout.strip()
            for kind in ["read", "write"]}
        with running([binaries / "ddp-rendezvous", "--listen", "127.0.0.1:0",
                      f"--rdzv-key-file={key}", *make_certificate(folder)],
                     stdout=subprocess.PIPE) as service:
            address = service.stdout.readline().split()[-1]
            asking = [f"--rdzv-endpoint={address}", f"--rdzv-key-file={key}",
                      f"--rdzv-tls-ca={folder}/tls.crt"]
            with job_of(binaries, *asking) as job:
                page.call("Security.setIgnoreCertificateErrors", ignore=True)
                page.open(f"https://{address}/")
                page.wait_for_text("This service has keys.")
                page.evaluate(f"document.getElementById('token-text').value = '{tokens['read']}'")
                page.evaluate("document.querySelector('#token button').click()")
                wait_until_it_runs(binaries, *asking)
                go_to_the_job(page)
                page.wait_for_text("Stop or restart this job")
                page.evaluate("location.hash += '&rank=1'")
                page.wait_for_text(
                    "Its output and its calls are not shown here: it needs the write token")
                assert page.evaluate("document.getElementById('rank-flight') === null")
                assert page.evaluate("document.getElementById('do-stop') === null")
                said = page.evaluate(
                    "fetch('act', {method: 'POST', body: new URLSearchParams({order: 'stop', "
                    "job: decodeURIComponent(location.hash.slice(5).split('&')[0]), "
                    "generation: 0})}).then((one) => one.text())")
                assert said.startswith("buttons need the write token"), said
                page.evaluate("document.querySelector('#actions summary').click()")
                for token, answer in [("0" * 64, "this is not the token of this service"),
                                      (tokens["read"], "This token only reads."),
                                      (tokens["write"], "Show stacks")]:
                    page.evaluate(f"document.getElementById('write-token').value = '{token}'")
                    page.evaluate("document.querySelector('#actions form button').click()")
                    page.wait_for_text(answer)
                page.wait_for("document.getElementById('rank-output-note')?.textContent === "
                              "'It has written nothing yet.'")
                page.wait_for_text("running; no call was recorded")
                assert "and its stack: in a terminal" not in page.text(), page.text()
                click(page, "do-stop")
                click(page, "yes")
                assert job.wait(PATIENCE) == 128 + signal.SIGTERM
                page.wait_for_text("This job has failed with exit code 143.")
                page.wait_for_text("a page on 127.0.0.1 asked for it")
                assert page.evaluate("document.getElementById('actions') === null")
            # The same page through the client of a service, for a job that has ended.
            ended = subprocess.run([binaries / "ddprun", "dashboard", *asking, "--", JOB],
                                   capture_output=True, text=True, timeout=PATIENCE)
            assert ended.returncode == 72, ended
            assert ended.stderr == "ddprun: error: the job has ended\n", ended.stderr


def look_through_a_service(binaries: pathlib.Path) -> None:
    """A service without keys has no buttons. The dashboard of its job has them."""
    with running([binaries / "ddp-rendezvous", "--listen", "127.0.0.1:0"],
                 stdout=subprocess.PIPE) as service, browser.Browser() as page:
        address = service.stdout.readline().split()[-1]
        with job_of(binaries, f"--rdzv-endpoint={address}") as job:
            wait_until_it_runs(binaries, f"--rdzv-endpoint={address}")
            page.open(f"http://{address}/")
            go_to_the_job(page)
            page.evaluate("location.hash += '&rank=1'")
            page.wait_for("document.getElementById('rank-commands') !== null")
            commands = page.evaluate("document.getElementById('rank-commands').textContent")
            quoted = shlex.quote(JOB).replace("'\"'\"'", "'\\''")
            assert commands.splitlines()[0] == f"ddprun logs -f --rank 1 -- {quoted}", commands
            page.wait_for_text("More of its output and its calls, and its stack: in a terminal on ")
            page.wait_for_text("running; no call was recorded")
            assert page.evaluate("document.images.length") == 0
            assert page.evaluate("document.getElementById('actions') === null")
            assert order(f"http://{address}/", "order=stop&job=a&generation=0")[0] == 403
            with dashboard_of(binaries, f"--rdzv-endpoint={address}", "--", JOB) as (_, url):
                page.open(url)
                go_to_the_job(page)
                page.evaluate("location.hash += '&rank=1'")
                page.wait_for("document.getElementById('rank-output-note')?.textContent === "
                              "'It has written nothing yet.'")
                page.evaluate("window.real = fetch; window.codes = []; window.fetch = async (...a) "
                              "=> { const r = await real(...a); "
                              "if (a[0] === 'act') codes.push(r.status); return r; }")
                click(page, "do-stop")
                click(page, "yes")
                page.wait_for("codes.length")
                assert page.evaluate("codes") == [200], page.text()
                assert job.wait(PATIENCE) == 128 + signal.SIGTERM


def serve(binaries: pathlib.Path, folder: str, address: str):
    """A service that keeps its state, at this address."""
    return running([binaries / "ddp-rendezvous", "--listen", address, "--lease=60",
                    f"--state-dir={folder}/state"], stdout=subprocess.PIPE,
                   stderr=subprocess.DEVNULL)


def follow_a_rank_at_its_service(binaries: pathlib.Path) -> None:
    """The page of a service: a rank's output while it writes, over restarts of both."""
    output = "document.getElementById('rank-output')?.textContent ?? ''"
    note = "document.getElementById('rank-output-note').textContent"
    with contextlib.ExitStack() as stack, browser.Browser() as page:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        service = stack.enter_context(serve(binaries, folder, "127.0.0.1:0"))
        address = service.stdout.readline().split()[-1]

        def job():
            return running([binaries / "ddprun", f"--rdzv-endpoint={address}", f"--rdzv-id={JOB}",
                            "--nproc-per-node=2", "--max-restarts=3", "--no-python", "--",
                            "sh", "-c", TALKER, "sh", folder], stdout=subprocess.DEVNULL,
                           stderr=subprocess.DEVNULL)

        stack.enter_context(job())
        wait_until_it_runs(binaries, f"--rdzv-endpoint={address}")
        page.open(f"http://{address}/")
        go_to_the_job(page)
        page.wait_for("document.querySelectorAll('#ranks tbody tr').length === 2")
        page.evaluate("location.hash += '&rank=7'")
        page.wait_for(f"{note}.startsWith('Its output cannot be shown: --rank: invalid value')")
        page.wait_for("document.getElementById('rank-flight-note').textContent.startsWith("
                      "\"--rank: invalid value '7'\")")
        page.evaluate("location.hash = location.hash.replace('rank=7', 'rank=1')")
        page.wait_for(f"({output}).includes('to stderr')")
        text = page.evaluate(output)
        assert f"rank 1 begins: {MARKUP}\n100%\nred end\n" in text, text
        assert "rank 0" not in text, text
        assert page.evaluate("document.images.length") == 0
        pathlib.Path(folder, "say0").touch()
        page.wait_for(f"({output}).endsWith('rank 1 has seen file 0\\n')")
        # A section that appears leaves the scroll position of the others.
        page.evaluate("{ const {style} = document.getElementById('rank-output'); "
                      "style.height = '2em'; style.overflow = 'auto'; }")
        page.evaluate("document.getElementById('rank-output').scrollTop = 7")
        page.evaluate("document.querySelector('[data-section=head]').remove()")
        page.wait_for("document.querySelector('[data-section=head]') !== null")
        assert page.evaluate("document.getElementById('rank-output').scrollTop") == 7

        pid = int(page.evaluate("[...document.querySelectorAll('#chosen-rank dt')].find("
                                "(one) => one.textContent === 'process').nextSibling.textContent"))
        os.kill(pid, signal.SIGKILL)
        page.wait_for(f"({output}).includes('generation 1 begins')")
        page.wait_for(f"({output}).split('rank 1 begins').length === 3")

        service.terminate()
        assert service.wait(PATIENCE) == 0
        page.wait_for_text("not connected")
        stack.enter_context(serve(binaries, folder, address))
        page.wait_for("document.getElementById('link').textContent === 'live'")
        page.wait_for(f"{note} === ''")
        pathlib.Path(folder, "say1").touch()
        page.wait_for(f"({output}).endsWith('rank 1 has seen file 1\\n')")
        assert "rank 0" not in page.evaluate(output)
        # The last lines come, also after the page knows that the job has ended.
        pathlib.Path(folder, "go").touch()
        page.wait_for_text("This job has succeeded")
        page.wait_for(f"({output}).endsWith('rank 1 ends\\n')")
        page.wait_for(f"{note} === 'The job has ended.'")
        # A new run of the job: the open page shows what it writes.
        pathlib.Path(folder, "go").unlink()
        stack.enter_context(job())
        page.wait_for(f"({output}).includes('rank 1 begins')")
        page.wait_for(f"!({output}).includes('rank 1 ends')")
        # A browser logs failed connections and refusals. These are expected.
        real = [one for one in page.errors if "ERR_CONNECTION" not in one and "net::" not in one
                and "/flight/7?" not in one]
        assert real == [], real


def main() -> None:
    browser.find()
    binaries = pathlib.Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as runtime:
        # The jobs of other tests on this host are not found.
        os.environ["XDG_RUNTIME_DIR"] = runtime
        press_buttons(binaries)
        look_at_a_rank(binaries)
        end_by_hand(binaries)
        ask_for_a_write_token(binaries)
        look_through_a_service(binaries)
        follow_a_rank_at_its_service(binaries)
    print("buttons are pressed by those who may, and by no others")


main()
