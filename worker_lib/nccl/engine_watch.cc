// The part of NcclEngine that runs on the watcher thread. It removes calls that have ended, and
// finds calls that have failed, are late, or do not match.
#include <algorithm>
#include <iterator>

#include "base/background_thread.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/nccl/engine.h"

namespace ddprun {
namespace {

constexpr Duration kWatchInterval = std::chrono::milliseconds(20);
// The caller's thread gets this time to notice by itself that its call has not begun in time.
constexpr Duration kLaunchSlack = std::chrono::milliseconds(100);

}  // namespace

// --- the watcher ---

Result<void> NcclEngine::start_watcher(int device) {
  if (watcher_.joinable()) return {};
  return start_thread(watcher_, "ddprun-nccl", [this, device] { watch(device); });
}

// REQUIRES: mutex_ is held.
bool NcclEngine::is_idle() const {
  return !is_forming_ && !launching_ &&
         std::ranges::all_of(lanes_, [](const auto& lane) { return lane->in_flight.empty(); });
}

// A thread begins with device 0 as its current one, and CUDA would make a context there.
void NcclEngine::watch(int device) {
  int current = 0;
  const bool is_known = api_.get_device(&current) == CudaResult::kSuccess;
  if (!is_known || current != device) api_.set_device(device);
  std::unique_lock lock(mutex_);
  if (peers_ && options_.compare_calls && options_.world_size > 1) {
    desync_detector_.emplace(options_.rank, BootClock::now());
  }
  while (!closing_) {
    const bool was_idle = is_idle();
    if (was_idle) {
      changed_.wait(lock, [this] {
        return closing_ || !is_idle() || !to_call_.empty() || shown_ != collective_log_.entered();
      });
    } else {
      changed_.wait_for(lock, kWatchInterval, [this] { return closing_ || !to_call_.empty(); });
    }
    lock.unlock();
    Result<void> well = inspect();
    call_back();
    show_log();
    if (well) well = compare_logs(was_idle);
    if (!well) return end(well.error());
    lock.lock();
  }
}

// Removes calls that have ended, the oldest first. Callbacks are left to the watcher: they may
// make calls, and the thread that reaps may be inside one. Several threads may reap.
Result<void> NcclEngine::reap(Lane& lane) {
  for (;;) {
    std::shared_ptr<NcclWork> oldest;
    {
      const std::lock_guard lock(mutex_);
      if (lane.in_flight.empty()) return {};
      oldest = lane.in_flight.front().first;
    }
    NcclWork::Callbacks then;
    const Result<bool> is_over = oldest->poll_collecting(then);
    const std::lock_guard lock(mutex_);
    std::ranges::move(then, std::back_inserter(to_call_));
    if (!to_call_.empty()) changed_.notify_all();
    if (!is_over) return is_over.error();
    if (!*is_over) return {};
    if (lane.in_flight.empty() || lane.in_flight.front().first != oldest) continue;
    lane.free_events.push_back(std::move(lane.in_flight.front().second));
    lane.in_flight.pop_front();
    ++reaped_;
  }
}

// REQUIRES: mutex_ is not held.
void NcclEngine::call_back() {
  NcclWork::Callbacks now;
  {
    const std::lock_guard lock(mutex_);
    now.swap(to_call_);
  }
  for (const auto& one : now) one();
}

// Finds failures that no thread may have noticed yet.
Result<void> NcclEngine::inspect() {
  for (Lane* lane : lanes()) {
    const Result<void> reaped = reap(*lane);
    if (!reaped) return reaped;
  }
  std::optional<Launching> late;
  std::vector<NcclCommunicator*> all;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& lane : lanes_) {
      for (const auto& [work, event] : lane->in_flight) {
        if (!late && work->deadline().passed()) late = {work->call(), work->deadline()};
      }
    }
    const bool is_stuck =
        launching_ && BootClock::now() > launching_->deadline.when() + kLaunchSlack;
    if (!late && is_stuck) late = launching_;
    all = communicators();
  }
  // First, because peers that noticed the same failure have told this rank.
  if (const Result<void> good = abort_state_->check(); !good) {
    return good.error().within("nccl group");
  }
  if (late) return deadline_passed(late->call, late->deadline);
  for (NcclCommunicator* one : all) {
    const Result<void> checked = one->check();
    if (!checked) return with_cause(checked.error()).within("nccl group");
  }
  return {};
}

