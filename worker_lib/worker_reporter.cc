#include "worker_lib/worker_reporter.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ddprun {

std::shared_ptr<WorkerReporter> WorkerReporter::open(const WorkerEnv& env) {
  const auto nobody = [] { return std::make_shared<WorkerReporter>(nullptr); };
  if (env.page_file.empty()) return nobody();
  const UniqueFd file(::open(env.page_file.c_str(), O_RDWR | O_CLOEXEC));
  struct stat found {};
  if (!file.valid() || fstat(file.get(), &found) != 0 || found.st_size < 0) return nobody();
  const auto size = static_cast<std::size_t>(found.st_size);
  if (size < kWorkerPageBytes || env.page_offset > size - kWorkerPageBytes) return nobody();
  void* at = mmap(nullptr, kWorkerPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(),
                  static_cast<off_t>(env.page_offset));
  if (at == MAP_FAILED) return nobody();
  auto* page = static_cast<WorkerPage*>(at);
  if (!page->is_ours()) {
    munmap(at, kWorkerPageBytes);
    return nobody();
  }
  auto reporter = std::make_shared<WorkerReporter>(page);
  reporter->is_mapped_ = true;
  return reporter;
}

WorkerReporter::~WorkerReporter() {
  if (is_mapped_) munmap(page_, kWorkerPageBytes);
}

void WorkerReporter::report_step(std::int64_t step) {
  if (!page_) return;
  page_->step.store(step, std::memory_order_relaxed);
  page_->reports.fetch_add(1, std::memory_order_release);
}

void WorkerReporter::report_activity() {
  if (page_) page_->activity.fetch_add(1, std::memory_order_relaxed);
}

void WorkerReporter::begin_long_wait() {
  if (page_) page_->patient.fetch_add(1, std::memory_order_relaxed);
}

void WorkerReporter::end_long_wait() {
  if (!page_) return;
  report_activity();
  page_->patient.fetch_sub(1, std::memory_order_relaxed);
}

void WorkerReporter::register_group(std::uint64_t id, std::string_view name,
                                    std::span<const int> ranks) {
  if (!page_) return;
  const std::lock_guard lock(mutex_);
  const std::uint32_t count = page_->group_count.load(std::memory_order_relaxed);
  const auto is_known = [id](const FlightGroup& group) { return group.id == id; };
  if (count >= kFlightGroups ||
      std::any_of(page_->groups.begin(), page_->groups.begin() + count, is_known)) {
    return;
  }
  FlightGroup& group = page_->groups[count];
  group.id = id;
  group.size = static_cast<std::uint32_t>(ranks.size());
  group.digest = flight_digest(ranks);
  const std::size_t listed = std::min(ranks.size(), group.ranks.size());
  group.listed = static_cast<std::uint32_t>(listed);
  for (std::size_t i = 0; i < listed; ++i) group.ranks[i] = static_cast<std::uint32_t>(ranks[i]);
  const std::string_view kept = name.substr(0, group.name.size());
  std::copy(kept.begin(), kept.end(), group.name.begin());
  page_->group_count.store(count + 1, std::memory_order_release);
}

std::uint64_t WorkerReporter::begin_call(const FlightFacts& facts) {
  if (!page_) return 0;
  CallStack stack;
  if (traces_) stack = CallStack::from(__builtin_return_address(0));
  const std::lock_guard lock(mutex_);
  const std::uint32_t origin = traces_ ? origins_.number_of(stack, *page_) : 0;
  const std::uint64_t number = page_->calls.load(std::memory_order_relaxed) + 1;
  FlightRecord& record = page_->record_of(number);
  constexpr auto kRelease = std::memory_order_release;  // read_record() says why
  record.number.store(0, std::memory_order_relaxed);
  record.begun_ns.store(to_page_time(BootClock::now()), kRelease);
  record.ended_ns.store(0, kRelease);
  record.collective.store(facts.collective, kRelease);
  record.bytes.store(facts.bytes, kRelease);
  record.group.store(facts.group, kRelease);
  record.peer.store(facts.peer, kRelease);
  record.call.store(facts.call, kRelease);
  record.failed.store(0, kRelease);
  record.dtype.store(facts.dtype, kRelease);
  record.op.store(facts.op, kRelease);
  record.tag.store(facts.tag, kRelease);
  record.origin.store(origin, kRelease);
  record.number.store(number, kRelease);
  page_->calls.store(number, std::memory_order_release);
  return number;
}

void WorkerReporter::end_call(std::uint64_t number, bool failed) {
  if (!page_) return;
  FlightRecord& record = page_->record_of(number);
  if (record.number.load(std::memory_order_relaxed) != number) return;
  if (failed) record.failed.store(1, std::memory_order_relaxed);
  record.ended_ns.store(to_page_time(BootClock::now()), std::memory_order_release);
  report_activity();
}

}  // namespace ddprun
