// LogWriter: the workers' log files, written by a thread of its own.
//
// A disk that is full, or a file server that has stopped, must not stop the agent, which has a lease to
// keep, nor kill workers, as their own write() would. So write() only queues. What cannot be written is
// dropped and counted (OutputGap): a line on the console when that begins and when it is over, and, in the
// file, a line where bytes are missing. It is tried again after a second, then less and less often. A disk that is only slower than the workers makes them wait: while kHighWater bytes of
// a file are queued, is_full() says so, and the caller stops reading. After kPatience without progress
// the caller should say stop_waiting(); then what does not fit is dropped, too, until the queue is
// empty.
//
// With a limit, a file that is full becomes <name>.1, whose predecessor goes (LogRotation).
//
// Functions may be called from any thread; on_drained and warn are called from the writer's.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"

namespace ddprun {

class LogFile;

struct LogWriterOptions {
  std::uint64_t max_bytes = 0;  // of one file; 0: no limit
  // Called each time a file's queue, which was full, has been taken to be written. Must not call back.
  std::function<void()> on_drained;
  // Gets what people should know. Must not call back.
  std::function<void(const std::string& text)> warn;
};

class LogWriter {
 public:
  static constexpr std::size_t kHighWater = 1 << 20;
  static constexpr Duration kPatience = std::chrono::seconds(2);

  explicit LogWriter(LogWriterOptions options);
  // Does not wait: see when_flushed(). What has not been written is lost.
  ~LogWriter();
  LogWriter(const LogWriter&) = delete;
  LogWriter& operator=(const LogWriter&) = delete;

  // Begins a file: the thread makes it, or empties it. A file that cannot be made is left out like
  // one that cannot be written: see above. Fails only where the thread cannot be started.
  Result<std::shared_ptr<LogFile>> open(const std::string& path);
  void write(LogFile& file, std::string_view bytes);
  // Nothing follows.
  void end(LogFile& file);

  bool is_full(const LogFile& file) const;
  void stop_waiting(LogFile& file);

  // Calls `then` once, when everything that was queued is written or dropped: at once, or from the
  // writer's thread.
  void when_flushed(std::function<void()> then);

 private:
  struct State;
  static void run(State& state);

  std::shared_ptr<State> state_;  // the thread's, too
  std::thread thread_;            // runs once a file was opened
};

}  // namespace ddprun
