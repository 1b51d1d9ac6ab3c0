#include "launcher/agent.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <exception>
#include <memory>
#include <optional>
#include <set>

#include "base/descriptor_limit.h"
#include "base/fail.h"
#include "base/random_id.h"
#include "base/signal_names.h"
#include "base/version.h"
#include "launcher/console_writer.h"
#include "launcher/control_desk.h"
#include "launcher/control_place.h"
#include "launcher/core/interrupt_tracebacks.h"
#include "launcher/core/status_line.h"
#include "launcher/core/supervisor.h"
#include "launcher/core/verdict_report.h"
#include "launcher/job_plan.h"
#include "launcher/json_lines.h"
#include "launcher/local_address.h"
#include "launcher/log_writer.h"
#include "launcher/process_tree.h"
#include "launcher/pseudo_terminal.h"
#include "launcher/report_file.h"
#include "launcher/run_cgroup.h"
#include "launcher/run_directory.h"
#include "launcher/signal_source.h"
#include "launcher/worker.h"
#include "launcher/worker_files.h"
#include "rendezvous/key_file.h"
#include "rendezvous/listen.h"
#include "rendezvous/server.h"
#include "rendezvous/service_link.h"
#include "rendezvous/store_server.h"
#include "rendezvous/tcp_address.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr Duration kResolveTimeout = std::chrono::seconds(20);
// Other agents hear the verdict and go; the embedded service does not wait longer for them.
constexpr Duration kDrainTimeout = std::chrono::seconds(10);
// For a reader of our output that has stopped, when we have been told to end.
constexpr Duration kLastWords = std::chrono::seconds(1);
// For a disk that has stopped to take the end of the log files.
constexpr Duration kLogsPatience = std::chrono::seconds(5);

// What the service says shall be, for --verbose.
std::string told(const Wait& wait) { return "told to wait: " + wait.reason; }
std::string told(const Assignment& assignment) {
  return "told to run generation " + to_text(assignment.generation) + " as node " +
         to_text(assignment.node_rank) + " of " + std::to_string(assignment.node_count) +
         ", from rank " + to_text(assignment.first_rank) + " of " +
         std::to_string(assignment.world_size);
}
std::string told(const Stop& stop) {
  return "told to stop generation " + to_text(stop.generation) + ": " + stop.reason;
}
std::string told(const End& end) {
  return "told to end: " +
         (end.verdict.success ? std::string("all is done") : end.verdict.headline);
}

class Agent {
 public:
  Agent(const AgentConfig& config, Guards guards)
      : config_(config),
        guardian_(guards.guardian),
        console_([this] { asio::post(io_, [this] { resume_outputs(); }); },
                 {.live = config.look.live ? config.screen : std::nullopt}),
        json_(config.options.rdzv_id, host_name()),
        log_(
            "ddprun", [this](std::string_view line) { console_.say(ConsoleStream::kErr, line); },
            log_format()),
        logs_({.max_bytes = config.options.log_max_bytes,
               .on_drained = [this] { asio::post(io_, [this] { resume_outputs(); }); },
               .warn = [this](const std::string& text) { log_.warning(text); }}),
        supervisor_({.host = host_name(),
                     .slots = config.slots,
                     .grace = config.options.grace.value_or(config.default_grace),
                     .kill_timeout = config.kill_timeout,
                     .checkpoint_signal = config.options.checkpoint_signal}),
        timer_(io_),
        status_timer_(io_),
        signals_(io_),
        guardian_alive_(io_, guards.guardian_alive.release()),
        keeper_alive_(io_, guards.keeper_alive.release()),
        typed_(io_),
        report_file_(config.options.report_file, config.options.rdzv_id, host_name()) {
    if (config.options.quiet) log_.set_level(LogLevel::kWarning);
    if (config.options.verbose) log_.set_level(LogLevel::kDebug);
    if (guards.input.valid()) typed_.assign(guards.input.release());
  }

  int run() {
    try {
      work();
    } catch (const std::exception& error) {
      // The keeper ends what runs below this process.
      trouble(std::string("broken by: ") + error.what());
      exit_code_ = to_int(ExitCode::kInternal);
      told_to_end_ = true;
    }
    over_ = true;
    write_report();
    link_.reset();
    server_.reset();
    close_store();
    let_go_of_workers();
    status_timer_.cancel();
    typed_.close();
    console_.hide_area();
    flush_logs();
    flush_console();
    return exit_code_;
  }

