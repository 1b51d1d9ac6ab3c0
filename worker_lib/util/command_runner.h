// CommandRunner: runs a command of the user for each event, one at a time, on a thread of its own.
// If events come faster than the command ends, the newest one that waits is next, and the others
// are dropped.
//
//   CommandRunner runner("rclone copy \"$FILE\" store:", [](const std::string& line) { ... });
//   runner.begin({{"FILE", "a.pt"}});
//   runner.finish(std::chrono::minutes(5), [] {});
//
// Any thread.
#pragma once

#include <sys/types.h>

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

using CommandVariables = std::map<std::string, std::string>;

// Runs a command with /bin/sh in a process group of its own. Its stdin is /dev/null, and these
// variables are added to its environment. is_over: asked five times a second; true ends the whole
// group. Returns an error if the command cannot be started, is ended, or does not succeed.
Result<void> run_command(const std::string& command, const CommandVariables& variables,
                         const std::function<bool()>& is_over);

class CommandRunner {
 public:
  // warn: gets a line about each failure, on the thread of this object or in finish().
  CommandRunner(std::string command, std::function<void(const std::string&)> warn)
      : command_(std::move(command)), warn_(std::move(warn)) {}
  // Ends a command that still runs.
  ~CommandRunner() {
    finish(Duration(0), [] {});
  }
  CommandRunner(const CommandRunner&) = delete;
  CommandRunner& operator=(const CommandRunner&) = delete;

  // Returns at once.
  void begin(CommandVariables variables);
  // Waits until all events are done, for at most `patience`. Then ends the command, and warns
  // of it and of an event that still waits.
  // report: called five times a second.
  void finish(Duration patience, const std::function<void()>& report);

 private:
  void work();

  const std::string command_;
  const std::function<void(const std::string&)> warn_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<CommandVariables> waiting_;
  bool is_running_ = false;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace ddprun
