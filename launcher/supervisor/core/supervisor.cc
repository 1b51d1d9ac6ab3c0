#include "launcher/supervisor/core/supervisor.h"

#include <algorithm>
#include <csignal>

#include "base/assert.h"
#include "base/concat.h"
#include "base/counted.h"
#include "base/earlier.h"
#include "base/exit_codes.h"
#include "base/signal_names.h"

namespace ddprun {
namespace {

bool may_be_an_order(const WorkerEnd& end) {
  return end.kind == EndKind::kSignaled && std::ranges::count(kPassedSignals, end.code) > 0;
}

bool is_crash(const WorkerEnd& end) {
  return end.kind == EndKind::kSignaled &&
         (end.code == SIGABRT || end.code == SIGSEGV || end.code == SIGBUS);
}

}  // namespace

Supervisor::Supervisor(SupervisorOptions options) : options_(std::move(options)) {}

SupervisorActions Supervisor::step(const SupervisorEvent& event, TimePoint now) {
  now_ = now;
  const auto* const signal = std::get_if<UserSignal>(&event);
  if (state_ != kExited) {
    std::visit([this](const auto& what) { on(what); }, event);
  } else if (signal && insists(*signal)) {
    act(LeaveAtOnce{});
  }
  return std::exchange(out_, {});
}

std::optional<TimePoint> Supervisor::deadline() const {
  if (state_ == kExited) return std::nullopt;
  std::optional<TimePoint> earliest = stop_deadline_;
  keep_earlier(earliest, hold_back_until_);
  if (save_on_term_) keep_earlier(earliest, save_on_term_->terminate);
  if (checkpoint_due_) keep_earlier(earliest, checkpoint_reported_ + kCheckpointPause);
  return earliest;
}

AgentStatus Supervisor::status(TimePoint now) const {
  AgentStatus status{.generation = generation_,
                     .leaving = leaving_,
                     .checkpoints = checkpoints_,
                     .asked_to_save = asked_to_save_,
                     .snapshots = snapshots_,
                     .unfit = unfit_};
  switch (state_) {
    case kIdle:
    case kExited: status.phase = AgentPhase::kIdle; break;
    case kChecking:
    case kRunning: status.phase = AgentPhase::kRunning; break;
    // While leftovers of successful workers are removed, the run still counts as running.
    case kStopping: status.phase = all_well_ ? AgentPhase::kRunning : AgentPhase::kStopping; break;
    case kFinished: status.phase = AgentPhase::kFinished; break;
  }
  if (hold_back_until_) return status;  // a held-back end may prove not to be a failure
  for (const DatedEnd& dated : ends_) status.ends.push_back(dated.as_of(now));
  if (status.phase != AgentPhase::kRunning) add_who_left(status, now);
  status.more_ends = static_cast<int>(keep_likeliest(status.ends));
  return status;
}

// Reports the ranks that reached their end. One that crashed afterwards counts as left until
// all ranks of the node have reached their end. Then its crash is reported.
void Supervisor::add_who_left(AgentStatus& status, TimePoint now) const {
  for (const DatedEnd& dated : left_) {
    if (dated.end.finished && state_ == kFinished) {
      status.ends.push_back(dated.as_of(now));
    } else {
      status.left.push_back(dated.end.local_rank);
    }
  }
}

// --- directives ----------------------------------------------------------------------------------

// Takes the number of a newer generation that this node has no part in. What it would report
// belongs to an older one.
void Supervisor::miss(Generation generation) {
  if (generation <= generation_) return;
  generation_ = generation;
  ends_.clear();
  left_.clear();
  snapshots_.clear();
  checkpoints_ = 0;
}

void Supervisor::on(const Wait& wait) {
  if (state_ != kIdle) return;
  miss(wait.generation);
  if (wait.reason == last_wait_) return;
  last_wait_ = wait.reason;
  say(kInfo, "waiting: " + wait.reason);
}

void Supervisor::on(const Assignment& assignment) {
  // The assignment is repeated, or this node has seen the end of its generation.
  if (state_ != kIdle || assignment.generation <= generation_ || exit_code_) return;
  // Only a service that does not know AgentStatus::unfit asks again.
  if (!unfit_.empty()) {
    miss(assignment.generation);
    return act(SendStatus{});
  }
  generation_ = assignment.generation;
  assignment_ = assignment;
  alive_ = 0;
  stop_asked_ = all_well_ = killed_ = suspended_ = false;
  ends_.clear();
  left_.clear();
  asked_for_.clear();
  checkpoints_ = 0;
  checkpoint_due_ = looking_ = false;
  stop_then_.reset();
  snapshots_.clear();
  last_wait_.clear();
  if (assignment.failure) act(ReportRestart{*assignment.failure});
  assignment_->failure.reset();
  if (options_.checks_node) {
    state_ = kChecking;
    return act(CheckNode{*assignment_});
  }
  start_workers();
}

void Supervisor::on(const NodeChecked& checked) {
  if (state_ != kChecking || checked.generation != generation_) return;
  if (checked.fault.empty()) return start_workers();
  unfit_ = checked.fault;
  say(kError, concat("--node-check: ", options_.host, " is not fit: ", unfit_,
                     "; it gets no workers until ddprun is started there again"));
  end_check();
  if (state_ == kExited) return;
  act(SendStatus{});
}

// Ends a check without workers. A request to save that came meanwhile ends this node.
void Supervisor::end_check() {
  state_ = kIdle;
  act(ReleaseGeneration{});
  if (std::exchange(asked_to_save_, false)) ask_to_save(UserSignal{options_.checkpoint_signal});
}

void Supervisor::start_workers() {
  state_ = kRunning;
  alive_ = options_.slots;
  if (generation_ > Generation(0)) {
    say(kInfo, concat("generation ", generation_, ": starting ", counted(options_.slots, "worker"),
                      " (", assignment_->reason, ")"));
  }
  act(StartWorkers{*assignment_});
  // These workers were started after the request to save, so they must be asked, too.
  if (asked_to_save_) signal_to_save(UserSignal{options_.checkpoint_signal});
  act(SendStatus{});
}

void Supervisor::on(const Stop& stop) {
  // A Stop of an older generation came late: that generation is over here. A Stop of a newer
  // generation means that ours is over, too.
  if (stop.generation < generation_ && state_ != kIdle) return;
  switch (state_) {
    case kChecking:
      end_check();
      if (state_ == kExited) return;
      [[fallthrough]];
    case kIdle:
      miss(stop.generation);
      act(SendStatus{});
      return;
    case kFinished:
      state_ = kIdle;
      act(ReleaseGeneration{});
      act(SendStatus{});
      return;
    case kRunning:
      if (stop.look && !stop.at_once && snapshots_.empty()) {
        stop_then_ = stop;
        return look();
      }
      say(kInfo, (stop.at_once ? "killing " : "stopping ") + counted(alive_, "worker") + ": " +
                     stop.reason);
      if (stop.at_once) {
        kill();
      } else {
        begin_stop(SIGTERM);
      }
      act(SendStatus{});
      return;
    case kStopping:
      if (stop.at_once && !killed_) kill();
      if (!all_well_) return;
      all_well_ = false;  // the generation must run again: what is left must still go
      act(SendStatus{});
      return;
    case kExited: return;
  }
}

void Supervisor::on(const End& end) {
  if (!verdict_) verdict_ = end.verdict;
  if (!exit_code_) {
    const bool saved = asked_to_save_ && end.verdict.success;
    exit_code_ = saved ? to_int(ExitCode::kSaved) : end.verdict.exit_code;
  }
  if (state_ == kRunning) begin_stop(SIGTERM);
  if (!has_workers()) finish_exit();
}

void Supervisor::on(const ForwardSignal& forward_signal) {
  if (state_ != kRunning || forward_signal.generation != generation_) return;
  std::optional<LocalRank> rank;
  if (forward_signal.rank) {
    const int local = forward_signal.rank->value - assignment_->first_rank.value;
    if (local < 0 || local >= options_.slots) return;
    rank = LocalRank(local);
  } else if (forward_signal.signal == options_.checkpoint_signal) {
    return ask_to_save(UserSignal{forward_signal.signal, UserSignal::Way::kDirect});
  }
  signal_workers(forward_signal.signal, rank);
}

// --- workers -------------------------------------------------------------------------------------

void Supervisor::on(const WorkersEnded& ended) {
  DDPRUN_ASSERT(has_workers(), "workers end only where some were started");
  take_down(ended);
  if (state_ != kRunning) return;
  if (died_of_being_asked()) {
    return on(UserSignal{options_.checkpoint_signal, UserSignal::Way::kManager});
  }
  if (save_on_term_ && died_of(SIGTERM)) return leave(UserSignal{SIGTERM, save_on_term_->way});
  if (!ends_.empty()) {
    // If there is also a real failure, do not wait for the ends that are held back.
    if (!std::ranges::all_of(ends_, may_be_an_order, &DatedEnd::end)) return declare_failure();
    if (!hold_back_until_) hold_back_until_ = now_ + kSignalHoldBack;
    return;
  }
  if (alive_ == 0) {
    all_well_ = true;
    begin_stop(SIGTERM);  // removes what the workers left running
  }
}

void Supervisor::look() {
  if (!std::exchange(looking_, true)) act(LookAtWorkers{});
}

void Supervisor::on(const WorkersHang&) {
  if (state_ == kRunning && snapshots_.empty()) look();
}

void Supervisor::on(const WorkersSeen& seen) {
  if (state_ != kRunning || seen.generation != generation_ || !looking_) return;
  looking_ = false;
  snapshots_ = seen.snapshots;
  for (WorkerSnapshot& one : snapshots_) {
    one.rank = Rank(assignment_->first_rank.value + one.local_rank.value);
    one.node_rank = assignment_->node_rank;
    one.host = options_.host;
  }
  keep_first_snapshots(snapshots_);
  if (std::optional<Stop> stop = std::exchange(stop_then_, std::nullopt)) {
    stop->look = false;
    return on(*stop);
  }
  if (!snapshots_.empty()) act(SendStatus{});
}

// Moves a rank that reached its end to the failures if another rank blames it: it left too
// early.
void Supervisor::take_down_who_left() {
  for (auto left = left_.begin(); left != left_.end();) {
    const bool is_missed = std::ranges::any_of(
        ends_, [&](const DatedEnd& dated) { return dated.end.blames == left->end.rank.value; });
    if (is_missed) {
      left->end.finished = false;  // the job's work is not complete
      ends_.push_back(std::move(*left));
    }
    left = is_missed ? left_.erase(left) : left + 1;
  }
}

void Supervisor::take_down(const WorkersEnded& ended) {
  for (WorkerEnd end : ended.workers) {
    --alive_;
    end.after_stop = stop_asked_;
    end.on_request = end.kind == EndKind::kSignaled && end.out_of_memory == OutOfMemory::kNo &&
                     asked_for_.contains({end.code, end.local_rank.value});
    end.rank = Rank(assignment_->first_rank.value + end.local_rank.value);
    end.node_rank = assignment_->node_rank;
    end.host = options_.host;
    const bool has_left = end.finished;
    end.finished = has_left && is_crash(end);
    // Its program had returned, and the stop only cut its teardown short. Counts as exit code
    // 0.
    if (has_left && stop_asked_ && !end.finished) {
      end = {.rank = end.rank,
             .local_rank = end.local_rank,
             .node_rank = end.node_rank,
             .host = end.host,
             .pid = end.pid,
             .step = end.step};
    }
    const bool ended_well = end.kind == EndKind::kExited && end.code == 0;
    if (ended_well && stop_asked_ && !has_left) continue;
    const bool is_late = end.finished && !stop_asked_;
    if (is_late) {
      const std::string_view rest = alive_ > 0 ? ": the other ranks go on" : "";
      say(kWarning, describe(end).append(rest));
    }
    (ended_well || is_late ? left_ : ends_).push_back({std::move(end), now_});
  }
  take_down_who_left();
  DDPRUN_ASSERT(alive_ >= 0, "a worker ends once");
}

void Supervisor::declare_failure() {
  hold_back_until_.reset();
  // Ages make the earlier of two ends the likelier cause.
  const auto first = std::ranges::min_element(ends_, [&](const DatedEnd& a, const DatedEnd& b) {
    return is_likelier_cause(a.as_of(now_), b.as_of(now_));
  });
  std::string text = describe(first->end);
  if (alive_ > 0) text += "; stopping the other " + counted(alive_, "worker");
  say(kError, std::move(text));
  begin_stop(SIGTERM);
  act(SendStatus{});
}

void Supervisor::on(const TreeEmpty&) {
  if (state_ != kStopping || alive_ > 0) return;
  stop_deadline_.reset();
  hold_back_until_.reset();
  if (all_well_ && !exit_code_) {
    state_ = kFinished;
    act(SendStatus{});
    return;
  }
  state_ = kIdle;
  act(ReleaseGeneration{});
  if (exit_code_) return finish_exit();
  act(SendStatus{});
}

// --- signals, losses, checkpoints, time ----------------------------------------------------------

void Supervisor::signal_workers(int signal, std::optional<LocalRank> rank) {
  for (int local = 0; local < options_.slots; ++local) {
    if (!rank || rank->value == local) asked_for_.emplace(signal, local);
  }
  act(SignalWorkers{signal, rank});
}

// Forwards the signal to the workers. It ends nothing on this node.
void Supervisor::relay(const UserSignal& signal) {
  if (state_ != kRunning || signal.way == UserSignal::Way::kManager) return;
  if (signal.signal == SIGTSTP) {
    if (!std::exchange(suspended_, true)) act(SuspendTree{});
  } else if (signal.signal == SIGCONT && suspended_) {
    suspended_ = false;
    act(ResumeTree{});
  } else {
    signal_workers(signal.signal, std::nullopt);
  }
}

void Supervisor::ask_to_save(const UserSignal& signal) {
  if (std::exchange(asked_to_save_, true)) return;
  if (state_ == kRunning) {
    signal_to_save(signal);
    act(SendStatus{});
    return;
  }
  if (state_ == kChecking) return;  // until its workers are started, or end_check()
  // No worker runs that could save. A finished node waits for the verdict. Any other node
  // leaves, and the job must be started again from its last state.
  if (state_ == kFinished || (state_ == kStopping && all_well_)) return;
  say(kInfo,
      signal_name(signal.signal) + ": no worker runs that could save; this node leaves the job");
  leave_reason_ = "it got " + signal_name(signal.signal) + ", the order to save and exit";
  if (!exit_code_) exit_code_ = to_int(ExitCode::kSaved);
  if (!has_workers()) finish_exit();
}

void Supervisor::signal_to_save(const UserSignal& signal) {
  say(kInfo,
      signal_name(signal.signal) + ": asking " + counted(alive_, "worker") + " to save and exit");
  if (signal.way != UserSignal::Way::kManager) act(SignalWorkers{signal.signal});
}

bool Supervisor::died_of(int signal) const {
  return std::ranges::any_of(ends_, [signal](const DatedEnd& dated) {
    return dated.end.kind == EndKind::kSignaled && dated.end.code == signal;
  });
}

bool Supervisor::died_of_being_asked() const {
  return options_.checkpoint_signal != 0 && died_of(options_.checkpoint_signal);
}

void Supervisor::on(const UserSignal& signal) {
  if (signal.signal == options_.checkpoint_signal && !died_of_being_asked() && leaving_ == 0) {
    return ask_to_save(signal);
  }
  if (std::ranges::count(kRelayedSignals, signal.signal) > 0 &&
      signal.signal != options_.checkpoint_signal) {
    return relay(signal);
  }
  const bool is_again = insists(signal);
  if (leaving_ != 0) {
    if (is_again && has_workers()) {
      say(kWarning, "second SIGINT: killing all workers");
      kill();
    }
    return;
  }
  const bool saves = options_.saves_on_term && signal.signal == SIGTERM &&
                     signal.meaning == UserSignal::Meaning::kSignal;
  if (saves && may_still_save()) return save_on_term(signal);
  leave(signal);
}

// Returns whether a person presses Ctrl-C after the signal that ends this node. Slurm repeats
// SIGTERM by itself.
bool Supervisor::insists(const UserSignal& signal) {
  if (signal.signal != SIGINT) return false;
  const bool repeated = std::exchange(interrupted_[static_cast<std::size_t>(signal.way)], true);
  return leaving_ != 0 && (repeated || leaving_ != SIGINT);
}

// Returns whether the workers run without a failure, or have succeeded.
bool Supervisor::may_still_save() const {
  switch (state_) {
    case kRunning: return ends_.empty();
    case kStopping: return all_well_;
    case kFinished: return true;
    default: return false;
  }
}

// Asks the workers to save within the grace.
void Supervisor::save_on_term(const UserSignal& signal) {
  if (!save_on_term_) {  // Slurm repeats SIGTERM by itself
    save_on_term_ = {signal.way, now_ + options_.grace * 4 / 5, now_ + options_.grace};
    if (state_ == kRunning) {
      say(kInfo, concat("SIGTERM: the workers have ", options_.grace, " to save"));
    }
  }
  ask_to_save(UserSignal{options_.checkpoint_signal, UserSignal::Way::kDirect});
}

// Ends the workers of this node by the signal, and then leaves the job.
void Supervisor::leave(const UserSignal& signal) {
  const std::optional<SaveOnTerm> asked = std::exchange(save_on_term_, std::nullopt);
  leaving_ = signal.signal;
  hold_back_until_.reset();
  std::erase_if(ends_, [](const DatedEnd& dated) {
    return !dated.end.after_stop && may_be_an_order(dated.end);
  });
  if (!exit_code_) exit_code_ = exit_code_of_signal(signal.signal);
  if (!has_workers()) return finish_exit();
  const bool known = signal.way == UserSignal::Way::kManager;
  const Duration left = asked ? std::max(Duration::zero(), asked->kill - now_) : options_.grace;
  say(kInfo, concat(signal_name(signal.signal), known ? ": also sent to " : ": passing it on to ",
                    counted(alive_, "worker"), alive_ == 1 ? ", which has " : ", which have ", left,
                    " to end"));
  begin_stop(signal.signal, known ? Known::kYes : Known::kNo);
  if (asked) keep_earlier(stop_deadline_, asked->kill);
  act(SendStatus{});
}

// Called when SIGTERM came a while ago and the job has not ended.
void Supervisor::give_up_saving() {
  if (state_ == kRunning) {
    say(kWarning, counted(alive_, "worker") + " did not save in time after SIGTERM");
    return leave(UserSignal{SIGTERM, UserSignal::Way::kDirect});
  }
  if (state_ != kStopping) return leave(UserSignal{SIGTERM});
  // The rest of the generation goes now, not after a grace of its own.
  if (!killed_) keep_earlier(stop_deadline_, save_on_term_->kill);
  save_on_term_.reset();
}

void Supervisor::on(const ServiceLost& lost) {
  say(kError, lost.reason);
  if (lost.for_good) return exit_killing(to_int(lost.code));
  if (has_workers()) kill();
  if (state_ == kChecking) end_check();
}

void Supervisor::on(const ServiceRefused& refused) {
  say(kError, refused.reason);
  exit_killing(to_int(ExitCode::kRefused));
}

void Supervisor::on(const GuardianLost&) {
  say(kError, "a guard of this agent was killed: ending all workers");
  leave_reason_ = "the guardian of its agent was killed";
  exit_killing(to_int(ExitCode::kInternal));
}

// Workers may announce checkpoints at any rate. Reports to the service are limited in rate.
void Supervisor::on(const CheckpointAnnounced& announced) {
  if (state_ != kRunning || announced.generation != generation_) return;
  const bool is_first = checkpoints_++ == 0;
  if (!is_first && now_ < checkpoint_reported_ + kCheckpointPause) {
    checkpoint_due_ = true;
    return;
  }
  checkpoint_reported_ = now_;
  act(SendStatus{});
}

void Supervisor::on(const Tick&) {
  if (checkpoint_due_ && now_ >= checkpoint_reported_ + kCheckpointPause) {
    checkpoint_due_ = false;
    checkpoint_reported_ = now_;
    if (state_ == kRunning) act(SendStatus{});
  }
  if (hold_back_until_ && now_ >= *hold_back_until_) declare_failure();
  if (save_on_term_ && now_ >= save_on_term_->terminate) give_up_saving();
  if (!stop_deadline_ || now_ < *stop_deadline_) return;
  if (!killed_) {
    const std::string who =
        alive_ > 0 ? counted(alive_, "worker") : "processes that workers started";
    say(kWarning, concat(who, " did not end within ", options_.grace, ": SIGKILL"));
    return kill();
  }
  const std::string reason = concat("processes of generation ", generation_,
                                    " cannot be killed (in an uninterruptible system call?)");
  say(kError, reason);
  act(SendLeave{Leave{0, reason}});
  if (!verdict_) verdict_ = own_verdict(reason);
  state_ = kExited;
  act(Exit{to_int(ExitCode::kInternal), verdict_});
}

// Returns a verdict from what this node knows, for use when it does not wait for the service's.
// Returns nullopt if no worker has failed.
std::optional<Verdict> Supervisor::own_verdict(std::string headline) const {
  AgentStatus known = status(now_);
  if (known.ends.empty()) return std::nullopt;
  return Verdict{.exit_code = to_int(ExitCode::kInternal),
                 .headline = std::move(headline),
                 .ends = std::move(known.ends),
                 .more_ends = known.more_ends,
                 .generation = generation_,
                 .restarts_used = assignment_->restart_count,
                 .max_restarts = options_.max_restarts};
}

// --- stopping ------------------------------------------------------------------------------------

void Supervisor::begin_stop(int signal, Known known) {
  if (state_ == kRunning) {
    state_ = kStopping;
    stop_asked_ = true;
    hold_back_until_.reset();
    stop_deadline_ = now_ + options_.grace;
    if (known == Known::kNo) {
      act(SignalTree{signal});
    } else if (suspended_) {
      act(ResumeTree{});
    }
    suspended_ = false;
  } else if (known == Known::kYes) {
    return;
  } else if (signal != SIGTERM) {
    act(SignalTree{signal});
  }
}

void Supervisor::kill() {
  state_ = kStopping;
  stop_asked_ = true;
  killed_ = true;
  hold_back_until_.reset();
  stop_deadline_ = now_ + options_.kill_timeout;
  act(KillTree{});
}

void Supervisor::exit_killing(int code) {
  if (!exit_code_) exit_code_ = code;
  if (!has_workers()) return finish_exit();
  kill();
}

void Supervisor::finish_exit() {
  DDPRUN_ASSERT(exit_code_.has_value(), "an exit has a code");
  state_ = kExited;
  // The service told this node to end, so it needs no Leave.
  const bool expected = verdict_.has_value();
  if (!expected && (leaving_ != 0 || !leave_reason_.empty())) {
    act(SendLeave{Leave{leaving_, leave_reason_}});
  }
  act(Exit{*exit_code_, verdict_});
}

}  // namespace ddprun
