#include "base/worker_page_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace ddprun {
namespace {

// Returns null if the kernel refuses it.
MappedMemory<WorkerPage> map_file(PagePlace place, MappedPages::Access access, std::size_t count) {
  const int rights = access == MappedPages::Access::kWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  const std::size_t bytes = count * kWorkerPageBytes;
  void* const at =
      mmap(nullptr, bytes, rights, MAP_SHARED, place.file, static_cast<off_t>(place.offset));
  return {at == MAP_FAILED ? nullptr : static_cast<WorkerPage*>(at), Unmap{bytes}};
}

// Returns whether RLIMIT_FSIZE allows a file of this size. Beyond the limit, the kernel does
// not only refuse: it sends SIGXFSZ.
bool may_make_files_of(std::size_t bytes) {
  rlimit limit{};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur >= bytes;
}

}  // namespace

std::optional<MappedPages> MappedPages::map(PagePlace place, Access access, std::size_t count) {
  struct stat found {};
  if (place.file < 0 || fstat(place.file, &found) != 0 || found.st_size < 0) return std::nullopt;
  const auto size = static_cast<std::size_t>(found.st_size);
  if (place.offset > size || (size - place.offset) / kWorkerPageBytes < count) return std::nullopt;
  const int seals = fcntl(place.file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) return std::nullopt;
  MappedMemory<WorkerPage> pages = map_file(place, access, count);
  if (!pages) return std::nullopt;
  const auto is_ours = [](const WorkerPage& page) { return page.is_ours(); };
  if (!std::all_of(pages.get(), pages.get() + count, is_ours)) return std::nullopt;
  return MappedPages(std::move(pages));
}

Result<PageFile> make_page_file(const char* name, std::size_t count) {
  constexpr const char* kDoing = "make shared memory for what workers report";
  const std::size_t bytes = count * kWorkerPageBytes;
  if (!may_make_files_of(bytes)) return system_error(kDoing, EFBIG);
  UniqueFd file(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return system_error(kDoing, errno);
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error(kDoing, errno);
  }
  MappedMemory<WorkerPage> pages =
      map_file({.file = file.get()}, MappedPages::Access::kWrite, count);
  if (!pages) return system_error(kDoing, errno);
  for (std::size_t i = 0; i < count; ++i) {
    pages[i].version.store(kWorkerPageVersion, std::memory_order_relaxed);
    pages[i].magic.store(kWorkerPageMagic, std::memory_order_release);
  }
  return PageFile{std::move(file), MappedPages(std::move(pages))};
}

}  // namespace ddprun
