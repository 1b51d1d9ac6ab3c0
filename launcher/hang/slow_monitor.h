// SlowMonitor: looks now and then whether a worker of this node makes the others wait
// (core/slow_watch.h).
//
// It looks every 10 s, less often as long as no worker reports steps, and never if the node has
// fewer than two workers. Owner: Agent. Runs on the agent's one thread, and so do the functions in
// SlowMonitorEvents.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <string>
#include <vector>

#include "launcher/hang/core/slow_watch.h"

namespace ddprun {

struct SlowMonitorEvents {
  // Returns the last reports of each worker.
  std::function<std::vector<std::vector<StepEntry>>()> marks;
  // A worker is slow, or not slow any more: one line.
  std::function<void(const std::string& line)> warn;
};

class SlowMonitor {
 public:
  static constexpr Duration kPeriod = std::chrono::seconds(10);
  static constexpr Duration kLongestPeriod = std::chrono::minutes(1);

  SlowMonitor(boost::asio::io_context& io, SlowMonitorEvents events);

  // Begins a generation; see SlowWatch::begin().
  void begin(Rank first_rank, std::size_t workers, std::string node);
  // Stops looking. Called when the workers are being ended.
  void end();

  // Returns what the worker costs the others; empty: it is not slow.
  std::string slow(std::size_t worker) const { return is_running_ ? watch_.slow(worker) : ""; }

 private:
  void wait();

  SlowMonitorEvents events_;
  boost::asio::steady_timer timer_;
  SlowWatch watch_;
  Duration period_ = kPeriod;
  bool is_running_ = false;  // from begin() to end()
};

}  // namespace ddprun