std::vector<NcclEngine::Lane*> NcclEngine::lanes() {
  const std::lock_guard lock(mutex_);
  std::vector<Lane*> all;
  for (const auto& lane : lanes_) all.push_back(lane.get());
  return all;
}

Error NcclEngine::deadline_passed(const NcclCall& call, const Deadline& deadline) {
  int first = -1;
  std::string who = who_is_missing(call, first);
  if (who.empty()) who = "a rank has not come, or is not done";
  Error error = timeout_error(words_of(call), "it is not complete; " + who, deadline);
  error.peer_rank = first;
  return error;
}

// Returns the missing ranks, as far as the peers' notes show them; empty: unknown.
std::string NcclEngine::who_is_missing(const NcclCall& call, int& first) {
  if (options_.world_size == 1) return "a device is stuck, or slow";
  if (call.collective == 0) return whose_ends_are_missing(call, first);
  if (!peers_ || !options_.compare_calls) return {};
  CallNotes notes = read_notes(*peers_, kNotePatience);
  {
    const std::lock_guard lock(mutex_);
    notes[options_.rank] = read_note(collective_log_.note());
  }
  const MissingRanks missing = find_missing(call.collective, notes);
  if (missing.ranks.empty()) return "all ranks have come, but a device is stuck, or slow";
  first = missing.ranks[0];
  const std::string known = options_.explain_absence ? options_.explain_absence(missing.ranks) : "";
  return missing.text + (known.empty() ? "" : "; " + known);
}

// The same for one or more messages.
std::string NcclEngine::whose_ends_are_missing(const NcclCall& call, int& first) {
  std::vector<MessageEntry> messages;
  {
    const std::lock_guard lock(mutex_);
    messages = collective_log_.messages_of(call.number);
  }
  const bool are_shown = peers_ && options_.compare_calls;
  CallNotes notes(options_.world_size);
  if (are_shown) notes = read_notes(*peers_, kNotePatience);
  const MissingEnds missing = find_missing_ends(messages, options_.rank, notes);
  if (missing.ranks.empty()) return "all other ends have come, but a device is stuck, or slow";
  first = missing.ranks[0];
  const bool is_one = missing.ranks.size() == 1;
  std::string text = name_ranks(missing.ranks) + (is_one ? " has" : " have") + " not come";
  if (!are_shown || !missing.is_sure) text += is_one ? ", or is not done" : ", or are not done";
  return text;
}

// --- logs ---

// REQUIRES: the watcher's thread.
void NcclEngine::show_log() {
  std::string note;
  {
    const std::lock_guard lock(mutex_);
    std::uint64_t oldest = collective_log_.called() + 1;
    std::uint64_t oldest_call = UINT64_MAX;  // messages included
    for (const auto& lane : lanes_) {
      if (lane->in_flight.empty()) continue;
      oldest_call = std::min(oldest_call, lane->in_flight.front().first->call().number);
      for (const auto& [work, event] : lane->in_flight) {
        if (work->call().collective == 0) continue;
        oldest = std::min(oldest, work->call().collective);
        break;  // later ones are younger
      }
    }
    collective_log_.end_before(
        is_forming_ || launching_ ? std::min(oldest, collective_log_.called()) : oldest);
    collective_log_.end_messages_before(oldest_call);
    shown_ = collective_log_.entered();
    if (desync_detector_) note = collective_log_.note();
  }
  if (note.empty() || note == shown_note_) return;
  peers_->write_note(note);
  shown_note_ = std::move(note);
}

Result<void> NcclEngine::compare_logs(bool was_idle) {
  if (!desync_detector_) return {};
  bool has_moved = was_idle;
  {
    const std::lock_guard lock(mutex_);
    has_moved |= is_idle() || reaped_ != reaped_before_;
    reaped_before_ = reaped_;
  }
  const DesyncDetector::Sight sight{
      .read = [this](Duration patience) { return read_notes(*peers_, patience); },
      .awaits_unseen =
          [this](CallNotesView notes) {
            const std::lock_guard lock(mutex_);
            return collective_log_.awaits_unseen(notes);
          }};
  std::optional<std::string> disagreement =
      desync_detector_->look(BootClock::now(), has_moved, sight);
  if (!disagreement) return {};
  return Error{.kind = ErrorKind::kInvalidArgument,
               .doing = "nccl group" + options_.title,
               .cause = std::move(*disagreement)};
}

}  // namespace ddprun
