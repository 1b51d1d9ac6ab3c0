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
  is_running_ = true;
  is_paused_ = false;
  watch_.begin(workers, BootClock::now());
  wait();
}

void HangMonitor::end() {
  timer_.cancel();
  is_running_ = false;
  is_looking_ = false;
  drop_stacks("the workers are being ended");
  inspector_.forget();
}

void HangMonitor::pause() {
  is_paused_ = true;
  timer_.cancel();
}

void HangMonitor::resume() {
  is_paused_ = false;
  if (!stacks_done_) wait();
}

void HangMonitor::wait() {
  if (!is_on_ || is_paused_) return;
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
  drop_stacks("the agent looks for the reason of a hang now");
  is_looking_ = true;
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
                       if (generation == generation_) is_looking_ = false;
                       events_.seen({.generation = generation, .snapshots = seen});
                     });
                   });
}

void HangMonitor::inspect_stacks(std::vector<WorkerSnapshot> workers, StacksDone done) {
  stacks_done_ = std::move(done);
  if (!is_running_) return drop_stacks("no workers run now");
  if (is_looking_) return drop_stacks("the agent looks for the reason of a hang now");
  timer_.cancel();
  const auto take = [this, number = ++stacks_](std::vector<WorkerSnapshot> seen) {
    boost::asio::post(io_, [this, number, seen = std::move(seen)] {
      if (number != stacks_ || !stacks_done_) return;
      wait();
      std::exchange(stacks_done_, nullptr)(seen);
    });
  };
  inspector_.begin(std::move(workers), take, WorkerInspector::Stacks::kOfAll);
}

// Ends an inspect_stacks() that is in progress.
void HangMonitor::drop_stacks(const char* why) {
  if (!stacks_done_) return;
  ++stacks_;
  if (!is_looking_) inspector_.forget();
  boost::asio::post(io_, [done = std::exchange(stacks_done_, nullptr), why] {
    done(Error{.kind = ErrorKind::kStopped, .cause = why});
  });
}

}  // namespace ddprun
