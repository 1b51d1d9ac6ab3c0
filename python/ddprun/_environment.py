"""Reads the environment with which the launcher has started this process."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import sys
from typing import Mapping, Optional

_MAX_WORLD = 1 << 24
_DEFAULT_PORT = 29500  # torchrun's


def _number(variables: Mapping[str, str], name: str, low: int, high: int,
            default: Optional[int] = None) -> int:
    """Returns the value of an integer variable, which must be in low..high."""
    text = variables.get(name)
    if text is None:
        if default is None:
            raise ValueError(f"read environment variable {name}: not set, although other variables "
                             "of the launcher are")
        return default
    value = int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None
    if value is None or not low <= value <= high:
        allowed = f"an integer from {low} to {high}" if low < high else str(high)
        raise ValueError(f"read environment variable {name}: invalid value '{text}' "
                         f"(expected {allowed})")
    return value


@dataclasses.dataclass(frozen=True)
class Environment:
    """The place of this process in its job. The defaults are those of a world of one.

    ``docs/reference/worker_environment.md`` explains the variables.

    Attributes
    ----------
    rank, world_size : int
        ``RANK`` and ``WORLD_SIZE``.
    local_rank, local_world_size : int
        The same among the workers of this node.
    node_rank, node_count : int
        ``GROUP_RANK`` and ``GROUP_WORLD_SIZE``.
    role : str
        ``ROLE_NAME``.
    master_addr, master_port
        The address of this generation's store.
    agent_store : bool
        The launcher hosts the store. Otherwise rank 0 hosts it.
    restart_count, max_restarts : int
        The restarts that the job has used, and ``--max-restarts``.
    run_id : str
        The job's id.
    error_file : str
        The file for an error report (see `record`); empty: there is none.
    generation : int
        The number of the generation, from 0. Under torchrun: the restart count.
    submission : str
        A text that is the same in all generations of this job, and in no other job. Empty: unknown.
    checkpoint_signal : int
        The number of the signal that asks this process to save; 0: there is none.
    page : str
        ``OFFSET@FILE`` of the page to which progress is reported; empty: there is none.
    launched : bool
        A launcher has started this process: ``RANK`` or ``WORLD_SIZE`` is set.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    node_rank: int = 0
    node_count: int = 1
    role: str = "default"
    master_addr: str = "127.0.0.1"
    master_port: int = _DEFAULT_PORT
    agent_store: bool = False
    restart_count: int = 0
    max_restarts: int = 0
    run_id: str = "none"
    error_file: str = ""
    generation: int = 0
    submission: str = ""
    checkpoint_signal: int = 0
    page: str = ""
    launched: bool = False

    @classmethod
    def current(cls) -> Environment:
        """Reads the environment of this process.

        Returns
        -------
        Environment
            The place of this process; without a launcher, that of a world of one.

        Raises
        ------
        ValueError
            A variable is missing or invalid. The text names it.
        """
        return cls.from_env(os.environ)

    @classmethod
    def from_env(cls, variables: Mapping[str, str]) -> Environment:
        """Reads the variables of a mapping, as `current` reads those of this process.

        Parameters
        ----------
        variables
            Names and values, as in ``os.environ``.

        Raises
        ------
        ValueError
            A variable is missing or invalid. The text names it.
        """
        if "RANK" not in variables and "WORLD_SIZE" not in variables:
            return cls()

        def number(name: str, low: int, high: int, default: Optional[int] = None) -> int:
            return _number(variables, name, low, high, default)

        world_size = number("WORLD_SIZE", 1, _MAX_WORLD)
        rank = number("RANK", 0, world_size - 1)
        local_size = number("LOCAL_WORLD_SIZE", 1, world_size, world_size)
        nodes = number("GROUP_WORLD_SIZE", 1, world_size, -(-world_size // local_size))
        restarts = number("TORCHELASTIC_RESTART_COUNT", 0, _MAX_WORLD, 0)
        return cls(
            rank=rank,
            world_size=world_size,
            local_rank=number("LOCAL_RANK", 0, local_size - 1, rank % local_size),
            local_world_size=local_size,
            node_rank=number("GROUP_RANK", 0, nodes - 1, rank // local_size),
            node_count=nodes,
            role=variables.get("ROLE_NAME", "default"),
            master_addr=variables.get("MASTER_ADDR", "127.0.0.1"),
            master_port=number("MASTER_PORT", 1, 65535, _DEFAULT_PORT),
            agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            restart_count=restarts,
            max_restarts=number("TORCHELASTIC_MAX_RESTARTS", 0, _MAX_WORLD, 0),
            run_id=variables.get("TORCHELASTIC_RUN_ID", "none"),
            error_file=variables.get("TORCHELASTIC_ERROR_FILE", ""),
            # torchrun sets no generation: its restart count is the nearest value.
            generation=number("DDPRUN_GENERATION", 0, _MAX_WORLD, restarts),
            submission=variables.get("DDPRUN_SUBMISSION", ""),
            checkpoint_signal=number("DDPRUN_CHECKPOINT_SIGNAL", 1, 31, 0),
            page=variables.get("DDPRUN_WORKER_PAGE", ""),
            launched=True,
        )


@functools.lru_cache(maxsize=None)
def at_start() -> Environment:
    """Returns the environment as it was at the first call. Later calls cost nothing."""
    return Environment.current()


@functools.lru_cache(maxsize=None)
def of_ddprun() -> Environment:
    """Returns the environment as it was at the first call; that of a world of one under another
    launcher, whose variables may be incomplete."""
    return Environment.current() if "DDPRUN_GENERATION" in os.environ else Environment()


_was_forked = False


def _note_fork() -> None:
    global _was_forked
    _was_forked = True


os.register_at_fork(after_in_child=_note_fork)


def is_child() -> bool:
    """Returns whether a worker has started this process, by a fork or by multiprocessing.

    Children of multiprocessing inherit the environment of the worker, whose rank they do not have.
    """
    process = sys.modules.get("multiprocessing.process")  # each child of multiprocessing has it
    return _was_forked or (process is not None and process.parent_process() is not None)


def generation() -> int:
    """Returns the number of this generation, from 0: it grows with every forming of the world."""
    return at_start().generation


def restart_count() -> int:
    """Returns how many restarts the job has used."""
    return at_start().restart_count
