// StepRecorder: takes the times of the passes that the option 'statistics_every' selects. It writes
// the shares of the steps to the worker's page, if there is one (base/step_shares.h).
//
// A Reducer owns it and calls it with its mutex held. Between recorded steps a call costs a
// comparison. The thread that ends a reduction sees how long it took. That thread only writes a
// time, into memory that it shares with this pass's record.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/worker_page_file.h"
#include "ddprun/work.h"
#include "worker_lib/ddp/core/step_parts.h"
#include "worker_lib/ddp/core/step_statistics.h"
#include "worker_lib/group/notes.h"

namespace ddprun {

class StepRecorder {
 public:
  // every: the option's value; 0: no times are taken. notes: of the group of the passes; null: no
  // shares are written.
  explicit StepRecorder(std::int64_t every, std::shared_ptr<detail::GroupNotes> notes = nullptr);

  // Mark a forward in grad mode: it begins, the module's own forward begins, it ends, it throws.
  // next_pass: the number that the next synchronised pass would have.
  void forward_begins(std::int64_t next_pass);
  void module_begins();
  void forward_ends();
  void forward_fails() { forward_began_.reset(); }

  // Mark a pass. Passes are numbered from 1. It begins with the first gradient of an output or of a
  // parameter. Then it is found to be synchronised, over the buckets that `describe` returns, or
  // not to be recorded.
  void pass_begins(std::int64_t next_pass);
  void is_not_recorded();
  void is_synchronised(std::int64_t pass,
                       const std::function<std::vector<BucketTimes>()>& describe);

  // Mark events of a synchronised pass.
  void gradient_came(std::size_t bucket);
  void sent(std::size_t bucket);
  // Watches `work`, which reduces the bucket.
  void watch(std::size_t bucket, const Work& work);
  void done(std::size_t bucket);
  void computed();  // also in a pass that is not recorded
  // Marks that every watched reduction has ended. One whose end was not yet recorded gets the
  // present time.
  void reduced();
  void pass_ends();  // of a synchronised one

  void change_buckets() { statistics_.change_buckets(); }
  const StepStatistics& statistics() const { return statistics_; }

 private:
  bool is_due(std::int64_t pass) const { return every_ > 0 && pass % every_ == 0; }

  // By bucket: when it was seen to be done, as nanoseconds of the BootClock; 0: not yet.
  using Ends = std::vector<std::atomic<Duration::rep>>;

  struct Forwards {
    Duration all = {}, exchange = {};
  };
  // Step: from the end of one synchronised pass to the end of the next, which is to be recorded.
  struct Step {
    std::int64_t pass = 0;  // the number of the latter
    TimePoint began;
    // At that time: the totals of the waits for data and for checkpoints, nanoseconds.
    std::int64_t loading = 0;
    std::uint64_t checkpoint = 0;
    // Of passes that are not recorded.
    Forwards forwards = {};
    Duration backward = {};
  };
  void end_step(const StepTimes& times, TimePoint now);

  const std::int64_t every_;
  const std::shared_ptr<detail::GroupNotes> notes_;
  const std::optional<MappedPages> page_;  // nullopt: no shares are written
  StepStatistics statistics_;
  StepMeans means_;
  std::int64_t pass_ = 0;  // the last synchronised one
  std::optional<Step> step_;
  Forwards forwards_;  // since the last pass
  Forwards before_;    // of the pass that is recorded
  std::optional<TimePoint> forward_began_;
  Duration exchange_ = {};  // of the current forward
  std::optional<TimePoint> pass_began_;
  std::optional<StepRecord> record_;
  std::shared_ptr<Ends> ends_;
};

}  // namespace ddprun
