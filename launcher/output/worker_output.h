// WorkerOutput: one output stream of one worker on its way to the console and to a log file.
//
// Reads the worker's pipe or terminal. The log file gets the bytes as they are; the console whole
// lines, or what LineSplitter makes of others; the last lines are kept for the report on a failure.
// While the console is full it does not read, so that the worker waits; nor, for a while, when the log
// file is. One owner thread, that of the io_context.
#pragma once

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/unique_fd.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/core/interrupt_tracebacks.h"
#include "launcher/output/core/line_splitter.h"
#include "launcher/output/core/recent_output.h"
#include "launcher/output/core/stderr_tail.h"
#include "launcher/output/log_writer.h"

namespace ddprun {

struct WorkerOutputOptions {
  ConsoleStream stream = ConsoleStream::kOut;
  bool is_shown = true;     // on the console
  bool keeps_tail = false;  // for the report
  bool is_terminal = false;
  // An unfinished line is passed on as soon as the worker pauses: nobody else writes there, or people
  // look at it. An update of a progress bar always is.
  bool passes_rest = false;
  // The console is a terminal that others write to, too, without rows of their own (LiveScreen).
  bool drops_cursor_moves = false;
  ConsoleSource source;
  // Makes of a line, without its end, what the console gets instead; with its end. `cut`: the line goes
  // on in the next one. Empty: the line as it is.
  std::function<std::string(std::string_view line, bool cut)> wrap;
  std::shared_ptr<LogFile> log;  // null: none
  RecentOutput* recent =
      nullptr;  // gets the bytes as they are, where it is not null; outlives this
  // Where a worker's stderr is shown.
  std::optional<TracebackFilter> tracebacks = std::nullopt;
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  // input: our end of the worker's pipe or terminal. logs: not null where options have a log.
  WorkerOutput(boost::asio::io_context& io, ConsoleWriter& console, LogWriter* logs, UniqueFd input,
               WorkerOutputOptions options);

  // Begins to read. Call once; the object then lives, held by the read that waits, until the pipe is
  // closed.
  void start();
  // The console or the log file has room again.
  void resume();
  // Takes what is in the pipe now, without waiting, and no more: whoever still writes must not keep
  // the caller. After the end of all writers that is everything, an unfinished line included.
  void drain();
  // Writes the unfinished last line and closes the pipe.
  void finish();
  // REQUIRES: the input is a terminal.
  void resize_terminal(ScreenSize size);

  // The last lines, without their ends, for the report; where none are kept: none.
  std::vector<std::string> tail() const { return tail_.lines(); }

 private:
  void wait();
  void take_turn();
  bool must_wait();
  // One read; how many bytes it took. 0: nothing is there now, or the end, which closes the pipe.
  std::size_t read_some();
  void take(std::string_view bytes);
  void show(std::string_view piece, PieceEnd end);
  void pass(std::string_view piece, PieceEnd end);
  void show_rest();

  ConsoleWriter& console_;
  LogWriter* logs_;
  boost::asio::posix::stream_descriptor input_;
  boost::asio::steady_timer log_patience_;
  WorkerOutputOptions options_;
  LineSplitter splitter_;
  StderrTail tail_;
  bool waiting_ = false;
  bool paused_ = false;
};

}  // namespace ddprun
