// ConsoleWriter: writes ddprun's own standard output and standard error in a thread of its own.
//
// A stopped terminal, or a pipe that is not read, must not block the agent. The agent has to renew
// its lease and to watch its workers. So write() only queues bytes, and the thread does the
// blocking writes. ConsoleText merges the output of several sources. On a terminal that people look
// at, LiveScreen does this instead. Where both streams lead to the same file, terminal or pipe,
// they share one queue and keep their order.
//
// When kHighWater bytes are queued, is_full() returns true and the callers stop reading from
// their workers. The workers then wait, as they would on a slow terminal, and no bytes are
// dropped. The end of the agent does not wait for such a reader either. The thread, which may
// be in the middle of a write, is then detached and lives until the process ends.
//
// A reader that has gone (a closed pipe, a terminal that was hung up) is not an error: nothing more
// is written there. Bytes that cannot be written, for example because the disk is full, are dropped
// and counted (OutputGap). Nothing waits for the disk. warn() is called when dropping begins and
// when it ends. losses() returns what is missing at the end.
//
// Functions may be called from any thread, except the destructor, which runs on its owner's
// thread.
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
  // The descriptors of the streams, indexed by ConsoleStream. They stay open as long as the
  // process.
  std::array<int, 2> descriptors{STDOUT_FILENO, STDERR_FILENO};
  // Set where both streams lead to one terminal, which has this size. The terminal then shows
  // unfinished lines and a status line. nullopt: output is only passed on.
  std::optional<ScreenSize> live;
  // Gets warnings for the user about bytes that cannot be written. Called with the writer's
  // lock held: must not call back.
  std::function<void(const std::string& text)> warn = {};
};

class ConsoleWriter {
 public:
  static constexpr std::size_t kHighWater = 1 << 20;

  // on_drained: called each time the queue has become empty after it was full. It and the argument
  // of when_flushed() are called with the writer's lock held: they must not call back. Throws
  // std::system_error if the thread cannot be started.
  explicit ConsoleWriter(std::function<void()> on_drained, const ConsoleOptions& options = {});
  // Drops what has not been written and does not wait: see when_flushed().
  ~ConsoleWriter();
  ConsoleWriter(const ConsoleWriter&) = delete;
  ConsoleWriter& operator=(const ConsoleWriter&) = delete;

  // Queues a piece of `source`. A source writes to one stream only, and must stay at its
  // address until finish().
  void write(ConsoleStream stream, ConsoleSource& source, std::string_view piece, PieceEnd end);
  void finish(ConsoleStream stream, ConsoleSource& source);
  // Queues lines of ddprun itself.
  void say(ConsoleStream stream, std::string_view lines);

  // Returns whether the output is a live screen. It and the functions below work on a terminal;
  // elsewhere they do nothing. LiveScreen explains them. show_rest() shows the unfinished line of a
  // source, as it is now.
  bool is_live() const;
  void show_rest(ConsoleSource& source, std::string_view rest);
  void set_status(std::string_view status);
  void resize(ScreenSize size);
  void hide_area();
  void show_area();

  bool is_full() const;

  // Calls `then` once, when everything that was queued has been written: at once, or from the
  // writer's thread.
  void when_flushed(std::function<void()> then);

  // Return what was lost. has_losses(): whether any bytes were dropped so far. losses(): one text
  // for each stream that still cannot be written: how many bytes are missing and why.
  bool has_losses() const;
  std::vector<std::string> losses() const;

 private:
  struct State;
  static void run(State& state);
  template <class Change>
  void change(Change&& change);

  std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;
};

}  // namespace ddprun
