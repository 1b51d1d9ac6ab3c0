"""A directory of checkpoints as files: whole or absent, and owned by the last run that took it.

It does what worker_lib/checkpoint/io.cc and fencing_token.cc do, in the same order. A save writes
the data file under a temporary name, fsyncs it, renames it, and fsyncs the directory. Then it does
the same with the manifest. Nothing that an announced checkpoint needs is overwritten.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import hashlib
import json
import os
import secrets
import stat
import time
from typing import Any, Callable, Iterable, Iterator, Optional

from ddprun._checkpoint.names import (MAX_MANIFEST_BYTES, UNREAD_SUFFIX, BeyondReaderError,
                                      CheckpointError, DamagedError, DirectoryTakenError, Manifest,
                                      UnsupportedError, WrittenFile, announced_steps, data_name,
                                      decode_manifest, encode_manifest, leftovers, manifest_name,
                                      names_data_files)
from ddprun._environment import Environment

# What ddprun looks for in the report of a failure (base/final_error.h).
FINAL_ERROR = "ddprun does not restart this job, because a restart would fail in the same way"
_BUFFER_BYTES = 4 << 20
_SYNC_BYTES = 64 << 20  # of a large file, between flushes
_MAX_READ_BYTES = 128 << 20  # of a manifest or claim
_MAX_CLAIM_BYTES = 16 << 20  # of one that is written
_MAX_VALUES = 4 << 20
_MAX_DISPLACED = 64
_LOCK_PATIENCE = 10.0  # seconds
_LOCK_PAUSE = 0.005  # seconds
_UNREAD_IDENTITY = "unread"


def system_error(doing: str, error: OSError) -> OSError:
    """Returns the error with what was being done."""
    return OSError(error.errno, f"{doing}: {error.strerror}")


def flush_directory(path: str) -> None:
    """Makes the names in a directory durable."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise system_error(f"flush the directory {path}", error) from None


def make_durable_directory(path: str) -> None:
    """Makes a directory and its parents, if they are missing. Each name is durable."""
    missing = []
    there = os.path.abspath(path)
    while not os.path.exists(there):
        missing.append(there)
        there = os.path.dirname(there)
    try:
        # The process that made it may have been killed before it flushed the name.
        flush_directory(os.path.dirname(there))
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EINVAL):
            raise
    for name in reversed(missing):
        try:
            os.mkdir(name)
        except FileExistsError:
            pass
        except OSError as error:
            raise system_error(f"make the directory {path}", error) from None
        flush_directory(os.path.dirname(name))
    if not os.path.isdir(path):
        raise OSError(errno.ENOTDIR, f"make the directory {path}: {os.strerror(errno.ENOTDIR)}")


class AtomicFile:
    """A file that appears under its name complete and durable, or not at all.

    The first failure is kept, later writes do nothing, and `put_on_disk` raises the failure.
    """

    def __init__(self, path: str, note_write: Callable[[], None] = lambda: None) -> None:
        self._path = path
        self._temporary = f"{path}.{secrets.token_hex(6)}.tmp"
        self._note_write = note_write
        self._digest = hashlib.sha256()
        self._bytes = 0
        self._flushed = 0  # bytes; not of the last part of a file
        self._failure: Optional[OSError] = None
        self._descriptor = -1
        self._committed = False
        try:
            self._descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC
                                       | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._failure = error

    def write(self, data: Any) -> int:
        """Writes bytes, or anything with a buffer. Returns their number."""
        rest = memoryview(data).cast("B")
        size = len(rest)
        try:
            while self._failure is None and len(rest) > 0:
                written = os.write(self._descriptor, rest[:_BUFFER_BYTES])
                self._digest.update(rest[:written])
                rest = rest[written:]
                self._bytes += written
                self._flush_piece()
                self._note_write()
        except OSError as error:
            self._failure = error
        return size

    def _flush_piece(self) -> None:
        """Writes a large file to the disk by and by, and leaves the page cache to others.

        Else one fsync at the end would take minutes, in which no activity is reported.
        """
        if self._bytes - self._flushed >= _SYNC_BYTES:
            os.fdatasync(self._descriptor)
            with contextlib.suppress(OSError):  # a hint
                os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            self._flushed = self._bytes

    def flush(self) -> None:
        """Does nothing: there is no buffer."""

    def put_on_disk(self) -> None:
        """Flushes the file to the disk, under its temporary name."""
        if self._failure is None and self._descriptor >= 0:
            try:
                os.fsync(self._descriptor)
                descriptor, self._descriptor = self._descriptor, -1
                os.close(descriptor)
            except OSError as error:
                self._failure = error
        if self._failure is not None:
            raise system_error(f"write {self._temporary}", self._failure) from None

    def commit(self) -> WrittenFile:
        """Gives the file its name. The caller then flushes the directory."""
        self.put_on_disk()
        try:
            os.rename(self._temporary, self._path)
        except OSError as error:
            raise system_error(f"write {self._path}", error) from None
        self._committed = True
        return WrittenFile(os.path.basename(self._path), self._bytes, self._digest.hexdigest())

    def __enter__(self) -> AtomicFile:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        if not self._committed:
            with contextlib.suppress(OSError):
                os.unlink(self._temporary)


