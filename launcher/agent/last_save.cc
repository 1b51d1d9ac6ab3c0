#include "launcher/agent/last_save.h"

#include <algorithm>
#include <utility>

#include "base/worker_env.h"
#include "launcher/cluster/core/cluster_plan.h"
#include "launcher/cluster/slurm_requeue.h"

namespace ddprun {

LastSave::LastSave(boost::asio::io_context& io, Logger& log, const LaunchOptions& options,
                   std::string job, Node node)
    : log_(log),
      options_(options),
      job_(std::move(job)),
      node_(std::move(node)),
      time_limit_(io, log, job_, options.save_before_end.value_or(kDefaultSaveBeforeEnd),
                  [this] { save(); }),
      timer_(io) {}

void LastSave::begin() {
  if (!job_.empty()) time_limit_.begin();
}

void LastSave::close() {
  is_closed_ = true;
  time_limit_.close();
  timer_.cancel();
}

void LastSave::answered(const Answer& answer) {
  others_have_no_workers_ = answer.no_workers;
  if (answer.done) keep_waiting();
}

bool LastSave::requeue(std::optional<std::int64_t> step, bool had_workers) {
  if (!options_.requeue || job_.empty()) return false;
  return requeue_in_slurm(job_,
                          {.most = *options_.requeue,
                           .requeues = requeues_in_slurm(environment_variable),
                           .step = step,
                           .had_workers = had_workers},
                          was_terminated_ ? SlurmEnd::kBegun : SlurmEnd::kNotKnown, log_);
}

void LastSave::save() {
  log_.info("the time limit of Slurm job " + job_ + " is near: all workers are asked to save");
  keep_waiting();
  const bool is_idle = node_.is_without_workers();
  ask_all_nodes();
  if (!is_idle) node_.save_here();
}

// Begins the time that a node without workers waits for an answer about the others.
void LastSave::keep_waiting() {
  constexpr Duration kMostUnanswered = std::chrono::seconds(15);
  const Duration before_end = options_.save_before_end.value_or(kDefaultSaveBeforeEnd);
  idle_until_ = BootClock::now() + std::min<Duration>(before_end / 4, kMostUnanswered);
}

// Is repeated, because a node may be away, or its workers may just be started. A node that was
// asked before does nothing.
//
// A node without workers waits for the end of the job as long as others may have some. It may run
// the service, and its end requeues the job. It leaves if the service says that there are none.
// Without any answer it leaves at idle_until_, because others may just be out of reach.
void LastSave::ask_all_nodes() {
  constexpr Duration kPause = std::chrono::seconds(5);
  constexpr Duration kIdlePause = std::chrono::seconds(1);
  if (is_closed_) return;
  const bool is_idle = node_.is_without_workers();
  const bool may_leave = others_have_no_workers_ || BootClock::now() >= idle_until_;
  if (is_idle && may_leave) return node_.save_here();
  others_have_no_workers_ = false;
  node_.ask_service(UserRequest{.what = UserRequest::What::kSignal,
                                .by = "the time limit of Slurm",
                                .signal = options_.checkpoint_signal});
  timer_.expires_after(is_idle ? kIdlePause : kPause);
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) ask_all_nodes();
  });
}

}  // namespace ddprun
