// The source of the nccl backend for init() (context.h).
#pragma once

namespace ddprun {

class BackendFactory;

// Returns the factory of nccl backends. Defined in the library of ddprun::worker_cuda. Any
// thread.
BackendFactory* nccl_backend_factory();

}  // namespace ddprun
