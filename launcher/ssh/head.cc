#include "launcher/ssh/head.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <optional>
#include <span>
#include <string_view>

#include "base/clock.h"
#include "base/concat.h"
#include "base/descriptor_limit.h"
#include "base/exit_codes.h"
#include "base/is_control.h"
#include "base/pipe.h"
#include "base/poll_until.h"
#include "base/read_whole.h"
#include "base/signal_names.h"
#include "base/wait_status.h"
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

// Output: one stream of this process. It never waits for the reader.
class Output {
 public:
  explicit Output(int fd) : fd_(fd) {}

  void add(std::string_view text) {
    if (!is_broken_) waiting_ += text;
  }
  bool is_full() const { return waiting_.size() > kMostWaiting; }
  bool is_empty() const { return waiting_.empty(); }
  pollfd watched() const { return {waiting_.empty() ? -1 : fd_, POLLOUT, 0}; }

  // Returns whether it has written the beginning of a line, and not its end.
  bool is_within_line() const { return is_within_line_; }

  // Writes what the reader takes. REQUIRES: poll(2) has reported the descriptor.
  void write_some() {
    // A pipe that poll(2) reports takes this much without waiting.
    std::size_t size = std::min<std::size_t>(waiting_.size(), PIPE_BUF);
    if (const std::size_t end = waiting_.find_last_of("\r\n", size - 1); end != waiting_.npos)
      size = end + 1;
    const ssize_t count = write(fd_, waiting_.data(), size);
    if (count > 0) {
      const auto written = static_cast<std::size_t>(count);
      is_within_line_ = waiting_[written - 1] != '\n' && waiting_[written - 1] != '\r';
      waiting_.erase(0, written);
    }
    if (count < 0 && errno != EINTR && errno != EAGAIN) {
      is_broken_ = true;  // the reader is gone: the job goes on
      is_within_line_ = false;
      waiting_.clear();
    }
  }

 private:
  int fd_;
  std::string waiting_;
  bool is_broken_ = false;
  bool is_within_line_ = false;
};

// Console: both streams of this process. Where both lead to one place, a line of one never begins
// within a line of the other.
class Console {
 public:
  Console() {
    struct stat one {};
    struct stat other {};
    is_one_place_ = fstat(STDOUT_FILENO, &one) == 0 && fstat(STDERR_FILENO, &other) == 0 &&
                    one.st_dev == other.st_dev && one.st_ino == other.st_ino;
  }
  Output& out() { return out_; }
  Output& err() { return err_; }
  bool is_full() const { return out_.is_full() || err_.is_full(); }
  bool is_empty() const { return out_.is_empty() && err_.is_empty(); }
  std::array<pollfd, 2> watched() const { return {watched(out_, err_), watched(err_, out_)}; }
  // events: what poll(2) reported of watched().
  void write_some(std::span<const pollfd> events) {
    if (events[0].revents != 0) out_.write_some();
    if (events[1].revents != 0 && !(is_one_place_ && out_.is_within_line())) err_.write_some();
  }

 private:
  pollfd watched(const Output& output, const Output& other) const {
    return is_one_place_ && other.is_within_line() ? pollfd{-1, 0, 0} : output.watched();
  }

  Output out_{STDOUT_FILENO};
  Output err_{STDERR_FILENO};
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

// Executes the command in this process. Returns only if that fails, with errno.
int execute(const std::vector<std::string>& command, pid_t head, Pipe& in, Pipe& out, Pipe& err) {
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != head) _exit(to_int(ExitCode::kInternal));
  // Signals of the terminal reach only the head, which passes them on.
  setpgid(0, 0);
  dup2(in.read.get(), STDIN_FILENO);
  dup2(out.write.get(), STDOUT_FILENO);
  dup2(err.write.get(), STDERR_FILENO);
  std::signal(SIGPIPE, SIG_DFL);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  std::vector<char*> arguments;
  for (const std::string& one : command) arguments.push_back(const_cast<char*>(one.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments.front(), arguments.data());
  return errno;
}

class Near {
 public:
  explicit Near(const HeadJob& job) : job_(job), head_(job.options) {
    sessions_.resize(job.options.hosts.size());
  }

