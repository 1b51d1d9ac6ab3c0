"""The checks of TORCH_DISTRIBUTED_DEBUG=DETAIL: before a collective, the ranks compare their calls.

PyTorch checks the calls of its own backends by a wrapper, which cannot hold a Python process group.
The library itself finds different sizes and calls in any case, but it knows no shapes.
"""
import inspect

import torch

from ddprun import _process_group

# The collectives and their arguments whose shapes and types are the same on all ranks.
_CHECKED = {
    "allreduce": ("all_reduce", "tensors"),
    "allreduce_coalesced": ("all_reduce_coalesced", "tensors"),
    "reduce": ("reduce", "tensors"),
    "broadcast": ("broadcast", "tensors"),
    "allgather": ("all_gather", "input_tensors"),
    "allgather_coalesced": ("all_gather_coalesced", "input_list"),
    "_allgather_base": ("all_gather_into_tensor", "input"),
    "allgather_into_tensor_coalesced": ("all_gather_into_tensor_coalesced", "inputs"),
    "reduce_scatter": ("reduce_scatter", "output_tensors"),
    "_reduce_scatter_base": ("reduce_scatter_tensor", "output"),
    "reduce_scatter_tensor_coalesced": ("reduce_scatter_tensor_coalesced", "outputs"),
    "gather": ("gather", "input_tensors"),
    "scatter": ("scatter", "output_tensors"),
    "alltoall": ("all_to_all", None),
    "alltoall_base": ("all_to_all_single", None),
    "barrier": ("barrier", None),
}


def _text_of(tensor):
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _gathered_texts(group, text):
    """Returns the texts of all ranks."""
    mine = torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8)
    sizes = [int(one) for one in group._gathered(torch.tensor([mine.numel()]))]
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[:mine.numel()] = mine
    every = group._gathered(padded)
    return [bytes(one[:size].tolist()).decode() for one, size in zip(every, sizes)]


def _expect_the_same(group, text):
    texts = _gathered_texts(group, text)
    if any(one != text for one in texts):
        calls = ", ".join(f"rank {rank} calls {one}" for rank, one in enumerate(texts))
        raise RuntimeError(f"Detected mismatch between collectives on ranks: {calls}")


def _with_check(name):
    words, argument = _CHECKED[name]
    position = None
    if argument is not None:
        of_call = inspect.signature(getattr(_process_group.ProcessGroup, name)).parameters
        position = list(of_call).index(argument) - 1

    def call(self, *arguments, **named):
        tensors = []
        if argument is not None:
            given = named[argument] if argument in named else arguments[position]
            tensors = given if isinstance(given, (list, tuple)) else [given]
        if not any(one.is_cuda for one in tensors):  # NCCL's calls have PyTorch's checks
            _expect_the_same(self, " ".join([words, ", ".join(map(_text_of, tensors))]).strip())
        return getattr(super(self._checked, self), name)(*arguments, **named)

    call.__name__ = name
    return call


def with_checks(kind):
    """Returns a class of process groups that checks each collective."""
    checked = type("Checked" + kind.__name__, (kind,),
                   {name: _with_check(name) for name in _CHECKED})
    checked._checked = checked
    return checked
