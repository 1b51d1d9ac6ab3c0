#include "launcher/agent/agent.h"

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>

#include "base/concat.h"
#include "base/descriptor_limit.h"
#include "base/fail.h"
#include "base/process_tree.h"
#include "base/signal_names.h"
#include "base/worker_env.h"
#include "launcher/agent/generation_store.h"
#include "launcher/agent/job_report.h"
#include "launcher/agent/last_save.h"
#include "launcher/agent/node_workers.h"
#include "launcher/agent/output_drain.h"
#include "launcher/agent/rendezvous_handler.h"
#include "launcher/agent/signals.h"
#include "launcher/agent/status_reporter.h"
#include "launcher/agent/terminal.h"
#include "launcher/control/server.h"
#include "launcher/guard/control_place.h"
#include "launcher/guard/run_directory.h"
#include "launcher/hang/monitor.h"
#include "launcher/node_check/node_check.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/core/interrupt_tracebacks.h"
#include "launcher/output/json_lines.h"
#include "launcher/output/log_writer.h"
#include "launcher/process/file_work.h"
#include "launcher/supervisor/core/supervisor.h"
#include "rendezvous/client/service_link.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/core/hang_analysis.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// Raises the descriptor limit and makes room for four descriptors for each worker with its log
// files. Must run before there are threads. Returns the limit as it was before.
std::optional<rlimit> open_many_descriptors(int workers) {
  const std::optional<rlimit> before = raise_descriptor_limit();
  make_room_for_descriptors(64 + 4 * static_cast<std::size_t>(workers));
  return before;
}

// Describes a directive of the service, for --verbose.
std::string describe(const Wait& wait) { return "ordered to wait: " + wait.reason; }
std::string describe(const Assignment& assignment) {
  return concat("ordered to run generation ", assignment.generation, " as node ",
                assignment.node_rank, " of ", assignment.node_count, ", from rank ",
                assignment.first_rank, " of ", assignment.world_size);
}
std::string describe(const Stop& stop) {
  return concat("ordered to stop generation ", stop.generation, ": ", stop.reason);
}
std::string describe(const End& end) {
  return "ordered to end: " +
         (end.verdict.success ? std::string("all is done") : end.verdict.headline);
}

// Returns the listener for control commands. If there can be none, logs why; the job runs all the
// same.
UniqueFd control_listener(const AgentConfig& config, Logger& log) {
  if (config.control_socket.empty()) return {};
  Result<UniqueFd> listener = listen_for_control(config.control_socket);
  if (listener) return std::move(*listener);
  const std::string text = "the commands of ddprun (status, logs, ...) cannot reach this job: " +
                           listener.error().message();
  // A directory that another user put there is not an accident of the system, so the user is
  // warned.
  if (listener.error().kind == ErrorKind::kInvalidArgument) {
    log.warning(text);
  } else {
    log.debug(text);
  }
  return {};
}

// Describes workers that --hang-timeout cannot watch. first_rank: of this node.
std::string describe_silent(const std::vector<std::size_t>& workers, Rank first_rank,
                            Duration hang_timeout) {
  std::vector<int> ranks;
  for (const std::size_t worker : workers)
    ranks.push_back(first_rank.value + static_cast<int>(worker));
  return concat("--hang-timeout: ", ranks.size() == 1 ? "rank " : "ranks ", rank_ranges(ranks),
                ranks.size() == 1 ? " has" : " have", " reported no step for ", hang_timeout,
                " and made no call that is recorded, and cannot be watched: call report_progress() "
                "in each step (in Python see docs/how-to/hangs.md)");
}

