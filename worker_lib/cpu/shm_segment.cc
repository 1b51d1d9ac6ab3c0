#include "worker_lib/cpu/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

namespace ddprun {
namespace {

Result<void*> map(int fd, std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    return system_error("map a shared segment of " + std::to_string(bytes) + " B", errno);
  }
  return memory;
}

}  // namespace

Result<ShmSegment> ShmSegment::create(std::size_t bytes) {
  UniqueFd memfd(memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.valid()) return system_error("make a shared segment (memfd)", errno);
  if (ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(memfd.get(), F_ADD_SEALS, F_SEAL_SHRINK) != 0) {
    return system_error("size a shared segment of " + std::to_string(bytes) + " B", errno);
  }
  const Result<void*> memory = map(memfd.get(), bytes);
  if (!memory) return memory.error();
  return ShmSegment(std::move(memfd), *memory, bytes);
}

Result<ShmSegment> ShmSegment::adopt(UniqueFd memfd, std::size_t bytes) {
  struct stat status {};
  if (fstat(memfd.get(), &status) != 0) return system_error("look at the shared segment", errno);
  if (static_cast<std::size_t>(status.st_size) != bytes) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "map the shared segment",
                 .cause = "it has " + std::to_string(status.st_size) + " B instead of " +
                          std::to_string(bytes) + "; do all ranks run the same build?"};
  }
  const Result<void*> memory = map(memfd.get(), bytes);
  if (!memory) return memory.error();
  return ShmSegment(std::move(memfd), *memory, bytes);
}

ShmSegment::ShmSegment(UniqueFd memfd, void* memory, std::size_t bytes)
    : memfd_(std::move(memfd)), memory_(memory), bytes_(bytes) {}

ShmSegment::ShmSegment(ShmSegment&& other) noexcept
    : memfd_(std::move(other.memfd_)),
      memory_(std::exchange(other.memory_, nullptr)),
      bytes_(other.bytes_) {}

ShmSegment::~ShmSegment() {
  if (memory_) munmap(memory_, bytes_);
}

}  // namespace ddprun
