#include "launcher/ssh/head.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <memory>
#include <mutex>
#include <optional>
#include <string_view>

#include "base/background_thread.h"
#include "base/clock.h"
#include "base/concat.h"
#include "base/descriptor_limit.h"
#include "base/exit_codes.h"
#include "base/is_control.h"
#include "base/pipe.h"
#include "base/poll_until.h"
#include "base/read_whole.h"
#include "base/signal_names.h"
#include "base/spawn_program.h"
#include "base/wait_status.h"
#include "base/write_all.h"
#include "launcher/process/exec.h"
#include "launcher/process/signal_source.h"
#include "launcher/ssh/core/agent_lines.h"

namespace ddprun {
namespace {

constexpr std::size_t kReadBytes = 64 * 1024;
constexpr std::size_t kMostLine = 1 << 20;               // a longer line is cut
constexpr std::size_t kMostWaiting = 256 << 10;          // output that the reader has not taken yet
constexpr Duration kJoinTime = std::chrono::seconds(2);  // from an agent's start to its node's rank
constexpr Duration kReaderPatience = std::chrono::seconds(1);  // after a signal has ended the job
constexpr std::uint64_t kMostCopied = 64 << 20;
constexpr int kMostReads = 64;  // of a pipe whose writer has ended; each is as large as the pipe

// Output: one stream of this process. A thread writes it, because a reader that has stopped may
// block a write: poll(2) can promise nothing for a terminal, or for a pipe that others write to.
class Output {
 public:
  Output(int fd, const std::string& name) : state_(std::make_shared<State>()) {
    state_->fd = fd;
    state_->event.reset(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    started_ = start_detached_thread(name, [state = state_] { run(*state); });
  }
  Result<void> started() const { return started_; }
  void add(std::string_view text) {
    {
      const std::lock_guard lock(state_->mutex);
      state_->waiting += text;
    }
    state_->wake.notify_one();
  }
  bool is_full() const { return size() > kMostWaiting; }
  bool is_empty() const { return size() == 0; }

  // Becomes readable when something was written.
  pollfd watched() const { return {state_->event.get(), POLLIN, 0}; }
  void forget_event() {
    eventfd_t count = 0;
    eventfd_read(state_->event.get(), &count);
  }

 private:
  struct State {
    int fd = -1;
    UniqueFd event;
    std::mutex mutex;
    std::condition_variable wake;
    std::string waiting;
    std::size_t in_write = 0;
  };

  std::size_t size() const {
    const std::lock_guard lock(state_->mutex);
    return state_->waiting.size() + state_->in_write;
  }
  static void run(State& state) {
    bool is_broken = false;  // the reader is gone: the job goes on
    std::unique_lock lock(state.mutex);
    while (true) {
      state.wake.wait(lock, [&] { return !state.waiting.empty(); });
      const std::string text = std::exchange(state.waiting, "");
      state.in_write = text.size();
      lock.unlock();
      is_broken = is_broken || !write_all(state.fd, text);
      lock.lock();
      state.in_write = 0;
      eventfd_write(state.event.get(), 1);
    }
  }

  std::shared_ptr<State> state_;  // shared with the thread, which lives as long as the process
  Result<void> started_;
};

// Console: both streams of this process. Where both lead to one place, they are one stream, so that
// lines stay whole. REQUIRES: all signals that this process catches are blocked.
class Console {
 public:
  Console() : out_(STDOUT_FILENO, "ddprun-stdout"), err_(STDERR_FILENO, "ddprun-stderr") {
    struct stat one {};
    struct stat other {};
    is_one_place_ = fstat(STDOUT_FILENO, &one) == 0 && fstat(STDERR_FILENO, &other) == 0 &&
                    one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  }
  Result<void> started() const { return out_.started() ? err_.started() : out_.started(); }
  Output& out() { return out_; }
  Output& err() { return is_one_place_ ? out_ : err_; }
  bool is_full() const { return out_.is_full() || err_.is_full(); }
  bool is_empty() const { return out_.is_empty() && err_.is_empty(); }
  std::array<pollfd, 2> watched() const { return {out_.watched(), err_.watched()}; }
  void forget_events() {
    out_.forget_event();
    err_.forget_event();
  }

