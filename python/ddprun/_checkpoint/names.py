"""The files of a checkpoint directory, and the decisions about them.

These are those of worker_lib/checkpoint/core and manifest_text.cc. docs/reference/file_formats.md
has the format. Nothing here touches a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from fractions import Fraction
from typing import Any, Iterable, Mapping, Optional, Sequence, Union

FORMAT = 1
MAX_MANIFEST_BYTES = 16 << 20  # of one that is written
UNREAD_SUFFIX = ".unread"
_DIGEST_KEY = "manifest_sha256"
_NAME = re.compile(r"step-([0-9]{12}|[1-9][0-9]{12,})(?:-([0-9]+))?(?:\.shard-([0-9]{4,}))?"
                   r"\.(json|pt)")
_TEMPORARY = re.compile(r"(.*)\.[^.]*\.tmp")
_STRING_OR_SPACE = re.compile(r'("(?:[^"\\]|\\.)*")|[ \n]+')
_STRING_OR_NUMBER = re.compile(r'("(?:[^"\\]|\\.)*")|-?[0-9][0-9.eE+-]*')
_INT64 = 1 << 63


class CheckpointError(RuntimeError):
    """A checkpoint cannot be saved or restored. The text names the file and the reason."""

    def __init__(self, text: str = "") -> None:
        # The text may quote the file, and a terminal would carry out its escape sequences.
        super().__init__("".join(c if c.isprintable() or c == "\n" else "?" for c in text))


class DamagedError(CheckpointError):
    """A file is damaged, incomplete, or of another format: an older checkpoint may be taken."""


class UnsupportedError(CheckpointError):
    """The checkpoint has a format of another version. It may be complete."""


class BeyondReaderError(CheckpointError):
    """A file is larger than this program reads. It may be complete, and is never removed."""


class DirectoryTakenError(CheckpointError):
    """Another run has taken the directory. Or a checkpoint was announced after that."""


@dataclasses.dataclass(frozen=True)
class WrittenFile:
    """A file of a checkpoint: its name without the directory, its size, and its SHA-256."""

    name: str
    bytes: int
    sha256: str


@dataclasses.dataclass(frozen=True)
class Manifest:
    """What is known of a checkpoint. ``claim`` is 0 if it was written without a claim."""

    step: int
    epoch: int
    generation: int
    world_size: int
    files: tuple[WrittenFile, ...] = ()
    metric: Optional[float] = None
    claim: int = 0
    model: str = ""
    data: str = ""


@dataclasses.dataclass(frozen=True)
class FileName:
    """A name that belongs to a checkpoint. ``kind`` is "manifest", "data" or "temporary"."""

    kind: str
    step: int
    shard: Optional[int] = None


def step_name(step: int) -> str:
    """Returns ``step-000000000120``, with which the names of all files of the step begin."""
    return f"step-{step:012}"


def manifest_name(step: int) -> str:
    """Returns ``step-000000000120.json``."""
    return step_name(step) + ".json"


def data_name(step: int, taken: Iterable[str]) -> str:
    """Returns the first of ``step-000000000120.pt``, ``...-2.pt`` that is not taken.

    A save never overwrites a file that an announced checkpoint may need.
    """
    names = set(taken)
    base, attempt = step_name(step), 2
    while f"{base}.pt" in names or any(name.startswith(f"{base}.shard-") for name in names):
        base, attempt = f"{step_name(step)}-{attempt}", attempt + 1
    return f"{base}.pt"


def parse_file_name(name: str) -> Optional[FileName]:
    """Returns what a name means. None: the file is not ours, and is never touched."""
    temporary = _TEMPORARY.fullmatch(name)
    match = _NAME.fullmatch(temporary[1] if temporary else name)
    if match is None or int(match[1]) >= _INT64:
        return None
    is_manifest = match[4] == "json"
    if is_manifest and (match[2] or match[3]):
        return None
    kind = "temporary" if temporary else "manifest" if is_manifest else "data"
    return FileName(kind, int(match[1]), int(match[3]) if match[3] else None)


def names_data_files(manifest: Manifest) -> bool:
    """Returns whether a manifest names one data file of its step, or all shards in order."""
    for number, file in enumerate(manifest.files):
        name = parse_file_name(file.name)
        if name is None or name.kind != "data" or name.step != manifest.step:
            return False
        if len(manifest.files) > 1 if name.shard is None else name.shard != number:
            return False
    return bool(manifest.files)


def is_sharded(manifest: Manifest) -> bool:
    """Returns whether a manifest names shards, even if there is only one."""
    name = parse_file_name(manifest.files[0].name)
    return name is not None and name.shard is not None


def _steps_of_manifests(names: Iterable[str], suffix: str = "") -> list[int]:
    steps = []
    for name in names:
        file = parse_file_name(name[:len(name) - len(suffix)]) if name.endswith(suffix) else None
        if file is not None and file.kind == "manifest":
            steps.append(file.step)
    return sorted(steps, reverse=True)


def announced_steps(names: Iterable[str]) -> list[int]:
    """Returns the steps whose manifest is among the names, newest first."""
    return _steps_of_manifests(names)


def leftovers(names: Sequence[str], named_by: Mapping[int, set[str]]) -> list[str]:
    """Returns the files that killed saves have left.

    Parameters
    ----------
    names
        The names in the directory.
    named_by
        For each step with a readable manifest, the files that it names. The files of a step whose
        manifest cannot be read are kept.
    """
    announced = set(announced_steps(names))
    set_aside = set(_steps_of_manifests(names, UNREAD_SUFFIX))
    result = []
    for name in names:
        file = parse_file_name(name)
        if file is None or file.kind == "manifest":
            continue
        if file.kind == "data":
            unreadable = file.step in announced and file.step not in named_by
            if unreadable or file.step in set_aside or name in named_by.get(file.step, ()):
                continue
        result.append(name)
    return result


def best_steps(rated: Mapping[int, Optional[float]], higher_is_better: bool) -> list[int]:
    """Returns the steps with a metric, best first; equal ones newest first."""
    known = [(metric, step) for step, metric in rated.items()
             if metric is not None and not math.isnan(metric)]
    sign = -1 if higher_is_better else 1
    return [step for metric, step in sorted(known, key=lambda one: (sign * one[0], -one[1]))]


def steps_to_forget(rated: Mapping[int, Optional[float]], keep_last: int, keep_best: int,
                    higher_is_better: bool) -> list[int]:
    """Returns the steps that are not kept, oldest first."""
    kept = {*sorted(rated, reverse=True)[:keep_last],
            *best_steps(rated, higher_is_better)[:keep_best]}
    return sorted(set(rated) - kept)


@dataclasses.dataclass(frozen=True)
class RestoreRound:
    """Whether the ranks mean the same checkpoint: its step (-1: none), or where to look next."""

    done: bool
    step: int = -1
    bound: int = -1
    rank: int = 0
    differs: bool = False


def agree_on_step(by_rank: Sequence[tuple[int, str]]) -> RestoreRound:
    """Compares each rank's newest checkpoint: its step (-1: none) and the manifest's SHA-256."""
    steps = [step for step, _ in by_rank]
    lowest = min(steps)
    rank = steps.index(lowest)
    if lowest < 0:
        return RestoreRound(done=True, rank=rank)
    if len(set(steps)) > 1:
        return RestoreRound(done=False, bound=lowest, rank=rank)
    for other, candidate in enumerate(by_rank):
        if candidate != by_rank[0]:
            return RestoreRound(done=False, bound=lowest - 1, rank=other, differs=True)
    return RestoreRound(done=True, step=lowest)


# --- the text of a manifest -----------------------------------------------------------------------


def _dump(document: Mapping[str, Any], indent: Optional[int] = None) -> str:
    separators = (",", ":") if indent is None else (",", ": ")
    return json.dumps(document, sort_keys=True, ensure_ascii=False, indent=indent,
                      separators=separators)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def number_for_manifest(value: float) -> Union[int, float]:
    """Returns the number, or one next to it, whose text is the same in C++.

    C++ reads a manifest, writes it again, and compares. It writes numbers with Grisu2, which finds
    the shortest text, unless that lies at the edge of what rounds to the number. Of at most 15
    digits there is one text only, so such a number is taken. The change is below 1e-12 of it.
    """
    if abs(value) < 1e-290:
        return 0.0
    near = value
    for attempt in range(64):
        text = f"{value * (1 + attempt * 4e-15):.15g}"
        near = float(text)
        # Below a power of two the numbers lie twice as close.
        half = Fraction(math.ulp(near)) / (4 if abs(math.frexp(near)[0]) == 0.5 else 2)
        if abs(Fraction(text) - Fraction(near)) < half * Fraction(255, 256):
            break
    # C++ writes these with an exponent, and Python without one.
    return int(near) if 1e15 <= abs(near) < 1e16 else near


def encode_manifest(manifest: Manifest) -> str:
    """Returns the only text of a manifest."""
    document: dict[str, Any] = {
        "format": FORMAT, "step": manifest.step, "epoch": manifest.epoch,
        "generation": manifest.generation, "world_size": manifest.world_size,
        "files": [dataclasses.asdict(file) for file in manifest.files]}
    if manifest.metric is not None:
        document["metric"] = number_for_manifest(manifest.metric)
    if manifest.claim > 0:
        document["claim"] = manifest.claim
    if manifest.model:
        document["model"] = manifest.model
    if manifest.data:
        document["data"] = manifest.data
    document[_DIGEST_KEY] = _sha256(_dump(document))
    return _dump(document, indent=1) + "\n"


def _whole_document(text: str) -> Optional[dict[str, Any]]:
    """Returns the object if the text is exactly what some version writes of it."""
    try:
        document = json.loads(text, parse_constant=float)
    except ValueError:
        return None
    if not isinstance(document, dict) or not isinstance(document.get(_DIGEST_KEY), str):
        return None

    def shape(of: str) -> str:  # numbers have several texts, which the digest covers
        return _STRING_OR_NUMBER.sub(lambda found: found[1] or "0", of)

    if shape(_dump(document, indent=1) + "\n") != shape(text):
        return None
    claimed = document.pop(_DIGEST_KEY)
    compact = _STRING_OR_SPACE.sub(lambda found: found[1] or "", text)
    own = f'"{_DIGEST_KEY}":"{claimed}"'
    if compact.count(own) != 1:
        return None
    compact = re.sub(f"{re.escape(own)},|,{re.escape(own)}", "", compact, count=1)
    return document if claimed == _sha256(compact) else None


def _integer(document: Mapping[str, Any], key: str, least: int = 0) -> int:
    value = document.get(key)
    if type(value) is not int or not least <= value < _INT64:
        what = "missing" if key not in document else repr(value)
        raise DamagedError(f"its '{key}' is {what}, an integer of at least {least} was expected")
    return value


def _text(document: Mapping[str, Any], key: str) -> str:
    value = document.get(key)
    if not isinstance(value, str):
        raise DamagedError(f"its '{key}' is {'not a string' if key in document else 'missing'}, "
                           "a string was expected")
    return value


def decode_manifest(text: str) -> Manifest:
    """Reads the text of a manifest.

    Raises
    ------
    DamagedError, UnsupportedError
        The text is damaged, or has another format. The error does not name the file.
    """
    document = _whole_document(text)
    if document is None:
        raise DamagedError("the manifest does not match its own SHA-256: it is damaged or cut off")
    number = _integer(document, "format")
    if number != FORMAT:
        raise UnsupportedError(f"it has format {number}, this program reads format {FORMAT}")
    files = document.get("files")
    if not isinstance(files, list) or not all(isinstance(one, dict) for one in files):
        raise DamagedError("its 'files' is not an array of objects")
    metric = document.get("metric")
    if metric is not None and type(metric) not in (int, float):
        raise DamagedError("its 'metric' is not a number")
    return Manifest(
        step=_integer(document, "step"), epoch=_integer(document, "epoch", -_INT64),
        generation=_integer(document, "generation", -_INT64),
        world_size=_integer(document, "world_size", 1),
        files=tuple(WrittenFile(_text(one, "name"), _integer(one, "bytes"), _text(one, "sha256"))
                    for one in files),
        metric=None if metric is None else float(metric),
        claim=_integer(document, "claim") if "claim" in document else 0,
        model=_text(document, "model") if "model" in document else "",
        data=_text(document, "data") if "data" in document else "")
