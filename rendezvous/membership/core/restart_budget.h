// RestartBudget: whether a generation that failed is followed by another one, and after which pause.
//
//   max_restarts        for the whole job; with RestartRules::window those of the last `window` count
//   on_progress         all restarts are available again once a worker has reported a step beyond the one
//                       at which the last failure struck; but the third failure in a row at the same step
//                       is followed by none, because what it meets there will not go away
//   final_codes         a first failure with one of these exit codes is never followed by a restart
//   a final error       a first failure that says kFinalError (base/final_error.h) gets no restart
//   a quick failure     of a generation that lived less than kQuick: after the first one in a row there is
//                       a pause before the next start, kFirstPause, doubled each time up to kLongestPause.
//                       So a cause that lasts for seconds (a port in use, a disk that is not mounted
//                       yet) does not use all restarts up at once. A lost node is no such failure: it
//                       takes more than a restart to lose one.
//
// Owner: Membership, on the service's thread. Pure; time comes in.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/protocol/core/worker_end.h"

namespace ddprun {

// Where failures strike, for RestartRules::on_progress.
struct Strikes {
  std::optional<std::int64_t> step;  // of the last failure; nullopt: it had reported none
  int in_a_row = 0;                  // failures at that step
  int restarts = 0;                  // since there was progress

  friend bool operator==(const Strikes&, const Strikes&) = default;
};

class RestartBudget {
 public:
  static constexpr Duration kQuick = std::chrono::seconds(10);
  static constexpr Duration kFirstPause = std::chrono::milliseconds(500);
  static constexpr Duration kLongestPause = std::chrono::seconds(30);
  // Past it, which is more than anybody asks for within a window, the oldest is forgotten.
  static constexpr std::size_t kTimesKept = 4096;
  static constexpr int kStrikes = 3;

  RestartBudget() = default;
  RestartBudget(int max_restarts, RestartRules rules)
      : max_(max_restarts), rules_(std::move(rules)) {}

  struct Decision {
    bool restart = false;
    Duration pause{};     // before the next generation may be formed
    std::string why_not;  // in words, where more is to be said than that none is left
  };
  // A generation failed, with this first failure; lived: since it was formed, nullopt: not known;
  // reached: the highest step that any of its workers has reported, nullopt: none has.
  // A restart that is allowed is used up by the question.
  Decision decide(const WorkerEnd& first, std::optional<Duration> lived,
                  std::optional<std::int64_t> reached, TimePoint now);

  // Restarts of the whole job.
  int used() const { return used_; }
  // That a failure without further progress may use from now on.
  int left(TimePoint now) const;
  // "2 of 3", "7 (2 of 3 within 60 s)": the restarts that were used, of those that there are.
  std::string in_words(TimePoint now) const;

  // An earlier life of the service has used so many, or an agent says so. More than the budget
  // would have allowed is not believed.
  void believe(int used);
  // How long ago those were that a window still counts, the oldest first; empty without a window.
  std::vector<Duration> ages(TimePoint now) const;
  // With on_progress, where failures struck.
  const Strikes& strikes() const { return strikes_; }
  void restore(int used, const std::vector<Duration>& ages, const Strikes& strikes, TimePoint now);

 private:
  bool has_window() const { return rules_.window > Duration(0); }
  void forget_old(TimePoint now);
  // Of them the ones that count now.
  int counted() const;
  void strike(const WorkerEnd& first, std::optional<std::int64_t> reached);

  int max_ = 0;
  RestartRules rules_;
  int used_ = 0;
  std::deque<TimePoint> times_;  // of restarts, where there is a window
  Strikes strikes_;
  int quick_in_a_row_ = 0;
};

}  // namespace ddprun
