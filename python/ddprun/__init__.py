"""ddprun for Python: progress, save requests and failures of a training script, and jobs.

The import registers the backend "ddprun" of torch.distributed.

Where no launcher has started the process, the functions for training scripts do nothing, cheaply:
`report_progress`, `report_activity`, `long_wait`, `save_requested`, `listen_for_save_requests` and
`announce_checkpoint`. None of them needs PyTorch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ddprun import _registration
from ddprun._environment import Environment, generation, restart_count
from ddprun._progress import long_wait, report_activity, report_progress
from ddprun._record import record
from ddprun._save import announce_checkpoint, listen_for_save_requests, save_requested
from ddprun._version import VERSION as __version__

if TYPE_CHECKING:
    from ddprun import checkpoint
    from ddprun._job import Job, JobError, JobNotFoundError, JobStatus, LogLine, Worker, jobs
    from ddprun._launch import LaunchError, RemoteTraceback, launch

__all__ = [
    "Environment",
    "Job",
    "JobError",
    "JobNotFoundError",
    "JobStatus",
    "LaunchError",
    "LogLine",
    "RemoteTraceback",
    "Worker",
    "__version__",
    "announce_checkpoint",
    "checkpoint",
    "generation",
    "jobs",
    "launch",
    "listen_for_save_requests",
    "long_wait",
    "record",
    "report_activity",
    "report_progress",
    "restart_count",
    "save_requested",
]

# These are imported at their first use: a worker needs none of them.
_LATER = {
    **dict.fromkeys(("Job", "JobError", "JobNotFoundError", "JobStatus", "LogLine", "Worker",
                     "jobs"), "_job"),
    **dict.fromkeys(("LaunchError", "RemoteTraceback", "launch"), "_launch"),
}


def __getattr__(name: str) -> Any:
    if name == "checkpoint":
        return importlib.import_module("ddprun.checkpoint")
    if name not in _LATER:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    value = globals()[name] = getattr(importlib.import_module(f"ddprun.{_LATER[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


_registration.register()