class Agent {
 public:
  Agent(const AgentConfig& config, Guards guards)
      : config_(config),
        guardian_(guards.guardian),
        console_([this] { asio::post(io_, [this] { workers_.resume_outputs(); }); },
                 {.live = config.look.live ? config.screen : std::nullopt,
                  .warn =
                      [this](const std::string& text) {
                        asio::post(io_, [this, text] { log_.warning(text); });
                      }}),
        json_(config.options.rdzv_id, host_name()),
        log_(
            "ddprun", [this](std::string_view line) { console_.say(ConsoleStream::kErr, line); },
            log_format()),
        logs_({.max_bytes = config.options.log_max_bytes,
               .on_drained = [this] { asio::post(io_, [this] { workers_.resume_outputs(); }); },
               .warn = [this](const std::string& text) { log_.warning(text); },
               .on_trouble =
                   [this](const std::string& text) {
                     asio::post(io_, [this, text] { report_log_trouble(text); });
                   }}),
        supervisor_({.host = host_name(),
                     .slots = config.slots,
                     .grace = config.options.grace.value_or(config.default_grace),
                     .kill_timeout = config.kill_timeout,
                     .checkpoint_signal = config.options.checkpoint_signal,
                     .saves_on_term = config.saves_on_term,
                     .max_restarts = config.options.max_restarts,
                     .checks_node = config.options.node_check.has_value()}),
        timer_(io_),
        signals_(io_, std::move(guards.guardian_alive), std::move(guards.keeper_alive),
                 {.taken = [this](const TakenSignal& signal) { take_signal(signal); },
                  .resized = [this] { terminal_.follow_size(); },
                  .child_ended = [this] { child_ended(); },
                  .guard_lost = [this] { guard_lost(); }}),
        last_save_(
            io_, log_, config.options, config.watched_job,
            {.is_without_workers =
                 [this] { return supervisor_.state() == Supervisor::State::kIdle; },
             .save_here =
                 [this] {
                   feed(UserSignal{config_.options.checkpoint_signal, UserSignal::Way::kDirect});
                 },
             .ask_service =
                 [this](const UserRequest& asked) { rendezvous_.link().send_now(asked); }}),
        output_drain_(io_, log_, logs_, console_),
        rendezvous_(io_, log_, config),
        store_(io_, log_, config, rendezvous_,
               [this](Generation generation) { feed(CheckpointAnnounced{generation}); }),
        node_check_(io_,
                    [this](Generation generation, const std::string& fault) {
                      feed(NodeChecked{generation, fault});
                    }),
        workers_(
            config, {io_, log_, console_, logs_, interrupts_, json_, files_, descriptor_limit_},
            {.ended = [this](const WorkersEnded& ended) { feed(ended); },
             .is_running = [this] { return supervisor_.state() == Supervisor::State::kRunning; }}),
        hang_monitor_(io_, config.options.hang_timeout,
                      {.samples = [this] { return workers_.samples(); },
                       .snapshots = [this] { return workers_.snapshots(); },
                       .hang = [this] { feed(WorkersHang{}); },
                       .silent = [this](const auto& workers) { warn_of_silent(workers); },
                       .seen = [this](const WorkersSeen& seen) { feed(seen); }}),
        terminal_(io_, console_, std::move(guards.input),
                  {.status = [this] { return reporter_.status_facts(); },
                   .resized = [this](ScreenSize size) { workers_.resize_terminals(size); },
                   .typed = [this](std::string_view bytes) { workers_.type(bytes); }}),
        reporter_({io_, log_, config, supervisor_, workers_, store_, rendezvous_}, guardian_),
        report_(log_, files_, config.options) {
    if (config.options.quiet) log_.set_level(LogLevel::kWarning);
    if (config.options.verbose) log_.set_level(LogLevel::kDebug);
  }

  int run() {
    try {
      work();
    } catch (const std::exception& error) {
      // The keeper ends the processes that run below this one.
      report_.trouble(std::string("internal error: ") + error.what());
      exit_code_ = to_int(ExitCode::kInternal);
      output_drain_.hurry();
    }
    over_ = true;
    reporter_.close();
    // The service names another node only if it runs in no node's process.
    const bool has_service = rendezvous_.has_only_service();
    last_save_.close();
    report_.end(exit_code_, is_first_node());
    store_.close();
    rendezvous_.close();
    let_go_of_workers();
    terminal_.close();
    workers_.finish_flight_file();
    output_drain_.flush();  // in a batch script, the requeue ends this process
    const bool is_saved = exit_code_ == to_int(ExitCode::kSaved);
    const bool goes_on =
        is_saved && last_save_.requeue(reporter_.highest_step(), reporter_.has_started_workers());
    output_drain_.flush();
    if (console_.has_losses()) report_losses();
    if (!goes_on && (has_service || must_run_end_commands_))
      report_.run_end_commands(exit_code_, signals_.descriptor());
    output_drain_.flush();
    return exit_code_;
  }

