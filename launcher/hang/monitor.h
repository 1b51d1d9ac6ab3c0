// HangMonitor: looks every second whether a worker of this node hangs (--hang-timeout), and at all of
// them when somebody wants to know what they do.
//
// Without a timeout no timer runs. Owner: Agent, on its one thread, like the functions it is given.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <optional>
#include <vector>

#include "launcher/hang/core/watch.h"
#include "launcher/hang/worker_inspector.h"
#include "launcher/supervisor/core/supervisor.h"

namespace ddprun {

struct HangMonitorEvents {
  // Of each worker what its page says; nullopt: it has ended.
  std::function<std::vector<std::optional<PageSample>>()> samples;
  // Of each that lives what its page says of its calls.
  std::function<std::vector<WorkerSnapshot>()> snapshots;
  // One hangs; again with every look, until the generation ends.
  std::function<void()> hang;
  // These have not reported a step for the timeout, and are not watched; once.
  std::function<void(const std::vector<std::size_t>& workers)> silent;
  // What look() has seen; from the io_context, never from within look().
  std::function<void(const WorkersSeen&)> seen;
};

class HangMonitor {
 public:
  // timeout: zero: nobody hangs.
  HangMonitor(boost::asio::io_context& io, Duration timeout, HangMonitorEvents events);

  // So many workers were started.
  void begin(Generation generation, std::size_t workers);
  // While they are stopped by SIGTSTP they do nothing, and do not hang.
  void pause() { timer_.cancel(); }
  void resume();
  // They are being ended.
  void end();

  void look();

 private:
  void wait();

  boost::asio::io_context& io_;
  const bool is_on_;
  HangMonitorEvents events_;
  boost::asio::steady_timer timer_;
  HangWatch watch_;
  Generation generation_{-1};
  WorkerInspector look_;
};

}  // namespace ddprun
