"""Plants a trouble in each of five jobs, and finds it by the page alone and by `ddprun top` alone.

The troubles are a rank that is 20 % slow, a rank that hangs, a crash loop, a full disk for the
program, and one for its log files. The page is looked at in a real browser, a headless Chromium.
argv[1]: the folder of the programs.
"""
import contextlib
import fcntl
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time

sys.path.append(f"{sys.path[0]}/../../support")
import browser  # noqa: E402
import needs  # noqa: E402

browser.find()

PATIENCE = 60.0  # seconds: a trouble is named within a minute
RETRY_PATIENCE = 90.0  # the times between retries of a log file become 60 s
FULL_DISK = "open('/dev/full', 'w').write('x' * 100_000)"
# Root in a container may have no right to mount.
MAY_MOUNT = os.geteuid() == 0 and subprocess.run(
    ["unshare", "-m", "mount", "-t", "tmpfs", "none", "/tmp"]).returncode == 0
# A small disk that is full, in a mount namespace of its own.
WITH_A_DISK = ("mount -t tmpfs -o size=256k none disk "
               "&& ! head -c 300k /dev/zero 2>/dev/null >disk/filler && exec \"$@\"")
TALKS = "while :; do echo a line; sleep 0.1; done"
CRASH_LOOP = "import time; time.sleep(2); raise ValueError('bad batch')"


