// StepRecorder: takes the times of the passes that the option 'statistics_every' asks for.
//
// Owned by a Reducer, which has none where the option is 0, and calls it with its mutex held; what
// it is told between steps that are recorded costs a comparison. How long a reduction took is seen
// by whoever ends it: that thread only writes a time, into memory that it shares with this pass's
// record.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "ddprun/work.h"
#include "worker_lib/ddp/core/step_statistics.h"

namespace ddprun {

class StepRecorder {
 public:
  // every: at least 1.
  explicit StepRecorder(std::int64_t every) : every_(every) {}

  // A forward in grad mode: it begins, the module's own forward begins, it is over, or has thrown.
  // next_pass: the number of the synchronised pass that would come now.
  void forward_begins(std::int64_t next_pass);
  void module_begins();
  void forward_ends();
  void forward_fails() { forward_began_.reset(); }

  // A pass: the first gradient of an output, or of a parameter, comes; it turns out to be
  // synchronised, over the buckets that `describe` gives, or something else.
  void pass_begins(std::int64_t next_pass);
  void is_not_recorded();
  void is_synchronised(std::int64_t pass,
                       const std::function<std::vector<BucketTimes>()>& describe);

  // Of a synchronised one.
  void gradient_came(int bucket);
  void sent(int bucket);
  // `work` reduces it.
  void watch(int bucket, const Work& work);
  void done(int bucket);
  void computed();
  // Every reduction that is watched is over; where nobody has seen yet when, it was by now.
  void reduced();
  void pass_ends();

  void change_buckets() { statistics_.change_buckets(); }
  const StepStatistics& statistics() const { return statistics_; }

 private:
  bool is_due(std::int64_t pass) const { return pass % every_ == 0; }

  // By bucket, when it was seen to be done, as nanoseconds of the BootClock; 0: not yet.
  using Ends = std::vector<std::atomic<Duration::rep>>;

  const std::int64_t every_;
  StepStatistics statistics_;
  struct Forwards {
    Duration all = {}, exchange = {};
  };
  Forwards forwards_;  // since the last pass
  Forwards before_;    // the pass that is recorded
  std::optional<TimePoint> forward_began_;
  Duration exchange_ = {};  // of the forward that is going on
  std::optional<TimePoint> pass_began_;
  std::optional<StepRecord> record_;
  std::shared_ptr<Ends> ends_;
};

}  // namespace ddprun
