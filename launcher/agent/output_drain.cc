#include "launcher/agent/output_drain.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <memory>

#include "base/clock.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

// How long to wait for a reader of ddprun's output that has stopped, once ddprun is told to end.
constexpr Duration kLastWords = std::chrono::seconds(1);
// How long to wait for a disk that no longer takes the end of the log files.
constexpr Duration kLogsPatience = std::chrono::seconds(5);

}  // namespace

OutputDrain::OutputDrain(asio::io_context& io, Logger& log, LogWriter& logs, ConsoleWriter& console)
    : io_(io), log_(log), logs_(logs), console_(console), timer_(io) {}

void OutputDrain::hurry() {
  hurried_ = true;
  if (flushing_) io_.stop();
}

void OutputDrain::flush() {
  flushing_ = true;
  if (!wait_for(logs_, hurried_ ? kLastWords : kLogsPatience)) {
    log_.warning("the disk does not accept the end of the log files; it is dropped");
  }
  wait_for(console_, hurried_ ? std::optional(kLastWords) : std::nullopt);
}

// A writer that is late has no effect: by then the wait for the other one may have begun.
template <class Writer>
bool OutputDrain::wait_for(Writer& writer, std::optional<Duration> patience) {
  io_.restart();
  const auto until_flushed = asio::make_work_guard(io_);
  const auto flushed = std::make_shared<bool>(false);
  writer.when_flushed([this, waiting = std::weak_ptr(flushed)] {
    asio::post(io_, [this, waiting] {
      if (const auto still_waits = waiting.lock()) {
        *still_waits = true;
        io_.stop();
      }
    });
  });
  if (patience) give_up_after(*patience);
  io_.run();
  timer_.cancel();
  return *flushed;
}

void OutputDrain::give_up_after(Duration patience) {
  timer_.expires_after(patience);
  timer_.async_wait([this](error_code error) {
    if (!error) io_.stop();
  });
}

}  // namespace ddprun
