#include "launcher/worker_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace ddprun {

Result<WorkerPages> WorkerPages::make(int workers) {
  constexpr const char* kDoing = "make shared memory for the workers' progress";
  UniqueFd file(memfd_create("ddprun-workers", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return system_error(kDoing, errno);
  const std::size_t bytes = offset_of(workers);
  // A worker that made it smaller would have the agent killed by SIGBUS.
  if (ftruncate(file.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(file.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
    return system_error(kDoing, errno);
  }
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (at == MAP_FAILED) return system_error(kDoing, errno);
  auto* pages = static_cast<WorkerPage*>(at);
  for (int i = 0; i < workers; ++i) {
    pages[i].version.store(kWorkerPageVersion, std::memory_order_relaxed);
    pages[i].magic.store(kWorkerPageMagic, std::memory_order_release);
  }
  return WorkerPages(std::move(file), pages, workers);
}

WorkerPages::WorkerPages(WorkerPages&& other) noexcept
    : file_(std::move(other.file_)),
      pages_(std::exchange(other.pages_, nullptr)),
      count_(std::exchange(other.count_, 0)) {}

WorkerPages& WorkerPages::operator=(WorkerPages&& other) noexcept {
  std::swap(file_, other.file_);
  std::swap(pages_, other.pages_);
  std::swap(count_, other.count_);
  return *this;
}

WorkerPages::~WorkerPages() {
  if (pages_) munmap(pages_, offset_of(count_));
}

std::string WorkerPages::path() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(file_.get());
}

PageSample WorkerPages::sample_of(int worker) const {
  const WorkerPage& page = pages_[worker];
  PageSample sample{.reports = page.reports.load(std::memory_order_relaxed),
                    .activity = page.activity.load(std::memory_order_relaxed),
                    .is_patient = page.patient.load(std::memory_order_relaxed) > 0};
  if (const std::optional<FlightEntry> call = oldest_in_progress(page)) {
    sample.oldest_call = call->number;
  }
  return sample;
}

std::optional<std::int64_t> WorkerPages::step_of(int worker) const {
  const WorkerPage& page = pages_[worker];
  if (page.reports.load(std::memory_order_acquire) == 0) return std::nullopt;
  return page.step.load(std::memory_order_relaxed);
}

std::optional<std::int64_t> WorkerPages::highest_step() const {
  std::optional<std::int64_t> highest;
  for (int i = 0; i < count_; ++i) highest = std::max(highest, step_of(i));
  return highest;
}

}  // namespace ddprun
