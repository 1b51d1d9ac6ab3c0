// Where init() (context.h) gets the nccl backend from.
#pragma once

namespace ddprun {

class BackendFactory;

// Makes nccl backends. Defined in the library behind ddprun::worker_cuda. Any thread.
BackendFactory* nccl_backend_factory();

}  // namespace ddprun
