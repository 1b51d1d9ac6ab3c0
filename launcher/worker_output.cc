#include "launcher/worker_output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <utility>

namespace ddprun {

using boost::system::error_code;

namespace {
constexpr std::size_t kReadBytes = 64 * 1024;
}  // namespace

WorkerOutput::WorkerOutput(boost::asio::io_context& io, ConsoleWriter& console, UniqueFd pipe,
                           WorkerOutputOptions options)
    : console_(console), pipe_(io, pipe.release()), options_(std::move(options)) {
  pipe_.non_blocking(true);
}

void WorkerOutput::start() { wait(); }

void WorkerOutput::resume() {
  if (std::exchange(paused_, false)) wait();
}

void WorkerOutput::wait() {
  if (waiting_ || !pipe_.is_open()) return;
  waiting_ = true;
  pipe_.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                   [self = shared_from_this()](error_code error) {
                     self->waiting_ = false;
                     if (error || !self->pipe_.is_open()) return;
                     // A bounded turn: a worker that writes without end must not starve the others.
                     for (int turn = 0; turn < 4 && self->read_some() > 0; ++turn) {
                     }
                     if (!self->pipe_.is_open()) return;
                     if (self->console_.is_full()) {
                       self->paused_ = true;
                     } else {
                       self->wait();
                     }
                   });
}

std::size_t WorkerOutput::read_some() {
  if (!pipe_.is_open()) return 0;
  static thread_local std::array<char, kReadBytes> buffer;
  ssize_t size = 0;
  while ((size = ::read(pipe_.native_handle(), buffer.data(), buffer.size())) < 0 &&
         errno == EINTR) {
  }
  if (size < 0) return 0;
  if (size == 0) {
    finish();
    return 0;
  }
  take(std::string_view(buffer.data(), static_cast<std::size_t>(size)));
  return static_cast<std::size_t>(size);
}

void WorkerOutput::drain() {
  int there = 0;
  if (!pipe_.is_open() || ::ioctl(pipe_.native_handle(), FIONREAD, &there) != 0) return;
  for (std::size_t left = static_cast<std::size_t>(there); left > 0;) {
    const std::size_t taken = read_some();
    if (taken == 0) return;
    left -= std::min(left, taken);
  }
  read_some();  // the end, where all writers have gone
}

void WorkerOutput::finish() {
  if (!pipe_.is_open()) return;
  error_code ignored;
  pipe_.close(ignored);
  lines_.clear();
  // With an end: the next line of somebody else begins at its beginning.
  splitter_.flush([this](std::string_view piece) { put(std::string(piece) + '\n'); });
  if (options_.tracebacks) put_lines(options_.tracebacks->finish());
  show();
}

void WorkerOutput::take(std::string_view bytes) {
  if (options_.file.valid()) {
    // A full disk must not stop a worker: what does not fit is missing in the file only.
    [[maybe_unused]] const ssize_t written =
        ::write(options_.file.get(), bytes.data(), bytes.size());
  }
  lines_.clear();
  splitter_.feed(bytes, [this](std::string_view piece) { put(piece); });
  show();
}

void WorkerOutput::put(std::string_view piece) {
  if (options_.stream == ConsoleStream::kErr) tail_.add(piece);
  if (options_.tracebacks && options_.tracebacks->is_active()) {
    return put_lines(options_.tracebacks->feed(piece));
  }
  lines_ += options_.prefix;
  lines_ += piece;
}

void WorkerOutput::put_lines(std::string_view lines) {
  while (!lines.empty()) {
    const std::size_t size = std::min(lines.find('\n'), lines.size() - 1) + 1;
    lines_ += options_.prefix;
    lines_ += lines.substr(0, size);
    lines.remove_prefix(size);
  }
}

void WorkerOutput::show() {
  if (options_.is_shown && !lines_.empty()) console_.write(options_.stream, lines_);
}

}  // namespace ddprun
