// LastSave: asks all nodes of the job to save when the job's time in Slurm is nearly over, and
// puts the job back into Slurm's queue.
//
// Owner: Agent, on its one thread.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/log.h"
#include "launcher/cluster/slurm_time_limit.h"
#include "launcher/options/core/launch_options.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

class LastSave {
 public:
  struct Node {
    std::function<bool()> is_without_workers;
    // Asks the workers of this node to save. Without workers, the node leaves.
    std::function<void()> save_here;
    // Sends the request to the service, unless it cannot be reached now.
    std::function<void(const UserRequest&)> ask_service;
  };

  // job: as Slurm's commands take it; empty: the job has no limit that ddprun watches.
  // REQUIRES: all references outlive this object.
  LastSave(boost::asio::io_context& io, Logger& log, const LaunchOptions& options, std::string job,
           Node node);

  // Begins to watch the job's time. Returns at once.
  void begin();
  // Ends what this object has begun. `node` is not called any more.
  void close();

  // Reports the service's answer to a request of this object.
  void answered(const Answer& answer);
  // Reports that this process got SIGTERM.
  void terminated() { was_terminated_ = true; }

  // Puts the job back into the queue if --requeue allows it. Waits for Slurm for at most 90 s; it
  // may end this process first. Returns whether the job is in the queue again, or may be.
  //
  // step: the highest one that a worker has reported. had_workers: in any generation.
  bool requeue(std::optional<std::int64_t> step, bool had_workers);

 private:
  void save();
  void keep_waiting();
  void ask_all_nodes();

  Logger& log_;
  const LaunchOptions& options_;
  const std::string job_;
  const Node node_;
  SlurmTimeLimit time_limit_;
  boost::asio::steady_timer timer_;
  TimePoint idle_until_;                 // see ask_all_nodes()
  bool others_have_no_workers_ = false;  // as the service answered the last request
  bool was_terminated_ = false;
  bool is_closed_ = false;
};

}  // namespace ddprun
