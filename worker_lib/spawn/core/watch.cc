#include "worker_lib/spawn/core/watch.h"

#include <csignal>
#include <cstddef>

#include "base/assert.h"

namespace ddprun {

SpawnWatch::SpawnWatch(int ranks, Duration grace) : grace_(grace), ends_(ranks), living_(ranks) {}

SpawnWatch::Act SpawnWatch::on_end(int rank, const RankEnd& end, TimePoint now) {
  DDPRUN_ASSERT(!has_ended(rank), "a rank ends once");
  ends_[rank] = Ended{.end = end, .as_signaled = ended_as_signaled(end)};
  --living_;
  if (!end.well && stage_ == Stage::kRunning && !first_failed_) first_failed_ = rank;
  if (living_ == 0) {
    stage_ = Stage::kOver;
    next_.reset();
    return Act::kNothing;
  }
  if (!first_failed_ || stage_ != Stage::kRunning) return Act::kNothing;
  if (!awaits_cause()) return terminate(now);
  if (!next_) next_ = now + kCauseTime;
  return Act::kNothing;
}

SpawnWatch::Act SpawnWatch::on_stop(Haste haste, TimePoint now) {
  if (stage_ == Stage::kOver || stage_ == Stage::kKilling) return Act::kNothing;
  if (haste == Haste::kNow) return kill(now);
  return stage_ == Stage::kRunning ? terminate(now) : Act::kNothing;
}

SpawnWatch::Act SpawnWatch::on_time(TimePoint now) {
  if (!next_ || now < *next_) return Act::kNothing;
  if (stage_ == Stage::kRunning) return terminate(now);
  if (stage_ == Stage::kTerminating) return kill(now);
  stage_ = Stage::kOver;
  next_.reset();
  return Act::kNothing;
}

std::optional<int> SpawnWatch::story() const {
  std::optional<int> blamed = first_failed_;
  // Takes at most as many steps as there are ranks, because some may blame each other.
  for (std::size_t step = 0; blamed && step < ends_.size(); ++step) {
    const int peer = ends_[*blamed]->end.blamed_peer;
    if (peer == first_failed_) return first_failed_;
    if (!failed_by_itself(peer)) break;
    blamed = peer;
  }
  return blamed;
}

SpawnWatch::Act SpawnWatch::terminate(TimePoint now) {
  stage_ = Stage::kTerminating;
  next_ = now + grace_;
  return Act::kTerminate;
}

SpawnWatch::Act SpawnWatch::kill(TimePoint now) {
  stage_ = Stage::kKilling;
  next_ = now + kRankKillPatience;
  return Act::kKill;
}

bool SpawnWatch::ended_as_signaled(const RankEnd& end) const {
  return (end.signal == SIGTERM && stage_ != Stage::kRunning) ||
         (end.signal == SIGKILL && stage_ == Stage::kKilling);
}

bool SpawnWatch::failed_by_itself(int rank) const {
  if (rank < 0 || static_cast<std::size_t>(rank) >= ends_.size() || !has_ended(rank)) return false;
  const Ended& ended = *ends_[rank];
  return !ended.end.well && !ended.as_signaled;
}

// Returns whether the failure that is reported so far names a peer that still runs.
bool SpawnWatch::awaits_cause() const {
  const int peer = ends_[*story()]->end.blamed_peer;
  return peer >= 0 && static_cast<std::size_t>(peer) < ends_.size() && !has_ended(peer);
}

}  // namespace ddprun
