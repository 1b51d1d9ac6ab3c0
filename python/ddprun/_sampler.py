"""The sampler that knows its position in an epoch, as ddprun::DistributedSampler of C++."""

from __future__ import annotations

import sys
from typing import Any, Iterator, Optional, Sized

from ddprun._environment import Environment


class DistributedSampler:
    """Divides a dataset over the ranks, and continues in the middle of an epoch.

    The order is that of ``torch.utils.data.DistributedSampler``, and of C++'s. A world of another
    size continues with the rest of the epoch.

    Parameters
    ----------
    dataset
        Anything with a length.
    num_replicas, rank
        The number of ranks, and this one. By default those of the default process group, else of
        the launcher.
    shuffle, seed, drop_last
        As of PyTorch's sampler.
    """

    def __init__(self, dataset: Sized, num_replicas: Optional[int] = None,
                 rank: Optional[int] = None, shuffle: bool = True, seed: int = 0,
                 drop_last: bool = False) -> None:
        default_rank, default_size = _default_place()
        self.rank = default_rank if rank is None else rank
        self.num_replicas = default_size if num_replicas is None else num_replicas
        if not 0 <= self.rank < self.num_replicas:
            raise ValueError(f"DistributedSampler: rank {self.rank} is not in a world of "
                             f"{self.num_replicas}")
        self._size = len(dataset)
        if self._size == 0:
            raise ValueError("DistributedSampler: the dataset has 0 samples; at least 1 is needed")
        self._identity = {"dataset_size": self._size, "seed": seed, "shuffle": shuffle,
                          "drop_last": drop_last}
        self.epoch = 0
        self._start = 0  # of the next pass
        # Of the pass of this epoch; None: it has not begun.
        self._begin: Optional[int] = None
        self._handed_out = 0
        self._reached = 0  # by the loop, if batches() counts it
        self._is_counted = False
        self._is_exhausted = False  # by a loader, which may be ahead of the loop
        self._batch_size = 0

    def set_epoch(self, epoch: int) -> None:
        """Begins another epoch with the next pass. Call it at the begin of each epoch.

        For the epoch that was restored it does nothing: the next pass is the rest of that epoch.

        Parameters
        ----------
        epoch
            Its number, from 0 on.

        Raises
        ------
        ValueError
            The number is negative.
        """
        if epoch < 0:
            raise ValueError(f"DistributedSampler: epoch {epoch} is negative")
        if epoch != self.epoch:
            self._choose(epoch, 0)

    @property
    def position(self) -> int:
        """Counts the samples of this epoch that all ranks together have got."""
        if self._begin is None:
            return self._start
        done = self._reached if self._is_counted else self._handed_out
        return self._begin + done * self.num_replicas

    def batches(self, loader: Any) -> Iterator[Any]:
        """Yields the batches of a DataLoader with this sampler, and counts what the loop has got.

        A loader with ``num_workers`` takes samples before the loop wants them. Without this method
        they would be missing after a restore.

        A DataLoader draws a random number when an iteration begins. For the rest of a pass that a
        restore continues, PyTorch's generator is left as it was: that pass has drawn its number
        before.

        Parameters
        ----------
        loader
            The DataLoader, which has this sampler.

        Raises
        ------
        ValueError
            The loader does not say how many samples a batch has.
        """
        size = _samples_per_batch(loader)
        self._batch_size = size or 0
        self._is_counted = True
        try:
            for batch in self._begin_iteration(loader):
                self._reached += min(size or 1, self._left(self._reached))
                yield batch
            self._start = 0
        finally:
            # The loader may have handed out more than the loop has got.
            self._handed_out = self._reached
            self._is_counted = False

    def _begin_iteration(self, loader: Any) -> Iterator[Any]:
        import torch

        generator = torch.get_rng_state() if self._start > 0 else None
        iteration: Iterator[Any] = iter(loader)
        if generator is not None:
            torch.set_rng_state(generator)
        return iteration

    def __len__(self) -> int:
        """Returns the samples of this rank in this pass; before it, in the next one."""
        begin = self._start if self._begin is None else self._begin
        left, ranks = max(self._size - begin, 0), self.num_replicas
        return left // ranks if self._identity["drop_last"] else (left + ranks - 1) // ranks

    def __iter__(self) -> Iterator[int]:
        """Begins a pass. After a whole one, the next pass over the epoch begins at its beginning.

        After one that was left early it begins again where that one began. So a look at the first
        batch loses nothing.
        """
        if self._is_exhausted and not self._is_counted:
            self._start = 0
        self._is_exhausted = False
        self._begin = self._start
        self._handed_out = self._reached = 0
        return self._pass(self._begin, len(self))

    def _pass(self, begin: int, count: int) -> Iterator[int]:
        order = self._order()
        for number in range(count):
            self._handed_out = number + 1
            yield order[(begin + self.rank + number * self.num_replicas) % self._size]
        self._is_exhausted = True

    def _order(self) -> Any:
        if not self._identity["shuffle"]:
            return range(self._size)
        import torch

        # The program may have set another default device.
        generator = torch.Generator(device="cpu")
        generator.manual_seed(self._identity["seed"] + self.epoch)
        return torch.randperm(self._size, generator=generator, device="cpu").tolist()

    def _left(self, done: int) -> int:
        return len(self) - done

    def state_dict(self) -> dict[str, Any]:
        """Returns the position, and what the order depends on."""
        state = {**self._identity, "epoch": self.epoch, "position": self.position,
                 "world_size": self.num_replicas}
        return {**state, "batch_size": self._batch_size} if self._batch_size else state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues at the position of a state, also of a world of another size.

        Parameters
        ----------
        state
            What ``state_dict()`` has returned.

        Raises
        ------
        ValueError
            It is the state of another dataset, seed or order.
        """
        self._choose(*self.checked(state))

    def checked(self, state: dict[str, Any]) -> tuple[int, int]:
        """Returns the epoch and position of a state, and changes nothing.

        Parameters
        ----------
        state
            What ``state_dict()`` has returned.

        Raises
        ------
        ValueError
            As `load_state_dict`.
        """
        for key, own in self._identity.items():
            if state.get(key) != own:
                raise ValueError(f"DistributedSampler: the saved state has {key} "
                                 f"{state.get(key)!r}, this sampler has {own!r}")
        for key in ("epoch", "position", "world_size"):
            value = state.get(key)
            if type(value) is not int or value < 0:
                raise ValueError(f"DistributedSampler: the saved state has {key} {value!r}, not a "
                                 "count")
        epoch: int = state["epoch"]
        position: int = state["position"]
        world: int = state["world_size"]
        if position >= self._size + max(world, 1):
            raise ValueError(f"DistributedSampler: the saved state has position {position}; a "
                             f"world of {world} deals {self._size} samples, and some again to fill "
                             "up")
        # What has filled up the other world's last batch is not dealt again.
        return epoch, position if world == self.num_replicas else min(position, self._size)

    def _choose(self, epoch: int, start: int) -> None:
        self.epoch, self._start, self._begin, self._is_exhausted = epoch, start, None, False


def _samples_per_batch(loader: Any) -> Optional[int]:
    """Returns the samples in a batch of a loader; None if it hands out single samples."""
    sampler = getattr(loader, "batch_sampler", None)
    size = getattr(loader, "batch_size", None)
    if size is None and sampler is not None:
        size = getattr(sampler, "batch_size", None)
    if isinstance(size, int) and size > 0:
        return size
    if size is None and sampler is None and hasattr(loader, "batch_size"):
        return None  # DataLoader(batch_size=None)
    raise ValueError(f"DistributedSampler.batches: {type(sampler or loader).__name__} has no "
                     f"batch_size (expected a DataLoader with batch_size, or a batch_sampler that "
                     "has it)")


def _default_place() -> tuple[int, int]:
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    environment = Environment.current()
    return environment.rank, environment.world_size
