"""Checkpoints that are whole or absent, in the format of the C++ library, which restores them.

``docs/concepts/checkpoints.md`` has the guarantees, ``docs/reference/file_formats.md`` the format::

    manager = ddprun.checkpoint.CheckpointManager("run1")
    state = ddprun.checkpoint.TrainingState(model=net, optimizer=optimizer)
    step = manager.restore(state).step
    ...
    manager.save(step, state)
    manager.wait()

PyTorch is imported when a checkpoint is read or written.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import itertools
import math
import os
import secrets
import sys
import threading
import time
import warnings
from typing import Any, Callable, Mapping, Optional, Union

from ddprun._checkpoint.directory import (AtomicFile, CheckpointDirectory, flush_directory,
                                          is_passed_over, job_name, make_durable_directory)
from ddprun._checkpoint.names import (BeyondReaderError, CheckpointError, DamagedError,
                                      DirectoryTakenError, Manifest, UnsupportedError,
                                      agree_on_step, best_steps, step_name, steps_to_forget)
from ddprun._checkpoint.ranks import from_report, ranks_of, to_report
from ddprun._checkpoint.state import (Snapshot, TrainingState, contents_of, count, fill, for_file,
                                      hash_of_models, own_generators, read_verified, refuse_fsdp)
from ddprun._commands import CommandRunner, run_command
from ddprun._environment import Environment
from ddprun._progress import checkpoint_wait, long_wait, report_activity
from ddprun._sampler import DistributedSampler
from ddprun._save import announce_checkpoint, any_rank, save_requested

__all__ = [
    "BeyondReaderError",
    "CheckpointError",
    "CheckpointManager",
    "DamagedError",
    "DirectoryTakenError",
    "DistributedSampler",
    "MaybeSaved",
    "Restored",
    "TrainingState",
    "UnsupportedError",
    "load",
]

_SAVING = "save a checkpoint"
_RESTORING = "restore a checkpoint"
_OWNER = secrets.token_hex(8)  # the managers of a process share the directories that they took


@dataclasses.dataclass(frozen=True)
class Restored:
    """What `CheckpointManager.restore` has found. It is false if there was no checkpoint.

    Attributes
    ----------
    file : str
        The data file, or the first shard. Empty: there was no whole checkpoint.
    step : int
        The step of the checkpoint; 0 without one.
    skipped : tuple of str
        A line for each newer checkpoint that was passed over, with the reason.
    remarks : tuple of str
        A line for each thing that differs from when it was saved, and is allowed to.
    """

    file: str = ""
    step: int = 0
    skipped: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.file)


@dataclasses.dataclass(frozen=True)
class MaybeSaved:
    """What `CheckpointManager.maybe_save` has done.

    Attributes
    ----------
    saved : bool
        Whether it saved.
    leave : bool
        Whether every rank is to end with 0.
    """

    saved: bool
    leave: bool


def load(directory: Union[str, os.PathLike[str]], step: Optional[int] = None, *,
         map_location: Any = None, mmap: bool = False) -> dict[str, Any]:
    """Returns the contents of the newest whole checkpoint of a directory.

    Every byte is compared with its digest. A checkpoint that is damaged or incomplete is passed
    over, with a warning that says why. Nothing in the directory changes, so a training may run.

    Parameters
    ----------
    directory
        The directory, written by Python or C++, with one file or with shards.
    step
        The checkpoint of this step, instead of the newest.
    map_location
        As of ``torch.load``.
    mmap
        Tensors are mapped from the file, and read when they are used. Use it if you copy from them
        at once: the file must stay readable while they live.

    Returns
    -------
    dict
        ``"model"``, ``"optimizer"``, ``"step"``, ``"epoch"`` and the other keys of
        ``docs/reference/file_formats.md``.

    Raises
    ------
    FileNotFoundError
        There is no whole checkpoint, or none of this step.
    CheckpointError
        The checkpoint of `step` is damaged. Or one is of another format, or holds more than tensors
        and plain values, which are never loaded.
    OSError
        A file cannot be read for another reason. It may be whole, so it is not passed over.
    """
    files = CheckpointDirectory(os.fspath(directory))
    steps = files.steps()
    if step is not None and step not in steps:
        there = f"it has {', '.join(map(str, steps[:8]))}" if steps else "it has none"
        raise FileNotFoundError(f"{files.path} has no checkpoint of step {step} ({there})")
    for candidate in steps if step is None else [step]:
        try:
            manifest, _ = files.read_manifest(candidate)
            return read_verified(files, manifest, map_location=map_location, mmap=mmap)
        except CheckpointError as error:
            if step is not None or not is_passed_over(error):
                raise
            warnings.warn(f"passed over step {candidate}: {error}", RuntimeWarning, stacklevel=2)
    raise FileNotFoundError(f"{files.path} has no whole checkpoint")


class CheckpointManager:
    """Saves the state of a training, and restores the newest checkpoint that all ranks can read.

    The constructor, `save`, `maybe_save`, `wait` and `restore` are collective: every rank calls
    them at the same point. Rank 0 writes, by default on a thread of its own; every rank reads. So
    all ranks must see the directory. The file has rank 0's model, buffers and optimizer, and the
    generators of all ranks. The thread that trains owns a manager.

    Parameters
    ----------
    directory
        Rank 0 makes it if it is missing. A run owns it from now on: an earlier one, such as a
        generation that was cut off, announces no checkpoint in it any more.
    keep_last
        A save keeps this number of the newest checkpoints.
    keep_best
        It also keeps this number of those with the best `TrainingState.metric`: the lowest.
    higher_is_better
        The best metric is the highest.
    asynchronous
        `save` returns when the state is copied, and a thread writes it. The next call raises if
        that has failed.
    skip_when_busy
        A save while the last one is being written saves nothing. Otherwise it waits.
    every_steps, every
        When `maybe_save` saves: after this number of steps, and after this number of seconds since
        the last save. 0: not for this reason. With `every` each call asks the other ranks.
    read_only
        For `restore` and `best` in a directory that another run saves into, or that is read-only.
    group
        The process group of ``torch.distributed`` of the ranks. By default the default group if it
        is initialized, else all ranks of the generation, through its store.
    copy_command
        A command for ``/bin/sh`` that copies a complete checkpoint to other storage. Rank 0 runs it
        after a save, in the background, one at a time: of checkpoints that wait only the newest is
        copied. A failure is a warning. ``DDPRUN_CHECKPOINT_DIRECTORY``, ``DDPRUN_CHECKPOINT_STEP``
        and ``DDPRUN_CHECKPOINT_NAME``, with which all files of the checkpoint begin, are in its
        environment.
    fetch_command
        A command that fetches checkpoints into ``DDPRUN_CHECKPOINT_DIRECTORY``. Rank 0 runs it
        first, if the directory has no checkpoint or an earlier fetch has not succeeded. A failure
        is an error.
    copy_timeout
        At the end of the program, the last copy_command gets this number of seconds, and 10 if
        `maybe_save` has returned ``leave``. Then it is ended.
    fetch_timeout
        The fetch_command is ended after this number of seconds.

    Raises
    ------
    ValueError
        An option is invalid.
    OSError
        The directory cannot be made or written, or the fetch_command fails.
    DirectoryTakenError
        Another job has taken the directory from an earlier generation of this one.
    RuntimeError
        Several ranks of another launcher have no process group.
    """

    def __init__(self, directory: Union[str, os.PathLike[str]], *, keep_last: int = 3,
                 keep_best: int = 0, higher_is_better: bool = False, asynchronous: bool = True,
                 skip_when_busy: bool = False, every_steps: int = 0, read_only: bool = False,
                 group: Optional[Any] = None, every: float = 0, copy_command: str = "",
                 fetch_command: str = "", copy_timeout: float = 300,
                 fetch_timeout: float = 1800) -> None:
        for option, value, least in (("keep_last", keep_last, 1), ("keep_best", keep_best, 0),
                                     ("every_steps", every_steps, 0), ("every", every, 0),
                                     ("copy_timeout", copy_timeout, 0),
                                     ("fetch_timeout", fetch_timeout, 0)):
            if value < least:
                raise ValueError(f"CheckpointManager: invalid value {value} of {option} (expected "
                                 f"{least} or more)")
        path = os.fspath(directory)
        if not path:
            raise ValueError("CheckpointManager: the directory is '' (expected a path)")
        self._keep_last, self._keep_best = keep_last, keep_best
        self._higher_is_better = higher_is_better
        self._asynchronous, self._skip_when_busy = asynchronous, skip_when_busy
        self._every_steps, self._read_only = every_steps, read_only
        self._every, self._last_save = every, time.monotonic()
        self._ranks = ranks_of(group)
        self._environment = Environment.current()
        self._directory = CheckpointDirectory(path)
        # While the writer runs, its thread owns the directory and these.
        self._passed_over: set[int] = set()  # steps that may be damaged
        self._snapshot = Snapshot()
        self._writer: Optional[threading.Thread] = None
        self._failure: Optional[BaseException] = None
        self._is_waited_for = False
        self._leaves = self._is_warned_of_leave = False
        self._is_warned_of_removal = False
        self._watch = _PositionWatch()
        self._copies: Optional[CommandRunner] = None
        if copy_command and not read_only and self._ranks.rank == 0:
            self._copies = CommandRunner(copy_command, copy_timeout)
        if fetch_command:  # before the directory is taken: what is there then counts
            self._ranks.on_rank_0(lambda: self._fetch(fetch_command, fetch_timeout))
        if not read_only:
            self._ranks.on_rank_0(lambda: self._directory.prepare(
                self._environment.generation, _OWNER, job_name(self._environment)))

    def _fetch(self, command: str, timeout: float) -> None:
        end = time.monotonic() + timeout

        def is_over() -> bool:
            report_activity()
            return time.monotonic() > end

        path = self._directory.path
        make_durable_directory(path)
        # A fetch that was cut off leaves manifests whose data is missing. The restore would skip
        # them.
        mark = self._directory.path_of(".fetching")
        if self._directory.steps() and not os.path.exists(mark):
            return
        with open(mark, "wb"):
            pass
        flush_directory(path)
        run_command(command, {"DDPRUN_CHECKPOINT_DIRECTORY": path}, is_over)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(mark)
        flush_directory(path)

    # --- saving ---

    def save(self, step: int, state: TrainingState) -> bool:
        """Writes a checkpoint of a step, and then removes older ones.

        Parameters
        ----------
        step
            The number of steps done so far.
        state
            What to save.

        Returns
        -------
        bool
            False if nothing was saved because the last save is still being written
            (``skip_when_busy``).

        Raises
        ------
        ValueError
            The ranks are not at the same step, epoch and position. Or the directory has a later
            step that this run did not restore: it would be restored instead.
        TypeError
            The step is not an integer. Or a value of the state cannot be saved; the text names it.
        OSError
            This checkpoint, or the one before, cannot be written. Older ones are as they were.
        DirectoryTakenError
            A later run has taken the directory.
        """
        if self._read_only:
            raise ValueError(f"{_SAVING}: the option read_only is set")
        own_failure: Optional[Exception] = None
        report: dict[str, Any] = {}
        try:
            step = count(step, "step")
            refuse_fsdp(state, _SAVING)
            report = {"position": _position(step, state), "generators": own_generators(state)}
        except Exception as error:
            own_failure = error
            report = {"failure": to_report(error)}
        with checkpoint_wait():
            reports = self._ranks.gather(report)
            try:
                return bool(self._ranks.on_rank_0(lambda: self._begin_save(step, state, reports)))
            except Exception:
                if own_failure is not None:
                    raise own_failure from None
                raise

    def maybe_save(self, step: int, state: TrainingState) -> MaybeSaved:
        """Saves when ``every_steps`` or ``every`` says so, and when the launcher asks for it.

        Call it after each step. A save that the launcher asked for (``--checkpoint-signal``) is on
        the disk when it returns. Then ``leave`` is true, and every rank ends with 0.

        Parameters
        ----------
        step
            The number of steps done so far.
        state
            What to save.
        """
        goes_on = self._leaves
        if goes_on and not self._is_warned_of_leave and self._ranks.rank == 0:
            self._is_warned_of_leave = True
            warnings.warn("the training continues after maybe_save() returned `leave` "
                          "(--checkpoint-signal): ddprun will exit with 75, as if the job were to "
                          "be started again; end with 0 when maybe_save(...).leave is true",
                          RuntimeWarning, stacklevel=2)
        leave = not goes_on and save_requested(self._ranks.group)
        due = self._every_steps > 0 and step % self._every_steps == 0
        if self._every > 0:  # rank 0's clock decides: the others may have started later
            is_time = time.monotonic() - self._last_save >= self._every
            due = any_rank(self._ranks.rank == 0 and is_time, self._ranks.group) or due
        if leave:
            self.wait()  # so that the save is not skipped as busy
        saved = self.save(step, state) if due or leave else False
        if leave:
            self.wait()
            if self._copies is not None:
                self._copies.hurry()
        self._leaves = leave or goes_on
        return MaybeSaved(saved, self._leaves)

    def wait(self) -> None:
        """Returns on every rank when all saves are on the disk. Call it at the end of a training.

        Raises
        ------
        OSError, DirectoryTakenError
            On every rank: the last save has failed.
        """
        with checkpoint_wait():
            self._ranks.on_rank_0(self._settle)

    def best(self) -> str:
        """Returns the data file with the best metric; empty if none has one. Not collective."""
        manifests = {step: manifest for step, (manifest, _) in self._whole_manifests().items()}
        best = best_steps({step: one.metric for step, one in manifests.items()},
                          self._higher_is_better)
        return self._directory.path_of(manifests[best[0]].files[0].name) if best else ""

    def _whole_manifests(self) -> dict[int, tuple[Manifest, str]]:
        found = {}
        for step in self._directory.steps():
            try:
                found[step] = self._directory.read_manifest(step)
            except CheckpointError:
                continue
        return found

    def _begin_save(self, step: int, state: TrainingState,
                    reports: list[Mapping[str, Any]]) -> bool:
        """Does rank 0's part of a save."""
        for rank, report in enumerate(reports):
            if "failure" in report:
                raise from_report(report["failure"], f"rank {rank}: ")
        _expect_same_positions([report["position"] for report in reports])
        for warning in self._watch.saving(reports[0]["position"]):
            warnings.warn(f"{_SAVING}: {warning}", RuntimeWarning, stacklevel=5)
        if self._skip_when_busy and self._writer is not None and self._writer.is_alive():
            return False
        self._last_save = time.monotonic()
        self._settle()
        self._expect_no_later_step(step)
        metric = state.metric
        manifest = Manifest(
            step=step, epoch=count(state.epoch, "epoch"), generation=self._environment.generation,
            world_size=self._ranks.size, model=hash_of_models(state), data=state.data,
            metric=float(metric) if metric is not None and math.isfinite(metric) else None)
        contents = contents_of(state, step=step, generation=self._environment.generation,
                               generators=[report["generators"] for report in reports])
        self._is_waited_for = not self._asynchronous
        if not self._asynchronous:
            self._write(manifest, for_file(contents))
            return True
        contents = self._snapshot.take(contents)
        # Python waits for this thread before it ends.
        writer = threading.Thread(target=self._write_in_background, args=(manifest, contents),
                                  name="ddprun-ckpt")
        _unreported.add(self)
        try:
            writer.start()
        except BaseException:
            _unreported.discard(self)
            raise
        self._writer = writer
        return True

    def _write_in_background(self, manifest: Manifest, contents: Mapping[str, Any]) -> None:
        try:
            self._write(manifest, contents)
        except BaseException as error:  # the next call raises it
            self._failure = error
        else:
            _unreported.discard(self)

    def _write(self, manifest: Manifest, contents: Mapping[str, Any]) -> None:
        import torch

        def write(file: AtomicFile) -> None:
            torch.save(contents, file)

        self._directory.announce(manifest, write, self._note_write)
        self._retire(manifest.step)
        if self._ranks.size == self._environment.world_size:
            announce_checkpoint(manifest.step)
        if self._copies is not None:
            self._copies.begin({"DDPRUN_CHECKPOINT_DIRECTORY": self._directory.path,
                                "DDPRUN_CHECKPOINT_STEP": str(manifest.step),
                                "DDPRUN_CHECKPOINT_NAME": step_name(manifest.step)})

    def _note_write(self) -> None:
        # A hung training must not look alive only because its checkpoint is being written.
        if self._is_waited_for:
            report_activity()

    def _settle(self) -> None:
        """Waits for the writer, and raises its failure."""
        if self._writer is None:
            return
        self._is_waited_for = True
        self._writer.join()
        self._writer = None
        failure, self._failure = self._failure, None
        _unreported.discard(self)
        if failure is not None:
            raise failure

    def _expect_no_later_step(self, step: int) -> None:
        for other in self._directory.steps():
            if other <= step or other in self._passed_over:
                continue
            try:
                self._directory.read_manifest(other)
            except DirectoryTakenError:
                continue
            except CheckpointError:
                pass
            # If another run has taken the directory since, the step may belong to that run.
            with self._directory.hold(f"save step {step} in {self._directory.path}"):
                pass
            raise ValueError(
                f"save step {step}: {self._directory.path} holds a checkpoint of step {other} that "
                "this run did not restore; call restore() first, or use an empty directory")

    def _retire(self, step: int) -> None:
        """Removes what the new checkpoint makes superfluous. The next save tries again."""
        try:
            with self._directory.hold("remove old checkpoints"):
                rated: dict[int, Optional[float]] = {}
                for other in self._directory.steps():
                    metric: Optional[float] = None
                    try:
                        metric = self._directory.read_manifest(other)[0].metric
                    except BeyondReaderError:
                        continue  # it may be whole
                    except DirectoryTakenError:
                        self._passed_over.add(other)
                    except CheckpointError:
                        pass
                    if other != step and other in self._passed_over:
                        self._forget(other)
                    else:
                        rated[other] = metric
                        self._passed_over.discard(other)
                for old in steps_to_forget(rated, self._keep_last, self._keep_best,
                                           self._higher_is_better):
                    self._forget(old)
        except (OSError, CheckpointError):
            pass

    def _forget(self, step: int) -> None:
        try:
            self._directory.forget(step)
        except OSError as error:
            if not self._is_warned_of_removal:
                self._is_warned_of_removal = True
                warnings.warn(f"an old checkpoint stays: {error} (each save tries again)",
                              RuntimeWarning, stacklevel=1)
        else:
            self._passed_over.discard(step)

    # --- restoring ---

    def restore(self, state: TrainingState) -> Restored:
        """Fills a state and this rank's generators from the newest whole checkpoint.

        All ranks take the same one. Damaged ones are passed over; ``Restored.skipped`` says which
        and why. Make DistributedDataParallel before, because its constructor makes everything rank
        0's.

        Parameters
        ----------
        state
            What to fill. Its objects get the values that were saved.

        Raises
        ------
        ValueError
            On every rank: the checkpoint is of another model, optimizer or data.
        CheckpointError
            On every rank: it has another format. Or the ranks have no checkpoint in common.
        OSError
            On every rank: a file cannot be read for another reason. It may be whole.
        """
        self.wait()
        with long_wait():
            skipped: list[str] = []
            found = self._find_common(skipped)
            if found is None:
                self._watch.restored(None)
                return Restored(skipped=tuple(skipped))
            remarks: list[str] = []
            self._ranks.on_every_rank(lambda: self._fill(state, found, remarks))
        position = _position(found.manifest.step, state)
        self._watch.restored(position)
        contradiction = _epoch_contradiction(position)
        if contradiction and state.has_position:
            remarks.append(f"{found.file}: {contradiction}")
        return Restored(found.file, found.manifest.step, tuple(skipped), tuple(remarks))

    def _fill(self, state: TrainingState, found: _Found, remarks: list[str]) -> None:
        if found.manifest.world_size != self._ranks.size:
            remarks.append(
                f"{found.file} was saved by a world of {found.manifest.world_size}, this one has "
                f"{self._ranks.size}: the rest of the epoch is divided among the ranks of this "
                "one, and results are not bit-identical to those of a training that was not "
                "resized")
        remarks.extend(fill(state, found.top, found.file, rank=self._ranks.rank,
                            size=self._ranks.size, allows_extra_names=self._read_only))

    def _find_common(self, skipped: list[str]) -> Optional[_Found]:
        """Returns the newest checkpoint that all ranks can read; None if no rank has any.

        In each round every rank reports its newest one, until all report the same. Each round
        lowers the bound.
        """
        bound = sys.maxsize
        reader = ""
        seen: set[int] = set()
        for _ in itertools.count():
            own = _search(self._directory, bound)
            seen.update(own.steps)
            reports = self._ranks.all_gather(own.report())
            for rank, report in enumerate(reports):
                if report["failure"] is not None:
                    raise own.failure if rank == self._ranks.rank and own.failure else (
                        from_report(report["failure"], f"{_RESTORING}: rank {rank}: "))
                if not reader and report["step"] >= 0:
                    reader = f"rank {rank} can read {report['file']}"
                skipped.extend(line for line in report["skipped"] if line not in skipped)
            agreed = agree_on_step([(one["step"], one["identity"]) for one in reports])
            if agreed.done and agreed.step < 0 and reader:
                raise CheckpointError(
                    f"{_RESTORING}: the ranks have no checkpoint in common: {reader}, rank "
                    f"{agreed.rank} has no equal one; is {self._directory.path} one directory "
                    "that all ranks see? (To start from the beginning, use an empty one.)")
            if agreed.done:
                self._passed_over.update(step for step in seen if step > agreed.step)
                return own.found
            skipped.append(
                f"rank {agreed.rank} has another checkpoint of step {agreed.bound + 1} than rank 0"
                if agreed.differs else
                f"rank {agreed.rank} can read none that is newer than step {agreed.bound}")
            bound = agreed.bound
        raise AssertionError("the rounds end by themselves")


