// SharedProgress: one rank's view of the shared page in which the ranks of a node publish their
// progress.
//
// It lies at the start of the segment. Every rank owns one block of it. The block has the rank's
// tick, a counter of finished steps that only grows (cpu_shm/core/chunk_pipeline.h). It also has
// the header of the rank's current collective, and the futex that the rank sleeps on. One word
// is common to all ranks: the group's first failure.
//
// Only the thread that makes the group's calls uses publish(), the waits, enter() and leave().
// Any thread may raise a failure and read everything.
//
// Waiting: A rank spins for a short time if every rank has a core and no other rank is on its
// core at the moment. Otherwise it yields a few times, unless yielding has just given the core
// to another program. Then it sleeps.
//
// A sleeper writes what it waits for. A publisher wakes exactly those ranks for which its step
// was the last one missing. So with many ranks on few cores each step costs one wakeup per rank.
// Without sleepers, a publish costs one more read, of a line that is rarely written. A rank that
// is stopped between its step and the wakeup still owes that wakeup, so sleepers look again a
// few times a second.
//
// A rank may be killed between any two instructions. Other ranks never see a half-written value:
// words are written in one store, texts before the word that points to them, data before the
// tick.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/error.h"
#include "worker_lib/collective/call_header.h"

namespace ddprun {

// GroupFailure: the first failure of a group, the same on every rank.
struct GroupFailure {
  ErrorKind kind = ErrorKind::kPeerLost;
  int peer_rank = -1;  // the rank to blame; -1: none
  int reporter = -1;   // the rank whose thread noticed it
  std::string cause;   // "rank 2 died"; cut at kMaxCauseBytes
  static constexpr std::size_t kMaxCauseBytes = 992;
};

// WaitEnd: how a wait ended.
enum class WaitEnd {
  kReady,   // also if a failure was raised meanwhile: the condition holds
  kFailed,  // see failure()
  kLeft,    // a rank that was waited for has left the group
  kTimedOut,
};

class SharedProgress {
 public:
  // Returns the bytes needed in the segment, which must be zero at first.
  static std::size_t bytes_for(int local_count, int world_size);

  // memory: bytes_for() bytes, aligned to 2 * kCacheLineBytes, the same memory for all ranks of
  // the node. spin: how long a wait spins before it sleeps.
  SharedProgress(void* memory, int local_count, int local, Duration spin);

  // --- progress ---
  std::uint64_t tick(int local) const;
  void publish(std::uint64_t tick);
  WaitEnd wait_for_all(std::uint64_t tick, TimePoint deadline);
  WaitEnd wait_for(int local, std::uint64_t tick, TimePoint deadline);

  // --- collectives ---
  // Writes the call of this rank. Other ranks may read it once the tick of the arrival is
  // published and until this rank enters the round after the next. A round is a collective or
  // one phase of it; all ranks count them from 1. place: where the rank's tensor lies in its
  // part of the heap, if call.shortcut says so.
  void enter(const CallHeader& call, std::uint64_t round, std::size_t place = 0);
  const CallHeader& call_of(int local, std::uint64_t round) const;
  std::size_t place_of(int local, std::uint64_t round) const;
  // Returns the round that the rank entered last.
  std::uint64_t entered(int local) const;

  // --- notes ---
  // Publishes a text of this rank. One thread of the rank at a time may write. A reader never
  // sees a half-written note; if a note keeps changing, it gets none.
  void write_note(std::string_view note);
  std::string note_of(int local) const;

  // --- failure ---
  // Makes this the group's failure if it is the first, and wakes all ranks. Returns whether it
  // was the first. At most one thread of a rank at a time.
  bool raise(const GroupFailure& failure);
  bool failed() const;
  // Enclose work that writes to other ranks' tensors. begin_work() returns false, and nothing
  // has begun, if the group has failed. So if no rank is at work after a failure was raised, no
  // rank will be.
  bool begin_work();
  void end_work();
  bool is_at_work(int local) const;

  // Returns whether the group has failed, checked after all reads that this rank has made so
  // far. Needed for tensors that others may change once the group has failed. Only for the
  // thread that makes the group's calls: it writes to the rank's block.
  bool failed_by_now();
  std::optional<GroupFailure> failure() const;

  // Wakes this rank if it waits, so that it checks its condition again. Used when another rank
  // has died, which may have owed a wakeup.
  void notify_own();

  // Publishes that this rank will make no more calls.
  void leave();
  bool has_left(int local) const;
  // Notes the departure of a rank of another node, which reports it to some ranks of this node.
  // Returns whether it is new.
  bool note_departure(int rank);
  bool has_departed(int rank) const;

  int local() const { return local_; }

 private:
  struct Block;
  struct Head;
  struct Note;

  template <class Ready, class Gone>
  WaitEnd wait(std::int32_t whom, std::uint64_t tick, TimePoint deadline, Ready ready, Gone gone);
  bool everyone_reached(std::uint64_t tick) const;
  bool shares_core() const;
  template <class Ready>
  bool spin(Ready ready);
  template <class Ready>
  bool yield(Ready ready);
  void notify(int local);
  void wake_those_who_wait_for_me(std::uint64_t tick);

  Head* head_;
  Block* blocks_;
  Note* notes_;
  std::atomic<bool>* departed_;  // by rank of the world
  int local_count_;
  int local_;
  Duration spin_;
  int waits_before_yielding_ = 0;
  int abstinence_;  // number of waits without yielding after the next long yield
};

}  // namespace ddprun
