"""The group of "cpu:ddprun,cuda:nccl": ddprun for tensors of the CPU, NCCL for those of GPUs.

A Python process group takes the place of the whole group, so PyTorch makes none for other devices.
This one holds a group of NCCL and hands it the calls whose tensors are on a GPU.
"""
import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ddprun import _process_group

_CALLS = (
    "allgather", "allgather_coalesced", "allgather_into_tensor_coalesced", "allreduce",
    "allreduce_coalesced", "alltoall", "alltoall_base", "broadcast", "gather", "recv",
    "recv_anysource", "reduce", "reduce_scatter", "reduce_scatter_tensor_coalesced", "scatter",
    "send", "_allgather_base", "_reduce_scatter_base")


def _why_no_gpus():
    """Returns why this process cannot use NCCL; an empty text: it can."""
    if not dist.is_nccl_available():
        return "this PyTorch was built without NCCL"
    if not torch.cuda.is_available():
        return "PyTorch finds no GPU"
    if not hasattr(dist.ProcessGroup, "_set_default_backend"):
        return f"PyTorch {torch.__version__} is older than 2.6"
    return ""


def _make_nccl(options, backend_options):
    """Makes the group for GPUs, as PyTorch does for "cuda:nccl"."""
    store = dist.PrefixStore("cuda/", options.store)
    nccl = backend_options or dist.ProcessGroupNCCL.Options()
    nccl._timeout = options.timeout
    nccl.global_ranks_in_group = options.global_ranks_in_group
    nccl.group_name = options.group_id
    backend = dist.ProcessGroupNCCL(store, options.group_rank, options.group_size, nccl)
    backend._set_sequence_number_for_group()
    if dist.get_debug_level() == dist.DebugLevel.DETAIL and dist.is_gloo_available():
        backend = c10d._create_process_group_wrapper(
            wrapped_pg=backend, store_prefix=options.group_id, store=store,
            rank=options.group_rank, world_size=options.group_size, timeout=options.timeout)
    kind = dist.ProcessGroup.BackendType.NCCL
    group = dist.ProcessGroup(store, options.group_rank, options.group_size)
    group._set_default_backend(kind)
    group._register_backend(torch.device("cuda"), kind, backend)
    return group


def _is_on_gpu(arguments):
    """Returns whether the first tensor among them, or in their lists, is on a GPU."""
    for one in arguments:
        found = _is_on_gpu(one) if isinstance(one, (list, tuple)) else getattr(one, "is_cuda", None)
        if found is not None:
            return found
    return None


class ProcessGroup(_process_group.ProcessGroup):
    """The ranks that run collectives together, on tensors of the CPU and of GPUs."""

    IS_HYBRID = True
    _gpus = None  # the group of NCCL; None: this process can use none
    _reason = ""

    def add_gpus(self, options, backend_options):
        self._reason = _why_no_gpus()
        if not self._reason:
            self._gpus = _make_nccl(options, backend_options)

    def _of_gpus(self):
        if self._gpus is None:
            raise RuntimeError(f"a group of cpu:ddprun,cuda:nccl cannot take tensors of GPUs here: "
                               f"{self._reason}")
        return self._gpus

    @property
    def _device_types(self):
        return [torch.device("cpu")] + ([torch.device("cuda")] if self._gpus else [])

    def _get_backend(self, device):
        if torch.device(device).type == "cuda":
            return self._of_gpus()._get_backend(device)
        return super()._get_backend(device)

    # Only messages between GPUs are coalesced this way, by batch_isend_irecv (_registration.py).
    def _start_coalescing(self, device):
        return self._of_gpus()._start_coalescing(device)

    def _end_coalescing(self, device):
        return self._of_gpus()._end_coalescing(device)

    def barrier(self, opts=None, timeout=None):
        device = getattr(opts, "device", None)
        if device is not None and device.type == "cuda":
            return self._of_gpus().barrier(opts)
        return super().barrier(opts, timeout)

    def setGroupName(self, name):
        super().setGroupName(name)
        if self._gpus:
            self._gpus._set_group_name(name)

    def setGroupDesc(self, text):
        super().setGroupDesc(text)
        if self._gpus:
            self._gpus._set_group_desc(text)

    def set_timeout(self, timeout):
        super().set_timeout(timeout)
        if self._gpus:
            self._gpus.set_timeout(timeout)

    _set_default_timeout = set_timeout

    def abort(self):
        super().abort()
        if self._gpus:
            self._gpus.abort()

    def shutdown(self):
        super().shutdown()
        if self._gpus:
            self._gpus.shutdown()


def _by_device(name):
    on_cpu = getattr(_process_group.ProcessGroup, name)

    def call(self, *arguments, **named):
        if _is_on_gpu(arguments):
            return getattr(self._of_gpus(), name)(*arguments, **named)
        return on_cpu(self, *arguments, **named)

    call.__name__ = name
    return call


for _name in _CALLS:
    setattr(ProcessGroup, _name, _by_device(_name))