def open_regular_file(path: str) -> int:
    """Opens a file for reading. FIFOs, devices and directories are damaged checkpoints."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENXIO):  # ENXIO: a socket, or no driver
            raise DamagedError(f"read {path}: {error.strerror}") from error
        raise system_error(f"read {path}", error) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise DamagedError(f"read {path}: it is not a regular file")
    return descriptor


def _read_pieces(descriptor: int, path: str) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_BUFFER_BYTES))
    try:
        while (count := os.readv(descriptor, [buffer])) > 0:
            yield buffer[:count]
    except OSError as error:
        raise system_error(f"read {path}", error) from None


def _read_json_text(path: str) -> str:
    descriptor = open_regular_file(path)
    try:
        data = bytearray()
        for piece in _read_pieces(descriptor, path):
            data += piece
            if len(data) > _MAX_READ_BYTES:
                raise _beyond(path, f"it has more than {_MAX_READ_BYTES} bytes")
    finally:
        os.close(descriptor)
    if sum(data.count(one) for one in b",[{") >= _MAX_VALUES:
        raise _beyond(path, f"it holds more than {_MAX_VALUES} values")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise DamagedError(f"read {path}: it is not UTF-8") from None


def _beyond(path: str, cause: str) -> BeyondReaderError:
    return BeyondReaderError(f"read {path}: {cause}, the most that this program reads; it is left "
                             "as it is")


# --- the claim ------------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Claim:
    """The owner of a directory (worker_lib/checkpoint/core/fencing_token.h). Number 0: none."""

    number: int = 0
    generation: int = 0
    owner: str = ""
    accepted: tuple[tuple[int, str], ...] = ()
    job: str = ""
    displaced: tuple[tuple[str, int], ...] = ()

    def counts(self, manifest: Manifest, identity: str) -> bool:
        """Returns whether the owner has announced or accepted a checkpoint."""
        if self.number == 0 or manifest.claim >= self.number:
            return True
        return dict(self.accepted).get(manifest.step) in (identity, _UNREAD_IDENTITY)

    def has_displaced(self, job: str, generation: int) -> bool:
        """Returns whether a generation is a restart of a job that has lost the directory."""
        return bool(job) and self.job != job and any(
            other == job and last < generation for other, last in self.displaced)

    def next(self, generation: int, owner: str, present: dict[int, str], job: str,
             number: int) -> Claim:
        """Returns the claim of the run after this one."""
        displaced = [one for one in self.displaced if one[0] not in (job, self.job)]
        if job and self.job and self.job != job:
            displaced.append((self.job, self.generation))
        return Claim(number + 1, generation, owner, tuple(sorted(present.items())), job,
                     tuple(displaced[-_MAX_DISPLACED:]))


def _read_claim(directory: str) -> Claim:
    """Returns the claim. If it is missing or damaged, it has no owner."""
    try:
        document = json.loads(_read_json_text(f"{directory}/.claim.json"))
        claim = Claim(int(document["claim"]), int(document["generation"]), str(document["owner"]),
                      tuple((int(step), str(identity)) for step, identity in document["accepted"]),
                      str(document.get("job", "")),
                      tuple((str(job), int(last)) for job, last in document.get("displaced", ())))
    except (DamagedError, BeyondReaderError, ValueError, TypeError, KeyError, OverflowError,
            RecursionError):
        return Claim()
    return claim if claim.number > 0 else Claim()


def _write_claim(directory: str, claim: Claim) -> None:
    document: dict[str, Any] = {"accepted": claim.accepted, "claim": claim.number,
                                "generation": claim.generation, "owner": claim.owner}
    if claim.job:
        document["job"] = claim.job
    if claim.displaced:
        document["displaced"] = claim.displaced
    text = json.dumps(document, sort_keys=True, ensure_ascii=False, separators=(",", ":")) + "\n"
    data = text.encode()
    if len(data) > _MAX_CLAIM_BYTES:
        raise ValueError(f"{directory} holds {len(claim.accepted)} checkpoints, too many to be "
                         "listed in its .claim.json: remove some")
    with AtomicFile(f"{directory}/.claim.json") as file:
        file.write(data)
        file.commit()
    flush_directory(directory)


def job_name(environment: Environment) -> str:
    """Returns a name that is the same in all generations of a job; empty: not known."""
    if environment.submission:
        digest = hashlib.sha256(environment.submission.encode()).hexdigest()
        return f"{environment.run_id}:{digest[:12]}"
    return "" if environment.run_id == "none" else environment.run_id


@contextlib.contextmanager
def _claim_lock(directory: str) -> Iterator[None]:
    """Holds the lock of a directory, where the file system has locks."""
    descriptor = -1
    with contextlib.suppress(OSError):
        descriptor = os.open(f"{directory}/.claim.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
                             0o666)
    deadline = time.monotonic() + _LOCK_PATIENCE
    try:
        while descriptor >= 0:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno != errno.EWOULDBLOCK or time.monotonic() > deadline:
                    break
                time.sleep(_LOCK_PAUSE)
        yield
    finally:
        if descriptor >= 0:
            os.close(descriptor)


# --- the directory --------------------------------------------------------------------------------


class CheckpointDirectory:
    """The checkpoints of a directory. One thread at a time uses it."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._own = Claim()
        self._is_untidy = False

    def path_of(self, name: str) -> str:
        """Returns the path of a file."""
        return f"{self.path}/{name}"

    def prepare(self, generation: int, owner: str, job: str) -> None:
        """Takes the directory for a run, and removes what killed saves have left in it.

        Raises
        ------
        DirectoryTakenError
            Another job has taken it from an earlier generation of this one.
        """
        make_durable_directory(self.path)
        self._take(generation, owner, job)
        self._remove_leftovers()

    def _take(self, generation: int, owner: str, job: str) -> None:
        with _claim_lock(self.path):
            last = _read_claim(self.path)
            if last.number > 0 and last.owner == owner and last.generation == generation:
                self._own = last
                return
            if last.has_displaced(job, generation):
                raise self._taken_by_another_job(last.job, job)
            names = self._names()
            self._remove(name for name in names if name.startswith(".claim.json."))
            present: dict[int, str] = {}
            highest = last.number
            for step in announced_steps(names):
                try:
                    manifest, identity = self.read_manifest(step)
                except BeyondReaderError:
                    present[step] = _UNREAD_IDENTITY
                except (DamagedError, DirectoryTakenError):
                    pass
                else:
                    present[step] = identity
                    highest = max(highest, manifest.claim)
            self._own = last.next(generation, owner, present, job, highest)
            _write_claim(self.path, self._own)

    def _taken_by_another_job(self, other: str, own: str) -> DirectoryTakenError:
        return DirectoryTakenError(
            f"job '{other}' has taken the checkpoint directory from this one; {FINAL_ERROR}: give "
            f"each job its own directory, or end one of the two jobs (if '{other}' has ended, "
            f"submit this job, '{own}', again or remove .claim.json); a run that only restores "
            f"sets the option 'read_only' (the directory is {self.path})")

    def _expect_own(self, doing: str) -> None:
        if self._own.number == 0:
            return
        now = _read_claim(self.path)
        if now.number == self._own.number and now.owner == self._own.owner:
            return
        if self._own.job and now.job and self._own.job != now.job:
            raise self._taken_by_another_job(now.job, self._own.job)
        raise DirectoryTakenError(
            f"{doing}: a later run (generation {now.generation}) has taken {self.path} from this "
            f"one (generation {self._own.generation}); a run that only restores sets the option "
            "'read_only'")

    @contextlib.contextmanager
    def hold(self, doing: str) -> Iterator[None]:
        """Returns a context with the lock, in which this run owns the directory.

        Raises
        ------
        DirectoryTakenError
            At its begin: another run has taken the directory.
        """
        if self._own.number == 0:
            yield
            return
        with _claim_lock(self.path):
            self._expect_own(doing)
            yield

    def steps(self) -> list[int]:
        """Returns the steps that have a manifest, whole or not, newest first."""
        return announced_steps(self._names())

    def _names(self) -> list[str]:
        try:
            return sorted(os.listdir(self.path))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise system_error(f"list the checkpoint directory {self.path}", error) from None

    def read_manifest(self, step: int) -> tuple[Manifest, str]:
        """Returns a manifest and its SHA-256.

        Raises
        ------
        DamagedError, UnsupportedError, BeyondReaderError, OSError
            As their names say; with the file.
        DirectoryTakenError
            It does not count: the run that announced it had lost the directory.
        """
        path = self.path_of(manifest_name(step))
        text = _read_json_text(path)
        try:
            manifest = decode_manifest(text)
        except (DamagedError, UnsupportedError) as error:
            raise type(error)(f"read {path}: {error}") from None
        except RecursionError:
            raise _beyond(path, "it is nested too deep") from None
        if manifest.step != step:
            raise DamagedError(f"read {path}: it is the manifest of step {manifest.step}")
        if not names_data_files(manifest):
            raise DamagedError(f"read {path}: it does not name one data file of step {step}, or "
                               "all shards of one")
        identity = hashlib.sha256(text.encode()).hexdigest()
        claim = _read_claim(self.path)
        if not claim.counts(manifest, identity):
            raise DirectoryTakenError(
                f"read {path}: a run of generation {manifest.generation} announced it after a "
                f"later run (generation {claim.generation}) had taken the directory: it does not "
                f"count (if it was put there by hand, remove {self.path_of('.claim.json')})")
        return manifest, identity

    def open_verified(self, file: WrittenFile) -> int:
        """Opens a data file, and compares size and SHA-256 of all its bytes.

        Returns
        -------
        int
            The descriptor of exactly that file.

        Raises
        ------
        DamagedError, OSError
            As `read_manifest`.
        """
        path = self.path_of(file.name)
        descriptor = open_regular_file(path)
        try:
            size = os.fstat(descriptor).st_size
            if size != file.bytes:
                raise DamagedError(f"read {path}: it has {size} bytes, but its manifest has "
                                   f"{file.bytes}")
            digest = hashlib.sha256()
            for piece in _read_pieces(descriptor, path):
                digest.update(piece)
            if digest.hexdigest() != file.sha256:
                raise DamagedError(f"read {path}: its SHA-256 is not the one in its manifest: it "
                                   "is damaged")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def announce(self, manifest: Manifest, write: Callable[[AtomicFile], None],
                 note_write: Callable[[], None] = lambda: None) -> None:
        """Writes a data file by `write`, and announces it. On failure nothing has changed."""
        name = data_name(manifest.step, self._names())
        try:
            written = self._write_data(name, write, note_write)
            self._announce(dataclasses.replace(manifest, files=(written,), claim=self._own.number))
        except BaseException:
            # If another run has the directory, the files in it are left to that run.
            with contextlib.suppress(OSError, CheckpointError):
                with self.hold(f"tidy {self.path}"):
                    self._remove_leftovers()
            raise

    def _write_data(self, name: str, write: Callable[[AtomicFile], None],
                    note_write: Callable[[], None]) -> WrittenFile:
        path = self.path_of(name)
        with AtomicFile(path, note_write) as file:
            write(file)
            file.put_on_disk()
            with self.hold(f"write {path}"):
                written = file.commit()
                # The data is durable before a manifest names it.
                try:
                    flush_directory(self.path)
                except OSError:
                    self._discard([name])
                    raise
        return written

    def _announce(self, manifest: Manifest) -> None:
        path = self.path_of(manifest_name(manifest.step))
        data = encode_manifest(manifest).encode()
        if len(data) > MAX_MANIFEST_BYTES:
            raise ValueError(f"announce {path}: its manifest has {len(data)} bytes, "
                             f"{MAX_MANIFEST_BYTES} is the most that is written: give a shorter "
                             "TrainingState.data")
        with AtomicFile(path) as announcement:
            announcement.write(data)
            announcement.put_on_disk()
            with self.hold(f"announce {path}"):
                self._replace_manifest(manifest, announcement)

    def _replace_manifest(self, manifest: Manifest, announcement: AtomicFile) -> None:
        """Renames the manifest into its place. Then it removes the data of the one before."""
        step = manifest.step
        replaces = os.path.exists(self.path_of(manifest_name(step)))
        replaced: set[str] = set()
        if replaces:
            try:
                replaced = {file.name for file in self.read_manifest(step)[0].files}
            except BeyondReaderError:
                self._set_aside_unread(step)
            except CheckpointError:
                pass
        announcement.commit()
        flush_directory(self.path)
        with contextlib.suppress(OSError, CheckpointError):
            self._remove(sorted(replaced - {file.name for file in manifest.files}))
            if replaces or self._is_untidy:
                self._remove_leftovers()

    def _set_aside_unread(self, step: int) -> None:
        path = self.path_of(manifest_name(step))
        aside = path + UNREAD_SUFFIX
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(aside)
            os.link(path, aside)  # the step has a manifest until the new one replaces it
        except OSError:
            try:
                os.rename(path, aside)  # not every file system has hard links
            except OSError as error:
                raise system_error(f"rename {path}", error) from None

    def forget(self, step: int) -> None:
        """Removes a checkpoint: the manifest first, so that it never looks damaged."""
        files: Optional[list[str]] = None
        with contextlib.suppress(CheckpointError):
            files = [file.name for file in self.read_manifest(step)[0].files]
        self._remove([manifest_name(step)])
        if files is None:
            self._remove_leftovers()
        else:
            self._remove(files)

    def _discard(self, names: Iterable[str]) -> None:
        with contextlib.suppress(OSError, CheckpointError):
            self._remove(names)

    def _remove(self, names: Iterable[str]) -> None:
        for name in names:
            # The lock may be missing on this file system, or may have expired.
            self._expect_own(f"remove {self.path_of(name)}")
            try:
                os.unlink(self.path_of(name))
            except FileNotFoundError:
                pass
            except OSError as error:
                self._is_untidy = True
                raise system_error(f"remove {self.path_of(name)}", error) from None

    def _remove_leftovers(self) -> None:
        names = self._names()
        named_by: dict[int, set[str]] = {}
        for step in announced_steps(names):
            with contextlib.suppress(CheckpointError, OSError):
                named_by[step] = {file.name for file in self.read_manifest(step)[0].files}
        unneeded = leftovers(names, named_by)
        self._is_untidy = bool(unneeded)
        if unneeded:
            # The run that wrote the manifest without their names may have been killed before it
            # flushed the directory.
            flush_directory(self.path)
            self._remove(unneeded)
            self._is_untidy = False


def is_passed_over(error: BaseException) -> bool:
    """Returns whether a search goes on with an older checkpoint. Other ones may be whole."""
    return isinstance(error, (DamagedError, BeyondReaderError, DirectoryTakenError))
