#include "worker_lib/cpu/worker_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/flight_words.h"
#include "base/parse_number.h"
#include "base/unique_fd.h"
#include "base/worker_page.h"

namespace ddprun {

std::string page_place(const std::string& file, std::size_t offset) {
  return file.empty() ? "" : std::to_string(offset) + "@" + file;
}

std::string whereabouts_at(const std::string& place) {
  const std::size_t sign = place.find('@');
  if (sign == place.npos) return {};
  const auto offset = parse_number<std::size_t>(place.substr(0, sign));
  const UniqueFd file(::open(place.substr(sign + 1).c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY));
  struct stat found {};
  if (!offset || !file.valid() || fstat(file.get(), &found) != 0) return {};
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size < kWorkerPageBytes || *offset > size - kWorkerPageBytes) return {};
  void* const at = mmap(nullptr, kWorkerPageBytes, PROT_READ, MAP_SHARED, file.get(),
                        static_cast<off_t>(*offset));
  if (at == MAP_FAILED) return {};
  const auto unmap = [](const WorkerPage* page) {
    munmap(const_cast<WorkerPage*>(page), kWorkerPageBytes);
  };
  const std::unique_ptr<const WorkerPage, decltype(unmap)> page(static_cast<const WorkerPage*>(at),
                                                                unmap);
  return page->is_ours() ? whereabouts(*page, to_page_time(BootClock::now())) : "";
}

}  // namespace ddprun
