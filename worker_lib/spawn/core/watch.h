// SpawnWatch: what becomes of the ranks that spawn() has started, when one fails or all shall end.
//
//   running      nobody has failed, some have ended well
//   terminating  one has failed, or the caller wants an end: everybody has been told (SIGTERM)
//   killing      the grace is over, or there was none (SIGKILL)
//   over         all have ended, or the kernel does not let go of those that are left
//
// From running to terminating by the first failure or stop(), to killing by the grace's end, stop()
// without grace; to over by the last end, or when kKillPatience has passed. Never back.
//
// The first failure is the story, but for one that only tells of another rank's end: a rank hears
// of a peer's death, by their connection, before the monitor does, and throws kPeerLost that names
// it.
//
// A value machine; the monitor owns it.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// How long SIGKILL may take to end a rank before the others' story is told without it.
inline constexpr Duration kRankKillPatience = std::chrono::seconds(30);

struct RankEnd {
  bool well = false;
  int signal = 0;        // that ended it; 0: none did
  int blamed_peer = -1;  // it says that it lost this rank; -1: no such thing
};

class SpawnWatch {
 public:
  enum class Act { kNothing, kTerminate, kKill };
  enum class Haste { kGrace, kNow };

  SpawnWatch(int ranks, Duration grace);

  // A rank has ended; at most once for each.
  Act on_end(int rank, const RankEnd& end, TimePoint now);
  // The caller, or nobody, wants the ranks any more.
  Act on_stop(Haste haste, TimePoint now);
  Act on_time(TimePoint now);

  // When on_time() has something to say; nullopt: never, as it stands.
  std::optional<TimePoint> next_time() const { return next_; }
  bool is_over() const { return stage_ == Stage::kOver; }

  // The rank whose failure is the story, once it is over; nullopt: none has failed by itself.
  std::optional<int> story() const;
  bool has_ended(int rank) const { return ends_[static_cast<std::size_t>(rank)].has_value(); }

 private:
  enum class Stage { kRunning, kTerminating, kKilling, kOver };

  struct Ended {
    RankEnd end;
    bool as_told = false;  // by the signal that it was sent
  };

  Act terminate(TimePoint now);
  Act kill(TimePoint now);
  bool is_as_told(const RankEnd& end) const;
  bool failed_by_itself(int rank) const;

  Duration grace_;
  Stage stage_ = Stage::kRunning;
  std::optional<TimePoint> next_;
  std::vector<std::optional<Ended>> ends_;  // by rank
  int living_;
  std::optional<int> first_failed_;  // before anybody was told to end
};

}  // namespace ddprun
