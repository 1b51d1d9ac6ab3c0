"""The callback for Lightning, version 2 and newer: ``lightning`` and ``pytorch_lightning``."""

from __future__ import annotations

import importlib
import math
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, Optional

from ddprun._callback import SaveRequests, announce_on_rank_0, made_when_used
from ddprun._environment import of_ddprun
from ddprun._progress import report_activity, report_progress
from ddprun._save import listen_for_save_requests

__all__ = ["ProgressCallback"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
SAVED_NAME = "last-ddprun.ckpt"  # ckpt_path="last" finds it


class _Progress:
    """Reports steps, and answers requests to save.

    Parameters
    ----------
    every
        The number of steps between two looks for requests. Each look is a small all_reduce, if the
        launcher has a ``--checkpoint-signal`` or ``--requeue``.
    path
        The checkpoint that is saved on request. By default ``last-ddprun.ckpt`` in the folder of
        the trainer's first ModelCheckpoint, else in ``default_root_dir``. ``ckpt_path="last"``
        continues from it if that folder is the same in each run (``ModelCheckpoint(dirpath=...)``).
    leave
        After the save the program ends with 0, and ddprun with 75. False: training stops, and
        ``fit`` returns as after ``trainer.should_stop``.
    """

    def __init__(self, every: int = 1, path: Optional[str] = None, leave: bool = True) -> None:
        super().__init__()
        self._requests = SaveRequests(every)
        self._path = path
        self._leave = leave
        self._leaves = False
        self._total: Optional[int] = None

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Listens for requests.

        If SIGUSR1 has a handler, Lightning sets none of its own for it, also under Slurm.

        Raises
        ------
        ValueError
            The signal is SIGTERM, at which Lightning stops the training by itself.
        """
        if of_ddprun().checkpoint_signal == signal.SIGTERM:
            raise ValueError("ProgressCallback: --checkpoint-signal=TERM is not possible with "
                             "Lightning, which has a handler of its own for SIGTERM (use USR1)")
        listen_for_save_requests()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Finds out how many steps the training has."""
        try:
            steps = trainer.estimated_stepping_batches  # infinite if it is not known
        except Exception:  # accumulate_grad_batches changes from epoch to epoch
            steps = trainer.max_steps  # -1 if it is not known
        self._total = int(steps) if math.isfinite(steps) else None

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *batch: Any,
                           **options: Any) -> None:
        """Reports the step, and saves if that was requested."""
        step = trainer.global_step
        report_progress(step, self._total)
        if not self._requests.requested_at(step):
            return
        trainer.save_checkpoint(self._path or self._default_path(trainer))
        announce_on_rank_0(step, trainer.is_global_zero)
        if self._leave:
            for logger in trainer.loggers:
                logger.finalize("success")
            self._leaves = True
            sys.exit(0)
        trainer.should_stop = True

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Goes on with the end of the program.

        After this hook Lightning would tell its loggers that the training has failed.
        """
        if self._leaves:
            raise exception

    def on_validation_batch_end(self, trainer: Any, pl_module: Any, *batch: Any,
                                **options: Any) -> None:
        """Reports activity."""
        report_activity()

    @staticmethod
    def _default_path(trainer: Any) -> str:
        saver = trainer.checkpoint_callback
        folder = getattr(saver, "dirpath", None) or trainer.default_root_dir
        return os.path.join(folder, SAVED_NAME)


if TYPE_CHECKING:
    from lightning.pytorch.callbacks import Callback

    class ProgressCallback(_Progress, Callback):  # type: ignore[misc]
        __doc__ = _Progress.__doc__


def _bases() -> list[type]:
    """Returns the callbacks of all packages that are there."""
    bases: list[type] = []
    # A program that has imported one of them uses that one.
    for package in [one for one in _PACKAGES if one in sys.modules] or _PACKAGES:
        try:
            bases.append(importlib.import_module(f"{package}.callbacks").Callback)
        except ModuleNotFoundError as error:
            if not package.startswith(str(error.name)):
                raise
    if not bases:
        raise ModuleNotFoundError("ddprun.lightning needs lightning or pytorch_lightning (pip "
                                  "install lightning)")
    return bases


__getattr__ = made_when_used(__name__, "ProgressCallback", _Progress, _bases)