 private:
  void work() {
    if (const Result<void> watched = watch_signals(); !watched) {
      return trouble(watched.error().message());
    }
    watch_guards();
    if (console_.is_live()) show_status();
    for (const std::string& remark : config_.rendezvous.remarks) log_.warning(remark);
    if (!config_.binding.told.empty()) log_.info(config_.binding.told);
    if (const Result<void> ready = meet(); !ready) {
      trouble(ready.error().message());
      exit_code_ = to_int(cannot_meet_);
      return;
    }
    open_desk();
    link_->start();
    io_.run();
  }

  // --- the way to the service --------------------------------------------------------------------

  Result<void> meet() {
    if (const std::string& wanted = config_.options.local_addr; !wanted.empty()) {
      auto found = find_local_address(wanted, interface_addresses(), kResolveTimeout);
      if (!found) return std::move(found).error().within("--local-addr");
      local_addr_ = std::move(*found);
    }
    const Rendezvous& plan = config_.rendezvous;
    switch (plan.mode) {
      case Rendezvous::Mode::kLocal: return embed(std::nullopt, "127.0.0.1");
      case Rendezvous::Mode::kStatic: return meet_static();
      case Rendezvous::Mode::kDynamic: return meet_dynamic();
    }
    return {};
  }

  Result<void> meet_dynamic() {
    const Rendezvous& plan = config_.rendezvous;
    Result<std::vector<SocketAddress>> addresses = resolve(plan.meeting_point, kResolveTimeout);
    if (!addresses) return std::move(addresses).error().within("--rdzv-endpoint");
    std::optional<SocketAddress> here;
    for (const SocketAddress& address : *addresses) {
      if (!here && is_local_address(address)) here = address;
    }
    if (!here) return connect_to_service(false);
    const std::string host =
        listening_host({plan.meeting_point.host, here->host()}, config_.options.nodes);
    Result<Listener> listener = listen_tcp({host, plan.meeting_point.port});
    if (!listener) {
      // Taken: by a ddp-rendezvous, or by another agent of this host. Else it will not say welcome.
      if (listener.error().sys_errno == EADDRINUSE) return connect_to_service(true);
      return std::move(listener).error().within("--rdzv-endpoint");
    }
    return embed(std::move(*listener), here->host());
  }

  Result<void> meet_static() {
    const Rendezvous& plan = config_.rendezvous;
    if (config_.options.node_rank.value_or(0) != 0) return connect_to_service(false);
    Result<std::vector<SocketAddress>> addresses = resolve(plan.meeting_point, kResolveTimeout);
    if (!addresses) return std::move(addresses).error().within("--master-addr");
    const SocketAddress& address = addresses->front();
    if (!is_local_address(address)) {
      return invalid_argument(plan.meeting_point.host +
                              " is no address of this host, but --node-rank 0 runs here")
          .within("--master-addr");
    }
    const std::string host =
        listening_host({plan.meeting_point.host, address.host()}, config_.options.nodes);
    Result<Listener> listener = listen_tcp({host, plan.meeting_point.port});
    if (!listener) return std::move(listener).error().within("--master-port");
    static_port_ = listener->address.port;
    // Workers use the name that was given, as torchrun's do. But where it leads to loopback on this
    // host alone, they would offer their peers a loopback address: then they get what the other
    // nodes have reached, which the service puts in the place of a numeric loopback address.
    const bool misleads = host == "*" && is_loopback_address(address);
    return embed(std::move(*listener), misleads ? address.host() : plan.meeting_point.host);
  }

