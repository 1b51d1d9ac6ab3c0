#include "worker_lib/cpu/shared_heap.h"

#include <sys/mman.h>

namespace ddprun {
namespace {

std::size_t part_of(std::size_t heap, int local_count) {
  return heap / static_cast<std::size_t>(local_count) / FreeRanges::kPage * FreeRanges::kPage;
}

}  // namespace

SharedHeap::SharedHeap(std::shared_ptr<const ShmSegment> segment, int local_count, int local)
    : segment_(std::move(segment)),
      base_(segment_->heap().data()),
      each_(part_of(segment_->heap().size(), local_count)),
      local_(local),
      free_(each_) {}

std::shared_ptr<char> SharedHeap::allocate(std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  const std::optional<std::size_t> place = free_.take(bytes);
  if (!place) return nullptr;
  return {at(local_, *place),
          [heap = shared_from_this(), bytes](char* data) { heap->release(data, bytes); }};
}

// The child of a fork has a copy of the pointer to memory that is still its parent's.
void SharedHeap::release(char* data, std::size_t bytes) {
  if (!made_by_.is_ours()) return;
  madvise(data, FreeRanges::in_pages(bytes), MADV_REMOVE);
  const std::lock_guard lock(mutex_);
  free_.give_back(static_cast<std::size_t>(data - at(local_, 0)), bytes);
}

std::optional<std::size_t> SharedHeap::place_of(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(at(local_, 0));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (each_ == 0 || address < begin || address - begin >= each_) return std::nullopt;
  if (bytes > each_ - (address - begin)) return std::nullopt;
  return address - begin;
}

}  // namespace ddprun
