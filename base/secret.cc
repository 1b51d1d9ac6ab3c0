#include "base/secret.h"

#include <sys/mman.h>

#include <cstring>
#include <new>

#include "base/assert.h"

namespace ddprun {

Secret::Secret(std::string_view bytes) {
  if (bytes.empty()) return;
  *this = filled(bytes.size(), [&](char* place) {
    std::memcpy(place, bytes.data(), bytes.size());
    return bytes.size();
  });
}

// Maps pages for this secret alone. In malloc's memory, MADV_DONTDUMP would also leave other
// data out of the core dump.
Secret Secret::filled(std::size_t room, const std::function<std::size_t(char*)>& fill) {
  void* pages = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (pages == MAP_FAILED) throw std::bad_alloc();
  char* place = static_cast<char*>(pages);
  Secret secret;
  secret.bytes_ = std::shared_ptr<const char>(place, [place, room](const char*) {
    explicit_bzero(place, room);
    munmap(place, room);
  });
  madvise(pages, room, MADV_DONTDUMP);
  const std::size_t size = fill(place);
  DDPRUN_ASSERT(size <= room, "what was written fits");
  secret.size_ = size;
  return secret;
}

Secret Secret::part(std::string_view part) const {
  Secret secret;
  secret.bytes_ = std::shared_ptr<const char>(bytes_, part.data());
  secret.size_ = part.size();
  return secret;
}

}  // namespace ddprun