  // listener: where other nodes come; nullopt for a job of this node alone.
  Result<void> embed(std::optional<Listener> listener, std::string address) {
    ServiceOptions options;
    options.times = config_.options.times;
    options.embedded = true;
    options.host = host_name();
    options.service_id = random_hex(8);
    if (config_.munge.munge) options.owner = config_.munge.munge->user();
    UniqueFd socket;
    TlsContextPtr tls;
    if (listener) {
      if (config_.tls) {
        Result<FoundTls> found = TlsContext::for_service(config_.tls_files);
        if (!found) {
          cannot_meet_ = ExitCode::kUsage;
          return std::move(found).error().within("this host starts the service");
        }
        tls = std::move(found->context);
      }
      const bool is_closed = tls && tls->demands_certificates();
      const std::string exposure =
          is_closed ? "" : exposure_of(listener->address, config_.keys, config_.munge);
      if (!exposure.empty()) log_.warning(exposure);
      socket = std::move(listener->socket);
    }
    own_address_ = std::move(address);
    if (const Result<void> ready = prepare_store(); !ready) return ready;
    server_ = std::make_unique<RendezvousServer>(io_, log_, std::move(options), std::move(socket));
    server_->set_keys(config_.keys);
    if (config_.munge.munge) server_->set_munge(config_.munge.munge);
    server_->set_tls(std::move(tls));
    server_->start();
    link_ = make_local_link(*server_, link_events());
    return {};
  }

  Result<void> connect_to_service(bool must_answer) {
    const Rendezvous& plan = config_.rendezvous;
    if (const Result<void> ready = prepare_store(); !ready) return ready;
    RemoteLinkOptions options;
    options.address = plan.meeting_point;
    options.link.service = to_text(plan.meeting_point);
    options.link.join_timeout = plan.join_timeout;
    options.link.must_answer = must_answer;
    options.key = config_.keys.key_of(config_.options.rdzv_id).value_or("");
    options.munge = config_.munge.munge;
    options.demands_proof = config_.options.require_auth;
    options.tls = config_.tls;
    options.tls_files = config_.tls_files;
    link_ = make_remote_link(io_, std::move(options), link_events());
    return {};
  }

  ServiceLinkEvents link_events() {
    return {
        .hello = [this](const std::string& local_address) { return hello(local_address); },
        .directive =
            [this](const Directive& directive) {
              log_.debug(std::visit([](const auto& what) { return told(what); }, directive));
              std::visit([this](const auto& what) { feed(what); }, directive);
            },
        .answer =
            [this](const Answer& answer) {
              if (desk_) desk_->answered(answer);
            },
        .pass_on = [this](const PassOn& pass_on) { feed(pass_on); },
        .lost = [this](const ServiceLost& lost) { feed(lost); },
        .refused = [this](const ServiceRefused& refused) { feed(refused); },
    };
  }

  Hello hello(const std::string& local_address) {
    const LaunchOptions& options = config_.options;
    Hello hello;
    hello.version = kVersion;
    hello.job.id = options.rdzv_id;
    hello.job.nodes = options.nodes;
    hello.job.max_restarts = options.max_restarts;
    hello.job.restart_rules = options.restart_rules;
    hello.job.join_timeout = config_.rendezvous.join_timeout;
    hello.job.last_call = config_.rendezvous.last_call;
    hello.job.on_join = options.on_join;
    hello.job.node_failures = options.node_failures;
    hello.node.agent_id = agent_id_;
    hello.node.host = host_name();
    hello.node.slots = config_.slots;
    hello.node.node_rank = options.node_rank;
    if (config_.rendezvous.mode == Rendezvous::Mode::kStatic && !hello.node.node_rank) {
      hello.node.node_rank = 0;  // as torchrun's
    }
    hello.node.address = !local_addr_.empty()    ? local_addr_
                         : local_address.empty() ? own_address_
                                                 : local_address;
    if (config_.rendezvous.mode != Rendezvous::Mode::kLocal) {
      hello.node.other_addresses = addresses_of_this_node();
    }
    hello.status = status();
    hello.assignment = supervisor_.assignment();
    if (hello.assignment) {  // the service knows the rest
      hello.assignment->peers.clear();
      hello.assignment->failure.reset();
    }
    return hello;
  }

  // From where workers of this node may call others.
  static std::vector<std::string> addresses_of_this_node() {
    std::vector<std::string> found;
    for (const InterfaceAddress& one : interface_addresses()) {
      if (found.size() == kMaxAddresses) break;
      if (!is_loopback_address(one.address)) found.push_back(one.address.host());
    }
    return found;
  }

  AgentStatus status() {
    AgentStatus status = supervisor_.status(BootClock::now());
    status.store_port = listener_ ? listener_->address.port : static_port_.value_or(0);
    return status;
  }

  // --- the core and its shell --------------------------------------------------------------------

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

