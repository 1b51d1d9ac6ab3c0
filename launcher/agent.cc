#include "launcher/agent.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "base/exit_codes.h"
#include "base/random_id.h"
#include "base/version.h"
#include "launcher/console_writer.h"
#include "launcher/core/supervisor.h"
#include "launcher/core/verdict_report.h"
#include "launcher/process_tree.h"
#include "launcher/worker_files.h"
#include "launcher/worker_output.h"
#include "launcher/worker_process.h"
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

// A worker of the present generation.
struct Worker {
  WorkerPlan plan;
  std::optional<WorkerHandle> handle;
  int pid = 0;
  std::shared_ptr<WorkerOutput> out;
  std::shared_ptr<WorkerOutput> err;
  std::string err_file;  // where stderr goes when it does not come through us
};

class Agent {
 public:
  Agent(const AgentConfig& config, Guards guards)
      : config_(config),
        console_([this] { asio::post(io_, [this] { resume_outputs(); }); }),
        log_("ddprun",
             [this](std::string_view line) { console_.write(ConsoleStream::kErr, line); }),
        supervisor_({.host = host_name(), .slots = config.slots, .grace = config.options.grace}),
        timer_(io_),
        signals_(io_),
        children_(io_, SIGCHLD),
        guardian_alive_(io_, guards.guardian_alive.release()),
        keeper_alive_(io_, guards.keeper_alive.release()) {}

  int run() {
    watch_signals();
    watch_guards();
    for (const std::string& remark : config_.rendezvous.remarks) log_.warning(remark);
    if (const Result<void> ready = meet(); !ready) {
      log_.error(ready.error().message());
      exit_code_ = to_int(ExitCode::kAddress);
    } else {
      link_->start();
      io_.run();
    }
    link_.reset();
    server_.reset();
    flush_console();
    return exit_code_;
  }

 private:
  // --- the way to the service
  // -----------------------------------------------------------------------

  Result<void> meet() {
    const Rendezvous& plan = config_.rendezvous;
    switch (plan.mode) {
      case Rendezvous::Mode::kLocal: return embed({}, "127.0.0.1");
      case Rendezvous::Mode::kStatic: return meet_static();
      case Rendezvous::Mode::kDynamic: return meet_dynamic();
    }
    return {};
  }

  Result<void> meet_dynamic() {
    const Rendezvous& plan = config_.rendezvous;
    const HostPort endpoint{plan.host, plan.port};
    Result<std::vector<SocketAddress>> addresses = resolve(endpoint, kResolveTimeout);
    if (!addresses) return std::move(addresses).error().within("option --rdzv-endpoint");
    std::optional<SocketAddress> here;
    for (const SocketAddress& address : *addresses) {
      if (!here && is_local_address(address)) here = address;
    }
    if (!here) return connect_to_service(false);
    const bool loopback = is_loopback_address(*here);
    Result<Listener> listener = listen_tcp({loopback ? here->host() : "*", plan.port});
    if (!listener) {
      // Taken: by a ddp-rendezvous, or by another agent of this host. Else it will not say welcome.
      if (listener.error().sys_errno == EADDRINUSE) return connect_to_service(true);
      return std::move(listener).error().within("option --rdzv-endpoint");
    }
    return embed(std::move(listener->socket), here->host());
  }

  Result<void> meet_static() {
    const Rendezvous& plan = config_.rendezvous;
    if (config_.options.node_rank.value_or(0) != 0) return connect_to_service(false);
    const HostPort master{plan.host, plan.port};
    Result<std::vector<SocketAddress>> addresses = resolve(master, kResolveTimeout);
    if (!addresses) return std::move(addresses).error().within("option --master-addr");
    const SocketAddress& address = addresses->front();
    if (!is_local_address(address)) {
      return Error{.kind = ErrorKind::kInvalidArgument,
                   .doing = "option --master-addr",
                   .cause = plan.host + " is no address of this host, but --node-rank 0 runs here"};
    }
    const bool loopback = is_loopback_address(address);
    Result<Listener> listener = listen_tcp({loopback ? address.host() : "*", plan.port});
    if (!listener) return std::move(listener).error().within("option --master-port");
    static_port_ = listener->address.port;
    return embed(std::move(listener->socket), plan.host);
  }

  Result<void> embed(UniqueFd listener, std::string address) {
    ServiceOptions options;
    options.embedded = true;
    options.host = host_name();
    options.service_id = random_hex(8);
    std::vector<UniqueFd> listeners;
    if (listener.valid()) listeners.push_back(std::move(listener));
    own_address_ = std::move(address);
    if (const Result<void> ready = prepare_store(); !ready) return ready;
    server_ =
        std::make_unique<RendezvousServer>(io_, log_, std::move(options), std::move(listeners));
    server_->start();
    link_ = make_local_link(*server_, link_events());
    return {};
  }

