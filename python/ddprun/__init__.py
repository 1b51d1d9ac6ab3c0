"""ddprun for Python: registers the backend "ddprun" of torch.distributed."""
from ddprun import _registration

_registration.register()