  void act(const StartWorkers& start) {
    node_rank_ = start.assignment.node_rank;
    generation_ = start.assignment.generation;
    world_size_ = start.assignment.world_size;
    restarts_used_ = start.assignment.restart_count;
    json_.set_place(node_rank_, generation_);
    serve_store(start.assignment);
    start_workers(start.assignment);
  }
  void act(const SignalTree& signal) { tell_tree(signal.signal); }
  void act(const SuspendTree&) { suspend_descendants(); }
  void act(const ResumeTree&) { resume_descendants(); }
  void act(const SignalWorkers& signal) {
    for (const auto& worker : workers_) {
      if (signal.rank && worker->local_rank() != *signal.rank) continue;
      // One whose end is waiting to be collected keeps its number until then.
      if (worker->is_open()) ::kill(worker->pid(), signal.signal);
    }
  }
  void act(const KillTree&) {
    kill_cgroup(config_.cgroup);
    tell_tree(SIGKILL);
  }
  void act(const ReleaseGeneration&) {
    told_.clear();
    let_go_of_workers();
    close_store();
    if (const Result<void> ready = prepare_store(); !ready) log_.error(ready.error().message());
  }
  void act(const SendStatus&) { link_->send(status()); }
  void act(const SendLeave& leave) {
    last_word_ = leave.leave;
    // Only what even SIGKILL has not ended is still there.
    for (const std::string& one : describe_descendants()) {
      log_.error("  " + to_text(config_.kill_timeout) + " after SIGKILL " + one);
      last_word_->reason += "; " + one;
    }
  }
  void act(const Say& say) {
    switch (say.level) {
      case Say::Level::kInfo: return log_.info(say.text);
      case Say::Level::kWarning: return log_.warning(say.text);
      case Say::Level::kError: return trouble(say.text);
    }
  }
  void act(const ReportRestart& restart) {
    for (const std::string& line : restart_report(restart.failed)) log_.error(line);
    if (!writes_report()) return;
    if (const Result<void> written = report_file_.add_failure(restart.failed); !written) {
      log_.warning(written.error().message());
    }
  }
  void act(const Exit& exit) {
    exit_code_ = exit.code;
    verdict_ = exit.verdict;
    for (const std::string& line : interrupts_.summary()) log_.info(line);
    if (exit.verdict) report(*exit.verdict);
    if (desk_) desk_->ended(exit.code, exit.verdict ? exit.verdict->headline : "");
    // Nobody failed: a user has ended the job, here or on another node.
    const bool was_asked = exit.verdict && !exit.verdict->success && exit.verdict->ends.empty();
    told_to_end_ = told_to_end_ || was_asked;
    let_go_of_workers();
    close_store();
    // Not from within the link's own call.
    asio::post(io_, [this] {
      link_->leave(last_word_, [this] { asio::post(io_, [this] { drain(); }); });
    });
  }

  // The last one out: an embedded service stays until the others have heard the verdict.
  void drain() {
    timer_.cancel();
    if (!server_) return io_.stop();
    server_->when_idle([this] { io_.stop(); });
    timer_.expires_after(kDrainTimeout);
    timer_.async_wait([this](error_code error) {
      if (!error) io_.stop();
    });
  }

  void report(const Verdict& verdict) {
    if (verdict.success) {
      if (verdict.restarts_used > 0) {
        log_.info("job '" + config_.options.rdzv_id + "' ended well after " +
                  std::to_string(verdict.restarts_used) + " of " +
                  std::to_string(verdict.max_restarts) + " restarts");
      }
      return;
    }
    const std::vector<std::string> lines = failure_report(config_.options.rdzv_id, verdict);
    // In full where people look: on the first node and on the one that failed.
    const bool here = !verdict.ends.empty() && verdict.ends.front().host == host_name();
    const bool in_full = here || node_rank_ == NodeRank(0);
    if (!in_full) return log_.error(lines.front() + ": " + verdict.headline);
    for (const std::string& line : lines) log_.error(line);
  }

  // Also what the report's headline is, where the service gives no verdict.
  void trouble(const std::string& text) {
    last_trouble_ = text;
    log_.error(text);
  }

