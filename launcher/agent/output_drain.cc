#include "launcher/agent/output_drain.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>

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
  flush_logs();
  flush_console();
}

void OutputDrain::flush_logs() {
  io_.restart();
  const auto until_flushed = asio::make_work_guard(io_);
  bool flushed = false;
  logs_.when_flushed([&] {
    asio::post(io_, [&] {
      flushed = true;
      io_.stop();
    });
  });
  give_up_after(hurried_ ? kLastWords : kLogsPatience);
  io_.run();
  timer_.cancel();
  if (!flushed) log_.warning("the disk does not accept the end of the log files; it is dropped");
}

void OutputDrain::flush_console() {
  io_.restart();
  const auto until_flushed = asio::make_work_guard(io_);
  console_.when_flushed([this] { asio::post(io_, [this] { io_.stop(); }); });
  if (hurried_) give_up_after(kLastWords);
  io_.run();
}

void OutputDrain::give_up_after(Duration patience) {
  timer_.expires_after(patience);
  timer_.async_wait([this](error_code error) {
    if (!error) io_.stop();
  });
}

}  // namespace ddprun
