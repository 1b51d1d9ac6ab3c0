#include "worker_lib/cpu_shm/shared_progress.h"

#include <sched.h>

#include <algorithm>
#include <cstring>

#include "base/assert.h"
#include "base/cache_line.h"
#include "worker_lib/cpu_shm/futex.h"

namespace ddprun {
namespace {

// A sleeper waits for the tick of one rank (its local index), or of all ranks.
constexpr std::int32_t kEveryone = -1;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Enough for a few ranks on one core to run once each.
constexpr int kYields = 8;
// Longer than a rank works on a chunk, shorter than a time slice.
constexpr Duration kLongYield = std::chrono::milliseconds(1);
// Number of waits without yielding after a long yield: doubled by each long one, reduced by each
// good one.
constexpr int kMinAbstinence = 256;
constexpr int kMaxAbstinence = 65536;

// A sleeper looks again after this time: the rank that owes it a wakeup may have been stopped.
constexpr Duration kLongestSleep = std::chrono::milliseconds(200);

std::int32_t this_core() { return sched_getcpu() + 1; }

// Packs the failure word: all important fields in one store. 0: no failure.
std::uint64_t pack(const GroupFailure& failure, int reporter_local) {
  return (static_cast<std::uint64_t>(failure.kind) + 1) |
         static_cast<std::uint64_t>(failure.peer_rank + 1) << 8 |
         static_cast<std::uint64_t>(reporter_local) << 40;
}

}  // namespace

struct SharedProgress::Head {
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> failure;
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> sleepers;
};

// Cache lines are grouped by reader. Spinning peers read the tick. All ranks read the call, once
// per collective. Only a publisher that sees a sleeper reads the sleep state.
struct SharedProgress::Block {
  alignas(2 * kCacheLineBytes) std::atomic<std::uint64_t> tick;
  std::atomic<std::uint64_t> entered;
  std::atomic<std::uint32_t> left;
  std::atomic<std::uint32_t> at_work;
  std::atomic<std::int32_t> core;  // the core that the rank was last seen on, plus one
  alignas(kCacheLineBytes)
      CallHeader calls[2];  // by round: the next one may begin while one is read
  std::uint64_t places[2];  // by round
  alignas(kCacheLineBytes) std::atomic<std::uint32_t> wakeup;
  std::atomic<std::uint32_t> asleep;
  std::atomic<std::int32_t> wants_whom;
  std::atomic<std::uint64_t> wants_tick;
  alignas(kCacheLineBytes) std::int32_t failure_reporter;
  std::uint32_t failure_cause_bytes;
  char failure_cause[GroupFailure::kMaxCauseBytes];
};

// Notes lie outside the blocks, which waiting ranks read. Without notes their pages are never
// touched.
struct SharedProgress::Note {
  alignas(2 * kCacheLineBytes) std::atomic<std::uint64_t> version;  // odd: being written
  std::atomic<std::uint64_t> bytes;
  std::atomic<std::uint64_t> words[kMaxNoteBytes / sizeof(std::uint64_t)];
};

static_assert(std::atomic<std::uint64_t>::is_always_lock_free, "shared between processes");

std::size_t SharedProgress::bytes_for(int local_count, int world_size) {
  static_assert(alignof(Block) >= alignof(Head) && sizeof(Head) % alignof(Block) == 0);
  static_assert(alignof(Note) <= alignof(Block));
  return sizeof(Head) + local_count * (sizeof(Block) + sizeof(Note)) +
         world_size * sizeof(std::atomic<bool>);
}

// The segment's zeros are valid objects: atomics of value 0, empty texts.
SharedProgress::SharedProgress(void* memory, int local_count, int local, Duration spin)
    : head_(static_cast<Head*>(memory)),
      blocks_(reinterpret_cast<Block*>(static_cast<char*>(memory) + sizeof(Head))),
      notes_(reinterpret_cast<Note*>(blocks_ + local_count)),
      departed_(reinterpret_cast<std::atomic<bool>*>(notes_ + local_count)),
      local_count_(local_count),
      local_(local),
      spin_(spin),
      abstinence_(kMinAbstinence) {}

std::uint64_t SharedProgress::tick(int local) const { return blocks_[local].tick.load(); }

// A sleeper and a publisher cannot miss each other. A sleeper sets `asleep` and then reads the
// ticks once more. A publisher stores its tick and then looks for sleepers. All of it is
// sequentially consistent, so one of the two sees the other.
void SharedProgress::publish(std::uint64_t tick) {
  blocks_[local_].core.store(this_core(), std::memory_order_relaxed);
  blocks_[local_].tick.store(tick);
  if (head_->sleepers.load() != 0) wake_those_who_wait_for_me(tick);
}

void SharedProgress::wake_those_who_wait_for_me(std::uint64_t tick) {
  for (int i = 0; i < local_count_; ++i) {
    Block& block = blocks_[i];
    if (i == local_ || block.asleep.load() == 0) continue;
    const std::int32_t whom = block.wants_whom.load();
    const std::uint64_t wanted = block.wants_tick.load();
    const bool mine_counts = whom == local_ || whom == kEveryone;
    if (!mine_counts || tick < wanted || (whom == kEveryone && !everyone_reached(wanted))) continue;
    block.wakeup.fetch_add(1);
    futex_wake(block.wakeup);
  }
}

bool SharedProgress::everyone_reached(std::uint64_t tick) const {
  for (int i = 0; i < local_count_; ++i) {
    if (blocks_[i].tick.load() < tick) return false;
  }
  return true;
}

bool SharedProgress::shares_core() const {
  const std::int32_t core = this_core();
  for (int i = 0; i < local_count_; ++i) {
    if (i != local_ && blocks_[i].core.load(std::memory_order_relaxed) == core) return true;
  }
  return false;
}

template <class Ready>
bool SharedProgress::spin(Ready ready) {
  const TimePoint give_up = BootClock::now() + spin_;
  for (unsigned turn = 1; !failed(); ++turn) {
    if (ready()) return true;
    relax();
    if (turn % 32 == 0 && (BootClock::now() >= give_up || shares_core())) break;
  }
  return false;
}

// Hands the core to other processes. Spinning would keep the core from the very rank that is
// waited for; a yield costs a fraction of a sleep and a wakeup. But if another computing process
// gets the core, it comes back only after a time slice. Then sleeping is better for a while: a
// woken sleeper runs first.
template <class Ready>
bool SharedProgress::yield(Ready ready) {
  if (waits_before_yielding_ > 0) {
    --waits_before_yielding_;
    return false;
  }
  TimePoint before = BootClock::now();
  for (int turn = 0; turn < kYields && !failed(); ++turn) {
    sched_yield();
    const TimePoint after = BootClock::now();
    if (after - before > kLongYield) {
      waits_before_yielding_ = abstinence_;
      abstinence_ = std::min(2 * abstinence_, kMaxAbstinence);
      return ready();
    }
    if (ready()) {
      abstinence_ = std::max(abstinence_ - 1, kMinAbstinence);
      return true;
    }
    before = after;
  }
  return false;
}

template <class Ready, class Gone>
WaitEnd SharedProgress::wait(std::int32_t whom, std::uint64_t tick, TimePoint deadline, Ready ready,
                             Gone gone) {
  if (ready()) return WaitEnd::kReady;
  const bool alone = spin_ > Duration::zero() && !shares_core();
  if (alone ? spin(ready) : yield(ready)) return WaitEnd::kReady;

  Block& mine = blocks_[local_];
  for (;;) {
    const std::uint32_t heard = mine.wakeup.load();
    mine.wants_whom.store(whom);
    mine.wants_tick.store(tick);
    mine.asleep.store(1);
    head_->sleepers.fetch_add(1);
    std::optional<WaitEnd> end;
    if (ready()) {
      end = WaitEnd::kReady;
    } else if (failed() || gone()) {
      // The steps that the rank published before it failed or left count: look once more.
      end = ready() ? WaitEnd::kReady : failed() ? WaitEnd::kFailed : WaitEnd::kLeft;
    } else if (BootClock::now() >= deadline) {
      end = WaitEnd::kTimedOut;
    } else {
      futex_wait(mine.wakeup, heard, std::min(deadline, BootClock::now() + kLongestSleep));
    }
    mine.asleep.store(0);
    head_->sleepers.fetch_sub(1);
    if (end) return *end;
  }
}

WaitEnd SharedProgress::wait_for_all(std::uint64_t tick, TimePoint deadline) {
  return wait(
      kEveryone, tick, deadline, [&] { return everyone_reached(tick); },
      [&] {
        for (int i = 0; i < local_count_; ++i) {
          if (has_left(i) && blocks_[i].tick.load() < tick) return true;
        }
        return false;
      });
}

WaitEnd SharedProgress::wait_for(int local, std::uint64_t tick, TimePoint deadline) {
  return wait(
      local, tick, deadline, [&] { return blocks_[local].tick.load() >= tick; },
      [&] { return has_left(local); });
}

void SharedProgress::enter(const CallHeader& call, std::uint64_t round, std::size_t place) {
  Block& mine = blocks_[local_];
  mine.calls[round % 2] = call;
  mine.places[round % 2] = place;
  mine.entered.store(round, std::memory_order_relaxed);
}

const CallHeader& SharedProgress::call_of(int local, std::uint64_t round) const {
  return blocks_[local].calls[round % 2];
}

std::size_t SharedProgress::place_of(int local, std::uint64_t round) const {
  return blocks_[local].places[round % 2];
}

std::uint64_t SharedProgress::entered(int local) const {
  return blocks_[local].entered.load(std::memory_order_relaxed);
}

// Versions work as in a sequence lock: odd while the note is written. A reader that reads a word
// of the next note synchronizes with its writer, so it sees that the version has changed.
void SharedProgress::write_note(std::string_view note) {
  DDPRUN_ASSERT(note.size() <= kMaxNoteBytes, "there is room for a note");
  Note& mine = notes_[local_];
  const std::uint64_t version = mine.version.load(std::memory_order_relaxed);
  mine.version.store(version + 1, std::memory_order_relaxed);
  mine.bytes.store(note.size(), std::memory_order_release);
  for (std::size_t at = 0; at < note.size(); at += sizeof(std::uint64_t)) {
    std::uint64_t word = 0;
    std::memcpy(&word, note.data() + at, std::min(sizeof word, note.size() - at));
    mine.words[at / sizeof word].store(word, std::memory_order_release);
  }
  mine.version.store(version + 2, std::memory_order_release);
}

std::string SharedProgress::note_of(int local) const {
  constexpr int kAttempts = 100;
  const Note& note = notes_[local];
  for (int i = 0; i < kAttempts; ++i) {
    const std::uint64_t version = note.version.load(std::memory_order_acquire);
    if (version % 2 != 0) {
      relax();
      continue;
    }
    std::string text(
        std::min<std::size_t>(note.bytes.load(std::memory_order_acquire), kMaxNoteBytes), '\0');
    for (std::size_t at = 0; at < text.size(); at += sizeof(std::uint64_t)) {
      const std::uint64_t word =
          note.words[at / sizeof(std::uint64_t)].load(std::memory_order_acquire);
      std::memcpy(text.data() + at, &word, std::min(sizeof word, text.size() - at));
    }
    if (note.version.load(std::memory_order_relaxed) == version) return text;
  }
  return {};
}

bool SharedProgress::raise(const GroupFailure& failure) {
  Block& mine = blocks_[local_];
  if (failed()) return false;
  // This rank owns these fields until the word points to them. A rank raises once, so no other
  // rank reads them meanwhile.
  mine.failure_reporter = failure.reporter;
  mine.failure_cause_bytes =
      static_cast<std::uint32_t>(std::min(failure.cause.size(), GroupFailure::kMaxCauseBytes));
  std::memcpy(mine.failure_cause, failure.cause.data(), mine.failure_cause_bytes);
  std::uint64_t none = 0;
  const bool first = head_->failure.compare_exchange_strong(none, pack(failure, local_));
  if (first) {
    for (int i = 0; i < local_count_; ++i) notify(i);
  }
  return first;
}

bool SharedProgress::failed() const { return head_->failure.load() != 0; }

// Reads before a sequentially consistent store come before every such load after it. (A fence
// would do the same, but ThreadSanitizer does not support fences.)
bool SharedProgress::failed_by_now() {
  blocks_[local_].core.store(this_core());
  return failed();
}

// Sets the flag first and then reads the failure. A rank that raises a failure and then reads
// the flag sees it set, or the rank that set it sees the failure.
bool SharedProgress::begin_work() {
  blocks_[local_].at_work.store(1);
  if (!failed()) return true;
  end_work();
  return false;
}

void SharedProgress::end_work() { blocks_[local_].at_work.store(0); }

bool SharedProgress::is_at_work(int local) const { return blocks_[local].at_work.load() != 0; }

std::optional<GroupFailure> SharedProgress::failure() const {
  const std::uint64_t word = head_->failure.load();
  if (word == 0) return std::nullopt;
  const Block& reporter = blocks_[word >> 40];
  return GroupFailure{.kind = static_cast<ErrorKind>((word & 0xff) - 1),
                      .peer_rank = static_cast<int>((word >> 8) & 0xffffffff) - 1,
                      .reporter = reporter.failure_reporter,
                      .cause = std::string(reporter.failure_cause, reporter.failure_cause_bytes)};
}

void SharedProgress::leave() {
  blocks_[local_].left.store(1);
  for (int i = 0; i < local_count_; ++i) notify(i);
}

void SharedProgress::notify_own() { notify(local_); }

void SharedProgress::notify(int local) {
  blocks_[local].wakeup.fetch_add(1);
  futex_wake(blocks_[local].wakeup);
}

bool SharedProgress::has_left(int local) const { return blocks_[local].left.load() != 0; }

bool SharedProgress::note_departure(int rank) { return !departed_[rank].exchange(true); }

bool SharedProgress::has_departed(int rank) const { return departed_[rank].load(); }

}  // namespace ddprun
