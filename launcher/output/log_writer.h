// LogWriter: writes the workers' log files in a thread of its own.
//
// A full disk or a hung file server must not block the agent, which has to renew its lease. Nor
// may it kill or block workers, as their own write() to the file would. So write() only queues
// bytes.
//
// Bytes that cannot be written are dropped and counted (OutputGap). The console gets a line
// when dropping begins and when it ends. The file gets a line where bytes are missing. The
// write is retried after a second, then after longer and longer times, also if no bytes come. The
// end of a line whose beginning is missing is dropped, too, and gets a line of its own.
// What is wrong with the files of a generation is one text (LogWriterOptions::on_trouble).
//
// A disk that is only slower than the workers makes them wait. While kHighWater bytes of a file are
// queued, is_full() returns true and the caller stops reading. After kPatience without progress the
// caller should call stop_waiting(). From then on, bytes that do not fit into the queue are
// dropped, too, until the queue is empty.
//
// With a size limit, a full file is renamed to <name>.1 and replaces the previous <name>.1
// (LogRotation).
//
// Functions may be called from any thread. on_drained, warn and on_trouble are called from the
// writer's thread, but stop_waiting() and open() call the latter two on their caller's thread.
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
  // Called each time the writer's thread has taken a file's full queue to write it. Must not
  // call back.
  std::function<void()> on_drained;
  // Gets warnings for the user. Must not call back.
  std::function<void(const std::string& text)> warn;
  // Gets each time what is wrong now: files are not written, or bytes are missing in them. Empty:
  // nothing is. A file that is opened when no other one is begins anew. Must not call back.
  std::function<void(const std::string& text)> on_trouble = {};
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

  // Begins a file. The thread creates it, or truncates it if it exists. A file that cannot be
  // created is treated like one that cannot be written: see above. Fails only if the thread
  // cannot be started.
  Result<std::shared_ptr<LogFile>> open(const std::string& path);
  void write(LogFile& file, std::string_view bytes);
  // Ends the file: no write() to it follows.
  void end(LogFile& file);

  bool is_full(const LogFile& file) const;
  void stop_waiting(LogFile& file);

  // Calls `then` once, when everything that was queued has been written or dropped: at once, or
  // from the writer's thread.
  void when_flushed(std::function<void()> then);

 private:
  struct State;
  static void run(State& state);

  std::shared_ptr<State> state_;  // shared with the thread
  std::thread thread_;            // started by the first open()
};

}  // namespace ddprun