 private:
  Output out_;
  Output err_;
  bool is_one_place_ = false;
};

// Lines: cuts what is read from one stream of an ssh at line ends.
class Lines {
 public:
  // Calls sink(text) with whole lines. Text that ends with \r is an update of a line.
  template <class Sink>
  void feed(std::string_view bytes, Sink&& sink) {
    const std::size_t last = bytes.find_last_of("\r\n");
    if (last == bytes.npos) {
      rest_ += bytes;
    } else {
      rest_ += bytes.substr(0, last + 1);
      sink(rest_);
      rest_ = bytes.substr(last + 1);
    }
    if (rest_.size() > kMostLine) flush(sink);
  }
  template <class Sink>
  void flush(Sink&& sink) {
    if (!rest_.empty()) sink(rest_ + "\n");
    rest_.clear();
  }

 private:
  std::string rest_;
};

// Session: the ssh of one host.
struct Session {
  pid_t pid = 0;  // 0: not started, or ended
  UniqueFd in;
  UniqueFd out;
  UniqueFd err;
  // What its far end has not taken yet, in this order.
  std::string plan;
  std::string_view files;
  std::string signals;
  Lines out_lines;
  Lines err_lines;
  bool has_greeted = false;
  bool is_ready = false;
  std::string last_line;  // of stderr

