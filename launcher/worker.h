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
#include "launcher/console_writer.h"
#include "launcher/core/launch_options.h"
#include "launcher/core/supervisor.h"
#include "launcher/core/worker_plan.h"
#include "launcher/worker_output.h"
#include "launcher/worker_process.h"

namespace ddprun {

// What the workers of a node have in common.
struct WorkerSurroundings {
  boost::asio::io_context& io;
  ConsoleWriter& console;
  const LaunchOptions& options;
  const std::string& executable;
  std::optional<rlimit> descriptor_limit;  // what workers get
  const std::string& cgroup;               // the run's; empty: none
  InterruptTracebacks& interrupts;
};

class Worker : public std::enable_shared_from_this<Worker> {
 public:
  explicit Worker(WorkerPlan plan) : plan_(std::move(plan)) {}
  // Lets its process go, see WorkerProcess, and closes its output.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // console_prefix: in front of its lines on the console. Calls when_ended from the io_context once
  // it has been reaped, unless it is gone before. The error is WorkerFiles' or WorkerProcess's.
  // Call once.
  Result<void> start(const WorkerSurroundings& around, const std::string& console_prefix,
                     std::function<void(std::shared_ptr<Worker>)> when_ended);

  LocalRank local_rank() const { return plan_.local_rank; }
  Rank rank() const { return plan_.rank; }

  // Whether it was started and its end has not been described yet.
  bool is_open() const { return process_.has_value(); }
  // REQUIRES: is_open().
  pid_t pid() const { return process_->id(); }

  // How it ended, with its last words. REQUIRES: when_ended was called; not twice.
  WorkerEnd describe_end();

  // The console has room again.
  void resume_output();
  // Nobody writes any more: takes the rest of its output and closes it.
  void finish_output();

 private:
  WorkerPlan plan_;
  std::optional<WorkerProcess> process_;
  int wait_status_ = 0;
  std::string cgroup_;  // its directory; empty: none
  std::shared_ptr<WorkerOutput> out_;
  std::shared_ptr<WorkerOutput> err_;
  std::string err_file_;  // where stderr goes when it does not come through us
};

}  // namespace ddprun
