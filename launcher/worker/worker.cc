#include "launcher/worker/worker.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <utility>

#include "base/signal_names.h"
#include "launcher/control/server.h"
#include "launcher/guard/run_cgroup.h"
#include "launcher/output/core/line_prefix.h"
#include "launcher/supervisor/core/failure_attribution.h"

namespace ddprun {
namespace {

std::string state_after(const WorkerEnd& end) {
  if (end.kind == EndKind::kSignaled) return "killed by " + signal_name(end.code);
  return "exited with " + std::to_string(end.code);
}

}  // namespace

Worker::~Worker() {
  for (const auto& output : {out_, err_}) {
    if (output) output->finish();
  }
}

Result<void> Worker::start(const WorkerServices& around,
                           std::function<void(std::shared_ptr<Worker>)> when_ended) {
  since_ = BootClock::now();
  const LocalRank rank = plan_.local_rank;
  const LaunchOptions& options = around.options;
  WorkerFilesOptions wanted{.directory = plan_.directory,
                            .redirects = options.redirects.of(rank),
                            .tee = options.tee.of(rank)};
  if (options.pty) wanted.terminal = around.looks.screen.value_or(ScreenSize{});
  Result<WorkerStreams> streams = open_streams(wanted, around.logs);
  if (!streams) return streams.error();
  const bool types = options.pty && gets_stdin(options) && isatty(STDIN_FILENO) != 0;
  if (types) terminal_.reset(fcntl(streams->out.from_worker.get(), F_DUPFD_CLOEXEC, 0));

  cgroup_ = make_worker_cgroup(around.cgroup, rank);
  const UniqueFd cgroup(
      cgroup_.empty() ? -1 : open(cgroup_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const int in = types ? streams->out.to_worker.get() : STDIN_FILENO;
  const WorkerStart start{.executable = around.executable,
                          .plan = plan_,
                          .options = options,
                          .in = gets_stdin(options) ? in : -1,
                          .out = streams->out.to_worker.get(),
                          .err = streams->err.to_worker.get(),
                          .descriptor_limit = around.descriptor_limit,
                          .cgroup = cgroup.get()};
  Result<WorkerProcess> process = WorkerProcess::start(around.io, start);
  if (!process) return process.error();
  pid_ = process->id();
  state_ = "running";
  since_ = BootClock::now();
  out_ = watch(around, ConsoleStream::kOut, streams->out);
  err_ = watch(around, ConsoleStream::kErr, streams->err);
  process_.emplace(std::move(*process));
  process_->when_ended(
      [weak = weak_from_this(), when_ended = std::move(when_ended)](int wait_status) {
        const std::shared_ptr<Worker> self = weak.lock();
        if (!self) return;
        self->wait_status_ = wait_status;
        when_ended(self);
      });
  return {};
}

// Returns whether this is rank 0 of the job and --stdin is given.
bool Worker::gets_stdin(const LaunchOptions& options) const {
  return options.passes_stdin && plan_.rank == Rank(0);
}

std::shared_ptr<WorkerOutput> Worker::watch(const WorkerServices& around, ConsoleStream console,
                                            WorkerStream& stream) {
  using enum ConsoleStream;
  if (!stream.from_worker.valid()) return nullptr;
  const LaunchOptions& options = around.options;
  const WorkerConsole& looks = around.looks;
  WorkerOutputOptions wanted;
  wanted.stream = console;
  wanted.is_shown = options.shows(plan_.local_rank) && !stream.only_logged;
  wanted.is_terminal = options.pty;
  wanted.keeps_tail = options.pty || console == kErr;
  wanted.source.order = 2 * plan_.local_rank.value + static_cast<int>(console);
  if (looks.json) {
    wanted.wrap = [json = looks.json, rank = plan_.rank, local_rank = plan_.local_rank, console](
                      std::string_view line, bool cut) {
      return json->worker_line({rank, local_rank, console == kErr, cut}, line);
    };
  } else if (stream.log && !stream.only_logged) {
    wanted.source.prefix =
        tee_prefix({looks.tee_pattern, options.role, plan_.local_rank, plan_.rank});
  } else if (looks.has_prefix) {
    wanted.source.prefix = rank_prefix(plan_.rank, looks.coloured);
  }
  const int shown_on = console == kOut ? STDOUT_FILENO : STDERR_FILENO;
  wanted.passes_rest = wanted.source.prefix.empty() || isatty(shown_on) != 0;
  wanted.drops_cursor_moves =
      !wanted.source.prefix.empty() && isatty(shown_on) != 0 && !around.console.is_live();
  wanted.log = std::move(stream.log);
  const bool is_out = console == kOut;
  wanted.recent =
      &around.control.output(plan_.local_rank, is_out ? OutputStream::kOut : OutputStream::kErr);
  // With --pty, this stream also carries what programs write to stderr.
  if ((options.pty || console == kErr) && wanted.is_shown) {
    wanted.tracebacks.emplace(around.interrupts, plan_.rank);
  }
  auto output = std::make_shared<WorkerOutput>(around.io, around.console, &around.logs,
                                               std::move(stream.from_worker), std::move(wanted));
  output->start();
  return output;
}

WorkerView Worker::view() const {
  return {.rank = plan_.rank,
          .local_rank = plan_.local_rank,
          .pid = pid_,
          .state = state_,
          .since = since_};
}

std::vector<std::string> Worker::stderr_tail() const {
  if (err_) return err_->tail();
  return out_ ? out_->tail() : std::vector<std::string>();
}

WorkerEnd Worker::describe_end(OwnWords words) {
  WorkerEnd end;
  end.local_rank = plan_.local_rank;
  end.pid = process_->id();
  process_.reset();
  if (WIFSIGNALED(wait_status_)) {
    end.kind = EndKind::kSignaled;
    end.code = WTERMSIG(wait_status_);
    end.core_dumped = WCOREDUMP(wait_status_);
    if (end.code == SIGKILL && oom_kills_in(cgroup_) > 0) end.out_of_memory = OutOfMemory::kSure;
  } else {
    end.code = WEXITSTATUS(wait_status_);
  }
  state_ = state_after(end);
  since_ = BootClock::now();
  if (out_) out_->drain();
  if (err_) err_->drain();
  if (end.kind == EndKind::kExited && end.code == 0) return end;
  end.stderr_tail = stderr_tail();
  end.message = std::move(words.message);
  end.frames = std::move(words.frames);
  end.blames = words.blames;
  if (end.blames < 0) {
    if (const std::optional<Rank> rank = blamed_rank(end.message, end.stderr_tail)) {
      end.blames = rank->value;
    }
  }
  // A worker cannot be its own victim.
  if (end.blames == plan_.rank.value) end.blames = -1;
  return end;
}

void Worker::resume_output() {
  if (out_) out_->resume();
  if (err_) err_->resume();
}

void Worker::resize_terminal(ScreenSize size) {
  if (out_ && !err_) out_->resize_terminal(size);
}

void Worker::type(std::string_view bytes) {
  if (!terminal_.valid()) return;
  // The terminal's end-of-file character. A terminal also drops input for which it has no room.
  const std::string_view end_of_file("\x04", 1);
  const std::string_view typed = bytes.empty() ? end_of_file : bytes;
  [[maybe_unused]] const ssize_t written = ::write(terminal_.get(), typed.data(), typed.size());
}

void Worker::finish_output() {
  for (const auto& output : {out_, err_}) {
    if (!output) continue;
    output->drain();
    output->finish();
  }
}

}  // namespace ddprun
