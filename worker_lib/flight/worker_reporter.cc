#include "worker_lib/flight/worker_reporter.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/concat.h"
#include "base/flight_words.h"

namespace ddprun {

std::string numbered_words_of(const FlightEntry& call) {
  const std::string words = words_of(call);
  return is_message(call.call) ? words : concat(words, " (collective ", call.collective, ")");
}

std::optional<WorkerReporter::Page> WorkerReporter::page_of_agent(const WorkerEnv& env) {
  if (env.page_file.empty()) return std::nullopt;
  UniqueFd file(::open(env.page_file.c_str(), O_RDWR | O_CLOEXEC));
  const PagePlace place{.file = file.get(), .offset = env.page_offset};
  std::optional<MappedPages> memory = MappedPages::map(place, MappedPages::Access::kWrite);
  if (!memory) return std::nullopt;
  return Page{std::move(file), env.page_offset, std::move(*memory)};
}

std::optional<WorkerReporter::Page> WorkerReporter::own_page(const WorkerEnv& env) {
  Result<PageFile> made = make_page_file(kOwnPageName, 1);
  if (!made) return std::nullopt;
  WorkerPage& page = made->pages[0];
  page.rank.store(env.rank.value, std::memory_order_relaxed);
  page.local_rank.store(env.local_rank.value, std::memory_order_relaxed);
  return Page{std::move(made->file), 0, std::move(made->pages)};
}

std::shared_ptr<WorkerReporter> WorkerReporter::open(const WorkerEnv& env) {
  std::optional<Page> page = page_of_agent(env);
  if (!page) page = own_page(env);
  return std::shared_ptr<WorkerReporter>(new WorkerReporter(std::move(page)));
}

WorkerReporter::WorkerReporter(std::optional<Page> page)
    : page_(std::move(page)), traces_(wants_call_origins()) {}

WorkerPage* WorkerReporter::mapped() const {
  return page_ && opened_by_.is_ours() ? &page_->memory[0] : nullptr;
}

PagePlace WorkerReporter::place() const {
  return page_ ? PagePlace{.file = page_->file.get(), .offset = page_->offset} : PagePlace();
}

void WorkerReporter::report_step(std::int64_t step, std::int64_t total) {
  WorkerPage* const page = mapped();
  if (!page) return;
  const std::uint64_t now = to_page_time(BootClock::now());
  if (page->first_step_ns.load(std::memory_order_relaxed) == 0) {
    page->first_step.store(step, std::memory_order_relaxed);
    page->first_step_ns.store(now, std::memory_order_relaxed);
  }
  if (total > 0) page->total_steps.store(total, std::memory_order_relaxed);
  const std::uint64_t number = page->reports.load(std::memory_order_relaxed) + 1;
  StepMark& mark = page->mark_of(number);
  constexpr auto kRelease = std::memory_order_release;  // see read_record()
  mark.number.store(0, std::memory_order_relaxed);
  mark.step.store(step, kRelease);
  mark.ns.store(now, kRelease);
  mark.waited_ns.store(page->waited_ns.load(std::memory_order_relaxed), kRelease);
  mark.number.store(number, kRelease);
  page->step.store(step, std::memory_order_relaxed);
  page->reports.fetch_add(1, std::memory_order_release);
}

void WorkerReporter::report_activity() {
  if (WorkerPage* const page = mapped()) page->activity.fetch_add(1, std::memory_order_relaxed);
}

void WorkerReporter::report_checkpoint(Duration time) {
  WorkerPage* const page = mapped();
  if (!page || time <= Duration(0)) return;
  const auto waited = static_cast<std::uint64_t>(time.count());
  page->checkpoint_ns.fetch_add(waited, std::memory_order_relaxed);
  const std::uint64_t now = to_page_time(BootClock::now());
  constexpr auto kRelease = std::memory_order_release;  // see read_record()
  const std::uint64_t number = page->checkpoints.fetch_add(1, kRelease) + 1;
  CheckpointMark& mark = page->checkpoint_of(number);
  mark.number.store(0, std::memory_order_relaxed);
  mark.begun_ns.store(now - std::min(now, waited), kRelease);
  mark.ended_ns.store(now, kRelease);
  mark.number.store(number, kRelease);
}

void WorkerReporter::report_wait(Duration time) {
  WorkerPage* const page = mapped();
  if (page && time > Duration(0))
    page->waited_ns.fetch_add(static_cast<std::uint64_t>(time.count()), std::memory_order_relaxed);
}

void WorkerReporter::report_finished(bool finished) {
  if (WorkerPage* const page = mapped()) {
    page->finished.store(finished, std::memory_order_release);
  }
}

void WorkerReporter::begin_long_wait() {
  if (WorkerPage* const page = mapped()) page->patient.fetch_add(1, std::memory_order_relaxed);
}

void WorkerReporter::end_long_wait() {
  WorkerPage* const page = mapped();
  if (!page) return;
  report_activity();
  page->patient.fetch_sub(1, std::memory_order_relaxed);
}

void WorkerReporter::register_group(std::uint64_t id, std::string_view name,
                                    std::span<const int> ranks) {
  WorkerPage* const page = mapped();
  if (!page) return;
  const std::lock_guard lock(mutex_);
  const std::uint32_t count = page->group_count.load(std::memory_order_relaxed);
  const auto is_known = [id](const FlightGroup& group) { return group.id == id; };
  if (count >= kFlightGroups ||
      std::any_of(page->groups.begin(), page->groups.begin() + count, is_known)) {
    return;
  }
  FlightGroup& group = page->groups[count];
  group.id = id;
  group.size = ranks.size();
  group.digest = flight_digest(ranks);
  group.listed = std::min(ranks.size(), group.ranks.size());
  std::copy_n(ranks.begin(), group.listed, group.ranks.begin());
  const std::string_view kept = name.substr(0, group.name.size());
  std::copy(kept.begin(), kept.end(), group.name.begin());
  page->group_count.store(count + 1, std::memory_order_release);
}

std::uint64_t WorkerReporter::begin_call(const FlightEntry& facts) {
  WorkerPage* const page = mapped();
  if (!page) return 0;
  CallStack stack;
  if (traces_) stack = call_stack_from(__builtin_return_address(0));
  const std::lock_guard lock(mutex_);
  const std::uint32_t origin = traces_ ? origins_.number_of(stack, *page) : 0;
  const std::uint64_t number = page->calls.load(std::memory_order_relaxed) + 1;
  FlightRecord& record = page->record_of(number);
  constexpr auto kRelease = std::memory_order_release;  // see read_record()
  record.number.store(0, std::memory_order_relaxed);
  record.begun_ns.store(facts.begun_ns ? facts.begun_ns : to_page_time(BootClock::now()), kRelease);
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
  page->calls.store(number, std::memory_order_release);
  return number;
}

void WorkerReporter::end_call(std::uint64_t number, bool failed, bool was_blocked) {
  WorkerPage* const page = mapped();
  if (!page || number == 0) return;
  FlightRecord& record = page->record_of(number);
  if (record.number.load(std::memory_order_relaxed) != number) return;
  if (failed) record.failed.store(1, std::memory_order_relaxed);
  const TimePoint now = BootClock::now();
  if (was_blocked) {
    report_wait(Duration(static_cast<Duration::rep>(
        to_page_time(now) - record.begun_ns.load(std::memory_order_relaxed))));
  }
  record.ended_ns.store(to_page_time(now), std::memory_order_release);
  report_activity();
}

}  // namespace ddprun
