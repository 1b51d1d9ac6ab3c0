"""The request to save and to leave (``--checkpoint-signal``, ``--requeue``), and the announcement
of a checkpoint."""

from __future__ import annotations

import os
import signal
import sys
import threading
import warnings
from typing import Any, Optional

from ddprun._environment import of_ddprun
from ddprun._store import StoreClient

_ANNOUNCEMENT_PATIENCE = 5.0  # seconds
_DEFAULT_TIMEOUT = 1800.0  # seconds; that of PyTorch's groups
_CHECKPOINT_KEY = "ddprun/checkpoint"

_requested = False
_listening = False


def _on_signal(number: int, frame: object) -> None:
    global _requested
    _requested = True


def listen_for_save_requests() -> None:
    """Makes the launcher's signal a request to save, from now on.

    The launcher starts workers with the signal blocked, so a signal that came earlier counts, too.
    The first `save_requested` calls this. Call it yourself if that one is not called on the main
    thread. Without a launcher, or without ``--checkpoint-signal``, it does nothing. A handler that
    the program has set for the signal is replaced.

    Raises
    ------
    RuntimeError
        This is not the main thread, on which Python handles signals.
    """
    global _listening
    number = of_ddprun().checkpoint_signal
    if _listening or number == 0:
        return
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "listen for save requests: Python handles signals on its main thread only (call "
            "ddprun.listen_for_save_requests() there once, before another thread asks)")
    signal.signal(number, _on_signal)
    signal.siginterrupt(number, False)  # calls of libraries are repeated, not ended with EINTR
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    _listening = True


def save_requested(group: Optional[Any] = None) -> bool:
    """Returns whether the job is asked to save a checkpoint and to end.

    It is a collective call: all ranks call it equally often, and get the same answer. If one node
    was asked, all ranks learn it. Save, then end with 0 on every rank: ddprun ends with 75,
    "start the job again", or puts the job back into the queue (``--requeue``). Where no request can
    come it returns False at once.

    Parameters
    ----------
    group
        The process group of ``torch.distributed`` through which the ranks agree. By default it is
        the default group, if it is initialized. Otherwise the ranks agree through the store of
        their generation, without PyTorch.

    Raises
    ------
    RuntimeError
        The first call is not on the main thread (see `listen_for_save_requests`).
    TimeoutError
        Without a group: not all ranks have called it within ``DDPRUN_TIMEOUT`` (1800) seconds.
    """
    environment = of_ddprun()
    if environment.checkpoint_signal == 0:
        return False  # the same on every rank
    listen_for_save_requests()
    torch_distributed = sys.modules.get("torch.distributed")
    if group is not None or (torch_distributed is not None and torch_distributed.is_available()
                             and torch_distributed.is_initialized()):
        return _any_rank_of_group(_requested, group)
    if environment.world_size == 1:
        return _requested
    return _agreement.any_rank(_requested)


def _any_rank_of_group(mine: bool, group: Optional[Any]) -> bool:
    import torch
    import torch.distributed as dist

    if dist.get_world_size(group) == 1:
        return mine
    # Such as "cpu:gloo,cuda:nccl". A tensor on the CPU spares a copy from the device.
    devices = [one.partition(":")[0] for one in str(dist.get_backend_config(group)).split(",")]
    asked = torch.tensor([int(mine)], dtype=torch.int32,
                         device="cpu" if "cpu" in devices else devices[0])
    dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=group)
    return bool(asked.item())


def _timeout() -> float:
    text = os.environ.get("DDPRUN_TIMEOUT") or str(_DEFAULT_TIMEOUT)
    try:
        timeout = float(text)
    except ValueError:
        timeout = 0.0
    if not timeout > 0.0:
        raise ValueError(f"save_requested: read environment variable DDPRUN_TIMEOUT: invalid value "
                         f"'{text}' (expected seconds above zero)")
    return timeout


class _Agreement:
    """Lets all ranks of the generation agree through its store. One thread at a time uses it.

    Call n has a counter, to which every rank adds 1, and 2**32 if it was asked. The rank that comes
    last sets the answer. It deletes the keys of call n-1, which all have read.
    """

    def __init__(self) -> None:
        self._store: Optional[StoreClient] = None
        self._calls = 0

    def any_rank(self, mine: bool) -> bool:
        environment = of_ddprun()
        timeout = _timeout()
        try:
            if self._store is None:
                self._store = StoreClient(environment, min(timeout, 60.0))
            store = self._store
            self._calls += 1
            place = f"ddprun/save/{self._calls}"
            total = store.add(f"{place}/ranks", 1 + (int(mine) << 32))
            if total & 0xFFFFFFFF < environment.world_size:
                return store.wait(f"{place}/answer", timeout) == "1"
            answer = total >> 32 > 0
            store.set(f"{place}/answer", str(int(answer)))
            if self._calls > 1:
                for key in ("ranks", "answer"):
                    store.delete(f"ddprun/save/{self._calls - 1}/{key}")
            return answer
        except TimeoutError as error:
            raise TimeoutError(
                f"save_requested: rank {environment.rank} waited for call {self._calls} of all "
                f"{environment.world_size} ranks: {error} (every rank must call it equally "
                "often)") from None
        except OSError as error:
            raise ConnectionError(f"save_requested: rank {environment.rank} could not ask the "
                                  f"other ranks through the store: {error}") from error


_agreement = _Agreement()


def announce_checkpoint(step: int) -> None:
    """Announces to the launcher that the checkpoint of a step is complete.

    New nodes may then join (``--on-join=checkpoint``). Call it on one rank, when the checkpoint can
    be read. It takes 10 s at most. A failure is a warning, because the checkpoint is complete.

    Parameters
    ----------
    step
        The step of the checkpoint, for people to read.
    """
    environment = of_ddprun()
    if not environment.agent_store:  # nobody reads it: another launcher, or the store of rank 0
        return
    try:
        store = StoreClient(environment, _ANNOUNCEMENT_PATIENCE)
        try:
            store.set(_CHECKPOINT_KEY, str(step))
        finally:
            store.close()
    except OSError as error:
        warnings.warn(f"announce the checkpoint of step {step}: {error}", RuntimeWarning,
                      stacklevel=2)
