#include "worker_lib/nccl/memory.h"

#include <algorithm>
#include <utility>

#include "base/deadline.h"
#include "worker_lib/nccl/communicator.h"
#include "worker_lib/nccl/device_guard.h"
#include "worker_lib/nccl/work.h"
#include "worker_lib/util/nccl_pause.h"

namespace ddprun {

std::shared_ptr<void> NcclMemory::allocate(std::size_t bytes) {
  if (!api_.mem_alloc || !api_.mem_free || bytes == 0) return nullptr;
  const DeviceGuard guard(api_, device_);
  // While a CUDA graph is captured, an allocation here would break the capture; LibTorch's
  // allocator can do it.
  bool is_capturing = true;
  const CudaStream home = api_.current_stream(device_);
  const CudaResult asked = api_.stream_is_capturing(home, &is_capturing);
  if (asked != CudaResult::kSuccess || is_capturing) return nullptr;
  void* memory = nullptr;
  if (api_.mem_alloc(&memory, bytes) != NcclResult::kSuccess) return nullptr;
  {
    const std::lock_guard lock(mutex_);
    blocks_[memory] = Block{.bytes = bytes, .home = home};
    has_news_ = true;
  }
  return {memory, [self = shared_from_this()](void* pointer) { self->let_go(pointer); }};
}

void NcclMemory::let_go(void* memory) {
  const DeviceGuard guard(api_, device_);
  std::vector<CudaStream> streams{api_.current_stream(device_)};
  {
    const std::lock_guard lock(mutex_);
    for (const CudaStream one : {blocks_.at(memory).home, group_stream_}) {
      if (one && std::ranges::find(streams, one) == streams.end()) streams.push_back(one);
    }
    ++marking_;
  }
  Events left = mark(streams);
  Block block;
  {
    const std::lock_guard lock(mutex_);
    Block& here = blocks_.at(memory);
    here.is_left = true;
    here.left = std::move(left);
    has_news_ = true;
    --marking_;
    marked_.notify_all();
    if (!is_over_) return;  // update() does the rest
    block = here;
    blocks_.erase(memory);
  }
  free(memory, block);
}

// Records an event on each stream. Returns none if one cannot be made, or if a stream is
// captured.
NcclMemory::Events NcclMemory::mark(const std::vector<CudaStream>& streams) const {
  Events events;
  for (const CudaStream stream : streams) {
    bool is_capturing = true;
    const CudaResult asked = api_.stream_is_capturing(stream, &is_capturing);
    if (asked != CudaResult::kSuccess || is_capturing) return {};
    const Result<std::shared_ptr<NcclEvent>> event = NcclEvent::make(api_, device_);
    if (!event || api_.event_record((*event)->get(), stream) != CudaResult::kSuccess) return {};
    events.push_back(*event);
  }
  return events;
}

void NcclMemory::update(NcclCommunicator& communicator, CudaStream stream) {
  std::map<void*, std::size_t> fresh;
  std::map<void*, Block> left;
  bool is_news = false;
  {
    const std::lock_guard lock(mutex_);
    group_stream_ = stream;
    has_news_ = false;
    for (auto& [memory, block] : blocks_) {
      if (!block.is_left && !std::exchange(block.is_registered, true)) fresh[memory] = block.bytes;
      if (block.is_left && !block.left.empty()) left[memory] = block;
    }
  }
  for (const auto& [memory, bytes] : fresh) communicator.enroll(memory, bytes);
  for (const auto& [memory, block] : left) {
    if (!have_passed(block.left) || !communicator.withdraw(memory)) {
      is_news = true;
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      blocks_.erase(memory);
    }
    api_.mem_free(memory);
  }
  if (is_news) has_news_ = true;
}

// Memory in use stays, and is freed when its tensor releases it.
void NcclMemory::end() {
  std::map<void*, Block> left;
  {
    std::unique_lock lock(mutex_);
    group_stream_ = nullptr;  // it is destroyed after this
    marked_.wait(lock, [this] { return marking_ == 0; });
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

bool NcclMemory::have_passed(const Events& events) const {
  return !events.empty() && std::ranges::all_of(events, [this](const auto& event) {
    return api_.event_query(event->get()) == CudaResult::kSuccess;
  });
}

// If the streams do not pass in time, the memory is kept, because a kernel may still use it.
void NcclMemory::free(void* memory, const Block& block) {
  if (block.left.empty()) return;
  const Deadline deadline(grace_);
  NcclPause pause;
  while (!have_passed(block.left)) {
    if (deadline.passed()) return;
    pause.take();
  }
  api_.mem_free(memory);
}

}  // namespace ddprun
