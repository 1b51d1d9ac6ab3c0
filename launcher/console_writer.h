// ConsoleWriter: ddprun's own standard output and error, written by a thread of its own.
//
// A terminal that is stopped, or a pipe that nobody reads, must not stop the agent: it has a lease
// to keep and workers to watch. So write() only queues; the thread does the blocking. Each write()
// is one or more whole lines and is never cut by another one. When kHighWater bytes are queued,
// is_full() says so and the callers stop reading from their workers, who then wait as they would on
// a slow terminal: nothing is dropped. Nor does the end of the agent wait for such a reader: the
// thread, which may be in the middle of a write, is then left behind until the process ends.
//
// Any thread, but for the destructor: its owner's.
#pragma once

#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <string_view>
#include <thread>

namespace ddprun {

enum class ConsoleStream { kOut = 0, kErr = 1 };

class ConsoleWriter {
 public:
  static constexpr std::size_t kHighWater = 4 << 20;

  // on_drained: called each time the queue has become empty after it was full. It and the argument
  // of when_flushed() are called with the writer's lock held: they must not call back.
  // descriptors: where the streams lead, by ConsoleStream; open as long as the process. Throws
  // std::system_error where no thread is to be had.
  explicit ConsoleWriter(std::function<void()> on_drained,
                         std::array<int, 2> descriptors = {STDOUT_FILENO, STDERR_FILENO});
  // Drops what has not been written and does not wait: see when_flushed().
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  void write(ConsoleStream stream, std::string_view lines);
  bool is_full() const;

  // Calls `then` once, when everything that was queued is written: at once, or from the writer's
  // thread.
  void when_flushed(std::function<void()> then);

 private:
  struct State;
  static void run(State& state);

  std::shared_ptr<State> state_;  // the thread's, too
  std::thread thread_;
};

}  // namespace ddprun
