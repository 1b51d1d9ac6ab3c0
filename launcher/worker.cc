#include "launcher/worker.h"

#include <fcntl.h>
#include <sys/wait.h>

#include <csignal>
#include <utility>

#include "launcher/core/last_words.h"
#include "launcher/run_cgroup.h"
#include "launcher/worker_files.h"

namespace ddprun {

Worker::~Worker() {
  for (const auto& output : {out_, err_}) {
    if (output) output->finish();
  }
}

Result<void> Worker::start(const WorkerSurroundings& around, const std::string& console_prefix,
                           std::function<void(std::shared_ptr<Worker>)> when_ended) {
  const LocalRank rank = plan_.local_rank;
  const LaunchOptions& options = around.options;
  WorkerFiles files(plan_.directory, options.redirects.of(rank), options.tee.of(rank));
  Result<WorkerStreams> streams = files.open();
  if (!streams) return std::move(streams).error();
  err_file_ = streams->err.only_file;

  cgroup_ = make_worker_cgroup(around.cgroup, rank);
  const UniqueFd cgroup(
      cgroup_.empty() ? -1 : open(cgroup_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const WorkerStart start{.executable = around.executable,
                          .arguments = plan_.arguments,
                          .variables = plan_.variables,
                          .out = streams->out.to_worker.get(),
                          .err = streams->err.to_worker.get(),
                          .cpus = plan_.cpus,
                          .descriptor_limit = around.descriptor_limit,
                          .directory = options.directory,
                          .file_mask = options.file_mask,
                          .blocked_signal = options.checkpoint_signal,
                          .cgroup = cgroup.get()};
  Result<WorkerProcess> process = WorkerProcess::start(around.io, start);
  if (!process) return std::move(process).error();

  const std::string tee_prefix = "[" + options.role + to_text(rank) + "]:";
  const auto watch = [&](WorkerStream& stream,
                         ConsoleStream console) -> std::shared_ptr<WorkerOutput> {
    if (!stream.from_worker.valid()) return nullptr;
    const std::string& prefix = stream.tee_file.valid() ? tee_prefix : console_prefix;
    WorkerOutputOptions wanted{.stream = console,
                               .is_shown = options.shows(rank),
                               .prefix = prefix,
                               .file = std::move(stream.tee_file)};
    if (console == ConsoleStream::kErr && wanted.is_shown) {
      wanted.tracebacks.emplace(around.interrupts, plan_.rank);
    }
    auto output = std::make_shared<WorkerOutput>(around.io, around.console,
                                                 std::move(stream.from_worker), std::move(wanted));
    output->start();
    return output;
  };
  out_ = watch(streams->out, ConsoleStream::kOut);
  err_ = watch(streams->err, ConsoleStream::kErr);
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

WorkerEnd Worker::describe_end() {
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
  if (out_) out_->drain();
  if (err_) err_->drain();
  if (end.kind == EndKind::kExited && end.code == 0) return end;
  end.stderr_tail = err_ ? err_->tail() : tail_of_file(err_file_);
  OwnWords words;
  if (!plan_.error_file.empty()) words = read_error_file(plan_.error_file);
  end.message = std::move(words.message);
  end.frames = std::move(words.frames);
  end.blames = words.blames;
  if (end.blames < 0) {
    if (const std::optional<Rank> rank = blamed_rank(end.message, end.stderr_tail)) {
      end.blames = rank->value;
    }
  }
  // Nobody is his own victim.
  if (end.blames == plan_.rank.value) end.blames = -1;
  return end;
}

void Worker::resume_output() {
  if (out_) out_->resume();
  if (err_) err_->resume();
}

void Worker::finish_output() {
  for (const auto& output : {out_, err_}) {
    if (!output) continue;
    output->drain();
    output->finish();
  }
}

}  // namespace ddprun
