#include "launcher/agent/signals.h"

#include <csignal>
#include <optional>
#include <utility>

namespace ddprun {

using boost::asio::posix::stream_descriptor;
using boost::system::error_code;

AgentSignals::AgentSignals(boost::asio::io_context& io, UniqueFd guardian_alive,
                           UniqueFd keeper_alive, Events events)
    : events_(std::move(events)),
      source_(io),
      guardian_alive_(io, guardian_alive.release()),
      keeper_alive_(io, keeper_alive.release()) {}

Result<void> AgentSignals::begin(const std::vector<int>& signals) {
  std::vector<int> ours = without_ignored(signals);
  ours.push_back(SIGCHLD);
  ours.push_back(SIGWINCH);
  Result<UniqueFd> source = open_signal_source(ours);
  if (!source) return source.error();
  source_.assign(source->release());
  take();
  watch(guardian_alive_);
  watch(keeper_alive_);
  return {};
}

void AgentSignals::take() {
  source_.async_wait(stream_descriptor::wait_read, [this](error_code error) {
    if (error) return;
    bool has_child_ended = false;
    while (const std::optional<TakenSignal> signal = next_signal(source_.native_handle())) {
      if (signal->number == SIGCHLD) {
        has_child_ended = true;
      } else if (signal->number == SIGWINCH) {
        events_.resized();
      } else {
        events_.taken(*signal);
      }
    }
    if (has_child_ended) events_.child_ended();
    take();
  });
}

void AgentSignals::watch(stream_descriptor& guard) {
  guard.async_wait(stream_descriptor::wait_read, [this](error_code error) {
    if (!error && !std::exchange(is_guard_lost_, true)) events_.guard_lost();
  });
}

}  // namespace ddprun