  // On several nodes with one file system the file is node rank 0's, which is told everything.
  bool writes_report() const {
    const std::optional<Assignment> assignment = supervisor_.assignment();
    return !assignment || assignment->node_rank == NodeRank(0);
  }

  void write_report() {
    if (!writes_report()) return;
    const std::string headline = verdict_ ? verdict_->headline : last_trouble_;
    const Result<void> written =
        report_file_.end({.exit_code = exit_code_, .headline = headline, .verdict = verdict_});
    if (!written) log_.warning(written.error().message());
  }

  void arm_timer() {
    const std::optional<TimePoint> due = supervisor_.deadline();
    if (!due) return;
    timer_.expires_after(std::max(Duration(0), *due - BootClock::now()));
    timer_.async_wait([this](error_code error) {
      if (!error) feed(Tick{});
    });
  }

  // --- the store ---------------------------------------------------------------------------------

  // Listens in advance: clients that come before we accept wait in the backlog instead of retrying.
  Result<void> prepare_store() {
    const bool is_ours = config_.options.has_agent_store();
    if (static_port_ && is_ours) return {};
    const bool only_here = config_.rendezvous.mode == Rendezvous::Mode::kLocal;
    const std::string host = only_here ? "127.0.0.1" : "*";
    const PortRange ports = config_.options.ports;
    Result<Listener> listener = is_ours ? listen_tcp(host, ports) : reserve_tcp(host, ports);
    if (!listener) return std::move(listener).error().within("listen for the store's clients");
    listener_ = std::move(*listener);
    return {};
  }

  void serve_store(const Assignment& assignment) {
    UniqueFd socket;
    if (listener_) socket = std::move(listener_->socket);
    listener_.reset();
    if (assignment.node_rank != NodeRank(0)) return;  // another node hosts it; this port is closed
    if (!config_.options.has_agent_store()) {
      kept_port_ = std::move(socket);
      return;
    }
    StoreServerOptions options;
    if (!assignment.peers.empty()) {  // an older service does not say
      options.allow = config_.store_allow;
      for (const std::string& address : assignment.peers) options.allow->add(address);
    }
    // Told from within the store's own work: what follows may close it.
    options.watched_key = "/" + std::string(kCheckpointKey);
    options.watched_key_set = [this, generation = assignment.generation] {
      asio::post(io_, [this, generation] { feed(CheckpointAnnounced{generation}); });
    };
    store_ = std::make_unique<StoreServer>(io_, log_, std::move(socket), options);
    store_->start();
    if (server_) server_->show_store(store_.get());
    if (static_port_ && server_) server_->share_port_with(store_.get());
  }

  void close_store() {
    if (server_) {
      server_->show_store(nullptr);
      server_->share_port_with(nullptr);
    }
    store_.reset();
    kept_port_.reset();
  }

  // --- workers -----------------------------------------------------------------------------------

  void start_workers(const Assignment& assignment) {
    let_go_of_workers();
    generation_since_ = BootClock::now();
    const PlanOptions plan = plan_options(
        config_,
        config_.log_root.empty()
            ? ""
            : attempt_directory(config_.log_root, assignment.restart_count, assignment.generation));
    for (WorkerPlan& one : plan_workers(plan, assignment)) {
      workers_.push_back(std::make_shared<Worker>(std::move(one)));
      const Result<void> started = start(*workers_.back(), assignment.world_size);
      if (started) continue;
      WorkerEnd end;
      end.local_rank = workers_.back()->local_rank();
      end.kind = EndKind::kNotStarted;
      end.code = started.error().sys_errno;
      end.message = started.error().message();
      not_started_.push_back(std::move(end));
    }
    oom_kills_before_ = oom_kills_of_machine();
    if (desk_) desk_->generation_began();
    if (not_started_.empty()) return;
    asio::post(io_, [this] { feed(WorkersEnded{std::exchange(not_started_, {})}); });
  }

