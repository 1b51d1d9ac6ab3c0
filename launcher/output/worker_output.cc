#include "launcher/output/worker_output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "base/terminal_text.h"
#include "launcher/process/pseudo_terminal.h"

namespace ddprun {

using boost::system::error_code;

namespace {
// The capacity of a worker's pipe: a worker that waits for room is woken once for all of it. A turn
// is one read, so that a worker that writes without end does not starve the others.
constexpr std::size_t kReadBytes = 256 * 1024;
// Each read returns at most 4 KiB, which is what the kernel buffers for one terminal.
constexpr int kMostTerminalReads = 64;
}  // namespace

WorkerOutput::WorkerOutput(boost::asio::io_context& io, ConsoleWriter& console, LogWriter* logs,
                           UniqueFd input, WorkerOutputOptions options)
    : console_(console),
      logs_(logs),
      input_(io, input.release()),
      log_patience_(io),
      options_(std::move(options)) {
  input_.non_blocking(true);
}

void WorkerOutput::start() { wait(); }

void WorkerOutput::resume() {
  if (!std::exchange(paused_, false)) return;
  log_patience_.cancel();
  if (!must_wait()) wait();
}

void WorkerOutput::wait() {
  if (waiting_ || !input_.is_open()) return;
  waiting_ = true;
  input_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                    [self = shared_from_this()](error_code error) {
                      self->waiting_ = false;
                      if (!error && self->input_.is_open()) self->take_turn();
                    });
}

void WorkerOutput::take_turn() {
  const std::size_t taken = read_some();
  if (!input_.is_open()) return;
  if (taken < kReadBytes) show_rest();  // the worker pauses, or is slower than the agent
  if (!must_wait()) wait();
}

// Returns true if the console or the log file is full. resume() is called when there is room
// again. For the log file, it is also called when the time limit has passed.
bool WorkerOutput::must_wait() {
  const bool log_is_full = options_.log && logs_->is_full(*options_.log);
  if (!log_is_full && !console_.is_full()) return false;
  paused_ = true;
  if (!log_is_full) return true;
  log_patience_.expires_after(LogWriter::kPatience);
  log_patience_.async_wait([self = shared_from_this()](error_code error) {
    if (error || !self->paused_) return;
    self->logs_->stop_waiting(*self->options_.log);
    self->resume();
  });
  return true;
}

std::size_t WorkerOutput::read_some() {
  if (!input_.is_open()) return 0;
  // Not within the thread's own memory, which is cleared at the start of each thread.
  thread_local const auto buffer = std::make_unique_for_overwrite<char[]>(kReadBytes);
  ssize_t size = 0;
  while ((size = ::read(input_.native_handle(), buffer.get(), kReadBytes)) < 0 && errno == EINTR) {
  }
  // A terminal that no process has open any more gives EIO.
  if (size == 0 || (size < 0 && errno == EIO)) {
    finish();
    return 0;
  }
  if (size < 0) return 0;
  take(std::string_view(buffer.get(), static_cast<std::size_t>(size)));
  return static_cast<std::size_t>(size);
}

void WorkerOutput::drain() {
  if (!input_.is_open()) return;
  int there = 0;
  if (options_.is_terminal || ::ioctl(input_.native_handle(), FIONREAD, &there) != 0) {
    // FIONREAD does not count what is still on its way through a terminal.
    for (int i = 0; i < kMostTerminalReads && read_some() > 0; ++i) {
    }
    return;
  }
  for (std::size_t left = static_cast<std::size_t>(there); left > 0;) {
    const std::size_t taken = read_some();
    if (taken == 0) return;
    left -= std::min(left, taken);
  }
  read_some();  // reads the end of file, if all writers have gone
}

void WorkerOutput::finish() {
  if (!input_.is_open()) return;
  error_code ignored;
  input_.close(ignored);
  log_patience_.cancel();
  if (options_.keeps_tail) tail_.finish();
  if (options_.log) logs_->end(*options_.log);
  if (!options_.is_shown) return;
  splitter_.flush([this](std::string_view piece, PieceEnd end) { show(piece, end); });
  if (options_.tracebacks) {
    if (const std::string held = options_.tracebacks->finish(); !held.empty()) {
      pass(held, PieceEnd::kLines);
    }
  }
  console_.finish(options_.stream, options_.source);
}

void WorkerOutput::resize_terminal(ScreenSize size) {
  if (input_.is_open()) ddprun::resize_terminal(input_.native_handle(), size);
}

void WorkerOutput::take(std::string_view bytes) {
  if (options_.log) logs_->write(*options_.log, bytes);
  if (options_.keeps_tail) tail_.add(bytes);
  if (options_.recent) options_.recent->add(bytes);
  if (!options_.is_shown) return;
  splitter_.feed(bytes, [this](std::string_view piece, PieceEnd end) { show(piece, end); });
}

// Shows a piece. Only whole lines go to the traceback filter: a bar, or a piece of an endless
// line, is not part of a traceback.
void WorkerOutput::show(std::string_view piece, PieceEnd end) {
  const bool is_filtered =
      options_.tracebacks && options_.tracebacks->is_active() && end == PieceEnd::kLines;
  if (!is_filtered) return pass(piece, end);
  if (const std::string lines = options_.tracebacks->feed(piece); !lines.empty()) {
    pass(lines, PieceEnd::kLines);
  }
}

void WorkerOutput::pass(std::string_view piece, PieceEnd end) {
  if (options_.drops_cursor_moves) {
    const std::string kept = without_cursor_moves(piece);
    if (!kept.empty()) console_.write(options_.stream, options_.source, kept, end);
    return;
  }
  if (!options_.wrap) return console_.write(options_.stream, options_.source, piece, end);
  std::string lines;
  while (!piece.empty()) {
    const std::size_t newline = piece.find('\n');
    std::string_view line = piece.substr(0, newline);
    piece.remove_prefix(std::min(line.size() + 1, piece.size()));
    line.remove_prefix(std::min(line.find_first_not_of('\r'), line.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty() && end == PieceEnd::kReturn) continue;
    lines += options_.wrap(line, end == PieceEnd::kCut && input_.is_open());
  }
  console_.write(options_.stream, options_.source, lines, PieceEnd::kLines);
}

void WorkerOutput::show_rest() {
  const std::string_view rest = splitter_.rest();
  if (rest.empty() || !options_.is_shown || options_.wrap) return;
  if (console_.is_live()) return console_.show_rest(options_.source, rest);
  if (!options_.passes_rest && !splitter_.rest_is_update()) return;
  show(rest, PieceEnd::kCut);
  splitter_.drop_rest();
}

}  // namespace ddprun