@dataclasses.dataclass
class _Found:
    """A checkpoint whose files are verified, and its contents."""

    manifest: Manifest
    identity: str
    file: str
    top: dict[str, Any]  # mapped from the file


@dataclasses.dataclass
class _Search:
    """The result of one rank's search."""

    found: Optional[_Found] = None
    steps: list[int] = dataclasses.field(default_factory=list)  # all that have a manifest
    skipped: list[str] = dataclasses.field(default_factory=list)
    failure: Optional[Exception] = None

    def report(self) -> dict[str, Any]:
        found = self.found
        return {"step": found.manifest.step if found else -1,
                "identity": found.identity if found else "", "file": found.file if found else "",
                "skipped": self.skipped,
                "failure": None if self.failure is None else to_report(self.failure)}


def _search(directory: CheckpointDirectory, bound: int) -> _Search:
    result = _Search()
    try:
        result.steps = directory.steps()
        for step in result.steps:
            if step > bound:
                continue
            try:
                manifest, identity = directory.read_manifest(step)
                top = read_verified(directory, manifest, mmap=True)
            except CheckpointError as error:
                if not is_passed_over(error):
                    raise
                result.skipped.append(f"step {step}: {error}")
                continue
            result.found = _Found(manifest, identity, directory.path_of(manifest.files[0].name),
                                  top)
            break
    except Exception as error:  # all ranks must learn it
        result.failure = error
    return result


