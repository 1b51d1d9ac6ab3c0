// RestartBudget: decides whether another generation follows one that failed, and after which
// pause.
//
//   max_restarts      for the whole job; with RestartRules::window only those of the last `window`
//                     count
//   on_progress       all restarts become available again when a worker reports a step beyond that
//                     of the last failure. But no restart follows the third failure in a row at the
//                     same step, because its cause will not go away
//   final_codes       no restart follows a first failure with one of these exit codes
//   a final error     no restart follows a first failure that contains kFinalError
//                     (base/final_error.h)
//   a quick failure   the generation lived less than kQuick. From the second one in a row, a pause
//                     comes before the next start: kFirstPause, doubled each time, at most
//                     kLongestPause. So a cause that lasts for seconds (a port in use, a disk that
//                     is not mounted yet) does not use all restarts at once. A lost node is not a
//                     quick failure: a restart alone does not lose a node
//
// The budget belongs to one run of a job. A job that is begun again under the same id has all
// restarts again, as after a requeue by the scheduler (launcher/cluster/core/requeue.h).
//
// Owner: Membership, on the service's thread. Pure; times are arguments.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// Strikes: at which step failures occur, for RestartRules::on_progress.
struct Strikes {
  std::optional<std::int64_t> step;  // of the last failure; nullopt: none was reported
  int in_a_row = 0;                  // failures at that step
  int restarts = 0;                  // since the last progress

  friend bool operator==(const Strikes&, const Strikes&) = default;
};

class RestartBudget {
 public:
  static constexpr Duration kQuick = std::chrono::seconds(10);
  static constexpr Duration kFirstPause = std::chrono::milliseconds(500);
  static constexpr Duration kLongestPause = std::chrono::seconds(30);
  // Limit of the remembered restart times. It is more than a user allows within a window. One
  // more removes the oldest.
  static constexpr std::size_t kTimesKept = 4096;
  static constexpr int kStrikes = 3;

  RestartBudget() = default;
  RestartBudget(int max_restarts, RestartRules rules)
      : max_(max_restarts), rules_(std::move(rules)) {}

  struct Decision {
    bool restart = false;
    Duration pause{};     // before the next generation may be formed
    std::string why_not;  // text; empty if the only reason is that no restart is left
  };
  // Decides what follows a failed generation whose first failure was `first`. lived: time
  // since it was formed; nullopt: not known. reached: the highest step that any of its workers
  // has reported; nullopt: none has. A restart that is allowed is used by this call.
  Decision decide(const WorkerEnd& first, std::optional<Duration> lived,
                  std::optional<std::int64_t> reached, TimePoint now);

  // Returns the restarts that the whole job has used.
  int used() const { return used_; }
  // Returns how many restarts are available to failures without further progress.
  int left(TimePoint now) const;
  // Returns used and allowed restarts as text: "2 of 3", "7 (2 of 3 within 60 s)".
  std::string in_words(TimePoint now) const;

  // Takes over the used restarts of an earlier run of the service, as an agent reports them.
  // Without window and on_progress, a number above the budget is reduced to it.
  void believe(int used);
  // Returns the ages of the restarts that a window still counts, the oldest first. Empty
  // without a window.
  std::vector<Duration> ages(TimePoint now) const;
  // Returns where failures occurred, with on_progress.
  const Strikes& strikes() const { return strikes_; }
  void restore(int used, const std::vector<Duration>& ages, const Strikes& strikes, TimePoint now);

 private:
  bool has_window() const { return rules_.window > Duration(0); }
  void forget_old(TimePoint now);
  // Returns how many of the used restarts count now.
  int counted() const;
  void strike(const WorkerEnd& first, std::optional<std::int64_t> reached);

  int max_ = 0;
  RestartRules rules_;
  int used_ = 0;
  std::deque<TimePoint> times_;  // of restarts; empty without a window
  Strikes strikes_;
  int quick_in_a_row_ = 0;
};

}  // namespace ddprun