 private:
  void work() {
    // The guardian blocked these signals before it forked, so none is lost before this call.
    if (const Result<void> watched = signals_.begin(config_.signals); !watched) {
      return report_.trouble(watched.error().message());
    }
    if (!config_.options.quiet) terminal_.show_status();
    if (config_.cgroup.empty()) {
      log_.debug("cannot make a control group; workers are watched without one");
    }
    if (!config_.cluster.empty()) log_.info(config_.cluster);
    for (const std::string& remark : config_.rendezvous.remarks) log_.warning(remark);
    if (!config_.binding.empty()) log_.info(config_.binding);
    if (const Result<void> ready = join(); !ready) {
      report_.trouble(ready.error().message());
      exit_code_ = to_int(rendezvous_.exit_code());
      return;
    }
    open_control();
    rendezvous_.start();
    last_save_.begin();
    io_.run();
  }

  // --- the link to the rendezvous service --------------------------------------------------------

  Result<void> join() {
    Result<void> joined = rendezvous_.join(link_events());
    return joined ? store_.prepare() : joined;
  }

  ServiceLinkEvents link_events() {
    return {
        .hello = [this](const std::string& local_address) { return hello(local_address); },
        .directive =
            [this](const Directive& directive) {
              log_.debug(std::visit([](const auto& what) { return describe(what); }, directive));
              const End* const end = std::get_if<End>(&directive);
              if (end && end->runs_end_commands) must_run_end_commands_ = true;
              std::visit([this](const auto& what) { feed(what); }, directive);
            },
        .answer =
            [this](const Answer& answer) {
              // The numbers of commands begin at 1.
              if (answer.number == 0) last_save_.answered(answer);
              control_->answered(answer);
            },
        .forward_signal = [this](const ForwardSignal& forward_signal) { feed(forward_signal); },
        .output_directive = [this](const OutputDirective& what) { control_->direct(what); },
        .steps_directive = [this](const StepsDirective& what) { reporter_.report_steps(what); },
        .lost = [this](const ServiceLost& lost) { feed(lost); },
        .refused = [this](const ServiceRefused& refused) { feed(refused); },
        .ranks = [this] { return reporter_.ranks(); },
    };
  }

  Hello hello(const std::string& local_address) {
    control_->service_lost();
    Hello hello = rendezvous_.introduce(local_address);
    hello.status = reporter_.status();
    hello.assignment = supervisor_.assignment();
    if (hello.assignment) {  // the service knows the rest
      hello.assignment->peers.clear();
      hello.assignment->failure.reset();
    }
    return hello;
  }

  // --- the supervisor's events and actions -------------------------------------------------------

  void feed(const SupervisorEvent& event) {
    if (over_) return;
    perform(supervisor_.step(event, BootClock::now()));
    check_tree();
    arm_timer();
  }

  void perform(const SupervisorActions& actions) {
    for (const SupervisorAction& action : actions) {
      std::visit([this](const auto& what) { act(what); }, action);
    }
  }