  bool has_to_send() const { return !plan.empty() || !files.empty() || !signals.empty(); }
  void forget() {
    plan.clear();
    files = {};
    signals.clear();
  }
};

// Returns the last line that tells something about ssh. has_greeted: lines of workers and agents
// come, too, and are none.
std::string_view last_line(std::string_view lines, bool has_greeted) {
  while (!lines.empty()) {
    const std::string_view text = lines.substr(0, lines.find_last_not_of("\r\n") + 1);
    const std::size_t begin = text.find_last_of("\r\n") + 1;
    const std::string_view line = text.substr(begin);
    if (!has_greeted || (!line.starts_with('[') && !line.starts_with("ddprun: "))) return line;
    lines = lines.substr(0, begin);
  }
  return {};
}

// Executes the command in this process. Returns only if that fails, with errno. arguments: end with
// nullptr. limit: of descriptors; nullopt: as it is. Allocates nothing: the head has threads.
int execute(char* const* arguments, pid_t head, const std::optional<rlimit>& limit, Pipe& in,
            Pipe& out, Pipe& err) {
  prepare_child(head);
  dup2(in.read.get(), STDIN_FILENO);
  dup2(out.write.get(), STDOUT_FILENO);
  dup2(err.write.get(), STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  if (limit) setrlimit(RLIMIT_NOFILE, &*limit);
  execvp(arguments[0], arguments);
  return errno;
}

// HeadProcess: performs what the state machine decides, and tells it what happens. Owns the ssh
// processes and the console.
class HeadProcess {
 public:
  explicit HeadProcess(const HeadJob& job) : job_(job), head_(job.options) {
    sessions_.resize(job.options.hosts.size());
  }

  Result<int> run() {
    limit_ = raise_descriptor_limit();
    std::signal(SIGPIPE, SIG_IGN);
    std::vector<int> caught = job_.signals;
    caught.insert(caught.end(), kRelayedSignals.begin(), kRelayedSignals.end());
    caught = without_ignored(caught);
    caught.push_back(SIGCHLD);
    Result<UniqueFd> signals = open_signal_source(caught);
    if (!signals) return signals.error();
    console_.emplace();
    if (const Result<void> started = console_->started(); !started) return started.error();
    perform(head_.start(BootClock::now()));
    while (!code_ && !trouble_) wait_and_handle(signals->get());
    for (Session& session : sessions_) {
      if (session.pid > 0) kill(-session.pid, SIGKILL);
    }
    write_rest(signals->get());
    if (trouble_) return *trouble_;
    return *code_;
  }

 private:
  enum class Stream { kIn, kOut, kErr };

  bool ends_job(int signal) const { return std::ranges::count(job_.signals, signal) > 0; }

  // Waits for the reader until it has everything, or until a signal comes.
  void write_rest(int signals) {
    while (!console_->is_empty()) {
      const std::array<pollfd, 2> streams = console_->watched();
      std::array<pollfd, 3> watched{streams[0], streams[1], {signals, POLLIN, 0}};
      const TimePoint now = BootClock::now();
      if (!poll_until(watched, now + (is_end_requested_ ? kReaderPatience : kLongestTimeout)))
        return;
      console_->forget_events();
      while (const std::optional<TakenSignal> signal = next_signal(signals))
        is_end_requested_ = is_end_requested_ || ends_job(signal->number);
    }
  }

  void wait_and_handle(int signals) {
    using enum Stream;
    const std::array<pollfd, 2> streams = console_->watched();
    watched_ = {streams[0], streams[1], {signals, POLLIN, 0}};
    places_.clear();
    // A reader that has stopped must not delay the end.
    const bool is_full = console_->is_full() && !is_end_requested_;
    // What is not read must not look like silence: no time passes for the job.
    if (is_full && !idle_since_) idle_since_ = BootClock::now();
    if (!is_full) {
      skip_idle_time();
      idle_since_.reset();
    }
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      Session& session = sessions_[i];
      if (session.has_to_send()) watch(i, kIn, session.in, POLLOUT);
      if (is_full) continue;
      watch(i, kOut, session.out, POLLIN);
      watch(i, kErr, session.err, POLLIN);
    }
    const std::optional<TimePoint> deadline = is_full ? std::nullopt : head_.deadline();
    TimePoint until = std::min(deadline.value_or(next_ping_), next_ping_);
    if (agent_lines_.holds()) until = std::min(until, started_ + kJoinTime);
    poll_until(watched_, until);
    console_->forget_events();
    for (std::size_t k = 0; k < places_.size(); ++k) {
      if (watched_[k + 3].revents == 0) continue;
      const auto [i, stream] = places_[k];
      if (stream == kIn) send(sessions_[i]);
      if (stream == kOut) read_out(i);
      if (stream == kErr) read_err(i);
    }
    bool has_ended_child = false;
    while (const std::optional<TakenSignal> signal = next_signal(signals)) {
      if (signal->number == SIGCHLD) {
        has_ended_child = true;
      } else {
        is_end_requested_ = is_end_requested_ || ends_job(signal->number);
        step(Signalled{signal->number, ends_job(signal->number)});
        // Ctrl-Z: the agents have stopped their workers. The shell waits until this process stops.
        if (signal->number != SIGTSTP) continue;
        if (!idle_since_) idle_since_ = BootClock::now();
        raise(SIGSTOP);
      }
    }
    if (has_ended_child) reap();
    const TimePoint now = BootClock::now();
    if (deadline && now >= *deadline) step(TimePassed{});
    if (agent_lines_.holds() && now >= started_ + kJoinTime)
      show(console_->err(), agent_lines_.take_held());
    if (now < next_ping_) return;
    next_ping_ = now + kPingInterval;
    for (Session& session : sessions_) {
      if (!session.is_ready || session.has_to_send()) continue;
      session.signals += '\0';
      send(session);
    }
  }

  void watch(std::size_t i, Stream stream, const UniqueFd& fd, short events) {
    if (!fd.valid()) return;
    watched_.push_back({fd.get(), events, 0});
    places_.emplace_back(i, stream);
  }

  void skip_idle_time() {
    if (!idle_since_) return;
    const TimePoint now = BootClock::now();
    head_.postpone(now - *idle_since_);
    idle_since_ = now;
  }

  void step(const HeadEvent& event) {
    skip_idle_time();
    perform(head_.step(BootClock::now(), event));
  }

  void perform(const std::vector<HeadAction>& actions) {
    for (const HeadAction& action : actions) {
      std::visit([this](const auto& one) { act(one); }, action);
    }
  }

  Session& at(int host) { return sessions_[static_cast<std::size_t>(host)]; }

  void act(const Connect& action) {
    Session& session = at(action.host);
    const std::vector<std::string> command =
        ssh_command(job_.ssh, job_.options.hosts[static_cast<std::size_t>(action.host)]);
    const std::vector<char*> arguments = exec_arguments(command);
    std::array<Pipe, 4> pipes;
    for (Pipe& pipe : pipes) {
      Result<Pipe> made = make_pipe();
      if (!made) return fail(made.error());
      pipe = std::move(*made);
    }
    auto& [in, out, err, failed] = pipes;
    const pid_t own = getpid();
    session.pid = fork();
    if (session.pid < 0) return fail(system_error("fork", errno));
    if (session.pid == 0) {
      const int reason = execute(arguments.data(), own, limit_, in, out, err);
      [[maybe_unused]] const ssize_t written = write(failed.write.get(), &reason, sizeof reason);
      _exit(to_int(ExitCode::kCannotStart));
    }
    failed.write.reset();
    int reason = 0;
    if (read(failed.read.get(), &reason, sizeof reason) == sizeof reason)
      return fail(system_error(concat("--ssh: start ", command.front()), reason));
    session.in = std::move(in.write);
    session.out = std::move(out.read);
    session.err = std::move(err.read);
    for (const UniqueFd* fd : {&session.in, &session.out, &session.err})
      fcntl(fd->get(), F_SETFL, O_NONBLOCK);
  }

  void act(const SendPlan& action) {
    NodePlan plan = job_.plan;
    plan.node_rank = action.host;
    plan.endpoint = action.endpoint;
    plan.peer = action.peer;
    plan.arguments = job_.arguments[static_cast<std::size_t>(action.host)];
    Session& session = at(action.host);
    session.plan = encode_plan(plan);
    session.files = job_.files;
    send(session);
  }

  void act(const PassSignal& action) {
    at(action.host).signals += static_cast<char>(action.number);
    send(at(action.host));
  }

  void act(const Disconnect& action) {
    Session& session = at(action.host);
    // ssh ends its ProxyCommand itself, but not when it is killed.
    if (session.pid > 0 && action.by_force) kill(-session.pid, SIGKILL);
    if (session.pid > 0 && !action.by_force) kill(session.pid, SIGTERM);
    session.in.reset();
    session.forget();
  }

  void act(const Report& action) {
    if (!action.is_error) started_ = BootClock::now();
    if (!action.is_error && job_.is_quiet) return;
    console_->err().add(job_.line_of(action.is_error, action.text));
  }

  void act(const Finish& action) { code_ = action.exit_code; }

  void fail(Error error) {
    if (!trouble_) trouble_ = std::move(error);
  }

  static void send(Session& session) {
    while (session.has_to_send() && session.in.valid()) {
      const std::string_view next = !session.plan.empty()    ? std::string_view(session.plan)
                                    : !session.files.empty() ? session.files
                                                             : std::string_view(session.signals);
      const ssize_t count = write(session.in.get(), next.data(), next.size());
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        // The end of ssh, which follows, tells what happened.
        if (errno != EAGAIN) session.forget();
        return;
      }
      const auto sent = static_cast<std::size_t>(count);
      if (!session.plan.empty()) {
        session.plan.erase(0, sent);
      } else if (!session.files.empty()) {
        session.files.remove_prefix(sent);
      } else {
        session.signals.erase(0, sent);
      }
    }
  }

