#include "worker_lib/nccl_memory.h"

#include "base/deadline.h"
#include "worker_lib/nccl_communicator.h"
#include "worker_lib/nccl_device_guard.h"
#include "worker_lib/nccl_pause.h"

namespace ddprun {

std::shared_ptr<void> NcclMemory::allocate(std::size_t bytes) {
  if (!api_.mem_alloc || !api_.mem_free || bytes == 0) return nullptr;
  const DeviceGuard guard(api_, device_);
  // Where a CUDA graph is captured, LibTorch's allocator knows how, and an allocation would spoil it.
  bool is_capturing = true;
  const CudaResult asked = api_.stream_is_capturing(api_.current_stream(device_), &is_capturing);
  if (asked != CudaResult::kSuccess || is_capturing) return nullptr;
  void* memory = nullptr;
  if (api_.mem_alloc(&memory, bytes) != NcclResult::kSuccess) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    blocks_[memory] = Block{.bytes = bytes};
    has_news_ = true;
  }
  return {memory, [self = shared_from_this()](void* pointer) { self->let_go(pointer); }};
}

void NcclMemory::let_go(void* memory) {
  const DeviceGuard guard(api_, device_);
  const CudaStream current = api_.current_stream(device_);
  bool is_capturing = true;
  CudaEvent event = nullptr;
  const bool is_marked = api_.stream_is_capturing(current, &is_capturing) == CudaResult::kSuccess &&
                         !is_capturing && api_.event_create(&event) == CudaResult::kSuccess &&
                         api_.event_record(event, current) == CudaResult::kSuccess;
  if (!is_marked && event) api_.event_destroy(std::exchange(event, nullptr));
  Block block;
  {
    const std::lock_guard lock(mutex_);
    Block& left = blocks_.at(memory);
    left.is_left = true;
    left.left = event;
    has_news_ = true;
    if (!is_over_) return;  // tell() goes on
    block = left;
    blocks_.erase(memory);
  }
  free(memory, block);
}

void NcclMemory::tell(NcclCommunicator& communicator) {
  const std::lock_guard lock(mutex_);
  bool is_news = false;
  for (auto at = blocks_.begin(); at != blocks_.end();) {
    auto& [memory, block] = *at;
    if (!block.is_left && !block.is_told) {
      communicator.enroll(memory, block.bytes);
      block.is_told = true;
    }
    if (!block.is_left || !has_passed(block.left)) {
      is_news |= block.left != nullptr;
      ++at;
      continue;
    }
    communicator.withdraw(memory);
    api_.event_destroy(block.left);
    api_.mem_free(memory);
    at = blocks_.erase(at);
  }
  has_news_ = is_news;
}

// Those that are in use stay, and are freed when they are let go of.
void NcclMemory::end() {
  std::map<void*, Block> left;
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    for (auto at = blocks_.begin(); at != blocks_.end();) {
      const auto next = std::next(at);
      if (at->second.is_left) left.insert(blocks_.extract(at));
      at = next;
    }
  }
  const DeviceGuard guard(api_, device_);
  for (const auto& [memory, block] : left) free(memory, block);
}

bool NcclMemory::has_passed(CudaEvent event) const {
  return event && api_.event_query(event) == CudaResult::kSuccess;
}

// Kept, which is better than to pull it from under a kernel, where its stream does not pass.
void NcclMemory::free(void* memory, const Block& block) {
  if (!block.left) return;
  const Deadline deadline(grace_);
  NcclPause pause;
  bool is_over = has_passed(block.left);
  while (!is_over && !deadline.passed()) {
    pause.take();
    is_over = has_passed(block.left);
  }
  api_.event_destroy(block.left);
  if (is_over) api_.mem_free(memory);
}

}  // namespace ddprun
