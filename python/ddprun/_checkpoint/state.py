"""What a checkpoint holds: from the objects of a training to the dict of the file, and back.

worker_lib/checkpoint/contents.cc does the same in C++. docs/reference/file_formats.md has the keys.
"""

from __future__ import annotations

import base64
import collections
import dataclasses
import hashlib
import operator
import os
import re
from typing import Any, Callable, Iterator, Mapping, Optional, Sequence

from ddprun._checkpoint.directory import CheckpointDirectory, system_error
from ddprun._checkpoint.names import CheckpointError, Manifest, is_sharded
from ddprun._sampler import DistributedSampler
from ddprun._save import own_cuda_device

_INT64 = 1 << 63
_C10_NAMES = {"float32": "Float", "float64": "Double", "float16": "Half", "bfloat16": "BFloat16",
              "int64": "Long", "int32": "Int", "int16": "Short", "int8": "Char", "uint8": "Byte",
              "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
              "complex32": "ComplexHalf"}
# Optimizers of torch.optim whose state has tensors of the shape of the parameter, and numbers.
_LIKE_PARAMETERS = {"ASGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
                    "RMSprop", "Rprop", "SGD"}
# Lists of TrainingState, and their key in the file.
_LISTS = {"models": "models", "optimizers": "optimizers", "schedulers": "lr_schedulers",
          "tensors": "tensors"}


@dataclasses.dataclass
class TrainingState:
    """The content of a checkpoint: objects that a save reads and a restore fills, and values.

    Attributes
    ----------
    model
        A module. Of DistributedDataParallel and ``torch.compile`` the inner module is saved.
    optimizer, scheduler
        Of ``torch.optim``. C++ restores SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta and LBFGS, and
        the schedules StepLR, MultiStepLR, CosineAnnealingLR, LinearLR, SequentialLR and
        ReduceLROnPlateau.
    sampler
        A `DistributedSampler` of this module. Or any object whose ``state_dict()`` is JSON; C++
        cannot restore such an object.
    epoch
        The epoch of the training.
    extra
        Other values that the program wants back: JSON.
    metric
        The quality of the model, for ``keep_best``. A restore does not change it.
    data
        A text that changes with the training data. A checkpoint with another one is refused.
    models, optimizers, schedulers, tensors
        More objects by name, such as the networks of a GAN. A name has no ``/``.
    batch_size
        Samples in a batch, as the program counts them. 0: not given.
    has_position
        False: the program keeps its position in the data itself. Then there are no warnings about
        the sampler.
    """

    model: Optional[Any] = None
    optimizer: Optional[Any] = None
    scheduler: Optional[Any] = None
    sampler: Optional[Any] = None
    epoch: int = 0
    extra: Any = None
    metric: Optional[float] = None
    data: str = ""
    models: dict[str, Any] = dataclasses.field(default_factory=dict)
    optimizers: dict[str, Any] = dataclasses.field(default_factory=dict)
    schedulers: dict[str, Any] = dataclasses.field(default_factory=dict)
    tensors: dict[str, Any] = dataclasses.field(default_factory=dict)
    batch_size: int = 0
    has_position: bool = True

    def sampler_state(self) -> Optional[Any]:
        """Returns the state of the sampler, as JSON."""
        if self.sampler is None:
            return None
        if not hasattr(self.sampler, "state_dict"):
            raise TypeError(f"TrainingState.sampler: {type(self.sampler).__name__} does not know "
                            "its position: use ddprun.checkpoint.DistributedSampler")
        return _plain(self.sampler.state_dict(), "sampler", _to_json)


