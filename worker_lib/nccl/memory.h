// NcclMemory: device memory that NCCL uses without copies, for the tensors of shared_empty().
//
// It comes from ncclMemAlloc, and the communicators of its device are told of it (ncclCommRegister)
// before their next call. A tensor may outlive the group. What is let go of is freed when three
// streams have passed what they had been given until then: the one that was current at the
// allocation, the one that is current for the thread that lets go, and the group's own. Who uses the
// memory on yet another stream makes one of these wait for it first, as with record_stream() of
// LibTorch's own memory. It is withdrawn from the communicators before. Memory that is let go of while a CUDA graph is
// captured is kept until the process ends: the graph may use it.
//
// Owned jointly by an NcclEngine and the tensors. allocate(), and letting go: any thread; the rest
// belongs to the engine: tell() to the thread that makes its calls.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "base/clock.h"
#include "worker_lib/nccl/api.h"

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
  // of, and frees that. stream: the one that the communicator's calls are put on.
  void tell(NcclCommunicator& communicator, CudaStream stream);
  // There is no communicator any more, and its stream has nothing to do.
  void end();

 private:
  struct Block {
    std::size_t bytes = 0;
    bool is_told = false;
    CudaStream home = nullptr;         // current at the allocation
    bool is_left = false;              // by its tensor
    std::vector<CudaEvent> left = {};  // recorded then; none: it must be kept
  };
  void let_go(void* memory);
  std::vector<CudaEvent> mark(const std::vector<CudaStream>& streams) const;
  void destroy(const std::vector<CudaEvent>& events) const;
  bool have_passed(const std::vector<CudaEvent>& events) const;
  void free(void* memory, const Block& block);

  const NcclApi& api_;
  const int device_;
  const Duration grace_;
  std::atomic<bool> has_news_ = false;
  std::mutex mutex_;  // guards what follows
  std::map<void*, Block> blocks_;
  CudaStream group_stream_ = nullptr;
  int marking_ = 0;  // threads that use the streams
  std::condition_variable marked_;
  bool is_over_ = false;
};

}  // namespace ddprun
