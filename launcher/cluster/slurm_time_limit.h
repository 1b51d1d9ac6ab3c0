// SlurmTimeLimit: asks Slurm how much time the job has left, and says when the workers must save.
//
// Owner: Agent of node rank 0, on its one thread. Slurm's command runs on a thread of its own.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>
#include <thread>

#include "base/log.h"
#include "base/unique_fd.h"
#include "launcher/cluster/core/end_of_time.h"

namespace ddprun {

// How long a command of Slurm may take. Its own commands try for a minute to reach its controller.
inline constexpr Duration kSlurmPatience = std::chrono::seconds(10);

class SlurmTimeLimit {
 public:
  // job: as Slurm's commands take it. save: called once, on the thread of `io`, when the end is
  // near.
  SlurmTimeLimit(boost::asio::io_context& io, Logger& log, std::string job, Duration save_before,
                 std::function<void()> save);
  ~SlurmTimeLimit() { close(); }
  SlurmTimeLimit(const SlurmTimeLimit&) = delete;
  SlurmTimeLimit& operator=(const SlurmTimeLimit&) = delete;

  // Begins to ask Slurm. Returns at once.
  void begin();
  // Ends the command that runs, if any. `save` is not called any more.
  void close();

 private:
  void go_on();
  void ask();
  void answered(const std::string& text);

  boost::asio::io_context& io_;
  Logger& log_;
  std::string job_;
  std::function<void()> save_;
  EndOfTime end_of_time_;
  boost::asio::steady_timer timer_;
  UniqueFd stop_;  // eventfd: ends the command that runs
  std::thread thread_;
};

}  // namespace ddprun