def count(value: Any, name: str) -> int:
    """Returns a step or an epoch as an int.

    Raises
    ------
    TypeError, ValueError
        It is not an integer, is negative, or has more than 64 bits.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"save a checkpoint: {name} {value!r} is a {type(value).__name__} "
                        "(expected an int)")
    if number < 0:
        raise ValueError(f"save a checkpoint: {name} {number} is negative")
    if number >= _INT64:
        raise ValueError(f"save a checkpoint: {name} {number} has more than 64 bits")
    return number


def refuse_fsdp(state: TrainingState, doing: str) -> None:
    """Refuses modules of which rank 0 alone cannot read the state."""
    for model in (state.model, *state.models.values()):
        for part in model.modules() if hasattr(model, "modules") else ():
            if type(part).__name__ == "FullyShardedDataParallel":
                raise TypeError(f"{doing}: the model is FullyShardedDataParallel, whose state is "
                                "on all ranks (use torch.distributed.checkpoint)")


def _cuda_device(state: TrainingState) -> Any:
    """Returns the GPU of this rank: that of a model, else the one that a group would use."""
    import torch

    for model in (state.model, *state.models.values()):
        for parameter in model.parameters() if hasattr(model, "parameters") else ():
            if parameter.device.type == "cuda":
                return parameter.device
    return own_cuda_device(torch.cuda, None)


def _module(model: Any) -> Any:
    from torch.nn.parallel import DistributedDataParallel

    for _ in range(2):  # compiled within DistributedDataParallel, or the other way round
        model = model.module if isinstance(model, DistributedDataParallel) else model
        model = getattr(model, "_orig_mod", model)
    return model


# --- to the file ----------------------------------------------------------------------------------


def _to_json(value: Any, where: str) -> Any:
    hint = " (use .item(), or TrainingState.tensors)" if hasattr(value, "detach") else ""
    raise TypeError(f"save a checkpoint: {where} is a {type(value).__name__}, only None, bool, "
                    f"int, float, str, list and dict can be saved here{hint}")


def _to_file(value: Any, where: str) -> Any:
    import torch

    if type(value) not in (torch.Tensor, torch.nn.Parameter):
        raise TypeError(f"save a checkpoint: {where} is a {type(value).__name__}, only tensors and "
                        "plain values can be saved (of distributed tensors: "
                        "torch.distributed.checkpoint)")
    tensor = value.detach()
    if tensor.layout is not torch.strided:
        raise TypeError(f"save a checkpoint: {where} is a tensor of layout {tensor.layout}, only "
                        "dense ones can be saved")
    # The memory of a conjugated view is that of another tensor with other values.
    return tensor.resolve_conj().resolve_neg()


def _plain(value: Any, where: str, other: Callable[[Any, str], Any]) -> Any:
    """Returns a value of dicts, lists and simple values only. other: what becomes of the rest."""
    if value is None or isinstance(value, (bool, str)):
        return value if value is None or isinstance(value, bool) else str(value)
    if isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValueError(f"save a checkpoint: {where} is {value}, which has more than 64 bits")
        return int(value)
    if isinstance(value, float):
        return float(value)
    if isinstance(value, (list, tuple)):
        items = [_plain(one, f"{where}[{at}]", other) for at, one in enumerate(value)]
        return tuple(items) if isinstance(value, tuple) and other is _to_file else items
    if isinstance(value, Mapping):
        keys = (str,) if other is _to_json else (str, int)
        for key in value:
            if not isinstance(key, keys):
                raise TypeError(f"save a checkpoint: {where} has the key {key!r}, a str was "
                                "expected")
        return {key: _plain(one, f"{where}[{key!r}]", other) for key, one in value.items()}
    item = getattr(value, "item", None)
    if item is not None and type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
        return _plain(item(), where, other)
    return other(value, where)


def _schedule_state(scheduler: Any, where: str) -> Any:
    return _plain(_with_milestone_list(scheduler.state_dict()), where, _to_json)


def _with_milestone_list(state: Mapping[str, Any]) -> dict[str, Any]:
    """Replaces the Counter of a MultiStepLR, which JSON cannot hold. Files have a list."""
    result = dict(state)
    if isinstance(result.get("milestones"), collections.Counter):
        result["milestone_list"] = sorted(result.pop("milestones").elements())
    if "_schedulers" in result:
        result["_schedulers"] = [_with_milestone_list(one) for one in result["_schedulers"]]
    return result


def _with_milestones(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Undoes `_with_milestone_list`."""
    result = dict(saved)
    if "milestone_list" in result:
        result["milestones"] = collections.Counter(result.pop("milestone_list"))
    if "_schedulers" in result:
        result["_schedulers"] = [_with_milestones(one) for one in result["_schedulers"]]
    return result