def _position(step: int, state: TrainingState) -> dict[str, Any]:
    sampler = state.sampler_state()
    known = sampler if isinstance(sampler, dict) else {}
    return {"step": step, "epoch": count(state.epoch, "epoch"), "has_sampler": sampler is not None,
            "has_position": state.has_position, "sampler_epoch": known.get("epoch"),
            "sampler_position": known.get("position")}


def _expect_same_positions(positions: list[dict[str, Any]]) -> None:
    words = {"step": "is at step", "epoch": "is in epoch", "has_sampler": "has a sampler:",
             "sampler_epoch": "has a sampler in epoch",
             "sampler_position": "has a sampler at position"}
    for rank, other in enumerate(positions):
        for key, word in words.items():
            if other[key] != positions[0][key]:
                raise ValueError(
                    f"{_SAVING}: rank {rank} {word} {other[key]}, rank 0 {positions[0][key]}: "
                    "a restore needs one position (do the same steps on each rank)")


def _epoch_contradiction(position: Mapping[str, Any]) -> str:
    """Describes how the program's epoch contradicts the sampler's; empty: it does not.

    The program may be one epoch ahead: it may count the epoch that it is about to begin.
    """
    own, of_sampler = position["epoch"], position["sampler_epoch"]
    if type(of_sampler) is not int or own in (of_sampler, of_sampler + 1):
        return ""
    text = f"TrainingState.epoch is {own}, but its sampler is in epoch {of_sampler}: "
    if own < of_sampler:
        return (f"{text}a resumed run begins at epoch {own} and trains epochs twice; let the loop "
                "count in TrainingState.epoch")
    return (f"{text}every epoch has the same order, and a resumed run may skip or repeat one; call "
            "set_epoch(epoch) at the beginning of each epoch")


