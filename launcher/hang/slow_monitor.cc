#include "launcher/hang/slow_monitor.h"

#include <algorithm>
#include <utility>

namespace ddprun {

SlowMonitor::SlowMonitor(boost::asio::io_context& io, SlowMonitorEvents events)
    : events_(std::move(events)), timer_(io) {}

void SlowMonitor::begin(Rank first_rank, std::size_t workers, std::string node) {
  watch_.begin(first_rank, workers, std::move(node));
  is_running_ = workers > 1;
  period_ = kPeriod;
  if (is_running_) wait();
}

void SlowMonitor::end() {
  is_running_ = false;
  timer_.cancel();
}

void SlowMonitor::wait() {
  timer_.expires_after(period_);
  timer_.async_wait([this](boost::system::error_code error) {
    if (error || !is_running_) return;
    const std::vector<std::vector<StepEntry>> marks = events_.marks();
    const bool has_steps =
        std::ranges::any_of(marks, [](const auto& of_one) { return !of_one.empty(); });
    period_ = has_steps ? kPeriod : std::min(2 * period_, kLongestPeriod);
    for (const std::string& line : watch_.look(marks)) events_.warn(line);
    wait();
  });
}

}  // namespace ddprun
