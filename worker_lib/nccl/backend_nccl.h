// The nccl backend of a ProcessGroup. BackendFactory makes it. The backend builds the calls, and
// NcclEngine carries them out. Both use only the table of api.h.
//
// Every collective runs on a stream of the backend, one for each device that the rank uses.
// There it waits for the work that is already on the caller's current stream. Work::wait() makes
// the caller's stream wait for the collective. The host waits for neither. Only three things
// block the host: a barrier's wait, a wait with a timeout, and the first call on a device, which
// makes a communicator.
//
// The peers are a CpuGroup of the same ranks that makes no calls. NCCL does not notice a dead
// rank, or does not name it; the peers' watch does so within 1 s. NCCL does not notice ranks
// that call different collectives either. The engine compares the calls of the ranks in the
// background and reports a difference within 1 s.
//
// Calls except barriers may be captured into a CUDA graph once their communicator exists. A
// captured call has no deadline and is not watched: it runs when the graph runs.
//
// Features that NCCL lacks are kUnsupported: int16 and bitwise reductions, receives from any
// source, and tags other than 0. (Messages of a pair of ranks arrive in the order in which they
// are sent, and in one order with the collectives. So two ranks that both send first and then
// receive wait for each other; the messages of a batch do not.)
//
// A ProcessGroup owns the backend. One thread at a time calls it, except abort() and
// shared_empty(): any thread.
#pragma once

#include <memory>

#include "ddprun/backend.h"
#include "worker_lib/nccl/engine.h"

namespace ddprun {

// BackendFactory: makes nccl backends. init_with() gets it from a program that is linked with
// ddprun::worker_cuda.
class BackendFactory {
 public:
  explicit BackendFactory(const NcclApi& api) : api_(api) {}

  // Returns the number of GPUs; 0 without a GPU or a driver.
  int device_count() const;
  // Makes the device this thread's current one.
  Result<void> select_device(int index) const;
  // Makes a backend, but no communicator. All ranks of the group make one with the same name; see
  // NcclEngine. seed: what split_off() gave for this group, or null.
  std::unique_ptr<Backend> make(std::shared_ptr<Store> store, const NcclBackendOptions& options,
                                std::shared_ptr<CpuGroup> peers = nullptr,
                                std::shared_ptr<void> seed = nullptr) const;

 private:
  const NcclApi& api_;
};

}  // namespace ddprun