  Result<void> start(Worker& worker, int world_size) {
    const WorkerConsole looks{
        .coloured = config_.look.coloured,
        .has_prefix = world_size > 1,
        .tee_pattern = config_.tee_pattern,
        .screen = size_of_terminal(STDOUT_FILENO),
        .json = config_.options.log_format == LogFormat::kJson ? &json_ : nullptr};
    const Result<void> started =
        worker.start({io_, console_, config_.options, config_.command.executable, descriptor_limit_,
                      config_.cgroup, interrupts_, logs_, looks, desk_.get()},
                     [this](std::shared_ptr<Worker> one) { ended(std::move(one)); });
    if (started && worker.rank() == Rank(0)) watch_typing();
    if (started) {
      log_.debug("rank " + to_text(worker.rank()) + " (local rank " + to_text(worker.local_rank()) +
                 ") runs as pid " + std::to_string(worker.pid()));
    }
    return started;
  }

  // Their processes have ended, or cannot be ended.
  void let_go_of_workers() {
    if (typed_.is_open()) typed_.cancel();  // what is typed now is for the next generation
    workers_.clear();
    newly_ended_.clear();
  }

  void tell_tree(int signal) {
    told_signal_ = signal;
    told_.clear();
    signal_descendants(signal, told_);
    log_.debug("sent " + signal_name(signal) + " to " + std::to_string(told_.size()) +
               " processes below");
  }

  // Those that ended at the same instant are reported together, because their order says nothing:
  // what is ready now has been queued before what is posted here.
  void ended(std::shared_ptr<Worker> worker) {
    newly_ended_.push_back(std::move(worker));
    if (newly_ended_.size() > 1) return;
    asio::post(io_, [this] {
      WorkersEnded event;
      for (const auto& one : std::exchange(newly_ended_, {})) {
        event.workers.push_back(one->describe_end());
        look_for_want_of_memory(event.workers.back());
      }
      if (!event.workers.empty()) feed(event);
    });
  }

  // A SIGKILL that was not ours, where its control group has not told already.
  void look_for_want_of_memory(WorkerEnd& end) const {
    const bool may_be = end.kind == EndKind::kSignaled && end.code == SIGKILL &&
                        end.out_of_memory == OutOfMemory::kNo &&
                        supervisor_.state() == Supervisor::State::kRunning;
    if (may_be && oom_kills_of_machine() > oom_kills_before_) {
      end.out_of_memory = OutOfMemory::kLikely;
    }
  }

