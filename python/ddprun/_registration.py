"""Registers the backend "ddprun" with torch.distributed, without importing torch.

If torch is loaded, the backend is registered at once. Otherwise an import hook registers it when
torch is imported. The code of the backend itself is loaded when a group is made.
"""
import functools
import importlib.machinery
import sys

_MODULE = "torch.distributed.distributed_c10d"


def _create(options, backend_options):
    from ddprun import _process_group

    return _process_group.create(options, backend_options)


def _register_with(module):
    if "ddprun" in module.Backend.backend_list:
        return
    from ddprun import _flight  # only now: it imports what a program without torch needs not

    _flight.record_groups_of(module)
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

    # A Python process group takes the place of the whole group, so that other devices have none.
    of_config = module.BackendConfig.__init__

    @functools.wraps(of_config)
    def init_config(config, backend):
        of_config(config, backend)
        backends = set(config.get_device_backend_map().values())
        if "ddprun" in backends and len(backends) > 1:
            raise ValueError(f"the backend ddprun cannot share a group with other backends yet "
                             f"(in {backend!r}): make a group of its own for CPU tensors")

    module.BackendConfig.__init__ = init_config

    # PyTorch's refuses all backends but gloo.
    module.monitored_barrier = monitored_barrier
    package = sys.modules["torch.distributed"]
    if hasattr(package, "monitored_barrier"):
        package.monitored_barrier = monitored_barrier


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
