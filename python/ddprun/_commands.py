"""Commands of the user that copy checkpoints to other storage, and back."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
import warnings
from typing import Callable, Mapping, Optional

from ddprun._progress import report_activity

_LOOK = 0.2  # seconds
_LEAVE_PATIENCE = 10.0  # seconds
_GRACE = 2.0  # seconds between SIGTERM and SIGKILL


def run_command(command: str, variables: Mapping[str, str], is_over: Callable[[], bool]) -> None:
    """Runs a command with ``/bin/sh``, in a process group of its own.

    Parameters
    ----------
    variables
        What is added to its environment.
    is_over
        It is asked five times a second. True ends the whole group.

    Raises
    ------
    OSError
        The command cannot be started, was ended, or has failed.
    """
    with subprocess.Popen(["/bin/sh", "-c", command], stdin=subprocess.DEVNULL,
                          env={**os.environ, **variables}, start_new_session=True) as process:
        while True:
            try:
                code = process.wait(_LOOK)
                break
            except subprocess.TimeoutExpired:
                if not is_over():
                    continue
            os.killpg(process.pid, signal.SIGTERM)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                pass
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            raise OSError(f"run the command '{command}': it had not ended in time, and was ended")
    if code != 0:
        how = f"exit code {code}" if code > 0 else f"it was ended by signal {-code}"
        raise OSError(f"run the command '{command}': {how}")


class CommandRunner:
    """Runs a command for each event, one at a time, on a thread of its own.

    If events come faster than the command ends, the newest one that waits is next, and the others
    are dropped. When the program ends, Python waits for the thread, for at most `patience`
    seconds. A failure is a warning.
    """

    def __init__(self, command: str, patience: float) -> None:
        self._command, self._patience = command, patience
        self._lock = threading.Lock()
        self._waiting: Optional[Mapping[str, str]] = None
        self._is_running = False
        self._end: Optional[float] = None

    def begin(self, variables: Mapping[str, str]) -> None:
        """Returns at once."""
        with self._lock:
            self._waiting = variables
            if self._is_running:
                return
            self._is_running = True
        try:
            threading.Thread(target=self._work, name="ddprun-command").start()
        except RuntimeError as error:  # there are too many, or the program ends
            self._is_running = False
            warnings.warn(f"run the command '{self._command}': {error}", RuntimeWarning,
                          stacklevel=2)

    def hurry(self) -> None:
        """Shortens the patience, because the job's time ends."""
        self._patience = min(self._patience, _LEAVE_PATIENCE)

    def _work(self) -> None:
        try:
            while self._run_next():
                pass
        except BaseException:  # also of a warning that is an error
            with self._lock:
                self._is_running = False
            raise

    def _run_next(self) -> bool:
        with self._lock:
            variables, self._waiting = self._waiting, None
            if variables is None:
                self._is_running = False
                return False
        try:
            if self._is_over():
                raise OSError(f"run the command '{self._command}': the program ended before the "
                              "newest event")
            run_command(self._command, variables, self._is_over)
        except Exception as error:
            warnings.warn(str(error), RuntimeWarning, stacklevel=1)
        return True

    def _is_over(self) -> bool:
        if threading.main_thread().is_alive():
            return False
        report_activity()
        if self._end is None:
            self._end = time.monotonic() + self._patience
        return time.monotonic() > self._end
