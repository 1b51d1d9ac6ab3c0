"""How the ranks of a training talk to each other about checkpoints: through a group or the store.

All methods are collective. Values are JSON, and small: a rank's position, its generator, a failure.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any, Callable, Iterator, Mapping, Optional

from ddprun._checkpoint.names import (BeyondReaderError, CheckpointError, DamagedError,
                                      DirectoryTakenError, UnsupportedError)
from ddprun._environment import Environment, of_ddprun
from ddprun._progress import long_wait
from ddprun._save import _DEFAULT_TIMEOUT, _STORE_PATIENCE, device_of_group
from ddprun._store import StoreClient

_ERRORS: dict[str, type[Exception]] = {
    one.__name__: one for one in (BeyondReaderError, CheckpointError, DamagedError,
                                  DirectoryTakenError, TimeoutError, TypeError, UnsupportedError,
                                  ValueError)}


def to_report(error: Exception) -> dict[str, Any]:
    """Returns an error as JSON, for the other ranks."""
    if isinstance(error, OSError) and error.errno is not None:
        return {"kind": "OSError", "errno": error.errno, "text": error.strerror}
    return {"kind": type(error).__name__, "text": str(error)}


def from_report(report: Mapping[str, Any], prefix: str = "") -> Exception:
    """Returns the error of another rank. prefix: stands before its text."""
    kind, text = report["kind"], f"{prefix}{report['text']}"
    if "errno" in report:
        return OSError(report["errno"], text)
    return _ERRORS[kind](text) if kind in _ERRORS else RuntimeError(f"{kind}: {text}")


class Ranks:
    """The ranks of a training. This class is a world of one."""

    rank = 0
    size = 1
    group: Optional[Any] = None

    def gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks on rank 0, and an empty list elsewhere."""
        return [value]

    def broadcast(self, value: Any) -> Any:
        """Returns rank 0's value. The wait for it does not count as a hang."""
        return value

    def all_gather(self, value: Any) -> list[Any]:
        """Returns the values of all ranks."""
        values: list[Any] = self.broadcast(self.gather(value))
        return values

    def on_rank_0(self, part: Callable[[], Any]) -> Any:
        """Runs rank 0's part of a call. Returns its result, or raises its error, on all ranks."""
        outcome: dict[str, Any] = {"failure": None}
        failure: Optional[Exception] = None
        if self.rank == 0:
            try:
                outcome["result"] = part()
            except Exception as error:
                failure = error
                outcome["failure"] = to_report(error)
        outcome = self.broadcast(outcome)
        if failure is not None:
            raise failure
        if outcome["failure"] is not None:
            raise from_report(outcome["failure"])
        return outcome["result"]

    def on_every_rank(self, part: Callable[[], None]) -> None:
        """Runs a part of a call on each rank. If one rank fails, all raise."""
        failure: Optional[Exception] = None
        try:
            part()
        except Exception as error:
            failure = error
        reports = self.all_gather(None if failure is None else to_report(failure))
        if failure is not None:
            raise failure
        for rank, report in enumerate(reports):
            if report is not None:
                raise from_report(report, f"rank {rank}: ")


class _RanksOfGroup(Ranks):
    """The ranks of a process group of torch.distributed."""

    def __init__(self, group: Optional[Any]) -> None:
        import torch.distributed as dist

        self._dist: Any = dist
        self.group = group
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("CheckpointManager: this rank is not in the group")
        self._first = 0 if group is None else dist.get_global_rank(group, 0)

    def gather(self, value: Any) -> list[Any]:
        values: list[Any] = [None] * self.size if self.rank == 0 else []
        with self._exchange():
            self._dist.gather_object(value, values if self.rank == 0 else None, dst=self._first,
                                     group=self.group)
        return values

    def broadcast(self, value: Any) -> Any:
        values = [value]
        with self._exchange():
            self._dist.broadcast_object_list(values, src=self._first, group=self.group)
        return values[0]

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Returns a context in which PyTorch sends objects through this rank's device."""
        import torch

        device = str(device_of_group(self.group))
        # Without CPU tensors PyTorch takes the current device, which may be cuda:0 on all ranks.
        current: Any = (torch.cuda.device(device) if device.startswith("cuda") else
                        contextlib.nullcontext())
        with long_wait(), current:
            yield


class _RanksOfStore(Ranks):
    """The ranks of a generation, by its store. Without PyTorch's process groups.

    Call n has a key for each rank's value, or one for rank 0's. After a gather on rank 0, and after
    a broadcast elsewhere, all have read what this rank has set before. Then it deletes those keys.
    """

    _calls = 0  # of all managers of this process: they call in the same order on all ranks

    def __init__(self, environment: Environment) -> None:
        self.rank = environment.rank
        self.size = environment.world_size
        self._environment = environment
        self._store: Optional[StoreClient] = None
        self._keys: list[str] = []

    def gather(self, value: Any) -> list[Any]:
        place = self._begin()
        if self.rank != 0:
            self._put(f"{place}/{self.rank}", value)
            return []
        values = [value, *(self._take(f"{place}/{rank}") for rank in range(1, self.size))]
        self._delete_keys()
        return values

    def broadcast(self, value: Any) -> Any:
        key = f"{self._begin()}/all"
        if self.rank == 0:
            self._put(key, value)
            return value
        with long_wait():
            answer = self._take(key)
        self._delete_keys()
        return answer

    def _begin(self) -> str:
        _RanksOfStore._calls += 1
        return f"ddprun/ranks/{_RanksOfStore._calls}"

    def _connected(self) -> StoreClient:
        if self._store is None:
            self._store = StoreClient(self._environment, _STORE_PATIENCE)
        return self._store

    def _put(self, key: str, value: Any) -> None:
        self._connected().set(key, json.dumps(value))
        self._keys.append(key)

    def _take(self, key: str) -> Any:
        try:
            text = self._connected().wait(key, _DEFAULT_TIMEOUT)
        except TimeoutError as error:
            raise TimeoutError(f"CheckpointManager: rank {self.rank} waited for the other ranks: "
                               f"{error} (every rank must make the same calls)") from None
        return json.loads(text)

    def _delete_keys(self) -> None:
        for key in self._keys:
            self._connected().delete(key)
        self._keys.clear()


def ranks_of(group: Optional[Any]) -> Ranks:
    """Returns the ranks of a group; by default of the default group, else of the generation."""
    distributed = sys.modules.get("torch.distributed")
    if group is not None or (distributed is not None and distributed.is_available()
                             and distributed.is_initialized()):
        ranks: Ranks = _RanksOfGroup(group)
        if ranks.size == 1:
            ranks = Ranks()
            ranks.group = group
        return ranks
    environment = Environment.current()
    if environment.world_size == 1:
        return Ranks()
    if of_ddprun().world_size == 1:
        raise RuntimeError("CheckpointManager: the ranks cannot meet without a process group under "
                           "this launcher, because its store outlives a restart (call "
                           "torch.distributed.init_process_group first)")
    return _RanksOfStore(environment)
