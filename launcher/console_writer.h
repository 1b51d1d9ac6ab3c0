// ConsoleWriter: ddprun's own standard output and error, written by a thread of its own.
//
// A terminal that is stopped, or a pipe that nobody reads, must not stop the agent: it has a lease
// to keep and workers to watch. So write() only queues; the thread does the blocking. Each write()
// is one or more whole lines and is never cut by another one. When kHighWater bytes are queued,
// is_full() says so and the callers stop reading from their workers, who then wait as they would on
// a slow terminal: nothing is dropped.
//
// write(), is_full() and finish() from any thread; on_drained is called from the writer's thread.
#pragma once

#include <array>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"

namespace ddprun {

enum class ConsoleStream { kOut = 0, kErr = 1 };

class ConsoleWriter {
 public:
  static constexpr std::size_t kHighWater = 4 << 20;

  // on_drained: called each time the queue has become empty after it was full.
  explicit ConsoleWriter(std::function<void()> on_drained);
  // Waits until everything is written.
  ~ConsoleWriter();

  void write(ConsoleStream stream, std::string_view lines);
  bool is_full() const;

  // Waits until everything queued so far is written, at most this long. False: something is left.
  bool flush(Duration allowed);
  // From now on everything is dropped, also what is queued.
  void give_up();

 private:
  void run();

  std::function<void()> on_drained_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable drained_;
  std::array<std::string, 2> queued_;
  bool writing_ = false;
  bool was_full_ = false;
  bool stop_ = false;
  bool dropping_ = false;
  std::thread thread_;
};

}  // namespace ddprun
