"""Reports the progress of this worker through its page, without a system call.

docs/how-to/hangs.md has the layout of a page.
"""

from __future__ import annotations

import contextlib
import mmap
import operator
import os
import struct
import threading
import time
from typing import ContextManager, Iterator, Optional

from ddprun._environment import is_child

_MAGIC_AND_VERSION = (0x50524444, 2)
_MAPPED_BYTES = 4096  # of a page, for the fields below
# Indexes of 64-bit words in the page.
_REPORTS, _STEP, _ACTIVITY, _LONG_WAITS = 1, 2, 3, 5
_FIRST_STEP_NS, _FIRST_STEP, _CHECKPOINT_NS, _TOTAL_STEPS = 9, 10, 11, 269
_CHECKPOINTS, _CHECKPOINT_MARKS = 273, 274
_MARKS = 32  # of 3 words: number, begin, end
_STEP_LIMIT = 1 << 63


def _map(place: str) -> Optional[mmap.mmap]:
    offset, _, path = place.partition("@")
    try:
        file = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:  # none, or of another namespace or user
        return None
    try:
        memory = mmap.mmap(file, _MAPPED_BYTES, offset=int(offset))
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    return memory if struct.unpack_from("<II", memory) == _MAGIC_AND_VERSION else None


# The page in 64-bit words, unsigned and signed. None: nothing is reported.
_words: Optional[memoryview] = None
_signed_words: Optional[memoryview] = None
_is_open = False
_lock = threading.Lock()


def _open() -> None:
    """Maps the page, if the launcher has made one that this process can use."""
    global _is_open, _words, _signed_words
    with _lock:
        if _is_open:
            return
        memory = None if is_child() else _map(os.environ.get("DDPRUN_WORKER_PAGE", ""))
        if memory is not None:
            _signed_words = memoryview(memory).cast("q")
            _words = memoryview(memory).cast("Q")
        _is_open = True


def _forget() -> None:
    """Makes all later reports do nothing, in a child that was forked."""
    global _is_open, _lock, _words, _signed_words
    _words = _signed_words = None
    _is_open = True
    _lock = threading.Lock()  # another thread may have held it at the fork


os.register_at_fork(after_in_child=_forget)


def _int64(step: int) -> int:
    number = operator.index(step)
    if not -_STEP_LIMIT <= number < _STEP_LIMIT:
        raise ValueError(f"report_progress: invalid step {number} (expected an integer of 64 bits)")
    return number


def report_progress(step: int, total: Optional[int] = None) -> None:
    """Reports that this worker has done a step. Call it once in each step.

    ``--hang-timeout`` watches a worker from its first report on. ``ddprun status`` and the status
    line show the step; ``--restart-on-progress`` and ``--requeue`` look at it.

    Parameters
    ----------
    step
        The number of steps done so far, a signed integer of 64 bits. It must grow over the whole
        training, also from one epoch to the next: ``--requeue`` ends a job whose step does not.
    total
        The number of steps of the whole training. With it ddprun says how long the rest will take.
        None, or a number below 1: it is not known, or it was said before.

    Raises
    ------
    TypeError
        `step` or `total` is not an integer. Also without a launcher, so that a test finds it.
    ValueError
        `step` or `total` has more than 64 bits. Also without a launcher.
    """
    number = _int64(step)
    steps = 0 if total is None else _int64(total)
    if not _is_open:
        _open()
    if _words is None or _signed_words is None:
        return
    if _words[_FIRST_STEP_NS] == 0:
        _signed_words[_FIRST_STEP] = number
        _words[_FIRST_STEP_NS] = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    if steps > 0:
        _signed_words[_TOTAL_STEPS] = steps
    _signed_words[_STEP] = number
    _words[_REPORTS] += 1


def report_activity() -> None:
    """Reports that this worker does something, in a long evaluation or preparation."""
    if not _is_open:
        _open()
    if _words is not None:
        _words[_ACTIVITY] += 1


class _LongWait(ContextManager[None]):
    """A wait that is counted in the page."""

    def __enter__(self) -> None:
        self._count(1)

    def __exit__(self, *exception: object) -> None:
        report_activity()
        self._count(-1)

    @staticmethod
    def _count(change: int) -> None:
        with _lock:
            if _words is not None:  # not in a child that was forked within the wait
                _words[_LONG_WAITS] += change


_LONG_WAIT = _LongWait()
_NO_WAIT = contextlib.nullcontext()


def long_wait() -> ContextManager[None]:
    """Returns a context in which this worker waits for another one for a long time.

    Within it the worker does not count as hung, for example while rank 0 evaluates and the others
    are in a barrier. Such contexts may be nested.
    """
    if not _is_open:
        _open()
    return _NO_WAIT if _words is None else _LONG_WAIT


@contextlib.contextmanager
def checkpoint_wait() -> Iterator[None]:
    """Returns a context in which the training waits for a checkpoint.

    An exception that leaves it is not a wait: its time may be that of a hang.
    """
    if not _is_open:
        _open()
    begun = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    yield
    ended = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with _lock:
        if _words is not None:  # not in a child that was forked within the wait
            _words[_CHECKPOINT_NS] += ended - begun
            number = _words[_CHECKPOINTS] + 1
            mark = _CHECKPOINT_MARKS + (number - 1) % _MARKS * 3
            _words[mark] = 0
            _words[mark + 1], _words[mark + 2] = begun, ended
            _words[mark] = number
            _words[_CHECKPOINTS] = number