  void act(const CheckNode& check) {
    const Assignment& part = check.assignment;
    store_.serve(part);  // where neighbours find each other
    NodeCheckPlan plan{.generation = part.generation,
                       .directory = config_.log_root,
                       .limits = *config_.options.node_check,
                       .workers = config_.slots};
    if (config_.options.has_agent_store()) {
      plan.neighbours = {.store = part.store,
                         .node = part.node_rank,
                         .node_count = part.node_count,
                         .host = host_name(),
                         .ports = config_.options.ports};
    }
    node_check_.begin(std::move(plan));
  }
  void act(const StartWorkers& start) {
    json_.set_place(start.assignment.node_rank, start.assignment.generation);
    if (!config_.options.node_check) store_.serve(start.assignment);
    let_go_of_workers();
    files_.set_lease(start.assignment.lease);
    reporter_.generation_began();
    workers_.start(start.assignment, rendezvous_.link().instance(), *control_);
    reporter_.report_later();
    hang_monitor_.begin(start.assignment.generation, static_cast<std::size_t>(config_.slots));
    terminal_.update_status();
    if (workers_.has_open(Rank(0))) terminal_.read_typing();
    control_->generation_began();
  }
  void act(const SignalTree& signal) {
    stop_looking();
    workers_.signal_tree(signal.signal);
  }
  void act(const SuspendTree&) {
    reporter_.suspended();
    hang_monitor_.pause();
    suspend_descendants();
  }
  void act(const ResumeTree&) {
    reporter_.resumed();
    resume_descendants();
    hang_monitor_.resume();
  }
  void act(const LookAtWorkers&) { hang_monitor_.look(); }
  void act(const SignalWorkers& signal) { workers_.signal(signal.signal, signal.rank); }
  void act(const KillTree&) {
    stop_looking();
    workers_.kill_tree();
  }
  void act(const ReleaseGeneration&) {
    node_check_.end();
    let_go_of_workers();
    store_.close();
    if (const Result<void> ready = store_.prepare(); !ready) log_.error(ready.error().message());
  }
  void act(const SendStatus&) { rendezvous_.link().send(reporter_.status()); }
  void act(const SendLeave& leave) {
    last_word_ = leave.leave;
    // Only processes that survived SIGKILL are still there.
    for (const std::string& one : describe_descendants()) {
      log_.error(concat("  ", config_.kill_timeout, " after SIGKILL ", one));
      last_word_->reason += "; " + one;
    }
  }
  void act(const Say& say) {
    switch (say.level) {
      case Say::Level::kInfo: return log_.info(say.text);
      case Say::Level::kWarning: return log_.warning(say.text);
      case Say::Level::kError: return report_.trouble(say.text);
    }
  }
  void act(const ReportRestart& restart) { report_.restart(restart.failed, is_first_node()); }
  void act(const Exit& exit) {
    exit_code_ = exit.code;
    for (const std::string& line : interrupts_.summary()) log_.info(line);
    if (exit.verdict) report_.verdict(*exit.verdict, is_first_node());
    control_->ended(exit.code, exit.verdict ? exit.verdict->headline : "");
    // The job was stopped, or never had enough nodes.
    const bool none_failed =
        exit.verdict && !exit.verdict->success && exit.verdict->cause != VerdictCause::kFailure;
    if (none_failed) output_drain_.hurry();
    node_check_.end();
    let_go_of_workers();
    store_.close();
    rendezvous_.leave(last_word_, [this] { io_.stop(); });
  }
  void act(const LeaveAtOnce&) { rendezvous_.hurry(); }

  void stop_looking() {
    hang_monitor_.end();
    reporter_.generation_ends();
  }

  // Drops the workers. Their processes have ended or cannot be ended.
  void let_go_of_workers() {
    stop_looking();
    terminal_.stop_reading();  // input that comes now is for the next generation
    workers_.let_go();
  }

  void check_tree() {
    if (supervisor_.state() != Supervisor::State::kStopping || !workers_.are_gone()) return;
    perform(supervisor_.step(TreeEmpty{}, BootClock::now()));
  }

  // Returns whether this is node rank 0, or may become it. It learns of every failure.
  bool is_first_node() const {
    if (supervisor_.is_unfit()) return false;
    const std::optional<Assignment>& assignment = supervisor_.assignment();
    return !assignment || assignment->node_rank == NodeRank(0);
  }

  // Reports lost output. A job that did its work but lost output did not succeed.
  void report_losses() {
    for (const std::string& text : console_.losses()) log_.warning(text);
    if (exit_code_ == 0) {
      exit_code_ = to_int(ExitCode::kFiles);
      report_.lost_output();
      report_.end(exit_code_, is_first_node());
    }
    output_drain_.flush();
  }

  void arm_timer() {
    const std::optional<TimePoint> due = supervisor_.deadline();
    if (!due) return;
    timer_.expires_after(std::max(Duration(0), *due - BootClock::now()));
    timer_.async_wait([this](error_code error) {
      if (!error) feed(Tick{});
    });
  }

  // --- requests of users -------------------------------------------------------------------------