  // Reaps adopted orphans. A worker's own end comes through its WorkerProcess; while one is waiting
  // to be collected there, the kernel shows nothing behind it, but its end leads here again.
  void reap_orphans() {
    siginfo_t info{};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      const bool is_worker = std::any_of(workers_.begin(), workers_.end(), [&](const auto& worker) {
        return worker->is_open() && worker->pid() == info.si_pid;
      });
      if (is_worker) return;
      waitpid(info.si_pid, nullptr, 0);
      info = {};
    }
  }

  void check_tree() {
    if (supervisor_.state() != Supervisor::State::kStopping) return;
    reap_orphans();
    if (!told_.empty()) signal_new_children(told_signal_, told_);
    // The tree counts as empty only when every end has been reported, also of workers that were
    // never there.
    if (has_children() || !newly_ended_.empty() || !not_started_.empty()) return;
    for (const auto& worker : workers_) {
      if (worker->is_open()) return;
    }
    for (const auto& worker : workers_) worker->finish_output();
    perform(supervisor_.step(TreeEmpty{}, BootClock::now()));
  }

  void resume_outputs() {
    for (const auto& worker : workers_) worker->resume_output();
  }

  // A disk that has stopped must not keep a job that has ended.
  void flush_logs() {
    io_.restart();
    const auto until_flushed = asio::make_work_guard(io_);
    flushing_ = true;
    bool flushed = false;
    logs_.when_flushed([&] {
      asio::post(io_, [&] {
        flushed = true;
        io_.stop();
      });
    });
    timer_.expires_after(told_to_end_ ? kLastWords : kLogsPatience);
    timer_.async_wait([this](error_code error) {
      if (!error) io_.stop();
    });
    io_.run();
    timer_.cancel();
    if (!flushed) log_.warning("the disk does not take the end of the log files; it is left out");
  }

  // A reader that is slow gets everything; but when somebody wants us to end, before or now, nobody
  // stays for him.
  void flush_console() {
    io_.restart();
    const auto until_flushed = asio::make_work_guard(io_);
    flushing_ = true;
    console_.when_flushed([this] { asio::post(io_, [this] { io_.stop(); }); });
    timer_.cancel();
    if (told_to_end_) {
      timer_.expires_after(kLastWords);
      timer_.async_wait([this](error_code error) {
        if (!error) io_.stop();
      });
    }
    io_.run();
  }

  // --- what users ask of it ----------------------------------------------------------------------

  // A job runs as well where no socket can be made.
  void open_desk() {
    if (config_.control_socket.empty()) return;
    Result<UniqueFd> listener = listen_for_control(config_.control_socket);
    if (!listener) return;
    desk_ = std::make_unique<ControlDesk>(
        io_, std::move(*listener),
        ControlledNode{
            .view = [this] { return view(); },
            .ask_service = [this](const UserRequest& asked) { return !over_ && link_->ask(asked); },
            .stop_here = [this](bool at_once) { stop_here(at_once); }},
        config_.slots);
  }

  NodeView view() {
    const AgentStatus status = supervisor_.status(BootClock::now());
    NodeView view{.job = config_.options.rdzv_id,
                  .host = host_name(),
                  .pid = guardian_,
                  .program = config_.options.program,
                  .started = started_,
                  .phase = status.phase,
                  .generation = status.generation,
                  .generation_since = generation_since_,
                  .max_restarts = config_.options.max_restarts,
                  .grace = config_.options.grace.value_or(config_.default_grace),
                  .log_directory = config_.scratch_directory.empty() ? config_.log_root : ""};
    if (config_.rendezvous.mode != Rendezvous::Mode::kLocal) {
      view.meets = to_text(config_.rendezvous.meeting_point);
    }
    const std::optional<Assignment> assignment = supervisor_.assignment();
    if (assignment && assignment->generation == status.generation) view.assignment = assignment;
    for (const auto& worker : workers_) view.workers.push_back(worker->view());
    return view;
  }

  void stop_here(bool at_once) {
    told_to_end_ = true;
    feed(UserSignal{SIGTERM, UserSignal::Way::kDirect});
    if (at_once) feed(UserSignal{SIGINT, UserSignal::Way::kDirect});
  }

  // --- from outside ------------------------------------------------------------------------------

  // The guardian blocked them before it forked, so that none is lost before this line.
  Result<void> watch_signals() {
    std::vector<int> ours = without_ignored(config_.signals);
    ours.push_back(SIGCHLD);
    ours.push_back(SIGWINCH);
    Result<UniqueFd> source = open_signal_source(ours);
    if (!source) return std::move(source).error();
    signals_.assign(source->release());
    take_signals();
    return {};
  }

  void take_signals() {
    signals_.async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
      if (error) return;
      bool child_ended = false;
      while (const std::optional<TakenSignal> signal = next_signal(signals_.native_handle())) {
        if (signal->number == SIGCHLD) {
          child_ended = true;
        } else if (signal->number == SIGWINCH) {
          follow_terminal();
        } else {
          take_signal(*signal);
        }
      }
      if (child_ended && !over_) {
        reap_orphans();
        check_tree();
        arm_timer();
      }
      take_signals();
    });
  }

  void take_signal(const TakenSignal& signal) {
    if (config_.look.live && signal.number == SIGTSTP) leave_terminal();
    if (signal.number == SIGCONT) console_.show_area();
    if (std::ranges::count(kPassedSignals, signal.number) > 0) {
      told_to_end_ = true;
      if (flushing_) return io_.stop();
    }
    if (signal.number == SIGINT) interrupts_.begin();
    using Way = UserSignal::Way;
    Way way = Way::kDirect;
    if (signal.sender == guardian_) way = Way::kGuardian;
    if (config_.manager != 0 && signal.sender == config_.manager) way = Way::kManager;
    feed(UserSignal{signal.number, way});
  }

  void watch_guards() {
    for (asio::posix::stream_descriptor* guard : {&guardian_alive_, &keeper_alive_}) {
      guard->async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
        if (error || guard_lost_) return;
        guard_lost_ = told_to_end_ = true;
        if (flushing_) io_.stop();
        remove_files(config_.scratch_directory);
        remove_control_socket(config_.control_socket);
        feed(GuardianLost{});
      });
    }
  }

  // --- the terminal ------------------------------------------------------------------------------

  LineFormat log_format() {
    if (config_.options.log_format == LogFormat::kText) return {};
    return [this](LogLevel level, std::string_view text) { return json_.own_line(level, text); };
  }

  // Once a second, and only where somebody looks.
  void show_status() {
    StatusFacts facts;
    facts.job = config_.options.rdzv_id;
    facts.generation = generation_;
    facts.slots = config_.slots;
    facts.world_size = world_size_;
    facts.restarts_left = config_.options.max_restarts - restarts_used_;
    facts.elapsed = BootClock::now() - started_;
    facts.alive = static_cast<int>(std::count_if(
        workers_.begin(), workers_.end(), [](const auto& worker) { return worker->is_open(); }));
    console_.set_status(status_line(facts));
    status_timer_.expires_after(std::chrono::seconds(1));
    status_timer_.async_wait([this](error_code error) {
      if (!error) show_status();
    });
  }

  // Somebody has pressed Ctrl-Z: the guardian, which the shell waits for, stops when the terminal is as
  // it was.
  void leave_terminal() {
    console_.hide_area();
    console_.when_flushed([guardian = guardian_] { kill(guardian, SIGSTOP); });
  }

  void follow_terminal() {
    const std::optional<ScreenSize> size = size_of_terminal(STDOUT_FILENO);
    if (!size) return;
    console_.resize(*size);
    if (!config_.options.pty) return;
    for (const auto& worker : workers_) worker->resize_terminal(*size);
  }

  // What the guardian has read from the terminal, for rank 0's, which is there.
  void watch_typing() {
    if (!typed_.is_open()) return;
    typed_.async_read_some(asio::buffer(typed_bytes_), [this](error_code error, std::size_t count) {
      if (error && error != asio::error::eof) return;
      for (const auto& worker : workers_) worker->type({typed_bytes_.data(), count});
      if (!error) watch_typing();
    });
  }

  const AgentConfig& config_;
  const TimePoint started_ = BootClock::now();
  const std::string agent_id_ = random_hex(8);
  // What workers get back: their programs may use select().
  const std::optional<rlimit> descriptor_limit_ = raise_descriptor_limit();
  asio::io_context io_{1};
  const pid_t guardian_;
  ConsoleWriter console_;
  JsonLines json_;
  Logger log_;
  InterruptTracebacks interrupts_;
  LogWriter logs_;
  Supervisor supervisor_;
  asio::steady_timer timer_;
  asio::steady_timer status_timer_;
  asio::posix::stream_descriptor signals_;
  asio::posix::stream_descriptor guardian_alive_;
  asio::posix::stream_descriptor keeper_alive_;
  asio::posix::stream_descriptor typed_;  // --stdin with --pty
  std::array<char, 1024> typed_bytes_{};
  bool guard_lost_ = false;
  bool told_to_end_ = false;  // by a signal, or because a guard is gone
  bool over_ = false;         // nothing but the rest of the output is left
  bool flushing_ = false;

  std::unique_ptr<RendezvousServer> server_;  // where this agent embeds the service
  std::unique_ptr<ServiceLink> link_;
  std::unique_ptr<ControlDesk> desk_;  // null: there is no socket for it
  std::optional<TimePoint> generation_since_;
  std::string own_address_;                   // towards an embedded service
  std::string local_addr_;                    // --local-addr, numeric; empty: not given
  std::optional<std::uint16_t> static_port_;  // the one port of torchrun's static mode

  std::optional<Listener> listener_;    // of the next generation's store
  std::unique_ptr<StoreServer> store_;  // of this generation, where rank 0 lives here
  UniqueFd kept_port_;                  // the same, where rank 0 itself serves the store
  std::vector<std::shared_ptr<Worker>> workers_;
  std::vector<std::shared_ptr<Worker>> newly_ended_;  // not reported yet
  std::vector<WorkerEnd> not_started_;                // not reported yet
  std::set<pid_t> told_;  // what was below this agent when told_signal_ was sent, and latecomers
  int told_signal_ = 0;
  long oom_kills_before_ = 0;  // of this machine, when this generation was started
  NodeRank node_rank_{0};
  Generation generation_{-1};
  int world_size_ = 0;
  int restarts_used_ = 0;
  std::optional<Leave> last_word_;
  ReportFile report_file_;
  std::optional<Verdict> verdict_;
  std::string last_trouble_;
  ExitCode cannot_meet_ = ExitCode::kAddress;  // where meet() fails
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
