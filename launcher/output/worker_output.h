// WorkerOutput: passes one output stream of one worker to the console and to a log file.
//
// It reads the worker's pipe or terminal. The log file gets the bytes as they are. The console
// gets whole lines, or the pieces that LineSplitter makes of unfinished ones. The last lines
// are kept for the failure report.
//
// While the console is full, the stream is not read, so that the worker waits. While the log
// file is full, the stream is not read for a limited time (LogWriter::kPatience). One owner
// thread, that of the io_context.
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
  bool keeps_tail = false;  // for the failure report
  bool is_terminal = false;
  // If true, an unfinished line is passed on as soon as the worker pauses. Set where no other
  // source writes to the console, or where people look at it. An update of a progress bar is
  // always passed on.
  bool passes_rest = false;
  // The console is a terminal that other sources write to, too, but without rows of their own
  // (LiveScreen).
  bool drops_cursor_moves = false;
  ConsoleSource source;
  // Converts a line, given without its end, to what the console gets instead, with an end.
  // `cut`: the line continues in the next call. Empty function: lines are passed on as they
  // are.
  std::function<std::string(std::string_view line, bool cut)> wrap;
  std::shared_ptr<LogFile> log;    // null: none
  RecentOutput* recent = nullptr;  // if not null, gets the bytes as they are; outlives this
  // Set where a worker's stderr is shown.
  std::optional<TracebackFilter> tracebacks = std::nullopt;
};

class WorkerOutput : public std::enable_shared_from_this<WorkerOutput> {
 public:
  // input: the agent's end of the worker's pipe or terminal. logs: not null where options have
  // a log.
  WorkerOutput(boost::asio::io_context& io, ConsoleWriter& console, LogWriter* logs, UniqueFd input,
               WorkerOutputOptions options);

  // Begins to read. Call once. The pending read then keeps the object alive until the pipe is
  // closed.
  void start();
  // Continues to read after the console or the log file has room again.
  void resume();
  // Reads what is in the pipe now, without waiting, and no more, so that a process that keeps
  // writing cannot hold up the caller. After all writers have ended, this is everything,
  // including an unfinished line.
  void drain();
  // Writes the unfinished last line and closes the pipe.
  void finish();
  // REQUIRES: the input is a terminal.
  void resize_terminal(ScreenSize size);

  // Returns the last lines, without their ends, for the failure report. Empty where none are
  // kept.
  std::vector<std::string> tail() const { return tail_.lines(); }

 private:
  void wait();
  void take_turn();
  bool must_wait();
  // Reads once and returns the number of bytes. 0: nothing is available now, or the end was
  // reached, which closes the pipe.
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
