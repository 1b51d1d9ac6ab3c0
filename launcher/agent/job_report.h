// JobReport: reports failures and the end of the job, in the log and in the file of --report-file.
//
// Owner: Agent, on its one thread.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "base/log.h"
#include "launcher/agent/report_file.h"
#include "launcher/options/core/launch_options.h"
#include "launcher/process/file_work.h"

namespace ddprun {

class JobReport {
 public:
  // REQUIRES: log and files outlive this object.
  JobReport(Logger& log, FileWork& files, const LaunchOptions& options);

  // Logs an error. Its text is also the report's headline if the service gives no verdict.
  void trouble(const std::string& text);

  // is_first_node: whether this node logs the full report. Of nodes that share a file system, only
  // this one writes the file.

  // Reports a generation that failed, and that another one follows.
  void restart(const Verdict& failed, bool is_first_node);
  // Reports the verdict of the job in the log.
  void verdict(const Verdict& verdict, bool is_first_node);
  // Makes the loss of output the report's headline.
  void lost_output() { lost_output_ = true; }
  // Writes the end of the job to the file.
  void end(int exit_code, bool is_first_node);
  // Runs the commands of --on-end and --on-failure; see run_end_command(). Blocks.
  void run_end_commands(int exit_code, int signals);

 private:
  NodeRank first_node_left() const;
  void log_verdict(const Verdict& verdict, bool is_first_node);
  JobOutcome outcome(int exit_code) const;
  void write(std::function<Result<void>()> body);

  Logger& log_;
  FileWork& files_;
  const std::string job_;
  const std::string on_end_;
  const std::string on_failure_;
  ReportFile file_;
  std::string last_trouble_;
  std::optional<Verdict> verdict_;
  bool lost_output_ = false;
};

}  // namespace ddprun
