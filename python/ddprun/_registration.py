"""Registers the backend "ddprun" with torch.distributed, without importing torch.

If torch is loaded, the backend is registered at once. Otherwise an import hook registers it when
torch is imported. The code of the backend itself is loaded when a group is made.
"""
import functools
import importlib.machinery
import sys
import threading

_MODULE = "torch.distributed.distributed_c10d"
_HYBRID = {"cpu": "ddprun", "cuda": "nccl"}
_making = threading.local()  # backends: of the group that this thread makes, by device


def _create(options, backend_options):
    from ddprun import _process_group

    if any(getattr(one, "enable_reconfigure", False) for one in (options, backend_options)):
        raise RuntimeError(_process_group.NO_RECONFIGURE)
    if getattr(_making, "backends", None) != _HYBRID:
        return _process_group.create(options)
    from ddprun import _hybrid

    group = _process_group.create(options, _hybrid.ProcessGroup)
    group.add_gpus(options, backend_options)
    return group


def _follow_groups(module):
    """Learns of each group that PyTorch makes, for records and for groups of two backends."""
    from ddprun import _flight  # only now: it imports what a program without torch needs not

    make = getattr(module, "_new_process_group_helper", None)
    if make is None:
        return

    @functools.wraps(make)
    def make_group(group_size, group_rank, global_ranks_in_group, *rest, **named):
        # Programs also call this for a second group of all ranks, on some of the ranks only.
        if global_ranks_in_group or module.is_initialized():
            return make(group_size, group_rank, global_ranks_in_group, *rest, **named)
        _flight.begin_world()
        try:
            made = make(group_size, group_rank, global_ranks_in_group, *rest, **named)
        except BaseException:
            _flight.give_up_world()
            raise
        _flight.watch(module, group_rank, group_size)
        return made

    module._new_process_group_helper = make_group
    if module.is_initialized():
        _flight.begin_world()
        _flight.watch(module, module.get_rank(), module.get_world_size())


def _splitter(module):
    of_torch = module.split_group

    @functools.wraps(of_torch)
    def split_group(parent_pg=None, split_ranks=None, timeout=None, pg_options=None,
                    group_desc=None):
        parent = parent_pg or module._get_default_group()
        if not getattr(parent, "IS_DDPRUN", False):
            return of_torch(parent_pg, split_ranks, timeout, pg_options, group_desc)
        if not split_ranks or not all(split_ranks):
            raise ValueError("split_group: split_ranks must name the ranks of each new group")
        every = [rank for ranks in split_ranks for rank in ranks]
        if len(set(every)) < len(every) or not set(every) <= set(range(parent.size())):
            raise ValueError(f"split_group: {split_ranks} must be different ranks of a group of "
                             f"{parent.size()}")
        mine = next((ranks for ranks in split_ranks if parent.rank() in ranks), None)
        if mine is None:
            return None
        # Only the ranks of the new group meet. Its name is made of them, as in PyTorch's.
        return module.new_group([module.get_global_rank(parent, rank) for rank in sorted(mine)],
                                timeout, module.get_backend(parent), pg_options,
                                use_local_synchronization=True, group_desc=group_desc)

    return split_group


def _batcher(module):
    of_torch = module.batch_isend_irecv

    @functools.wraps(of_torch)
    def batch_isend_irecv(p2p_op_list):
        first = p2p_op_list[0] if isinstance(p2p_op_list, list) and p2p_op_list else None
        group = getattr(first, "group", None)
        if group is None and module.is_initialized():
            group = module._get_default_group()
        is_on_gpu = getattr(getattr(first, "tensor", None), "is_cuda", False)
        if not is_on_gpu or not getattr(group, "IS_HYBRID", False):
            return of_torch(p2p_op_list)
        # PyTorch's sends one after the other in a Python process group: a ring of ranks that all
        # send first would wait forever.
        module._check_p2p_op_list(p2p_op_list)
        with module._coalescing_manager(group, first.tensor.device, async_ops=True) as manager:
            for one in p2p_op_list:
                one.op(one.tensor, one.peer, one.group, one.tag)
        return manager.works

    return batch_isend_irecv


def _replace(module, function):
    """Puts a function into the places of PyTorch's function of that name."""
    for place in (module, sys.modules["torch.distributed"]):
        if hasattr(place, function.__name__):
            setattr(place, function.__name__, function)


def _register_with(module):
    if "ddprun" in module.Backend.backend_list:
        return
    _follow_groups(module)
    module.Backend.register_backend("ddprun", _create, extended_api=True, devices=["cpu"])
    of_torch = module.monitored_barrier

    @functools.wraps(of_torch)
    def monitored_barrier(group=None, timeout=None, wait_all_ranks=False):
        ours = group
        if not group and module.is_initialized():
            ours = module._get_default_group()
        if not getattr(ours, "IS_DDPRUN", False):
            return of_torch(group, timeout, wait_all_ranks)
        return ours.monitored_barrier(timeout, wait_all_ranks)

    # Called before a group is made. A Python process group takes the place of the whole group, also
    # of what other backends of the group do.
    of_config = module.BackendConfig.__init__

    @functools.wraps(of_config)
    def init_config(config, backend):
        of_config(config, backend)
        backends = config.get_device_backend_map()
        if "ddprun" in backends.values() and len(set(backends.values())) > 1:
            if backends != _HYBRID:
                raise ValueError(f"the backend ddprun shares a group with no other backend than in "
                                 f"'cpu:ddprun,cuda:nccl' (invalid value {str(backend)!r})")
            config.device_backend_map = dict(_HYBRID)  # ddprun makes the group, so it comes first
        _making.backends = backends

    module.BackendConfig.__init__ = init_config

    # PyTorch's refuses all backends but gloo.
    _replace(module, monitored_barrier)
    _replace(module, _batcher(module))
    if hasattr(module, "split_group"):
        _replace(module, _splitter(module))


class _Hook:
    """Finds the module as Python does, and registers the backend at the end of its code."""

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != _MODULE:
            return None
        sys.meta_path.remove(cls)
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None:
            return None
        run = spec.loader.exec_module

        def run_and_register(module):
            run(module)
            _register_with(module)

        spec.loader.exec_module = run_and_register
        return spec


def register():
    """Registers the backend now, or when torch is imported."""
    module = sys.modules.get(_MODULE)
    if hasattr(module, "Backend"):
        _register_with(module)
    elif _Hook not in sys.meta_path:
        sys.meta_path.insert(0, _Hook)
