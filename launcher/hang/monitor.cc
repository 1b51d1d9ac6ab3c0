#include "launcher/hang/monitor.h"

#include <boost/asio/post.hpp>
#include <utility>

namespace ddprun {

HangMonitor::HangMonitor(boost::asio::io_context& io, Duration timeout, HangMonitorEvents events)
    : io_(io),
      is_on_(timeout > Duration(0)),
      events_(std::move(events)),
      timer_(io),
      watch_(timeout) {}

void HangMonitor::begin(Generation generation, std::size_t workers) {
  generation_ = generation;
  watch_.begin(workers, BootClock::now());
  wait();
}

void HangMonitor::end() {
  timer_.cancel();
  inspector_.forget();
}

void HangMonitor::wait() {
  if (!is_on_) return;
  timer_.expires_after(watch_.period());
  timer_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    wait();
    if (watch_.look(events_.samples(), BootClock::now())) events_.hang();
    if (const std::vector<std::size_t> silent = watch_.take_silent(); !silent.empty()) {
      events_.silent(silent);
    }
  });
}

void HangMonitor::look() {
  std::vector<WorkerSnapshot> snapshots = events_.snapshots();
  if (is_on_) {
    for (WorkerSnapshot& one : snapshots) {
      const auto worker = static_cast<std::size_t>(one.local_rank.value);
      one.is_late = watch_.hangs(worker);
      if (one.flight != FlightState::kWaiting) one.waited = watch_.idle(worker);
    }
  }
  inspector_.begin(std::move(snapshots),
                   [this, generation = generation_](std::vector<WorkerSnapshot> seen) {
                     boost::asio::post(io_, [this, generation, seen = std::move(seen)] {
                       events_.seen({.generation = generation, .snapshots = seen});
                     });
                   });
}

}  // namespace ddprun
