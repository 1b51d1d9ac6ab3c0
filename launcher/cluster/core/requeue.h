// decide_requeue(): whether a job that has saved returns to the scheduler's queue. Pure; any
// thread. Requeues are not restarts: each life of the job has all restarts again.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace ddprun {

// A life of a job begins with its start or a requeue, and ends with the next requeue.
struct JobLife {
  int most = 0;                      // --requeue: requeues that the user allows
  int requeues = 0;                  // so far
  std::optional<std::int64_t> step;  // that the training has reached; nullopt: none was reported
  bool had_workers = true;           // the node that asks; without them it does not know the step
  std::string comment;               // of the job in the scheduler
};

struct RequeueDecision {
  std::string why_not;  // one line for people; empty: requeue
  // What the job's comment must become, so that the next life can compare itself. It keeps the
  // user's own text.
  std::string comment;
};

// The number of lives in a row without a later step that ends the requeues.
inline constexpr int kLivesWithoutProgress = 2;

RequeueDecision decide_requeue(const JobLife& life);

}  // namespace ddprun
