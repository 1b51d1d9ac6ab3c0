// SharedProgress: one rank's view of the shared page where the ranks of a node see how far each other
// is.
//
// The progress lies at the start of the segment. Every rank owns one block of it: its tick (a counter
// of finished steps that only grows, cpu_shm/core/chunk_pipeline.h), the header of its current collective,
// and the wakeup it sleeps on. One word is common to all: the group's first failure.
//
// publish(), the waits, enter() and leave() belong to the thread that makes the group's calls.
// Failures may be raised, and everything may be read, by any thread.
//
// Waiting: spin for a short time if there is a core for every rank and no other rank is on this
// rank's core at the moment; else yield a few times, unless that has just been found to give the
// core to somebody else; then sleep. A sleeper writes down what it waits for; whoever publishes
// wakes exactly those for whom it was the last thing missing, so that with many ranks on few cores
// each step costs one wake-up per rank. With no sleepers a publish costs one more read of a line
// that nobody writes. A rank that is stopped between its step and the wake-up owes that one, so sleepers look
// again by themselves a few times a second.
//
// A rank may be killed between any two instructions. Nothing here is ever half-written for others:
// words are written whole, texts before the word that points to them, data before the tick.
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

// The first failure of a group, as every rank learns of it.
struct GroupFailure {
  ErrorKind kind = ErrorKind::kPeerLost;
  int peer_rank = -1;  // whom to blame, where one rank is
  int reporter = -1;   // rank whose thread noticed it
  std::string cause;   // "rank 2 died"; cut at kMaxCauseBytes
  static constexpr std::size_t kMaxCauseBytes = 992;
};

// How a wait ended.
enum class WaitEnd {
  kReady,   // also when a failure was raised meanwhile: what was waited for is there
  kFailed,  // failure() says what
  kLeft,    // a rank that was waited for has left the group
  kTimedOut,
};

class SharedProgress {
 public:
  // Bytes needed in the segment, which begins as zeros.
  static std::size_t bytes_for(int local_count, int world_size);

  // memory: bytes_for() bytes, aligned to 2 * kCacheLineBytes, the same for all ranks of
  // the node.
  // spin: how long a wait spins before it sleeps.
  SharedProgress(void* memory, int local_count, int local, Duration spin);

  // --- progress ---
  std::uint64_t tick(int local) const;
  void publish(std::uint64_t tick);
  WaitEnd wait_for_all(std::uint64_t tick, TimePoint deadline);
  WaitEnd wait_for(int local, std::uint64_t tick, TimePoint deadline);

  // --- collectives ---
  // Writes down what this rank calls. Others may read it once the tick of the arrival is published
  // and until this rank enters the round after the next. A round is a collective or one leg of it; all
  // ranks count them from 1.
  // place: where the rank's tensor lies in its part of the heap, where call.shortcut says so.
  void enter(const CallHeader& call, std::uint64_t round, std::size_t place = 0);
  const CallHeader& call_of(int local, std::uint64_t round) const;
  std::size_t place_of(int local, std::uint64_t round) const;
  // The round that the rank entered last.
  std::uint64_t entered(int local) const;

  // --- notes ---
  // What a rank wants known of itself. Any one thread of the rank at a time writes; a reader never
  // sees half of it, and takes a note that keeps changing for none.
  static constexpr std::size_t kMaxNoteBytes = ddprun::kMaxNoteBytes;
  void write_note(std::string_view note);
  std::string note_of(int local) const;

  // --- failure ---
  // Makes this the group's failure if it is the first, and wakes everybody. Returns whether it was.
  // At most one thread of a rank at a time.
  bool raise(const GroupFailure& failure);
  bool failed() const;
  // Around work that writes to other ranks' tensors; begin_work() is false, and nothing has begun, when
  // the group has failed. So when a failure is raised, and then nobody is at work, nobody will be.
  bool begin_work();
  void end_work();
  bool is_at_work(int local) const;

  // Whether the group has failed, looked at after all that this rank has read so far, as of tensors that others may change
  // once the group has failed. For the thread that makes the group's calls: it writes to the rank's block.
  bool failed_by_now();
  std::optional<GroupFailure> failure() const;

  // Wakes this rank if it waits: it looks at the progress again. For when another rank has died, and
  // with it the wake-up that it may have owed.
  void notify_own();

  // This rank will make no more calls.
  void leave();
  bool has_left(int local) const;
  // The same of ranks of other nodes: each tells some ranks of this one. Whether it is news.
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
  int abstinence_;  // how many waits do not yield after the next long one
};

}  // namespace ddprun
