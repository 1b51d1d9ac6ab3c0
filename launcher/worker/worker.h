// Worker: one local rank of the present generation on this node: its process, its output on the way
// to console and files, and what is known of its end.
//
// Owned by the agent, on its one thread; shared, because its end may be reported when it is about to
// be let go.
#pragma once

#include <sys/resource.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "base/unique_fd.h"
#include "launcher/control/protocol.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/json_lines.h"
#include "launcher/output/log_writer.h"
#include "launcher/output/worker_output.h"
#include "launcher/plan/core/worker_plan.h"
#include "launcher/supervisor/core/supervisor.h"
#include "launcher/worker/files.h"
#include "launcher/worker/process.h"

namespace ddprun {

class ControlServer;

// How workers' lines look on the console.
struct WorkerConsole {
  bool coloured = false;
  bool has_prefix = true;            // ours; there are other workers in the job
  std::string tee_pattern;           // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
  std::optional<ScreenSize> screen;  // of the terminal
  JsonLines* json = nullptr;         // --log-format json
};

// What the workers of a node have in common.
struct WorkerSurroundings {
  boost::asio::io_context& io;
  ConsoleWriter& console;
  const LaunchOptions& options;
  const std::string& executable;
  std::optional<rlimit> descriptor_limit;  // what workers get
  const std::string& cgroup;               // the run's; empty: none
  InterruptTracebacks& interrupts;
  LogWriter& logs;
  const WorkerConsole& looks;
  ControlServer& desk;  // that keeps their last output
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  explicit Worker(WorkerPlan plan) : plan_(std::move(plan)) {}
  // Lets its process go, see WorkerProcess, and closes its output.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Calls when_ended from the io_context once it has been reaped, unless it is gone before. The error
  // is open_streams' or WorkerProcess's. Call once.
  Result<void> start(const WorkerSurroundings& around,
                     std::function<void(std::shared_ptr<Worker>)> when_ended);

  // As users are shown it.
  WorkerView view() const;
  // It has run, and exited with 0.
  bool ended_well() const { return pid_ > 0 && !is_open() && wait_status_ == 0; }
  // Its last lines on stderr so far.
  std::vector<std::string> stderr_tail() const;
  LocalRank local_rank() const { return plan_.local_rank; }
  Rank rank() const { return plan_.rank; }

  // Whether it was started and its end has not been described yet.
  bool is_open() const { return process_.has_value(); }
  // REQUIRES: is_open().
  pid_t pid() const { return process_->id(); }

  // Returns the path of its error file; empty if it has none or ended with 0.
  std::string error_file() const { return wait_status_ == 0 ? "" : plan_.error_file; }
  const std::string& directory() const { return plan_.directory; }
  // How it ended. words: of its error file. REQUIRES: when_ended was called; not twice.
  WorkerEnd describe_end(OwnWords words);

  // The console or a log file has room again.
  void resume_output();
  // --pty: our terminal has another size.
  void resize_terminal(ScreenSize size);
  // --stdin with --pty: what was typed; empty: its end. It goes to the worker's terminal, as far as that
  // has room.
  void type(std::string_view bytes);
  // Nobody writes any more: takes the rest of its output and closes it.
  void finish_output();

 private:
  bool gets_stdin(const LaunchOptions& options) const;
  std::shared_ptr<WorkerOutput> watch(const WorkerSurroundings& around, ConsoleStream console,
                                      WorkerStream& stream);

  WorkerPlan plan_;
  std::optional<WorkerProcess> process_;
  int wait_status_ = 0;
  std::string cgroup_;  // its directory; empty: none
  pid_t pid_ = 0;       // 0: it was never there
  std::string state_ = "not started";
  TimePoint since_;  // of the state
  std::shared_ptr<WorkerOutput> out_;
  std::shared_ptr<WorkerOutput> err_;
  UniqueFd terminal_;  // --pty: our end of it, to write to
};

}  // namespace ddprun
