// NcclMemory: device memory that NCCL uses without copies, for the tensors of shared_empty().
//
// It comes from ncclMemAlloc, and the communicators of its device are told of it (ncclCommRegister)
// before their next call. A tensor may outlive the group. What is let go of is freed when the
// stream that was current then has passed, so that a call which that stream waits for is over, and
// is withdrawn from the communicators before. Memory that is let go of while a CUDA graph is
// captured is kept until the process ends: the graph may use it.
//
// Owned jointly by an NcclEngine and the tensors. allocate(), and letting go: any thread; the rest
// belongs to the engine: tell() to the thread that makes its calls.
#pragma once

#include <atomic>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "worker_lib/nccl_api.h"

namespace ddprun {

class NcclCommunicator;

class NcclMemory : public std::enable_shared_from_this<NcclMemory> {
 public:
  // grace: how long letting go waits for the stream when the group is gone.
  NcclMemory(const NcclApi& api, int device, Duration grace)
      : api_(api), device_(device), grace_(grace) {}

  int device() const { return device_; }

  // Null where NCCL or the device has none, and while the current stream is captured. The pointer keeps
  // the memory.
  std::shared_ptr<void> allocate(std::size_t bytes);

  // Whether tell() has something to do.
  bool has_news() const { return has_news_.load(std::memory_order_relaxed); }
  // Tells the communicator, with which nothing is in progress, of what is new and of what is let go
  // of, and frees that.
  void tell(NcclCommunicator& communicator);
  // There is no communicator any more.
  void end();

 private:
  struct Block {
    std::size_t bytes = 0;
    bool is_told = false;
    bool is_left = false;      // by its tensor
    CudaEvent left = nullptr;  // recorded then; null: it must be kept
  };
  void let_go(void* memory);
  bool has_passed(CudaEvent event) const;
  void free(void* memory, const Block& block);

  const NcclApi& api_;
  const int device_;
  const Duration grace_;
  std::atomic<bool> has_news_ = false;
  std::mutex mutex_;  // guards what follows
  std::map<void*, Block> blocks_;
  bool is_over_ = false;
};

}  // namespace ddprun
