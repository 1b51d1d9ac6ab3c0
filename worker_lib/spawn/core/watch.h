// SpawnWatch: decides when the ranks of a spawn() are ended, and which failure is reported.
//
//   running      no rank has failed; some may have succeeded
//   terminating  a rank has failed, or the caller stops the ranks: all got SIGTERM
//   killing      the grace period is over, or there was none: all got SIGKILL
//   over         all have ended, or the kernel cannot end the remaining ones
//
// The first failure or a stop leads from running to terminating. A failure that names a lost peer
// that still runs does so after kCauseTime, or when the peer has ended: else the peer could be
// ended while it is about to report what happened. The end of the grace period, or a stop without
// grace, leads to killing. The last end, or the end of kRankKillPatience, leads to over. No
// transition leads back.
//
// The first failure is reported, unless it only follows from the end of another rank. A rank
// notices a peer's death by their connection before the monitor does, and throws a kPeerLost
// that names the peer.
//
// A value type; the monitor owns it.
#pragma once

#include <optional>
#include <vector>

#include "base/clock.h"

namespace ddprun {

// How long SIGKILL may take to end a rank. After that, the failure is reported without that
// rank's end.
inline constexpr Duration kRankKillPatience = std::chrono::seconds(30);

// How long the end of a rank that others have lost is awaited.
inline constexpr Duration kCauseTime = std::chrono::seconds(1);

struct RankEnd {
  bool well = false;
  int signal = 0;        // that ended it; 0: none
  int blamed_peer = -1;  // the rank that it reports as lost; -1: none
};

class SpawnWatch {
 public:
  enum class Act { kNothing, kTerminate, kKill };
  enum class Haste { kGrace, kNow };

  SpawnWatch(int ranks, Duration grace);

  // Records that a rank has ended, and returns what to do. Call it at most once for each rank.
  Act on_end(int rank, const RankEnd& end, TimePoint now);
  // Records that the ranks must end, because the caller asks for it or the program is gone.
  // Returns what to do.
  Act on_stop(Haste haste, TimePoint now);
  Act on_time(TimePoint now);

  // Returns when to call on_time(); nullopt: not needed in this state.
  std::optional<TimePoint> next_time() const { return next_; }
  bool is_over() const { return stage_ == Stage::kOver; }

  // Returns the rank whose failure is reported. REQUIRES: it is over. nullopt: no rank has
  // failed by itself.
  std::optional<int> story() const;
  bool has_ended(int rank) const { return ends_[rank].has_value(); }

 private:
  enum class Stage { kRunning, kTerminating, kKilling, kOver };

  struct Ended {
    RankEnd end;
    bool as_signaled = false;  // it ended by the signal that it was sent
  };

  Act terminate(TimePoint now);
  Act kill(TimePoint now);
  bool ended_as_signaled(const RankEnd& end) const;
  bool failed_by_itself(int rank) const;
  bool awaits_cause() const;

  Duration grace_;
  Stage stage_ = Stage::kRunning;
  std::optional<TimePoint> next_;
  std::vector<std::optional<Ended>> ends_;  // by rank
  int living_;
  std::optional<int> first_failed_;  // before the ranks were asked to end
};

}  // namespace ddprun
