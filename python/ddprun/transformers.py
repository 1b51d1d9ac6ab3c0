"""The callback for the Trainer of Hugging Face's ``transformers``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from ddprun._callback import SaveRequests, announce_on_rank_0
from ddprun._progress import report_activity, report_progress
from ddprun._save import listen_for_save_requests

__all__ = ["ProgressCallback"]


class _Progress:
    """Reports steps, announces checkpoints, and answers requests to save.

    Parameters
    ----------
    every
        The ranks ask for requests every so many steps: one small all_reduce each, if the launcher
        has a ``--checkpoint-signal`` or ``--requeue``.
    leave
        After the save the program ends with 0, and ddprun with 75. False: training stops, and
        ``train`` returns.
    """

    def __init__(self, every: int = 1, leave: bool = True) -> None:
        super().__init__()
        self._requests = SaveRequests(every)
        self._leave = leave
        self._was_requested = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Listens for requests."""
        self._was_requested = False
        listen_for_save_requests()

    def on_step_end(self, args: Any, state: Any, control: Any, **more: Any) -> Any:
        """Reports the step. If a save was requested, the Trainer saves and stops."""
        report_progress(state.global_step)
        if self._requests.come_at(state.global_step):
            self._was_requested = True
            control.should_save = True
            control.should_training_stop = True
        return control

    def on_prediction_step(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Reports activity."""
        report_activity()

    def on_save(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Announces the checkpoint."""
        announce_on_rank_0(state.global_step, state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        """Ends the program if a save was requested."""
        if self._was_requested and self._leave:
            sys.exit(0)


if TYPE_CHECKING:
    from transformers import TrainerCallback

    class ProgressCallback(_Progress, TrainerCallback):  # type: ignore[misc]
        __doc__ = _Progress.__doc__


def __getattr__(name: str) -> Any:
    """Makes the class when it is used."""
    if name != "ProgressCallback":
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    from transformers import TrainerCallback as Base

    made = type(name, (_Progress, Base), {"__doc__": _Progress.__doc__, "__module__": __name__})
    globals()[name] = made
    return made
