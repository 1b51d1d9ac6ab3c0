// The source of the nccl backend for init() (context.h).
#pragma once

namespace ddprun {

class BackendFactory;

#ifdef DDPRUN_WORKER_CUDA
// Returns the factory of nccl backends. Defined in the library of ddprun::worker_cuda, which also
// defines the macro. Any thread.
BackendFactory* nccl_backend_factory();
#endif

}  // namespace ddprun
