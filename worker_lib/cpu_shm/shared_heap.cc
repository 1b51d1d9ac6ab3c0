#include "worker_lib/cpu_shm/shared_heap.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace ddprun {
namespace {

// Bytes copied before their shared pages return to the system.
constexpr std::size_t kPrivateStep = std::size_t{4} << 20;

// Makes the kernel copy the pages of a private mapping, by a write that changes nothing.
void touch(char* data, std::size_t bytes, std::size_t page) {
  for (std::size_t at = 0; at < bytes; at += page) {
    __atomic_fetch_or(static_cast<volatile char*>(data + at), 0, __ATOMIC_RELAXED);
  }
}

std::size_t part_of(std::size_t heap, int local_count) {
  return heap / local_count / FreeRanges::kPage * FreeRanges::kPage;
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
  if (is_retired_) return nullptr;
  const std::optional<std::size_t> place = free_.take(bytes);
  if (!place) return nullptr;
  return {at(local_, *place),
          [heap = shared_from_this(), bytes](char* data) { heap->release(data, bytes); }};
}

// Returns pages of the file to the system, whichever processes have mapped them.
void SharedHeap::punch(std::size_t place, std::size_t bytes) const {
  const std::size_t offset = segment_->heap_offset() + local_ * each_ + place;
  fallocate(segment_->fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
            static_cast<off_t>(bytes));
}

// Frees a block. After a fork, the child has a copy of the pointer, but the parent still owns
// the memory.
void SharedHeap::release(char* data, std::size_t bytes) {
  if (!made_by_.is_ours()) return;
  const std::size_t whole = FreeRanges::in_pages(bytes);
  const std::size_t place = data - at(local_, 0);
  const std::lock_guard lock(mutex_);
  punch(place, whole);
  if (!is_retired_) return free_.give_back(place, bytes);
  // The private pages are freed; the addresses stay taken.
  mmap(data, whole, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
}

// Works in three steps. First it makes a private mapping of the same part of the file at another
// address. The kernel may refuse that, and then nothing has changed. Then it moves this mapping
// over the shared one in one step, so that no thread finds the addresses empty. Last, it writes
// to each page, so that the private copy has all that this process has ever written there.
bool SharedHeap::make_private(std::size_t place, std::size_t bytes) {
  const std::size_t page = sysconf(_SC_PAGESIZE);
  const std::size_t begin = place / page * page;
  const std::size_t end = (place + bytes + page - 1) / page * page;
  char* const target = at(local_, begin);
  const std::size_t offset = segment_->heap_offset() + (target - base_);
  const std::lock_guard lock(mutex_);
  void* const aside = mmap(nullptr, end - begin, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_NORESERVE, segment_->fd(), static_cast<off_t>(offset));
  if (aside == MAP_FAILED) return false;
  if (mremap(aside, end - begin, end - begin, MREMAP_MAYMOVE | MREMAP_FIXED, target) ==
      MAP_FAILED) {
    munmap(aside, end - begin);
    return false;
  }
  is_retired_ = true;
  for (std::size_t from = begin; from < end; from += kPrivateStep) {
    const std::size_t step = std::min(kPrivateStep, end - from);
    touch(at(local_, from), step, page);
    punch(from, step);
  }
  return true;
}

std::optional<std::size_t> SharedHeap::place_of(const void* data, std::size_t bytes) const {
  const auto begin = reinterpret_cast<std::uintptr_t>(at(local_, 0));
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  if (each_ == 0 || address < begin || address - begin >= each_) return std::nullopt;
  if (bytes > each_ - (address - begin)) return std::nullopt;
  return address - begin;
}

}  // namespace ddprun