def _checked_names(state: TrainingState) -> None:
    for field in _LISTS:
        for name, part in getattr(state, field).items():
            if not name or "/" in name:
                raise ValueError(f"TrainingState.{field}: invalid name '{name}' (expected one that "
                                 "is not empty and has no '/')")
            if part is None:
                raise ValueError(f"TrainingState.{field}: '{name}' is None")


def contents_of(state: TrainingState, *, step: int, generation: int,
                generators: Sequence[Mapping[str, str]]) -> dict[str, Any]:
    """Returns the dict of the file. Its tensors are the live ones."""
    import torch

    _checked_names(state)

    def module_state(model: Any, where: str) -> Any:
        return _plain(_module(model).state_dict(), where, _to_file)

    def optimizer_state(optimizer: Any, where: str) -> Any:
        return _plain(optimizer.state_dict(), where, _to_file)

    top: dict[str, Any] = {}
    if state.model is not None:
        top["model"] = module_state(state.model, "model")
    if state.optimizer is not None:
        top["optimizer"] = optimizer_state(state.optimizer, "optimizer")
        top["optimizer_class"] = type(state.optimizer).__name__
    if state.scheduler is not None:
        top["lr_scheduler"] = _schedule_state(state.scheduler, "lr_scheduler")
        top["lr_scheduler_class"] = type(state.scheduler).__name__
    if state.sampler is not None:
        top["sampler"] = state.sampler_state()
    top.update(
        epoch=count(state.epoch, "epoch"), step=step,
        rng=[{key: torch.frombuffer(bytearray(base64.b64decode(text)), dtype=torch.uint8)
              for key, text in of_rank.items()} for of_rank in generators],
        extra=_plain(state.extra, "extra", _to_json), world_size=len(generators),
        generation=generation, threads=torch.get_num_threads(), data=state.data)
    for key, parts, saved in (
            ("models", state.models, module_state), ("optimizers", state.optimizers,
                                                     optimizer_state),
            ("optimizer_classes", state.optimizers, lambda part, _: type(part).__name__),
            ("lr_schedulers", state.schedulers, _schedule_state),
            ("lr_scheduler_classes", state.schedulers, lambda part, _: type(part).__name__),
            ("tensors", state.tensors, _to_file)):
        if parts:
            top[key] = {name: saved(part, f"{key}['{name}']") for name, part in parts.items()}
    if state.batch_size > 0:
        top["batch_size"] = state.batch_size
    return top


def _dtype_name(tensor: Any) -> str:
    name = str(tensor.dtype).rpartition(".")[2]
    return _C10_NAMES.get(name, name)


def _form(tensor: Any) -> str:
    return f"{_dtype_name(tensor)} of shape {list(tensor.shape)}"


