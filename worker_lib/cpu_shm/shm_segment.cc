#include "worker_lib/cpu_shm/shm_segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "base/concat.h"

namespace ddprun {
namespace {

// They fix the size for all holders of the segment.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

// Returns the size of the heap. It exceeds what all ranks of a node may hold: addresses cost
// nothing, and some are always lost to gaps. A limit of file sizes makes it smaller.
std::size_t heap_bytes(std::size_t behind) {
  constexpr std::size_t kMost = std::size_t{16} << 40;
  const std::size_t memory = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
                             static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t wanted = std::min(4 * memory, kMost);
  // Beyond this limit the kernel would send SIGXFSZ.
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  return limit.rlim_cur < behind ? 0 : std::min<std::size_t>(wanted, limit.rlim_cur - behind);
}

}  // namespace

Result<ShmSegment> ShmSegment::create(std::size_t bytes) {
  UniqueFd memfd(memfd_create("ddprun", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memfd.valid()) return system_error("make a shared segment (memfd)", errno);
  const std::size_t heap = heap_bytes(bytes);
  if ((heap == 0 || ftruncate(memfd.get(), static_cast<off_t>(bytes + heap)) != 0) &&
      ftruncate(memfd.get(), static_cast<off_t>(bytes)) != 0) {
    return system_error(concat("size a shared segment of ", bytes, " B"), errno);
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
                 .cause = concat("it has ", size, " B instead of ", bytes,
                                 "; do all ranks run the same build?")};
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd.get(), 0);
  if (memory == MAP_FAILED) {
    return system_error(concat("map a shared segment of ", bytes, " B"), errno);
  }
  ShmSegment segment(std::move(memfd), {static_cast<char*>(memory), Unmap{bytes}});
  segment.map_heap(size - bytes);
  return segment;
}

void ShmSegment::map_heap(std::size_t bytes) {
  if (bytes == 0) return;
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                            memfd_.get(), static_cast<off_t>(heap_offset()));
  if (memory == MAP_FAILED) return;
  madvise(memory, bytes, MADV_DONTDUMP);
  heap_ = {static_cast<char*>(memory), Unmap{bytes}};
}

}  // namespace ddprun
