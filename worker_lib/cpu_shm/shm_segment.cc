#include "worker_lib/cpu_shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <utility>

namespace ddprun {
namespace {

// They fix the size for all holders of the segment.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

Result<void*> map(int fd, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return system_error("map a shared segment of " + std::to_string(bytes) + " B", errno);
  }
  return memory;
}

// Returns the size of the heap. It exceeds what all ranks of a node may hold: addresses cost
// nothing, and some are always lost to gaps.
std::size_t heap_bytes(std::size_t behind) {
  constexpr std::size_t kMost = std::size_t{16} << 40;
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t wanted = std::min(4 * memory, kMost);
  // Beyond this limit the kernel would send SIGXFSZ.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  return limit.rlim_cur < behind + wanted ? 0 : wanted;
}

}  // namespace

Result<ShmSegment> ShmSegment::create(std::size_t bytes) {
  UniqueFd memfd(memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.valid()) return system_error("make a shared segment (memfd)", errno);
  const std::size_t heap = heap_bytes(bytes);
  if ((heap == 0 || ftruncate(memfd.get(), static_cast<off_t>(bytes + heap)) != 0) &&
      ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error("size a shared segment of " + std::to_string(bytes) + " B", errno);
  }
  if (fcntl(memfd.get(), F_ADD_SEALS, kSeals) != 0) {
    return system_error("seal a shared segment", errno);
  }
  return adopt(std::move(memfd), bytes);
}

Result<ShmSegment> ShmSegment::adopt(UniqueFd memfd, std::size_t bytes) {
  const int seals = fcntl(memfd.get(), F_GET_SEALS);
  if (seals < 0 || (seals & kSeals) != kSeals) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "map the shared segment",
                 .cause = "it is not sealed: its size could change while it is in use"};
  }
  struct stat status {};
  if (fstat(memfd.get(), &status) != 0) return system_error("inspect the shared segment", errno);
  const std::size_t size = status.st_size;
  if (size < bytes) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "map the shared segment",
                 .cause = "it has " + std::to_string(size) + " B instead of " +
                          std::to_string(bytes) + "; do all ranks run the same build?"};
  }
  const Result<void*> memory = map(memfd.get(), bytes);
  if (!memory) return memory.error();
  ShmSegment segment(std::move(memfd), *memory, bytes);
  segment.map_heap(size - bytes);
  return segment;
}

void ShmSegment::map_heap(std::size_t bytes) {
  if (bytes == 0) return;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            memfd_.get(), static_cast<off_t>(bytes_));
  if (memory == MAP_FAILED) return;
  madvise(memory, bytes, MADV_DONTDUMP);
  heap_ = {static_cast<char*>(memory), bytes};
}

ShmSegment::ShmSegment(UniqueFd memfd, void* memory, std::size_t bytes)
    : memfd_(std::move(memfd)), memory_(memory), bytes_(bytes) {}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : memfd_(std::move(other.memfd_)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_),
      heap_(std::exchange(other.heap_, {})) {}

ShmSegment::~ShmSegment() {
  if (memory_) munmap(memory_, bytes_);
  if (!heap_.empty()) munmap(heap_.data(), heap_.size());
}

}  // namespace ddprun
