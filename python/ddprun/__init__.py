"""ddprun for Python: what a training script needs from the launcher.

The import registers the backend "ddprun" of torch.distributed.

Every function here does nothing, cheaply, where no launcher has started the process. None of them
needs PyTorch.
"""

from __future__ import annotations

from ddprun import _registration
from ddprun._environment import Environment, generation, restart_count
from ddprun._job import Job, JobError, JobNotFoundError, JobStatus, LogLine, Worker, jobs
from ddprun._launch import LaunchError, RemoteTraceback, launch
from ddprun._progress import long_wait, report_activity, report_progress
from ddprun._record import record
from ddprun._save import announce_checkpoint, listen_for_save_requests, save_requested
from ddprun._version import VERSION as __version__

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

_registration.register()