  // Returns whether there may be more to read.
  bool read_out(std::size_t i) {
    return read_some(sessions_[i].out, [&](std::string_view bytes) {
      sessions_[i].out_lines.feed(bytes, [&](const std::string& lines) { take_out(i, lines); });
    });
  }
  bool read_err(std::size_t i) {
    return read_some(sessions_[i].err, [&](std::string_view bytes) {
      sessions_[i].err_lines.feed(bytes, [&](const std::string& lines) { take_err(i, lines); });
    });
  }
  template <class Take>
  bool read_some(UniqueFd& fd, Take&& take) {
    if (!fd.valid()) return false;
    const ssize_t count = read(fd.get(), buffer_.data(), buffer_.size());
    if (count > 0) {
      take(std::string_view(buffer_.data(), static_cast<std::size_t>(count)));
      return true;
    }
    if (count < 0 && (errno == EINTR || errno == EAGAIN)) return errno == EINTR;
    fd.reset();
    return false;
  }

  void show(Output& output, std::string_view lines) {
    if (!is_end_requested_ || !output.is_full()) output.add(lines);
  }

  void show_out(std::string_view lines) {
    agent_lines_.take_held();  // workers run: all nodes are there
    show(console_->out(), lines);
  }

  // Takes whole lines of a far end: events, and what the workers print.
  void take_out(std::size_t i, std::string_view lines) {
    Session& session = sessions_[i];
    if (session.is_ready && lines.find(job_.plan.mark) == lines.npos) return show_out(lines);
    while (!lines.empty()) {
      const std::size_t end = std::min(lines.find('\n'), lines.size() - 1) + 1;
      take_line(session, static_cast<int>(i), lines.substr(0, end));
      lines.remove_prefix(end);
    }
  }

