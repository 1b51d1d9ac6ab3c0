#include "worker_lib/ddp/step_recorder.h"

#include <algorithm>
#include <utility>

namespace ddprun {

void StepRecorder::forward_begins(std::int64_t next_pass) {
  forward_began_.reset();
  if (is_due(next_pass)) forward_began_ = BootClock::now();
}

void StepRecorder::module_begins() {
  if (forward_began_) exchange_ = BootClock::now() - *forward_began_;
}

void StepRecorder::forward_ends() {
  if (!forward_began_) return;
  forwards_.all += BootClock::now() - *forward_began_;
  forwards_.exchange += exchange_;
  forward_began_.reset();
}

void StepRecorder::pass_begins(std::int64_t next_pass) {
  pass_began_.reset();
  record_.reset();
  if (is_due(next_pass)) pass_began_ = BootClock::now();
}

void StepRecorder::is_not_recorded() {
  record_.reset();
  forwards_ = {};
}

void StepRecorder::is_synchronised(std::int64_t pass,
                                   const std::function<std::vector<BucketTimes>()>& describe) {
  before_ = std::exchange(forwards_, {});
  if (!pass_began_) return;
  std::vector<BucketTimes> buckets = describe();
  ends_ = std::make_shared<Ends>(buckets.size());
  record_.emplace(pass, *pass_began_, std::move(buckets));
}

void StepRecorder::gradient_came(std::size_t bucket) {
  if (record_) record_->gradient_came(bucket, BootClock::now());
}

void StepRecorder::sent(std::size_t bucket) {
  if (record_) record_->sent(bucket, BootClock::now());
}

void StepRecorder::watch(std::size_t bucket, const Work& work) {
  if (!record_) return;
  work.future()->addCallback([ends = ends_, bucket](c10::ivalue::Future&) {
    (*ends)[bucket].store(BootClock::now().time_since_epoch().count());
  });
}

void StepRecorder::done(std::size_t bucket) {
  if (record_) record_->done(bucket, BootClock::now());
}

void StepRecorder::computed() {
  if (record_) record_->computed(BootClock::now());
}

// The thread that ends a call first wakes those that wait for it. So a bucket may be done before
// its time is written.
void StepRecorder::reduced() {
  if (!record_) return;
  const TimePoint now = BootClock::now();
  for (std::size_t bucket = 0; bucket < ends_->size(); ++bucket) {
    const Duration::rep seen = (*ends_)[bucket].load();
    record_->done(bucket, seen == 0 ? now : std::min(now, TimePoint(Duration(seen))));
  }
}

void StepRecorder::pass_ends() {
  if (!record_) return;
  StepTimes step = record_->end(BootClock::now());
  step.forward = before_.all;
  step.exchange = before_.exchange;
  statistics_.add(std::move(step));
  record_.reset();
}

}  // namespace ddprun
