// make_cpu_backend(): the cpu backend of a ProcessGroup. It passes the tensors' memory to a
// CpuGroup, which does the work. Asynchronous collectives run on the backend's own thread; messages
// run on the group's. Tensors of other devices are staged (device_staging.h): Work::wait() makes
// the caller's current stream wait for the results, and a send blocks until its tensor is on the
// host.
//
// Owned by a ProcessGroup. One thread at a time calls it, except abort(): any thread.
#pragma once

#include <memory>
#include <vector>

#include "base/clock.h"
#include "ddprun/backend.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

// devices: the types of devices whose tensors it accepts.
//
// The destructor waits for collectives and messages in progress, for at most close_grace. It does
// not wait while an exception is propagating. It ends the rest with kStopped. Other ranks that
// wait for such a message learn that this rank has left.
std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<CpuGroup> group,
                                          std::vector<torch::DeviceType> devices = {torch::kCPU},
                                          Duration close_grace = std::chrono::seconds(5));

}  // namespace ddprun