  Result<void> connect_to_service(bool must_answer) {
    const Rendezvous& plan = config_.rendezvous;
    if (const Result<void> ready = prepare_store(); !ready) return ready;
    RemoteLinkOptions options;
    options.host = plan.host;
    options.port = plan.port;
    options.link.service = to_text(HostPort{plan.host, plan.port});
    options.link.join_timeout = plan.join_timeout;
    options.link.must_answer = must_answer;
    link_ = make_remote_link(io_, std::move(options), link_events());
    return {};
  }

  ServiceLinkEvents link_events() {
    return {
        .hello = [this](const std::string& local_address) { return hello(local_address); },
        .directive =
            [this](const Directive& directive) {
              std::visit([this](const auto& what) { feed(what); }, directive);
            },
        .lost =
            [this](const LinkLost& lost) {
              feed(ServiceLost{lost.reason, lost.for_good, lost.code});
            },
        .refused = [this](const std::string& reason) { feed(ServiceRefused{reason}); },
    };
  }

  Hello hello(const std::string& local_address) {
    const LaunchOptions& options = config_.options;
    Hello hello;
    hello.version = kVersion;
    hello.job.id = options.rdzv_id;
    hello.job.nodes = options.nodes;
    hello.job.max_restarts = options.max_restarts;
    hello.job.join_timeout = config_.rendezvous.join_timeout;
    hello.job.last_call = config_.rendezvous.last_call;
    hello.node.agent_id = agent_id_;
    hello.node.host = host_name();
    hello.node.slots = config_.slots;
    hello.node.node_rank = options.node_rank;
    if (config_.rendezvous.mode == Rendezvous::Mode::kStatic && !hello.node.node_rank) {
      hello.node.node_rank = 0;  // as torchrun's
    }
    hello.node.address = !options.local_addr.empty() ? options.local_addr
                         : local_address.empty()     ? own_address_
                                                     : local_address;
    hello.status = status();
    hello.assignment = supervisor_.assignment();
    return hello;
  }

  AgentStatus status() {
    AgentStatus status = supervisor_.status(BootClock::now());
    status.store_port = static_port_.value_or(listener_ ? listener_->address.port : 0);
    return status;
  }

  // --- the core and its shell
  // -------------------------------------------------------------------------

  void feed(const SupervisorEvent& event) {
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
    serve_store(start.assignment);
    start_workers(start.assignment);
  }
  void act(const SignalTree& signal) { tell_tree(signal.signal); }
  void act(const KillTree&) { tell_tree(SIGKILL); }
  void act(const ReleaseGeneration&) {
    told_.clear();
    workers_.clear();
    close_store();
    if (const Result<void> ready = prepare_store(); !ready) log_.error(ready.error().message());
  }
  void act(const SendStatus&) { link_->send(status()); }
  void act(const SendLeave& leave) { last_word_ = leave.leave; }
  void act(const Say& say) {
    switch (say.level) {
      case Say::Level::kInfo: return log_.info(say.text);
      case Say::Level::kWarning: return log_.warning(say.text);
      case Say::Level::kError: return log_.error(say.text);
    }
  }
  void act(const Exit& exit) {
    exit_code_ = exit.code;
    if (exit.verdict) report(*exit.verdict);
    workers_.clear();
    close_store();
    // Not from within the link's own call.
    asio::post(io_, [this] {
      link_->leave(last_word_, [this] { asio::post(io_, [this] { drain(); }); });
    });
  }