  void take_line(Session& session, int host, std::string_view line) {
    const std::string mark =
        concat(session.has_greeted ? std::string_view(job_.plan.mark) : kGreetingMark, " {");
    const std::size_t at = line.find(mark);
    if (at == line.npos) {
      if (session.is_ready) show_out(line);
      return;
    }
    // A worker's last line may have no end.
    if (at > 0 && session.is_ready) show_out(concat(line.substr(0, at), "\n"));
    const std::optional<HeadEvent> event = parse_control(host, line.substr(at + mark.size() - 1));
    if (!event) return;
    if (!session.has_greeted) session.last_line.clear();  // what ssh said while it connected
    session.has_greeted = true;
    session.is_ready = session.is_ready || std::holds_alternative<Ready>(*event);
    if (const auto* ended = std::get_if<AgentEnded>(&*event); ended && host == 0)
      keep_report(ended->report);
    step(*event);
  }

  void keep_report(const std::string& report) {
    if (!job_.keep_report) return;
    const Result<void> kept = !report.empty()
                                  ? job_.keep_report(report)
                                  : Error{.kind = ErrorKind::kResource,
                                          .doing = "--report-file",
                                          .cause = concat("host ", job_.options.hosts.front(),
                                                          " sent no report; it may have the file")};
    if (!kept) act(Report{true, kept.error().message()});
  }

  void take_err(std::size_t i, std::string_view lines) {
    Session& session = sessions_[i];
    if (const std::string_view last = last_line(lines, session.has_greeted); !last.empty())
      session.last_line = in_one_line(std::string(last.substr(0, 500)));
    // What ssh says of a host that fails is quoted in the error.
    if (!session.has_greeted && !job_.shows_ssh) return;
    const TimePoint now = BootClock::now();
    const bool is_starting = now < started_ + kJoinTime;
    show(console_->err(), agent_lines_.shown(static_cast<int>(i), lines, now, is_starting));
  }

  // Takes the output of the ssh processes that have ended, and tells their end.
  void reap() {
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      Session& session = sessions_[i];
      siginfo_t ended{};
      if (session.pid <= 0 ||
          waitid(P_PID, static_cast<id_t>(session.pid), &ended, WEXITED | WNOHANG | WNOWAIT) != 0 ||
          ended.si_pid != session.pid)
        continue;
      // What ssh started, such as a ProxyCommand, may hold its pipes.
      kill(-session.pid, SIGTERM);
      int status = 0;
      waitpid(session.pid, &status, 0);
      session.pid = 0;
      session.in.reset();
      for (int reads = 0; reads < kMostReads && read_out(i);) ++reads;
      for (int reads = 0; reads < kMostReads && read_err(i);) ++reads;
      session.out_lines.flush([&](const std::string& lines) { take_out(i, lines); });
      session.err_lines.flush([&](const std::string& lines) { take_err(i, lines); });
      session.out.reset();
      session.err.reset();
      step(SshEnded{static_cast<int>(i), exit_code_of_status(status), session.last_line});
    }
  }

  const HeadJob& job_;
  Head head_;
  std::vector<Session> sessions_;
  std::optional<Console> console_;  // nullopt: signals are not blocked yet
  // Since when nothing is read of the sessions: the console is full, or this process was stopped.
  std::optional<TimePoint> idle_since_;
  std::optional<rlimit> limit_;  // of descriptors, for ssh
  std::vector<pollfd> watched_;
  std::vector<std::pair<std::size_t, Stream>> places_;  // of watched_, after the first three
  std::array<char, kReadBytes> buffer_{};
  AgentLines agent_lines_;
  TimePoint started_ = TimePoint::max() - kJoinTime;  // when all agents had started
  bool is_end_requested_ = false;                     // by a signal
  TimePoint next_ping_ = BootClock::now() + kPingInterval;
  std::optional<int> code_;
  std::optional<Error> trouble_;
};

}  // namespace

Result<std::pair<CopiedFile, std::string>> read_copy(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0)
    return system_error("--copy: read " + path, errno);
  if (!S_ISREG(status.st_mode))
    return invalid_value(path, "expected a regular file").within("--copy");
  Result<std::string> bytes = read_whole<std::string>(file.get(), path, kMostCopied);
  if (!bytes) return std::move(bytes).error().within("--copy");
  return std::pair(CopiedFile{path, status.st_mode & 0777, bytes->size()}, std::move(*bytes));
}

Result<int> run_head(const HeadJob& job) { return HeadProcess(job).run(); }

}  // namespace ddprun
