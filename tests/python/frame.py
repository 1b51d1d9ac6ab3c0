"""The common parts of the tests of the Python package: the package of the source tree, ddprun of
the build tree, and jobs.

argv[1] of each test: the folder of the programs. All tests are unittest's. They import the package
from the sources.
"""
from __future__ import annotations

import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest

SOURCES = pathlib.Path(__file__).resolve().parent.parent.parent
PATIENCE = 120.0  # seconds for one wait, on a busy machine
sys.path[:0] = [str(SOURCES / "python"), str(SOURCES / "tests/support")]
BIN = pathlib.Path(sys.argv.pop(1)) if len(sys.argv) > 1 else SOURCES / "build/release/bin"
DDPRUN = str(BIN / "ddprun")


def environment(**more: str | None) -> dict[str, str]:
    """Returns an environment without a launcher, in which ddprun and the package are found."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PET_", "DDPRUN_", "TORCHELASTIC_", "SLURM_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        kept.pop(name, None)
    kept |= {"PATH": f"{BIN}:{os.environ['PATH']}", "PYTHONPATH": str(SOURCES / "python"),
             "PYTHON_EXEC": sys.executable, "PYTHONWARNINGS": "ignore", "OMP_NUM_THREADS": "1"}
    return {name: value for name, value in (kept | more).items() if value is not None}


def run(words: list[str], code: int = 0, **options: object) -> str:
    """Runs a command to its end. Returns what it wrote."""
    options.setdefault("env", environment())
    result = subprocess.run([str(word) for word in words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, timeout=PATIENCE, check=False, **options)
    assert result.returncode == code, f"{words}: exit code {result.returncode}\n{result.stdout}"
    return result.stdout


class Job:
    """A ddprun that runs a program."""

    def __init__(self, folder: pathlib.Path, words: list, **env: str | None):
        self.output = ""
        self.process = subprocess.Popen(
            [DDPRUN, *map(str, words)], cwd=folder, env=environment(**env), start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def read_until(self, pattern: str, times: int = 1) -> str:
        deadline = time.monotonic() + PATIENCE
        while len(re.findall(pattern, self.output, re.MULTILINE)) < times:
            ready = select.select([self.process.stdout], [], [],
                                  max(0.0, deadline - time.monotonic()))[0]
            assert ready, f"no '{pattern}' in:\n{self.output}"
            more = os.read(self.process.stdout.fileno(), 1 << 16).decode(errors="replace")
            assert more, f"it ended without '{pattern}':\n{self.output}"
            self.output += more
        return self.output

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self, code: int = 0) -> str:
        try:
            rest = self.process.communicate(timeout=PATIENCE)[0].decode(errors="replace")
        finally:
            self.kill()
        self.output += rest
        assert self.process.returncode == code, (
            f"exit code {self.process.returncode}:\n{self.output}")
        return self.output

    def kill(self) -> None:
        """Ends the job if it still runs."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        self.process.stdout.close()


class Test(unittest.TestCase):
    """A test with a folder of its own, and with jobs that end with it."""

    def setUp(self) -> None:
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def script(self, text: str, name: str = "train.py") -> pathlib.Path:
        file = self.folder / name
        file.write_text(textwrap.dedent(text))
        return file

    def job(self, words: list, **env: str | None) -> Job:
        job = Job(self.folder, words, **env)
        self.addCleanup(job.kill)
        return job


main = unittest.main