class Troubles:
    """A service and the jobs, as a context manager."""

    def __init__(self, binaries: pathlib.Path) -> None:
        self._binaries = binaries
        self._folder = tempfile.TemporaryDirectory()
        self._jobs: dict[str, subprocess.Popen] = {}
        self._service = subprocess.Popen(
            [binaries / "ddp-rendezvous", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True)
        self.address = self._service.stdout.readline().split()[-1]

    def __enter__(self) -> "Troubles":
        return self

    def __exit__(self, *_) -> None:
        for job in self._jobs.values():
            job.terminate()
        for job in self._jobs.values():
            job.wait(PATIENCE)
        self._service.terminate()
        assert self._service.wait(PATIENCE) == 0
        self._folder.cleanup()

    def start(self, job: str, *arguments: str, around: tuple = (), **variables: str) -> None:
        settings = [f"--env={name}={value}" for name, value in variables.items()]
        self._jobs[job] = subprocess.Popen(
            [*around, self._binaries / "ddprun", f"--rdzv-endpoint={self.address}",
             f"--rdzv-id={job}", *settings, *arguments], cwd=self._folder.name,
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def plant(self) -> None:
        worker = str(self._binaries / "worker_test_rank")
        self.start("slow", "--nproc-per-node=4", worker, "slow_steps", STEPS_SECONDS="300")
        self.start("hangs", "--nproc-per-node=3", worker, "hang")
        python = [sys.executable, "-c"]
        self.start("crashes", "--nproc-per-node=2", "--max-restarts=1000", *python, CRASH_LOOP)
        self.start("full", "--nproc-per-node=2", *python, FULL_DISK)
        if not MAY_MOUNT:
            return
        pathlib.Path(self._folder.name, "disk").mkdir()
        self.start("logs", "--nproc-per-node=2", "--log-dir=disk", "-r", "3", "sh", "-c",
                   TALKS, around=("unshare", "-m", "sh", "-c", WITH_A_DISK, "sh"))

    def make_room(self) -> None:
        """Makes room on the disk of the log files."""
        job = self._jobs["logs"].pid
        pathlib.Path(f"/proc/{job}/root{self._folder.name}/disk/filler").unlink()

    def top(self, job: str) -> str:
        return self._ask("top", "--once", job)

    def status(self, job: str) -> str:
        return self._ask("status", job)

    def _ask(self, command: str, *arguments: str) -> str:
        done = subprocess.run(
            [self._binaries / "ddprun", command, f"--rdzv-endpoint={self.address}", *arguments],
            capture_output=True, text=True, timeout=PATIENCE)
        return done.stdout + done.stderr

    def screen(self, job: str) -> str:
        """Returns what top shows on a terminal of 80 columns and 24 rows."""
        main, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        shown = subprocess.Popen(
            [self._binaries / "ddprun", "top", f"--rdzv-endpoint={self.address}", job],
            stdin=terminal, stdout=terminal, stderr=terminal, env=os.environ | {"TERM": "xterm"})
        os.close(terminal)
        deadline = time.monotonic() + PATIENCE

        def read() -> bytes:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([main], [], [], left)[0], f"top is silent after {written!r}"
            return os.read(main, 1 << 16)

        written = b""
        try:
            while b"q quit" not in written:
                written += read()
            os.write(main, b"q")
            with contextlib.suppress(OSError):  # the terminal is closed at the other end
                while read():
                    pass
            assert shown.wait(PATIENCE) == 0
        finally:
            shown.kill()
            shown.wait()
            os.close(main)
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written.decode())


def eventually(look, pattern: str, patience: float = PATIENCE) -> None:
    """Waits until the text that `look` returns has the pattern."""
    deadline = time.monotonic() + patience
    while not re.search(pattern, text := look(), re.DOTALL):
        assert time.monotonic() < deadline, f"no {pattern!r} in:\n{text}"
        time.sleep(0.5)


FIRST = r"No space left on device \(first \S*disk/\S+/stdout.log\)"
# What names the trouble: in the view of top, and in the page.
SEEN = {
    "slow": (r"rank 2 is slow: .*RANK[^\n]*\n *2 .*the others wait \d+ %",
             r"rank 2 is slow: .*2 !.*the others wait \d+ %"),
    "hangs": (r"ranks 0,2 have waited 10 s or longer in a collective; rank 1 has not"
              r".*RANK[^\n]*WAITS[^\n]*\n *1 ",
              r"ranks 0,2 have waited 10 s or longer in a collective; rank 1 has not.*◷"),
    "crashes": (r"restarts: [1-9]\d* of 1000.*ValueError: bad batch",
                r"Generation \d+ failed: rank \d[^\n]*ValueError: bad batch"),
    "logs": 2 * (f"log files are not written, so output is lost: {FIRST}",),
    "full": (r"last failure: .*No space left on device",
             r"has failed[^\n]*\n+rank \d[^\n]*No space left on device"),
}

# What names the trouble on a terminal of 80 columns.
ON_SCREEN = {
    "slow": r"rank 2 is slow: the others wait \d+ %",
    "crashes": r"last failure: generation \d+: rank \d.*ValueError:\s+bad\s+batch",
    "full": r"last failure: .*No\s+space\s+left\s+on\s+device",
}


def look_at_calls(troubles: Troubles, page: browser.Browser) -> None:
    """The last calls of a rank, on the service's page."""
    page.open(f"http://{troubles.address}/#job=slow&rank=1")
    eventually(lambda: page.evaluate("document.getElementById('rank-flight')?.textContent ?? ''"),
               r"rank 1 \(local rank 1 on .*, the last 20:\n.* world .* all_reduce .* took ")


def look_when_there_is_room(troubles: Troubles, page: browser.Browser) -> None:
    """The log files are written again. That lines are lost stays true."""
    assert re.search(SEEN["logs"][0], troubles.status("logs")), troubles.status("logs")
    troubles.make_room()
    over = rf"\d+ bytes are missing in log files: {FIRST}"
    eventually(lambda: troubles.top("logs"), over, RETRY_PATIENCE)
    page.open(f"http://{troubles.address}/#job=logs")
    eventually(page.text, rf"{over}.*Nodes and ranks.*Events.*{over}.*log files are not written")
    assert re.search(over, troubles.status("logs")), troubles.status("logs")


def main() -> None:
    with Troubles(pathlib.Path(sys.argv[1])) as troubles, browser.Browser() as page:
        troubles.plant()
        for job, (in_top, in_page) in SEEN.items():
            if job == "logs" and not MAY_MOUNT:
                print("not checked: full log files; this user may not mount a small disk")
                continue
            eventually(lambda job=job: troubles.top(job), in_top)
            page.open(f"http://{troubles.address}/#job={job}")
            eventually(page.text, in_page)
        for job, on_screen in ON_SCREEN.items():
            eventually(lambda job=job: troubles.screen(job), on_screen)
        look_at_calls(troubles, page)
        if MAY_MOUNT:
            look_when_there_is_room(troubles, page)
        assert page.errors == [], page.errors
    print("each of the troubles is named by the page alone and by top alone")


main()
