// Worker: one local rank of the current generation on this node. It has the worker's process,
// passes its output to console and files, and records how it ended.
//
// Owner: the agent, on its one thread. Held by shared_ptr, because its end may be reported while
// it is being dropped.
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

// How the workers' lines look on the console.
struct WorkerConsole {
  bool coloured = false;
  bool has_prefix = true;            // ddprun's own; for jobs with several workers
  std::string tee_pattern;           // TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE
  std::optional<ScreenSize> screen;  // of the terminal
  JsonLines* json = nullptr;         // --log-format json
};

// The parts that the workers of a node share.
struct WorkerServices {
  boost::asio::io_context& io;
  ConsoleWriter& console;
  const LaunchOptions& options;
  const std::string& executable;
  std::optional<rlimit> descriptor_limit;  // which workers get back
  const std::string& cgroup;               // the run's; empty: none
  InterruptTracebacks& interrupts;
  LogWriter& logs;
  const WorkerConsole& looks;
  ControlServer& control;  // keeps the workers' last output
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  explicit Worker(WorkerPlan plan) : plan_(std::move(plan)) {}
  // Releases the process (see ~WorkerProcess) and closes the output.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Starts the worker. Calls when_ended from the io_context once the process is reaped, unless
  // this object is destroyed earlier. The error comes from open_streams() or
  // WorkerProcess::start(). Call once.
  Result<void> start(const WorkerServices& around,
                     std::function<void(std::shared_ptr<Worker>)> when_ended);

  // Returns the worker as it is shown to users.
  WorkerView view() const;
  // Returns whether the worker has run and exited with 0.
  bool ended_well() const { return pid_ > 0 && !is_open() && wait_status_ == 0; }
  // Returns the last lines on stderr so far; with --pty, of the terminal.
  std::vector<std::string> stderr_tail() const;
  LocalRank local_rank() const { return plan_.local_rank; }
  Rank rank() const { return plan_.rank; }

  // Returns whether the worker was started and its end has not been described yet.
  bool is_open() const { return process_.has_value(); }
  // REQUIRES: is_open().
  pid_t pid() const { return process_->id(); }

  // Returns the path of the error file; empty if there is none or the worker ended with 0.
  std::string error_file() const { return wait_status_ == 0 ? "" : plan_.error_file; }
  const std::string& directory() const { return plan_.directory; }
  // Describes how the worker ended. words: from its error file. REQUIRES: when_ended was called.
  // Call once.
  WorkerEnd describe_end(OwnWords words);

  // Resumes reading output. Call when the console or a log file has room again.
  void resume_output();
  // Passes on the new size of ddprun's terminal; for --pty.
  void resize_terminal(ScreenSize size);
  // Writes typed bytes to the worker's terminal, as far as it has room; for --stdin with --pty.
  // Empty: end of the input.
  void type(std::string_view bytes);
  // Reads the rest of the output and closes it. Call when no process writes any more.
  void finish_output();

 private:
  bool gets_stdin(const LaunchOptions& options) const;
  std::shared_ptr<WorkerOutput> watch(const WorkerServices& around, ConsoleStream console,
                                      WorkerStream& stream);

  WorkerPlan plan_;
  std::optional<WorkerProcess> process_;
  int wait_status_ = 0;
  std::string cgroup_;  // directory of its control group; empty: none
  pid_t pid_ = 0;       // 0: the process never existed
  std::string state_ = "not started";
  TimePoint since_;  // when the state began
  std::shared_ptr<WorkerOutput> out_;
  std::shared_ptr<WorkerOutput> err_;
  UniqueFd terminal_;  // --pty: the agent's end, for writing
};

}  // namespace ddprun