  Result<int> run() {
    raise_descriptor_limit();
    std::signal(SIGPIPE, SIG_IGN);
    std::vector<int> caught = job_.signals;
    caught.insert(caught.end(), kRelayedSignals.begin(), kRelayedSignals.end());
    caught = without_ignored(caught);
    caught.push_back(SIGCHLD);
    Result<UniqueFd> signals = open_signal_source(caught);
    if (!signals) return signals.error();
    perform(head_.start(BootClock::now()));
    while (!code_ && !trouble_) wait_and_handle(signals->get());
    for (Session& session : sessions_) {
      if (session.pid > 0) kill(session.pid, SIGKILL);
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
    while (!console_.is_empty()) {
      const std::array<pollfd, 2> streams = console_.watched();
      std::array<pollfd, 3> watched{streams[0], streams[1], {signals, POLLIN, 0}};
      const TimePoint now = BootClock::now();
      if (!poll_until(watched, now + (is_told_to_end_ ? kReaderPatience : kLongestTimeout))) return;
      console_.write_some(std::span(watched).first(2));
      while (const std::optional<TakenSignal> signal = next_signal(signals))
        is_told_to_end_ = is_told_to_end_ || ends_job(signal->number);
    }
  }

  void wait_and_handle(int signals) {
    const std::array<pollfd, 2> streams = console_.watched();
    watched_ = {streams[0], streams[1], {signals, POLLIN, 0}};
    places_.clear();
    // A reader that has stopped must not delay the end.
    const bool is_full = console_.is_full() && !is_told_to_end_;
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      Session& session = sessions_[i];
      if (session.has_to_send()) watch(i, Stream::kIn, session.in, POLLOUT);
      if (is_full) continue;
      watch(i, Stream::kOut, session.out, POLLIN);
      watch(i, Stream::kErr, session.err, POLLIN);
    }
    const std::optional<TimePoint> deadline = head_.deadline();
    poll_until(watched_, std::min(deadline.value_or(next_ping_), next_ping_));
    console_.write_some(std::span(watched_).first(2));
    for (std::size_t k = 0; k < places_.size(); ++k) {
      if (watched_[k + 3].revents == 0) continue;
      const auto [i, stream] = places_[k];
      if (stream == Stream::kIn) send(sessions_[i]);
      if (stream == Stream::kOut) read_out(i);
      if (stream == Stream::kErr) read_err(i);
    }
    bool has_ended_child = false;
    while (const std::optional<TakenSignal> signal = next_signal(signals)) {
      if (signal->number == SIGCHLD) {
        has_ended_child = true;
      } else {
        is_told_to_end_ = is_told_to_end_ || ends_job(signal->number);
        step(Signalled{signal->number, ends_job(signal->number)});
        // Ctrl-Z: the agents have stopped their workers. The shell waits until this process stops.
        if (signal->number == SIGTSTP) raise(SIGSTOP);
      }
    }
    if (has_ended_child) reap();
    const TimePoint now = BootClock::now();
    if (deadline && now >= *deadline) step(TimePassed{});
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

  void step(const HeadEvent& event) { perform(head_.step(BootClock::now(), event)); }

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
      const int reason = execute(command, own, in, out, err);
      [[maybe_unused]] const ssize_t told = write(failed.write.get(), &reason, sizeof reason);
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
    if (session.pid > 0) kill(session.pid, action.by_force ? SIGKILL : SIGTERM);
    session.in.reset();
    session.forget();
  }

  void act(const Report& action) {
    if (!action.is_error) started_ = BootClock::now();
    if (!action.is_error && job_.is_quiet) return;
    console_.err().add(job_.line_of(action.is_error, action.text));
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
    if (!is_told_to_end_ || !output.is_full()) output.add(lines);
  }

  // Takes whole lines of a far end: events, and what the workers print.
  void take_out(std::size_t i, std::string_view lines) {
    Session& session = sessions_[i];
    if (session.is_ready && lines.find(job_.plan.mark) == lines.npos)
      return show(console_.out(), lines);
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
      if (session.is_ready) show(console_.out(), line);
      return;
    }
    // A worker's last line may have no end.
    if (at > 0 && session.is_ready) show(console_.out(), concat(line.substr(0, at), "\n"));
    const std::optional<HeadEvent> event = parse_control(host, line.substr(at + mark.size() - 1));
    if (!event) return;
    session.has_greeted = true;
    session.is_ready = session.is_ready || std::holds_alternative<Ready>(*event);
    step(*event);
  }

  void take_err(std::size_t i, std::string_view lines) {
    Session& session = sessions_[i];
    std::string_view last = lines.substr(0, lines.find_last_not_of("\r\n") + 1);
    last.remove_prefix(last.find_last_of("\r\n") + 1);
    if (!last.empty()) session.last_line = in_one_line(std::string(last.substr(0, 500)));
    // What ssh says of a host that fails is quoted in the error.
    if (!session.has_greeted && !job_.shows_ssh) return;
    const bool is_starting = BootClock::now() < started_ + kJoinTime;
    show(console_.err(), agent_lines_.shown(static_cast<int>(i), lines, is_starting));
  }

  // Takes the output of the ssh processes that have ended, and tells their end.
  void reap() {
    for (std::size_t i = 0; i < sessions_.size(); ++i) {
      Session& session = sessions_[i];
      int status = 0;
      if (session.pid <= 0 || waitpid(session.pid, &status, WNOHANG) != session.pid) continue;
      session.pid = 0;
      session.in.reset();
      while (read_out(i)) {
      }
      while (read_err(i)) {
      }
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
  Console console_;
  std::vector<pollfd> watched_;
  std::vector<std::pair<std::size_t, Stream>> places_;  // of watched_, after the first three
  std::array<char, kReadBytes> buffer_{};
  AgentLines agent_lines_;
  TimePoint started_ = TimePoint::max() - kJoinTime;  // when all agents had started
  bool is_told_to_end_ = false;                       // by a signal
  TimePoint next_ping_ = BootClock::now() + kPingInterval;
  std::optional<int> code_;
  std::optional<Error> trouble_;
};

}  // namespace

Result<std::pair<CopiedFile, std::string>> read_copy(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat status {};
  if (!file.valid() || fstat(file.get(), &status) != 0)
    return system_error("--copy: read " + path, errno);
  if (!S_ISREG(status.st_mode))
    return invalid_value(path, "expected a regular file").within("--copy");
  Result<std::string> bytes = read_whole<std::string>(file.get(), path, kMostCopied);
  if (!bytes) return std::move(bytes).error().within("--copy");
  return std::pair(CopiedFile{path, status.st_mode & 0777, bytes->size()}, std::move(*bytes));
}

Result<int> run_head(const HeadJob& job) { return Near(job).run(); }

}  // namespace ddprun
