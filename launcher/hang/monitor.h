// HangMonitor: checks every second, or more often for a short timeout, whether a worker of this
// node hangs (--hang-timeout). On request, it finds out what all of them do.
//
// Without a timeout it runs no timer. Owner: Agent. Runs on the agent's one thread, and so do
// the functions in HangMonitorEvents.
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
  // Returns the page sample of each worker; nullopt: it has ended.
  std::function<std::vector<std::optional<PageSample>>()> samples;
  // Returns what the pages of the living workers say about their calls.
  std::function<std::vector<WorkerSnapshot>()> snapshots;
  // A worker hangs. Called again at every check until the generation ends.
  std::function<void()> hang;
  // These workers have not reported a step within the timeout and are not watched. Called at
  // most once.
  std::function<void(const std::vector<std::size_t>& workers)> silent;
  // Receives the result of look(). Called from the io_context, never from within look().
  std::function<void(const WorkersSeen&)> seen;
};

class HangMonitor {
 public:
  // timeout: zero turns the checks off.
  HangMonitor(boost::asio::io_context& io, Duration timeout, HangMonitorEvents events);

  // Begins to watch a generation. workers: the number of workers that were started.
  void begin(Generation generation, std::size_t workers);
  // Stops the checks while SIGTSTP stops the workers: they make no progress then, but do not
  // hang.
  void pause() { timer_.cancel(); }
  void resume() { wait(); }
  // Stops the checks and drops a look() in progress. Called when the workers are being ended.
  void end();

  // Finds out what the workers do and passes the result to HangMonitorEvents::seen.
  void look();

 private:
  void wait();

  boost::asio::io_context& io_;
  const bool is_on_;
  HangMonitorEvents events_;
  boost::asio::steady_timer timer_;
  HangWatch watch_;
  Generation generation_{-1};
  WorkerInspector inspector_;
};

}  // namespace ddprun
