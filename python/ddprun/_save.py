"""The request to save and to leave (``--checkpoint-signal``, ``--requeue``), and the announcement
of a checkpoint."""

from __future__ import annotations

import atexit
import os
import signal
import sys
import threading
import warnings
from typing import TYPE_CHECKING, Any, Optional

from ddprun._environment import Environment, is_child, of_ddprun

if TYPE_CHECKING:
    from ddprun._store import StoreClient

_STORE_PATIENCE = 60.0  # seconds for one answer of the store that needs no other rank
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
    if _listening or number == 0 or is_child():
        return
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError(
            "listen for save requests: Python handles signals on its main thread only (call "
            "ddprun.listen_for_save_requests() there once, before another thread asks)")
    # Not with SA_RESTART: the kernel would repeat the wait of thread.join() or lock.acquire(), and
    # Python would call the handler at its end only.
    signal.signal(number, _on_signal)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    # While Python ends it gives up its handlers. A signal that comes then would kill the process
    # after it has saved.
    atexit.register(signal.signal, number, signal.SIG_IGN)
    _listening = True


def save_requested(group: Optional[Any] = None) -> bool:
    """Returns whether the job is asked to save a checkpoint and to end.

    It is a collective call: all ranks call it equally often, and get the same answer. If one node
    was asked, all ranks learn it. Save, then end with 0 on every rank: ddprun ends with 75,
    "start the job again", or puts the job back into the queue (``--requeue``). Where no request can
    come it returns False at once, as in a process that a worker has forked or started with
    multiprocessing.

    Parameters
    ----------
    group
        The process group of ``torch.distributed`` through which the ranks agree. By default it is
        the default group, if it is initialized. Otherwise the ranks agree through the store of
        their generation, without PyTorch. A group with a backend for the CPU ("gloo", "ddprun") is
        better: with NCCL alone each call waits until the GPU has done all work before it.

    Raises
    ------
    RuntimeError
        The first call is not on the main thread (see `listen_for_save_requests`).
    TimeoutError
        Without a group: not all ranks have called it within ``DDPRUN_TIMEOUT`` (1800) seconds, or
        the store did not answer.
    ConnectionError
        Without a group: the store of the generation cannot be reached.
    """
    environment = of_ddprun()
    if environment.checkpoint_signal == 0 or is_child():
        return False
    listen_for_save_requests()
    return any_rank(_requested, group)


def any_rank(mine: bool, group: Optional[Any]) -> bool:
    """Returns whether the answer of any rank is True. Collective."""
    torch_distributed = sys.modules.get("torch.distributed")
    if group is not None or (torch_distributed is not None and torch_distributed.is_available()
                             and torch_distributed.is_initialized()):
        return _any_rank_of_group(mine, group)
    if of_ddprun().world_size == 1:
        return mine
    return _agreement.any_rank(mine)


def _any_rank_of_group(mine: bool, group: Optional[Any]) -> bool:
    import torch
    import torch.distributed as dist

    if dist.get_world_size(group) == 1:
        return mine
    asked = torch.tensor([int(mine)], dtype=torch.int32, device=device_of_group(group))
    dist.all_reduce(asked, op=dist.ReduceOp.MAX, group=group)
    return bool(asked.item())


def device_of_group(group: Optional[Any]) -> Any:
    """Returns the device on which this rank's small tensors go through a group."""
    import torch
    import torch.distributed as dist

    # Such as "cpu:gloo,cuda:nccl". A tensor on the CPU spares a copy from the device.
    devices = [one.partition(":")[0] for one in str(dist.get_backend_config(group)).split(",")]
    device = "cpu" if "cpu" in devices else devices[0]
    if device != "cuda":
        return device
    bound = getattr(group or dist.group.WORLD, "bound_device_id", None)
    return own_cuda_device(torch.cuda, bound)


def own_cuda_device(cuda: Any, bound: Optional[Any]) -> Any:
    """Returns the device of this rank: the group's, else the current one, else that of LOCAL_RANK.

    A program that never calls set_device has cuda:0 as its current device on all ranks.
    """
    if bound is not None:
        return bound
    number = cuda.current_device() or of_ddprun().local_rank % cuda.device_count()
    return f"cuda:{number}"


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
            store = self._connected(environment)
            self._calls += 1
            place = f"ddprun/save/{self._calls}"
            total = store.add(f"{place}/ranks", 1 + (int(mine) << 32))
        except OSError as error:
            raise _not_asked(environment, error) from error
        try:
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
            raise _not_asked(environment, error) from error

    def _connected(self, environment: Environment) -> StoreClient:
        from ddprun._store import StoreClient

        if self._store is None:
            self._store = StoreClient(environment, _STORE_PATIENCE)
        return self._store


def _not_asked(environment: Environment, error: OSError) -> OSError:
    """Returns the error of a call that did not come to the wait for the other ranks."""
    hint = "" if environment.agent_store else (
        " (with --worker-store=rank0 rank 0 of the program hosts the store: call it after "
        "init_process_group)")
    kind = TimeoutError if isinstance(error, TimeoutError) else ConnectionError
    return kind(f"save_requested: rank {environment.rank} could not ask the other ranks: "
                f"{error}{hint}")


_agreement = _Agreement()


def announcements_matter() -> bool:
    """Returns whether the launcher reads announcements. It is the same on all ranks.

    It is False under another launcher, and where rank 0 hosts the store."""
    return of_ddprun().agent_store


def announce_checkpoint(step: int) -> None:
    """Announces to the launcher that the checkpoint of a step is complete.

    New nodes may then join (``--on-join=checkpoint``). Call it on one rank, when the checkpoint can
    be read. It takes 10 s at most. A failure is a warning, because the checkpoint is complete.

    Parameters
    ----------
    step
        The step of the checkpoint, for people to read.
    """
    if not announcements_matter():
        return
    from ddprun._store import StoreClient

    environment = of_ddprun()
    try:
        store = StoreClient(environment, _ANNOUNCEMENT_PATIENCE)
        try:
            store.set(_CHECKPOINT_KEY, str(step))
        finally:
            store.close()
    except OSError as error:
        warnings.warn(f"announce the checkpoint of step {step}: {error}", RuntimeWarning,
                      stacklevel=2)