class _PositionWatch:
    """Follows the saves of one run, as worker_lib/checkpoint/core/training_position.cc."""

    def __init__(self) -> None:
        self._last: Optional[Mapping[str, Any]] = None
        self._given: set[str] = set()

    def restored(self, position: Optional[Mapping[str, Any]]) -> None:
        """Records that a restore has ended; None: there was no checkpoint."""
        self._last = position

    def saving(self, position: Mapping[str, Any]) -> list[str]:
        """Returns the warnings about a save, each once in a run."""
        last, self._last = self._last, position
        found = {"epoch": _epoch_contradiction(position)}
        if not position["has_sampler"] and last is not None and (
                position["epoch"] == last["epoch"] and position["step"] > last["step"]):
            found["sampler"] = (
                "TrainingState.sampler is None: the position in the epoch's data is missing, and a "
                "resumed run begins the epoch again with samples that it has trained on (where "
                "there is no such position, set TrainingState.has_position to False)")
        new = {key: text for key, text in found.items()
               if text and position["has_position"] and key not in self._given}
        self._given.update(new)
        return list(new.values())


# The managers with a save that is being written, or that has failed and that no call has reported.
_unreported: set[CheckpointManager] = set()


@atexit.register
def _warn_of_failures() -> None:
    """Warns at the end of the program of saves that have failed and that no call has reported."""
    for manager in _unreported:
        if manager._failure is not None:
            warnings.warn(f"the last save has failed: {manager._failure}", RuntimeWarning,
                          stacklevel=1)
