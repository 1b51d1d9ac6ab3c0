// NcclMemory: device memory that NCCL uses without copies, for the tensors of shared_empty().
//
// It comes from ncclMemAlloc, and it is registered with the communicators of its device
// (ncclCommRegister) before their next call. A tensor may outlive the group. Released memory is
// freed when three streams have passed all work that they had at the release. These are the
// stream that was current at the allocation, the current stream of the releasing thread, and the
// group's own. Code that uses the memory on yet another stream must make one of these wait for
// it first, as with record_stream() of LibTorch's own memory. The memory is withdrawn from the
// communicators before it is freed. Memory that is released while a CUDA graph is captured is
// kept until the process ends, because the graph may use it.
//
// Owned jointly by an NcclEngine and the tensors. Any thread may allocate and release. The rest
// is for the engine; update() is for the thread that makes its calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "worker_lib/nccl/api.h"

namespace ddprun {

class NcclCommunicator;
class NcclEvent;

class NcclMemory : public std::enable_shared_from_this<NcclMemory> {
 public:
  // grace: how long a release waits for the streams when the group is gone.
  NcclMemory(const NcclApi& api, int device, Duration grace)
      : api_(api), device_(device), grace_(grace) {}

  int device() const { return device_; }

  // Returns memory; null if NCCL or the device has none, and while the current stream is
  // captured. The pointer keeps the memory alive.
  std::shared_ptr<void> allocate(std::size_t bytes);

  // Returns whether update() has something to do.
  bool has_news() const { return has_news_.load(std::memory_order_relaxed); }
  // Registers new memory with the communicator, withdraws released memory from it, and frees
  // that. No call of the communicator may be in progress. stream: the stream of the
  // communicator's calls.
  void update(NcclCommunicator& communicator, CudaStream stream);
  // Ends the use of the memory by the group. Called when there is no communicator any more and its
  // stream is idle.
  void end();

 private:
  using Events = std::vector<std::shared_ptr<NcclEvent>>;
  struct Block {
    std::size_t bytes = 0;
    bool is_registered = false;
    CudaStream home = nullptr;  // current at the allocation
    bool is_left = false;       // its tensor has released it
    Events left = {};           // recorded at the release; none: the memory must be kept
  };
  void let_go(void* memory);
  Events mark(const std::vector<CudaStream>& streams) const;
  bool have_passed(const Events& events) const;
  void free(void* memory, const Block& block);

  const NcclApi& api_;
  const int device_;
  const Duration grace_;
  std::atomic<bool> has_news_ = false;
  std::mutex mutex_;  // guards the following
  std::map<void*, Block> blocks_;
  CudaStream group_stream_ = nullptr;
  int marking_ = 0;  // threads that use the streams
  std::condition_variable marked_;
  bool is_over_ = false;
};

}  // namespace ddprun