  void open_control() {
    control_ = std::make_unique<ControlServer>(
        io_, control_listener(config_, log_),
        ControlledNode{
            .view = [this] { return reporter_.view(); },
            .ranks = [this] { return reporter_.rank_rows(); },
            .flights = [this](std::optional<Rank> rank) { return workers_.flights(rank); },
            .snapshots = [this] { return workers_.snapshots(); },
            .inspect_stacks =
                [this](std::vector<WorkerSnapshot> workers, HangMonitor::StacksDone done) {
                  hang_monitor_.inspect_stacks(std::move(workers), std::move(done));
                },
            .ask_service =
                [this](const UserRequest& asked) {
                  const bool is_about_now = asked.what == UserRequest::What::kStatus;
                  if (is_about_now && !over_) rendezvous_.link().send(reporter_.status());
                  return !over_ && rendezvous_.link().send_now(asked);
                },
            .stop_here = [this](bool at_once) { stop_here(at_once); },
            .send_page = [this](const OutputPage& page) { rendezvous_.link().send_now(page); }},
        config_.slots);
  }

  void stop_here(bool at_once) {
    output_drain_.hurry();
    feed(UserSignal{SIGTERM, UserSignal::Way::kDirect, UserSignal::Meaning::kStop});
    if (at_once) feed(UserSignal{SIGINT, UserSignal::Way::kDirect});
  }

  void report_log_trouble(const std::string& text) {
    reporter_.set_log_trouble(text);
    if (!over_) rendezvous_.link().send(reporter_.status());
  }

  void warn_of_silent(const std::vector<std::size_t>& workers) {
    const std::optional<Assignment>& part = supervisor_.assignment();
    log_.warning(
        describe_silent(workers, part ? part->first_rank : Rank(0), config_.options.hang_timeout));
  }

  // --- signals and guards ------------------------------------------------------------------------

  void take_signal(const TakenSignal& signal) {
    if (config_.look.live && signal.number == SIGTSTP) terminal_.leave(guardian_);
    if (signal.number == SIGCONT) terminal_.come_back();
    if (std::ranges::count(kPassedSignals, signal.number) > 0) output_drain_.hurry();
    if (signal.number == SIGINT) interrupts_.begin();
    if (signal.number == SIGTERM) last_save_.terminated();
    using Way = UserSignal::Way;
    Way way = Way::kDirect;
    if (signal.sender == guardian_) way = Way::kGuardian;
    if (config_.manager != 0 && signal.sender == config_.manager) way = Way::kManager;
    feed(UserSignal{signal.number, way});
  }

  void child_ended() {
    if (over_) return;
    workers_.reap_orphans();
    check_tree();
    arm_timer();
  }

  void guard_lost() {
    output_drain_.hurry();
    remove_files(config_.scratch_directory);
    remove_control_socket(config_.control_socket);
    feed(GuardianLost{});
  }

  // --- callbacks of the parts --------------------------------------------------------------------

  LineFormat log_format() {
    if (config_.options.log_format == LogFormat::kText) return {};
    return [this](LogLevel level, std::string_view text) { return json_.own_line(level, text); };
  }

  const AgentConfig& config_;
  // The limit that workers get back, because their programs may use select().
  const std::optional<rlimit> descriptor_limit_ = open_many_descriptors(config_.slots);
  asio::io_context io_{1};
  const pid_t guardian_;
  ConsoleWriter console_;
  JsonLines json_;
  Logger log_;
  InterruptTracebacks interrupts_;
  LogWriter logs_;
  FileWork files_;
  Supervisor supervisor_;
  asio::steady_timer timer_;
  AgentSignals signals_;
  bool over_ = false;                   // only the remaining output is left
  bool must_run_end_commands_ = false;  // by the service

  LastSave last_save_;
  OutputDrain output_drain_;
  RendezvousHandler rendezvous_;
  GenerationStore store_;
  std::unique_ptr<ControlServer> control_;  // created before the link starts
  NodeCheck node_check_;
  NodeWorkers workers_;
  HangMonitor hang_monitor_;
  AgentTerminal terminal_;
  std::optional<Leave> last_word_;
  StatusReporter reporter_;
  JobReport report_;
  int exit_code_ = to_int(ExitCode::kInternal);
};

}  // namespace

int run_agent(const AgentConfig& config, Guards guards) {
  try {
    return Agent(config, std::move(guards)).run();
  } catch (const std::exception& error) {
    return fail("ddprun", Error{.doing = "run the agent", .cause = error.what()},
                ExitCode::kInternal);
  }
}

}  // namespace ddprun
