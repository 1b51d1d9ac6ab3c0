#include "worker_lib/ddp/step_recorder.h"

#include <algorithm>
#include <utility>

#include "worker_lib/flight/worker_reporter.h"

namespace ddprun {

StepRecorder::StepRecorder(std::int64_t every, std::shared_ptr<detail::GroupNotes> notes)
    : every_(every),
      notes_(std::move(notes)),
      page_(every > 0 && notes_
                ? MappedPages::map(notes_->reporter->place(), MappedPages::Access::kWrite)
                : std::nullopt) {
  if (page_) notes_->times_loading = true;
}

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
  if (step_) {
    step_->forwards.all += forwards_.all;
    step_->forwards.exchange += forwards_.exchange;
  }
  forwards_ = {};
}

void StepRecorder::is_synchronised(std::int64_t pass,
                                   const std::function<std::vector<BucketTimes>()>& describe) {
  before_ = std::exchange(forwards_, {});
  pass_ = pass;
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
  if (record_) {
    record_->computed(BootClock::now());
  } else if (step_ && pass_began_) {
    step_->backward += BootClock::now() - *std::exchange(pass_began_, std::nullopt);
  }
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
  const bool begins_step = page_ && is_due(pass_ + 1);
  if (!record_ && !begins_step) return;
  const TimePoint now = BootClock::now();
  if (record_) {
    StepTimes step = record_->end(now);
    step.forward = before_.all;
    step.exchange = before_.exchange;
    if (step_ && step_->pass == step.pass) end_step(step, now);
    statistics_.add(std::move(step));
    record_.reset();
  }
  step_.reset();
  if (!begins_step) return;
  step_ = {.pass = pass_ + 1,
           .began = now,
           .loading = notes_->loading_ns,
           .checkpoint = (*page_)[0].checkpoint_ns};
}

// No loader tells of its waits if none has been noted until now.
void StepRecorder::end_step(const StepTimes& times, TimePoint now) {
  const std::int64_t loading = notes_->loading_ns;
  const std::uint64_t checkpoint = (*page_)[0].checkpoint_ns - step_->checkpoint;
  const Duration exchange = times.exchange + step_->forwards.exchange;
  StepParts parts{.whole = now - step_->began,
                  .forward = times.forward + step_->forwards.all - exchange,
                  .backward = times.backward - times.exposed + step_->backward,
                  .communication = times.exposed + exchange,
                  .checkpoint = Duration(static_cast<Duration::rep>(checkpoint))};
  if (loading > 0) parts.data = Duration(loading - step_->loading);
  write_step_shares(means_.add(parts), (*page_)[0]);
}

}  // namespace ddprun
