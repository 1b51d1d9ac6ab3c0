// HangMonitor: checks every second, or more often for a short timeout, whether a worker of this
// node hangs (--hang-timeout). On request, it finds out what all of them do.
//
// Without a timeout it runs no timer. Owner: Agent. Runs on the agent's one thread, and so do
// the functions in HangMonitorEvents.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "base/result.h"
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
  void pause();
  void resume();
  // Stops the checks and drops a look() in progress. Called when the workers are being ended.
  void end();

  // Finds out what the workers do and passes the result to HangMonitorEvents::seen. Drops
  // inspect_stacks(), because only one debugger can read a process.
  void look();

  // Receives the snapshots, or the reason why there are none.
  using StacksDone = std::function<void(Result<std::vector<WorkerSnapshot>>)>;
  // Reads the stacks of these workers. Checks pause meanwhile, because a debugger stops its
  // process. Calls `done` from the io_context, never from within this function, with kStopped if
  // the workers are being ended or a look() is in progress. REQUIRES: no earlier call is pending.
  void inspect_stacks(std::vector<WorkerSnapshot> workers, StacksDone done);

 private:
  void wait();
  void drop_stacks(const char* why);

  boost::asio::io_context& io_;
  const bool is_on_;
  HangMonitorEvents events_;
  boost::asio::steady_timer timer_;
  HangWatch watch_;
  Generation generation_{-1};
  bool is_running_ = false;   // from begin() to end()
  bool is_paused_ = false;    // from pause() to resume()
  bool is_looking_ = false;   // a look() is in progress
  StacksDone stacks_done_;    // of the inspect_stacks() in progress
  std::uint64_t stacks_ = 0;  // number of the newest inspect_stacks()
  WorkerInspector inspector_;
};

}  // namespace ddprun