  // The last one out: an embedded service stays until the others have heard the verdict.
  void drain() {
    signals_.cancel();
    children_.cancel();
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

  void arm_timer() {
    const std::optional<TimePoint> due = supervisor_.deadline();
    if (!due) return;
    timer_.expires_after(std::max(Duration(0), *due - BootClock::now()));
    timer_.async_wait([this](error_code error) {
      if (!error) feed(Tick{});
    });
  }

  // --- the store
  // --------------------------------------------------------------------------------------

  // Listens in advance: clients that come before we accept wait in the backlog instead of retrying.
  Result<void> prepare_store() {
    if (static_port_) return {};
    const bool only_here = config_.rendezvous.mode == Rendezvous::Mode::kLocal;
    Result<Listener> listener = listen_tcp({only_here ? "127.0.0.1" : "*", 0});
    if (!listener) return std::move(listener).error().within("listen for the store's clients");
    listener_ = std::move(*listener);
    return {};
  }

  void serve_store(const Assignment& assignment) {
    std::vector<UniqueFd> listeners;
    if (listener_) listeners.push_back(std::move(listener_->socket));
    listener_.reset();
    if (assignment.node_rank != NodeRank(0)) return;  // another node hosts it; this port is closed
    store_ = std::make_unique<StoreServer>(io_, log_, std::move(listeners));
    store_->start();
    if (static_port_ && server_) server_->share_port_with(store_.get());
  }

  void close_store() {
    if (server_) server_->share_port_with(nullptr);
    store_.reset();
  }

  // --- workers
  // ----------------------------------------------------------------------------------------

  void start_workers(const Assignment& assignment) {
    workers_.clear();
    PlanOptions plan;
    plan.command = config_.command;
    plan.slots = config_.slots;
    plan.role = config_.options.role;
    plan.run_id = config_.options.rdzv_id;
    plan.max_restarts = config_.options.max_restarts;
    plan.inherits_omp_threads = config_.inherits_omp_threads;
    plan.inherited_nccl_async_error_handling = config_.inherited_nccl_async_error_handling;
    if (!config_.log_root.empty()) {
      plan.log_directory =
          attempt_directory(config_.log_root, assignment.restart_count, assignment.generation);
    }
    std::vector<WorkersEnded::One> not_started;
    for (WorkerPlan& one : plan_workers(plan, assignment)) {
      workers_.push_back(std::make_unique<Worker>());
      workers_.back()->plan = std::move(one);
      const Result<void> started = start(*workers_.back(), assignment);
      if (started) continue;
      WorkersEnded::One end;
      end.local_rank = workers_.back()->plan.local_rank;
      end.kind = EndKind::kNotStarted;
      end.code = started.error().sys_errno;
      end.message = started.error().message();
      not_started.push_back(std::move(end));
    }
    if (not_started.empty()) return;
    asio::post(io_, [this, ended = WorkersEnded{std::move(not_started)}] { feed(ended); });
  }

  Result<void> start(Worker& worker, const Assignment& assignment) {
    const LaunchOptions& options = config_.options;
    const LocalRank rank = worker.plan.local_rank;
    WorkerFiles files(worker.plan.directory, options.redirects.of(rank), options.tee.of(rank));
    Result<WorkerStreams> streams = files.open();
    if (!streams) return std::move(streams).error();
    worker.err_file = streams->err.only_file;

    WorkerStart start{.executable = config_.command.executable,
                      .arguments = worker.plan.arguments,
                      .variables = worker.plan.variables,
                      .out = streams->out.to_worker.get(),
                      .err = streams->err.to_worker.get()};
    Result<WorkerHandle> handle = start_worker(io_, start);
    if (!handle) return std::move(handle).error();

    const std::string prefix =
        assignment.world_size > 1 ? "[rank " + to_text(worker.plan.rank) + "] " : "";
    const std::string tee_prefix = "[" + options.role + to_text(rank) + "]:";
    const auto watch = [&](WorkerStream& stream,
                           ConsoleStream console) -> std::shared_ptr<WorkerOutput> {
      if (!stream.from_worker.valid()) return nullptr;
      const bool tee = stream.tee_file.valid();
      auto output = std::make_shared<WorkerOutput>(
          io_, console_, std::move(stream.from_worker),
          WorkerOutputOptions{console, true, tee ? tee_prefix : prefix,
                              std::move(stream.tee_file)});
      output->start();
      return output;
    };
    worker.out = watch(streams->out, ConsoleStream::kOut);
    worker.err = watch(streams->err, ConsoleStream::kErr);
    worker.handle.emplace(std::move(*handle));
    worker.pid = worker.handle->id();
    worker.handle->async_wait([this, &worker, generation = assignment.generation](error_code, int) {
      // Workers are gone from the list only when they have been reaped.
      if (generation == supervisor_.generation()) ended(worker);
    });
    return {};
  }

  void tell_tree(int signal) {
    told_signal_ = signal;
    told_.clear();
    signal_descendants(signal, told_);
  }

  // Those that ended at the same instant are reported together, because their order says nothing:
  // what is ready now has been queued before what is posted here.
  void ended(Worker& worker) {
    newly_ended_.push_back(&worker);
    if (newly_ended_.size() > 1) return;
    asio::post(io_, [this] {
      WorkersEnded event;
      for (Worker* one : newly_ended_) event.workers.push_back(describe_end(*one));
      newly_ended_.clear();
      feed(event);
    });
  }

  WorkersEnded::One describe_end(Worker& worker) {
    const int status = worker.handle->native_exit_code();
    worker.handle.reset();
    WorkersEnded::One end;
    end.local_rank = worker.plan.local_rank;
    end.pid = worker.pid;
    if (WIFSIGNALED(status)) {
      end.kind = EndKind::kSignaled;
      end.code = WTERMSIG(status);
      end.core_dumped = WCOREDUMP(status);
    } else {
      end.code = WEXITSTATUS(status);
    }
    if (worker.out) worker.out->drain();
    if (worker.err) worker.err->drain();
    if (end.kind == EndKind::kExited && end.code == 0) return end;
    end.stderr_tail = worker.err ? worker.err->tail() : tail_of_file(worker.err_file);
    if (!worker.plan.directory.empty()) {
      end.message = message_of_error_file(worker.plan.directory + "/error.json");
    }
    return end;
  }

  // Reaps adopted orphans. A worker's own end comes through its handle; while one is waiting to be
  // collected there, the kernel shows nothing behind it, but its handler ends here again.
  void reap_orphans() {
    siginfo_t info{};
    while (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
      const bool is_worker = std::any_of(workers_.begin(), workers_.end(), [&](const auto& worker) {
        return worker->handle && worker->pid == info.si_pid;
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
    if (has_children() || !newly_ended_.empty()) return;
    for (const auto& worker : workers_) {
      if (worker->handle) return;  // its end has not been reported yet
    }
    // Nobody can write any more: take the rest.
    for (const auto& worker : workers_) {
      for (const auto& output : {worker->out, worker->err}) {
        if (!output) continue;
        output->drain();
        output->finish();
      }
    }
    feed(TreeEmpty{});
  }

  void resume_outputs() {
    for (const auto& worker : workers_) {
      if (worker->out) worker->out->resume();
      if (worker->err) worker->err->resume();
    }
  }

  void flush_console() {
    // A reader that is slow gets everything; only when we were told to end does nobody wait for
    // him.
    const bool told_to_end = supervisor_.status(BootClock::now()).leaving != 0 || guard_lost_;
    while (!console_.flush(std::chrono::seconds(1))) {
      if (told_to_end) return console_.give_up();
    }
  }

  // --- from outside
  // ---------------------------------------------------------------------------------

  void watch_signals() {
    sigset_t ours;
    sigemptyset(&ours);
    sigaddset(&ours, SIGCHLD);
    for (const int signal : config_.signals) {
      struct sigaction present {};
      sigaction(signal, nullptr, &present);
      if (present.sa_handler == SIG_IGN) continue;  // nohup
      signals_.add(signal);
      sigaddset(&ours, signal);
    }
    // The guardian blocked them before it forked, so that none is lost before this line.
    pthread_sigmask(SIG_UNBLOCK, &ours, nullptr);
    next_signal();
    next_child();
  }

  void next_signal() {
    signals_.async_wait([this](error_code error, int signal) {
      if (error) return;
      next_signal();
      feed(UserSignal{signal});
    });
  }

  void next_child() {
    children_.async_wait([this](error_code error, int) {
      if (error) return;
      next_child();
      reap_orphans();
      check_tree();
    });
  }

  void watch_guards() {
    for (asio::posix::stream_descriptor* guard : {&guardian_alive_, &keeper_alive_}) {
      guard->async_wait(asio::posix::stream_descriptor::wait_read, [this](error_code error) {
        if (error || guard_lost_) return;
        guard_lost_ = true;
        std::error_code ignored;
        if (!config_.scratch_directory.empty()) {
          std::filesystem::remove_all(config_.scratch_directory, ignored);
        }
        feed(GuardianLost{});
      });
    }
  }

  const AgentConfig& config_;
  const std::string agent_id_ = random_hex(8);
  asio::io_context io_{1};
  ConsoleWriter console_;
  Logger log_;
  Supervisor supervisor_;
  asio::steady_timer timer_;
  asio::signal_set signals_;
  asio::signal_set children_;
  asio::posix::stream_descriptor guardian_alive_;
  asio::posix::stream_descriptor keeper_alive_;
  bool guard_lost_ = false;

  std::unique_ptr<RendezvousServer> server_;  // where this agent embeds the service
  std::unique_ptr<ServiceLink> link_;
  std::string own_address_;                   // towards an embedded service
  std::optional<std::uint16_t> static_port_;  // the one port of torchrun's static mode

  std::optional<Listener> listener_;    // of the next generation's store
  std::unique_ptr<StoreServer> store_;  // of this generation, where rank 0 lives here
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Worker*> newly_ended_;
  std::set<pid_t> told_;  // what was below this agent when told_signal_ was sent, and latecomers
  int told_signal_ = 0;
  NodeRank node_rank_{0};
  std::optional<Leave> last_word_;
  int exit_code_ = to_int(ExitCode::kInternal);
};

}  // namespace

int run_agent(const AgentConfig& config, Guards guards) {
  return Agent(config, std::move(guards)).run();
}

}  // namespace ddprun
