"""The parts that the callbacks of all frameworks have."""

from __future__ import annotations

import sys
from typing import Any, Callable

from ddprun._progress import long_wait
from ddprun._save import announce_checkpoint, announcements_matter, save_requested


class SaveRequests:
    """Asks every `every` steps whether to save. All ranks do so at the same steps."""

    def __init__(self, every: int) -> None:
        if every < 1:
            raise ValueError(f"ProgressCallback: invalid value {every} of every (expected 1 or "
                             "more)")
        self._every = every
        self._asked_at = -1

    def requested_at(self, step: int) -> bool:
        """Returns whether a request has come. Asks once in a step, however often it is called."""
        if step == self._asked_at or step % self._every != 0:
            return False
        self._asked_at = step
        return save_requested()


def announce_on_rank_0(step: int, is_rank_0: bool) -> None:
    """Announces a checkpoint when all ranks have written their parts of it. Collective.

    It does not wait for them where the launcher reads no announcements.
    """
    if not announcements_matter():
        return
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        with long_wait():
            distributed.barrier()
    if is_rank_0:
        announce_checkpoint(step)


def made_when_used(module: str, name: str, own: type,
                   find_bases: Callable[[], list[type]]) -> Callable[[str], Any]:
    """Returns the ``__getattr__`` of a module whose class `name` has bases of another package.

    It makes the class from `own` and these bases when a program uses it.
    """

    def get(wanted: str) -> Any:
        if wanted != name:
            raise AttributeError(f"module '{module}' has no attribute '{wanted}'")
        made = type(name, (own, *find_bases()), {"__doc__": own.__doc__, "__module__": module})
        setattr(sys.modules[module], name, made)
        return made

    return get
