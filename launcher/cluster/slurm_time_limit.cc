#include "launcher/cluster/slurm_time_limit.h"

#include <sys/eventfd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>
#include <utility>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/parse_number.h"
#include "base/seconds.h"
#include "launcher/cluster/slurm_command.h"
#include "launcher/process/command_output.h"

namespace ddprun {
namespace {

// Returns the time left by SLURM_JOB_END_TIME, in seconds since 1970. It is the limit that the job
// began with.
std::optional<Duration> left_by_environment() {
  constexpr std::int64_t kLatest = std::int64_t{1} << 33;  // the year 2242
  const char* const text = std::getenv("SLURM_JOB_END_TIME");
  const auto end = text ? parse_number<std::int64_t>(text) : std::nullopt;
  if (!end || *end < 0 || *end > kLatest) return std::nullopt;
  const std::int64_t left = *end - std::int64_t{std::time(nullptr)};
  return std::chrono::seconds(std::max<std::int64_t>(0, left));
}

}  // namespace

SlurmTimeLimit::SlurmTimeLimit(boost::asio::io_context& io, Logger& log, std::string job,
                               Duration save_before, std::function<void()> save)
    : io_(io),
      log_(log),
      job_(std::move(job)),
      save_(std::move(save)),
      end_of_time_(save_before, BootClock::now()),
      timer_(io),
      stop_(eventfd(0, EFD_CLOEXEC)) {}

void SlurmTimeLimit::begin() { go_on(); }

void SlurmTimeLimit::close() {
  timer_.cancel();
  if (!save_) return;
  save_ = nullptr;
  eventfd_write(stop_.get(), 1);
  if (thread_.joinable()) thread_.join();
}

void SlurmTimeLimit::go_on() {
  if (!save_) return;
  switch (end_of_time_.step(BootClock::now())) {
    case EndOfTime::Step::kAsk: return ask();
    case EndOfTime::Step::kSave: return save_();
    case EndOfTime::Step::kWait: break;
  }
  const std::optional<TimePoint> next = end_of_time_.next();
  if (!next) return;
  timer_.expires_after(*next - BootClock::now());
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error) go_on();
  });
}

void SlurmTimeLimit::ask() {
  if (thread_.joinable()) thread_.join();  // it has posted its answer
  const Result<void> started = start_thread(thread_, "ddprun-limit", [this, stop = stop_.get()] {
    const std::string text =
        output_of(slurm_command({"squeue", "--noheader", "--jobs=" + job_, "--format=%L"}),
                  Deadline(kSlurmPatience), Stderr::kDropped, stop)
            .text;
    boost::asio::post(io_, [this, text] { answered(text); });
  });
  if (!started) answered("");
}

void SlurmTimeLimit::answered(const std::string& text) {
  if (!save_) return;
  const std::string_view line = std::string_view(text).substr(0, text.find_first_of(" \n"));
  std::optional<Duration> left = parse_time_left(line);
  log_.debug(left ? concat("Slurm: time left of job ", job_, ": ", line)
                  : concat("squeue does not say how much time job ", job_, " has left"));
  if (!left && !end_of_time_.end()) left = left_by_environment();
  end_of_time_.answered(left, BootClock::now());
  go_on();
}

}  // namespace ddprun
