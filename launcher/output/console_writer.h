// ConsoleWriter: ddprun's own standard output and error, written by a thread of its own.
//
// A terminal that is stopped, or a pipe that nobody reads, must not stop the agent: it has a lease
// to keep and workers to watch. So write() only queues; the thread does the blocking. What a source
// writes is put together with what others do by ConsoleText, or, on a terminal that people look at, by
// LiveScreen. Where both streams lead to the same file, terminal or pipe they are one here, and keep
// their order. When kHighWater bytes are queued, is_full() says so and the callers stop reading from
// their workers, who then wait as they would on a slow terminal: nothing is dropped. Nor does the end of
// the agent wait for such a reader: the thread, which may be in the middle of a write, is then left
// behind until the process ends.
//
// A reader who has gone (a closed pipe, a terminal that was hung up) is no trouble: nothing more is
// written there. What a disk cannot take is dropped and counted (OutputGap): warn() is told when that
// begins and when it is over, and losses() says what is missing at the end. Nobody waits for it.
//
// Any thread, but for the destructor: its owner's.
#pragma once

#include <unistd.h>

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "launcher/output/core/console_text.h"
#include "launcher/output/core/live_screen.h"

namespace ddprun {

enum class ConsoleStream { kOut = 0, kErr = 1 };

struct ConsoleOptions {
  // Where the streams lead, by ConsoleStream; open as long as the process.
  std::array<int, 2> descriptors{STDOUT_FILENO, STDERR_FILENO};
  // Both lead to one terminal of this size, which gets unfinished lines and a status line; nullopt: what
  // is written is only passed on.
  std::optional<ScreenSize> live;
  // Gets what people should know of bytes that cannot be written. Called with the writer's lock held:
  // must not call back.
  std::function<void(const std::string& text)> warn = {};
};

class ConsoleWriter {
 public:
  static constexpr std::size_t kHighWater = 1 << 20;

  // on_drained: called each time the queue has become empty after it was full. It and the argument
  // of when_flushed() are called with the writer's lock held: they must not call back. Throws
  // std::system_error where no thread is to be had.
  explicit ConsoleWriter(std::function<void()> on_drained, const ConsoleOptions& options = {});
  // Drops what has not been written and does not wait: see when_flushed().
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  // A piece of the source, which writes to one stream only, and stays where it is until finish().
  void write(ConsoleStream stream, ConsoleSource& source, std::string_view piece, PieceEnd end);
  void finish(ConsoleStream stream, ConsoleSource& source);
  // Lines of ddprun itself.
  void say(ConsoleStream stream, std::string_view lines);

  // For a terminal; elsewhere these do nothing. The unfinished line of a source, as it is now: see
  // LiveScreen, where the others are explained, too.
  bool is_live() const;
  void show_rest(ConsoleSource& source, std::string_view rest);
  void set_status(std::string_view status);
  void resize(ScreenSize size);
  void hide_area();
  void show_area();

  bool is_full() const;

  // Calls `then` once, when everything that was queued is written: at once, or from the writer's
  // thread.
  void when_flushed(std::function<void()> then);

  // Whether bytes were left out so far; and, of each stream that still takes nothing, how many are
  // missing and why.
  bool has_losses() const;
  std::vector<std::string> losses() const;

 private:
  struct State;
  static void run(State& state);
  template <class Change>
  void change(Change&& change);

  std::shared_ptr<State> state_;  // the thread's, too
  std::thread thread_;
};

}  // namespace ddprun
