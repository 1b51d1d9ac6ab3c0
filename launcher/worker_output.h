// WorkerOutput: one output stream of one worker on its way to the console and to a log file.
//
// Reads the worker's pipe, cuts it into whole lines, puts the prefix in front, hands them to the
// ConsoleWriter, and keeps the last lines for the report on a failure. While the console is full it
// does not read, so that the worker waits. One owner thread, that of the io_context.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/console_writer.h"
#include "launcher/core/interrupt_tracebacks.h"
#include "launcher/core/line_splitter.h"
#include "launcher/core/stderr_tail.h"

namespace ddprun {

struct WorkerOutputOptions {
  ConsoleStream stream = ConsoleStream::kOut;
  bool is_shown = true;  // on the console
  std::string prefix;    // in front of each line there
  UniqueFd file;         // gets the bytes as they are, where valid
  // Of what is shown of a stderr.
  std::optional<TracebackFilter> tracebacks = std::nullopt;
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  WorkerOutput(boost::asio::io_context& io, ConsoleWriter& console, UniqueFd pipe,
               WorkerOutputOptions options);

  // Begins to read. Call once; the object then lives, held by the read that waits, until the pipe is
  // closed.
  void start();
  // The console has room again.
  void resume();
  // Takes what is in the pipe now, without waiting, and no more: whoever still writes must not keep
  // the caller. After the end of all writers that is everything, an unfinished line included.
  void drain();
  // Writes the unfinished last line and closes the pipe.
  void finish();

  // The last lines of a stderr, without their ends, for the report; of a stdout: none.
  std::vector<std::string> tail() const { return tail_.lines(); }

 private:
  void wait();
  // One read; how many bytes it took. 0: nothing is there now, or the end, which closes the pipe.
  std::size_t read_some();
  void take(std::string_view bytes);
  void put(std::string_view piece);
  void put_lines(std::string_view lines);
  void show();

  ConsoleWriter& console_;
  boost::asio::posix::stream_descriptor pipe_;
  WorkerOutputOptions options_;
  LineSplitter splitter_;
  std::string lines_;  // with prefixes, of one read
  StderrTail tail_;
  bool waiting_ = false;
  bool paused_ = false;
};

}  // namespace ddprun
