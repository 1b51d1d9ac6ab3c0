// WorkerOutput: one output stream of one worker on its way to the console and to a log file.
//
// Reads the worker's pipe, cuts it into whole lines, puts the prefix in front, hands them to the
// ConsoleWriter, and keeps the last lines for the report on a failure. While the console is full it
// does not read, so that the worker waits. One owner thread, that of the io_context.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <deque>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/console_writer.h"
#include "launcher/core/line_splitter.h"

namespace ddprun {

struct WorkerOutputOptions {
  ConsoleStream stream = ConsoleStream::kOut;
  bool to_console = true;
  std::string prefix;  // in front of each line on the console
  UniqueFd file;       // gets the bytes as they are, where valid
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  static constexpr std::size_t kTailLines = 20;
  static constexpr std::size_t kTailLineBytes = 400;

  WorkerOutput(boost::asio::io_context& io, ConsoleWriter& console, UniqueFd pipe,
               WorkerOutputOptions options);

  void start();
  // The console has room again.
  void resume();
  // Takes what is in the pipe now, without waiting; after the end of all writers that is
  // everything.
  void drain();
  // Writes the unfinished last line and closes the pipe.
  void finish();

  std::vector<std::string> tail() const { return {tail_.begin(), tail_.end()}; }

 private:
  void wait();
  bool read_some();  // false: nothing there now, or the end
  void take(std::string_view bytes);
  void put(std::string_view piece);
  void remember(std::string_view piece);

  ConsoleWriter& console_;
  boost::asio::posix::stream_descriptor pipe_;
  WorkerOutputOptions options_;
  LineSplitter splitter_;
  std::string lines_;  // with prefixes, of one read
  std::deque<std::string> tail_;
  bool waiting_ = false;
  bool paused_ = false;
};

}  // namespace ddprun