def hash_of_models(state: TrainingState) -> str:
    """Returns the hash for the manifest, as C++ computes it."""
    def one(model: Any) -> str:
        lines = {f"{name} {_form(tensor)}\n" for name, tensor in _module(model).state_dict().items()
                 if hasattr(tensor, "dtype")}
        return hashlib.sha256("".join(sorted(lines)).encode()).hexdigest()[:16]

    text = "" if state.model is None else one(state.model)
    text += "".join(f" {name} {one(model)}" for name, model in sorted(state.models.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:16] if state.models else text


def own_generators(state: TrainingState) -> dict[str, str]:
    """Returns the state of this rank's generators, as text."""
    import torch

    states = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state(_cuda_device(state))
    return {key: base64.b64encode(bytes(one.numpy())).decode() for key, one in states.items()}


class Snapshot:
    """The state of a training at one moment. Its memory is kept for the next one."""

    def __init__(self) -> None:
        self._buffers: list[Any] = []

    def take(self, live: Any) -> Any:
        """Returns a copy of a tree, on the CPU. It is valid until the next call."""
        copies: dict[Any, Any] = {}
        buffers, self._buffers = iter(self._buffers), []

        def copy(value: Any) -> Any:
            if isinstance(value, dict):
                return {key: copy(one) for key, one in value.items()}
            if isinstance(value, (list, tuple)):
                return type(value)(map(copy, value))
            if not hasattr(value, "detach"):
                return value
            # A tensor that appears twice (tied weights) stays one tensor.
            key = (value.device, value.data_ptr(), value.dtype, value.shape, value.stride())
            if value.numel() == 0 or key not in copies:
                copies[key] = self._copy(value, next(buffers, None))
            return copies[key]

        return copy(live)

    def _copy(self, tensor: Any, buffer: Optional[Any]) -> Any:
        import torch

        form = torch.empty_like(tensor, device="meta")  # with the strides of a copy
        if buffer is None or buffer.dtype != form.dtype or buffer.shape != form.shape or (
                buffer.stride() != form.stride()):
            # The program may have set another default device.
            buffer = torch.empty_like(tensor, device="cpu")
        self._buffers.append(buffer)
        return buffer.copy_(tensor)


def for_file(live: Any) -> Any:
    """Returns a tree for `torch.save`: tensors on the CPU, with no more storage than they need."""
    if isinstance(live, dict):
        return {key: for_file(one) for key, one in live.items()}
    if isinstance(live, (list, tuple)):
        return type(live)(map(for_file, live))
    if not hasattr(live, "detach"):
        return live
    tensor = live.cpu()
    is_slice = tensor.untyped_storage().nbytes() > tensor.numel() * tensor.element_size()
    return tensor.clone() if is_slice else tensor


# --- from the file --------------------------------------------------------------------------------


def read_verified(directory: CheckpointDirectory, manifest: Manifest, *, map_location: Any = None,
                  mmap: bool = False) -> dict[str, Any]:
    """Returns the contents of a checkpoint, after every byte was verified; shards are merged.

    One file is open at a time, because a checkpoint may have more shards than a process may have
    open files.

    Parameters
    ----------
    mmap
        Tensors are mapped from the file, and read when they are used.
    """
    parts = []
    for file in manifest.files:
        descriptor = directory.open_verified(file)
        try:
            parts.append(_read(directory.path_of(file.name), descriptor, map_location, mmap))
        finally:
            os.close(descriptor)
    return _merged(parts, directory, manifest) if is_sharded(manifest) else parts[0]


def _read(path: str, descriptor: int, map_location: Any, mmap: bool) -> dict[str, Any]:
    import torch

    # The descriptor is of the file that was verified. Another one may have its name now.
    through = f"/proc/self/fd/{descriptor}"
    try:
        if mmap and os.path.exists(through):
            value = torch.load(through, map_location=map_location, weights_only=True, mmap=True)
        else:
            with open(descriptor, "rb", closefd=False) as file:
                file.seek(0)
                value = torch.load(file, map_location=map_location, weights_only=True)
    except OSError as error:  # the file may be whole
        raise error if error.errno is None else system_error(f"read {path}", error) from None
    except Exception as error:  # whatever the unpickler and the reader of archives raise
        if isinstance(error, MemoryError) or _is_of_allocator(error):
            raise
        raise CheckpointError(f"read {path}: {_why_not_loaded(error)}") from None
    if not isinstance(value, dict):
        raise CheckpointError(f"read {path}: it is a {type(value).__name__}, not a dict")
    return value


def _is_of_allocator(error: Exception) -> bool:
    """Returns whether PyTorch has run out of memory of the host or of a GPU."""
    return isinstance(error, RuntimeError) and (
        "allocate" in str(error) or type(error).__name__ == "OutOfMemoryError")


def _why_not_loaded(error: Exception) -> str:
    """Returns one line of PyTorch's text, without its advice to load the file nevertheless."""
    text = str(error)
    found = re.search(r"(?:GLOBAL|Unsupported class) ([\w.]+)", text)
    if found:
        return f"it holds '{found[1]}', only tensors and plain values are read"
    reason = text.partition("WeightsUnpickler error: ")[2] or text
    return reason.strip().partition("\n")[0] or type(error).__name__


def _merged(parts: Sequence[dict[str, Any]], directory: CheckpointDirectory,
            manifest: Manifest) -> dict[str, Any]:
    """Puts shards together to what one rank would have written (checkpoint/core/shards.cc)."""
    def expect(number: int, holds: bool, what: str) -> None:
        if not holds:
            raise CheckpointError(f"read {directory.path_of(manifest.files[number].name)}: {what}")

    model: dict[str, Any] = {}
    states: dict[int, Any] = {}
    for number, part in enumerate(parts):
        expect(number, part.get("shard") == number and part.get("shards") == len(parts),
               f"it says that it is shard {part.get('shard')} of {part.get('shards')}, there are "
               f"{len(parts)}")
        for key in ("model", "optimizer"):
            expect(number, key not in parts[0] or isinstance(part.get(key), dict),
                   f"it has no '{key}'")
        model.update(part.get("model", {}))
        states.update(part.get("optimizer", {}).get("state", {}))
    top = {key: value for key, value in parts[0].items()
           if key not in ("shard", "shards", "rank", "model_names")}
    if "model" in top:
        names = parts[0].get("model_names", [])
        for name in names:
            expect(0, name in model, f"it names '{name}', which no shard has")
        top["model"] = {name: model[name] for name in names}
    if "optimizer" in top:
        top["optimizer"] = {**top["optimizer"], "state": dict(sorted(states.items()))}
    ranks = [part.get("rank", {}) for part in parts]
    if any(ranks):
        top["ranks"] = ranks
    return top


class _View:
    """A checkpoint as one rank sees it: its own state, in a world of the size that saved it."""

    def __init__(self, top: Mapping[str, Any], rank: int, size: int) -> None:
        ranks = top.get("ranks", [])
        self.has_own = bool(ranks)
        self.is_same_world = top.get("world_size") == size
        self._own = ranks[rank] if self.is_same_world and rank < len(ranks) else {}

    def section(self, key: str, of_rank_0: Mapping[Any, Any], prefix: str = "") -> dict[Any, Any]:
        """Returns this rank's entries. prefix: those of one named object."""
        result = dict(of_rank_0)
        for name, value in self._own.get(key, {}).items():
            if prefix and not str(name).startswith(prefix):
                continue
            entry = name[len(prefix):] if prefix else name
            if prefix and key == "optimizers":
                entry = int(entry)
            if value is None:
                result.pop(entry, None)
            else:
                result[entry] = value
        return result


def fill(state: TrainingState, top: Mapping[str, Any], file: str, *, rank: int, size: int,
         allows_extra_names: bool) -> Iterator[str]:
    """Fills the objects of a training and this rank's generators. Yields remarks.

    Names, classes, shapes, dtypes and the sampler are compared before anything is filled.

    Raises
    ------
    ValueError
        The checkpoint is of another training.
    CheckpointError
        The contents are not those of a checkpoint.
    """
    import torch

    _checked_names(state)
    refuse_fsdp(state, "restore a checkpoint")
    if "imported" in top:
        yield from _fill_weights(state, top, file)
        return
    view = _View(top, rank, size)
    remarks: list[str] = []
    try:
        parts = _checked_parts(state, top, view, file, allows_extra_names, remarks)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise CheckpointError(f"restore {file}: its contents are not those of a checkpoint: "
                              f"{type(error).__name__}: {error}") from None
    yield from remarks
    if view.has_own and not view.is_same_world:
        yield (f"{file} has a state of its own for each rank: here all ranks take rank 0's buffers "
               "and parameters")
    for model, saved in parts.models:
        _module(model).load_state_dict(saved)
    for optimizer, saved, state_of_parameters in parts.optimizers:
        _load_optimizer(optimizer, saved, state_of_parameters, file)
    for scheduler, saved in parts.schedulers:
        scheduler.load_state_dict(saved)
    if state.sampler is not None:
        try:
            state.sampler.load_state_dict(top["sampler"])
        except ValueError as error:
            raise ValueError(f"restore {file}: {error}") from None
        yield from _remark_on_batches(top["sampler"], state.sampler.state_dict(), file)
    with torch.no_grad():
        for name, tensor in state.tensors.items():
            tensor.copy_(parts.tensors[name])
    state.epoch = top["epoch"]
    state.extra = top.get("extra")
    yield from _fill_generators(state, top, file, rank)


def _fill_weights(state: TrainingState, top: Mapping[str, Any], file: str) -> Iterator[str]:
    """Fills the model from what ``ddprun-ckpt import`` has written."""
    if state.model is None or state.models:
        raise ValueError(f"restore {file}: it has only the weights of one model, for "
                         "TrainingState.model")
    _expect_same_tensors(_module(state.model).state_dict(), top["model"], file, "model")
    _module(state.model).load_state_dict(top["model"])
    yield (f"{file} has only the weights of {top['imported']}: everything else starts as it is")


@dataclasses.dataclass
class _Parts:
    """The objects to fill, each with its part of the file."""

    models: list[tuple[Any, Any]]
    optimizers: list[tuple[Any, Any, Any]]  # with the states of the parameters
    schedulers: list[tuple[Any, Any]]
    tensors: Mapping[str, Any]


def _checked_parts(state: TrainingState, top: Mapping[str, Any], view: _View, file: str,
                   allows_extra_names: bool, remarks: list[str]) -> _Parts:
    """Compares the file with the training, and returns its parts. It fills nothing."""
    remarks.extend(_check(state, top, file, allows_extra_names))
    parts = _Parts([], [], [], view.section("tensors", top.get("tensors", {})))
    models = {"model": (state.model, view.section("model", top.get("model", {})))}
    models.update({f"models['{name}']": (part, view.section("models", top["models"][name],
                                                            f"{name}/"))
                   for name, part in state.models.items()})
    for where, (model, saved) in models.items():
        if model is not None:
            _expect_same_tensors(_module(model).state_dict(), saved, file, where)
            # The module keeps an extra state as it is. It must not keep the mapped file.
            parts.models.append((model, {name: _cloned(value) if name.endswith("_extra_state")
                                         else value for name, value in saved.items()}))
    if state.optimizer is not None:
        saved = top["optimizer"]
        parts.optimizers.append((state.optimizer, saved, view.section("optimizer",
                                                                      saved["state"])))
    for name, optimizer in state.optimizers.items():
        saved = top["optimizers"][name]
        parts.optimizers.append((optimizer, saved, view.section("optimizers", saved["state"],
                                                                f"{name}/")))
    for optimizer, saved, of_parameters in parts.optimizers:
        _expect_same_parameters(optimizer, saved, of_parameters, file)
    if state.scheduler is not None:
        parts.schedulers.append((state.scheduler, _with_milestones(top["lr_scheduler"])))
    for name, scheduler in state.schedulers.items():
        parts.schedulers.append((scheduler, _with_milestones(top["lr_schedulers"][name])))
    return parts


def _check(state: TrainingState, top: Mapping[str, Any], file: str,
           allows_extra_names: bool) -> Iterator[str]:
    """Refuses the state of another training, as far as names and classes show it."""
    def refuse(why: str) -> None:
        raise ValueError(f"restore {file}: {why}")

    for key, part in (("model", state.model), ("optimizer", state.optimizer),
                      ("lr_scheduler", state.scheduler), ("sampler", state.sampler)):
        if part is not None and key not in top:
            refuse(f"it has no '{key}'")
    if not top.get("rng"):
        refuse("it has no random generators")
    if type(top["epoch"]) is not int or any("cpu" not in one for one in top["rng"]):
        raise TypeError("'epoch' or 'rng' is not as expected")
    if isinstance(state.sampler, DistributedSampler):
        try:
            state.sampler.checked(top["sampler"])
        except ValueError as error:
            refuse(str(error))
    if top.get("gradients"):
        refuse("it was saved by C++ within an accumulation, with gradients, which Python does not "
               "restore (save after optimizer.step(), or remove this checkpoint)")
    for key, noun in (("comm_hook", "a communication hook"), ("averager",
                                                              "a PeriodicModelAverager")):
        if key in top:
            yield f"{file} has the state of {noun}, which is not restored"
    classes = [(top.get(f"{key}_class"), part, noun)
               for key, part, noun in (("optimizer", state.optimizer, "optimizer"),
                                       ("lr_scheduler", state.scheduler, "schedule"))]
    only_in_file = []
    for field, key in _LISTS.items():
        own, saved = getattr(state, field), top.get(key, {})
        missing = "".join(f" '{name}'" for name in own if name not in saved)
        extra = "".join(f" '{name}'" for name in saved if name not in own)
        if allows_extra_names and extra:
            only_in_file.append(key + extra)
            extra = ""
        if missing or extra:
            refuse(f"of '{key}'{' it has no' + missing if missing else ''}"
                   f"{', and' if missing and extra else ''}"
                   f"{' this training has no' + extra if extra else ''}"
                   f"{' (to restore some of the names, use read_only)' if extra else ''}")
    for field, key, noun in (("optimizers", "optimizer_classes", "optimizer"),
                             ("schedulers", "lr_scheduler_classes", "schedule")):
        classes += [(top.get(key, {}).get(name), part, noun)
                    for name, part in getattr(state, field).items()]
    for name, part, noun in classes:
        if part is not None and name != type(part).__name__:
            refuse(f"it holds the state of {name}, this {noun} is {type(part).__name__}")
    for name, tensor in state.tensors.items():
        if _form(tensor) != _form(top["tensors"][name]):
            refuse(f"the tensor '{name}' is {_form(top['tensors'][name])} in the file, "
                   f"{_form(tensor)} in this training")
    data = top.get("data", "")
    if data and state.data and data != state.data:
        refuse(f"it was trained on the data '{data}', but this run uses '{state.data}'")
    if only_in_file:
        yield f"{file} also holds {', '.join(only_in_file)}, which are not restored"
    import torch

    threads = top.get("threads", torch.get_num_threads())
    if threads != torch.get_num_threads():
        yield (f"{file} was saved by workers of {threads} threads, these have "
               f"{torch.get_num_threads()}: sums may be rounded otherwise")
    saved_batch = top.get("batch_size", 0)
    if saved_batch and state.batch_size and saved_batch != state.batch_size:
        yield _batches_differ(file, saved_batch, state.batch_size, "")


def _batches_differ(file: str, saved: int, own: int, where: str) -> str:
    return (f"{file} was saved with batches of {saved} samples{where}, these have {own}: steps and "
            "learning rates that depend on the batch have another meaning")


def _remark_on_batches(saved: Mapping[str, Any], own: Mapping[str, Any],
                       file: str) -> Iterator[str]:
    of_saved, of_own = (one.get("batch_size", 0) * one.get("world_size", 0) for one in (saved, own))
    if of_saved and of_own and of_saved != of_own:
        yield _batches_differ(file, of_saved, of_own, " over all ranks")


def _expect_same_tensors(own: Mapping[str, Any], saved: Mapping[str, Any], file: str,
                         where: str) -> None:
    def listed(names: Sequence[str]) -> str:
        shown = "', '".join(names[:8])
        return f"'{shown}'" + (f" and {len(names) - 8} more" if len(names) > 8 else "")

    faults = []
    missing = [name for name in own if name not in saved]
    unexpected = [name for name in saved if name not in own]
    if missing:
        faults.append(f"it has no {listed(missing)}")
    if unexpected:
        faults.append(f"the {where} has no {listed(unexpected)}")
    faults += [f"'{name}' is {_form(saved[name])} in the file, {_form(own[name])} in the {where}"
               for name in own if name in saved and hasattr(own[name], "dtype")
               and _form(own[name]) != _form(saved[name])][:4]
    if faults:
        raise ValueError(f"restore {file}: {'; '.join(faults)}")


def _parameters(optimizer: Any, saved: Mapping[str, Any]) -> dict[Any, Any]:
    """Returns the parameters of an optimizer, by their index in the file."""
    return {index: parameter for own, of_file in zip(optimizer.param_groups, saved["param_groups"])
            for index, parameter in zip(of_file["params"], own["params"])}


def _expect_same_parameters(optimizer: Any, saved: Mapping[str, Any], state: Mapping[Any, Any],
                            file: str) -> None:
    own, of_file = ([len(group["params"]) for group in groups]
                    for groups in (optimizer.param_groups, saved["param_groups"]))
    name = type(optimizer).__name__
    if own != of_file:
        raise ValueError(f"restore {file}: {name} has groups of {of_file} parameters in the file, "
                         f"of {own} in this training")
    is_of_torch = type(optimizer).__module__.startswith("torch.optim")
    if not is_of_torch or name not in _LIKE_PARAMETERS:
        return
    for index, parameter in _parameters(optimizer, saved).items():
        for key, value in state.get(index, {}).items():
            if getattr(value, "numel", int)() > 1 and value.shape != parameter.shape:
                raise ValueError(
                    f"restore {file}: '{key}' of parameter {index} of {name} does not have the "
                    f"shape of its parameter: {list(value.shape)} in the file, "
                    f"{list(parameter.shape)} in this training (give the parameters in the same "
                    "order)")


def _cloned(value: Any) -> Any:
    """Returns a tree with copies of its tensors."""
    if isinstance(value, dict):
        return {key: _cloned(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(_cloned, value))
    return value.clone() if hasattr(value, "clone") else value


def _load_optimizer(optimizer: Any, saved: Mapping[str, Any], state: Mapping[Any, Any],
                    file: str) -> None:
    # On the CPU the optimizer keeps tensors as they are. It must not keep the mapped file. To a GPU
    # it copies all but the steps.
    on_gpu = {index for index, parameter in _parameters(optimizer, saved).items()
              if parameter.device.type != "cpu"}
    own = {index: {key: value if index in on_gpu and key != "step" else _cloned(value)
                   for key, value in one.items()} for index, one in state.items()}
    try:
        optimizer.load_state_dict({**saved, "state": own})
    except (ValueError, KeyError) as error:
        raise ValueError(f"restore {file}: {str(error) or 'it is of another optimizer'}") from None


def _fill_generators(state: TrainingState, top: Mapping[str, Any], file: str,
                     rank: int) -> Iterator[str]:
    import torch

    saved = top["rng"]
    states = [one["cpu"].cpu() for one in saved]
    if rank < len(states):
        torch.set_rng_state(states[rank].clone())
    else:  # the same each time, and another one on each rank, as in C++
        text = bytes(states[0].numpy()) + f" rank {rank}".encode()
        seed = int(hashlib.sha256(text).hexdigest()[:16], 16)
        generator = torch.Generator(device="cpu")
        torch.set_rng_state(generator.manual_seed(seed).get_state())
    if not (torch.cuda.is_available() and torch.cuda.is_initialized()):
        return
    if rank < len(saved) and "cuda" in saved[rank]:
        torch.cuda.set_rng_state(saved[rank]["cuda"].cpu().clone(), _cuda_device(state))
    else:
        yield f"{file} has no cuda generator of this rank: it stays as it is"
