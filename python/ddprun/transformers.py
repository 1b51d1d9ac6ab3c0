"""The callback for the Trainer of Hugging Face's ``transformers``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ddprun._callback import SaveRequests, announce_on_rank_0, made_when_used
from ddprun._progress import report_activity, report_progress
from ddprun._save import listen_for_save_requests

__all__ = ["ProgressCallback"]


class _Progress:
    """Reports steps, announces checkpoints, and answers requests to save.

    Parameters
    ----------
    every
        The number of steps between two looks for requests. Each look is a small all_reduce, if the
        launcher has a ``--checkpoint-signal`` or ``--requeue``.
    leave
        After the save the program ends with 0, and ddprun with 75. False: training stops, and
        ``train`` returns.

    Notes
    -----
    A requested save takes the place of an evaluation at the same step, which could prevent it
    (``save_strategy="best"``).
    """

    def __init__(self, every: int = 1, leave: bool = True) -> None:
        super().__init__()
        self._requests = SaveRequests(every)
        self._leave = leave
        self._must_save = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Listens for requests."""
        self._must_save = False
        listen_for_save_requests()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Reports the step. If a save was requested, the Trainer saves and stops."""
        report_progress(state.global_step, state.max_steps)
        if self._requests.requested_at(state.global_step):
            self._must_save = True
            control.should_training_stop = True
        return self._save_now(control)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Requests the save again if something else has prevented it."""
        return self._save_now(control)

    def _save_now(self, control: Any) -> Any:
        if self._must_save:
            control.should_save = True
            control.should_evaluate = False
        return control

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Reports activity."""
        report_activity()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Announces the checkpoint. Ends the program if it was requested."""
        announce_on_rank_0(state.global_step, state.is_world_process_zero)
        if self._must_save:
            self._must_save = False
            # At the end of the training the Trainer may delete the checkpoint, if it is not the
            # best one.
            if self._leave:
                sys.exit(0)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Fails if the Trainer has not saved, although that was requested.

        Raises
        ------
        RuntimeError
            An exit code of 0 would tell the launcher that there is a checkpoint.
        """
        if self._must_save:
            raise RuntimeError(f"ProgressCallback: the Trainer saved no checkpoint at step "
                               f"{state.global_step}, although the launcher had asked for one "
                               "(does another callback reset control.should_save?)")


if TYPE_CHECKING:
    from transformers import TrainerCallback

    class ProgressCallback(_Progress, TrainerCallback):  # type: ignore[misc]
        __doc__ = _Progress.__doc__


def _bases() -> list[type]:
    from transformers import TrainerCallback as Base

    return [Base]


__getattr__ = made_when_used(__name__, "ProgressCallback", _Progress, _bases)
