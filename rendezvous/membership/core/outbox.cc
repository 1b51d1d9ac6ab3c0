#include "rendezvous/membership/core/outbox.h"

#include <algorithm>

namespace ddprun {

std::optional<Outbox::Send> Outbox::put(Send send) {
  const bool passes_on = std::holds_alternative<ForwardSignal>(send.message);
  const auto before = waiting_.find(send.connection);
  if (is_held_ && std::holds_alternative<HeartbeatAck>(send.message)) return std::nullopt;
  // A signal for workers must not overtake the directive that starts them.
  if (!is_held_ && send.after <= durable_ && !(passes_on && before != waiting_.end())) return send;
  std::deque<Send>& waiting = waiting_[send.connection];
  const auto count = [&](auto is_one) {
    return static_cast<std::size_t>(std::ranges::count_if(waiting, is_one));
  };
  const auto is_passed_on = [](const Send& one) {
    return std::holds_alternative<ForwardSignal>(one.message);
  };
  if (passes_on) {
    if (count(is_passed_on) >= kPassOns) return std::nullopt;
  } else if (directive_of(send.message)) {
    const auto last = std::find_if_not(waiting.rbegin(), waiting.rend(), is_passed_on);
    if (last != waiting.rend() && directive_of(last->message)) {
      *last = std::move(send);
      return std::nullopt;
    }
  } else if (count([](const Send& one) { return std::holds_alternative<Answer>(one.message); }) >=
             kAnswers) {
    return std::nullopt;
  }
  waiting.push_back(std::move(send));
  return std::nullopt;
}

std::vector<Outbox::Send> Outbox::take_durable(std::uint64_t number) {
  durable_ = number;
  std::vector<Send> due;
  if (is_held_) return due;
  for (auto& [connection, waiting] : waiting_) {
    while (!waiting.empty() && waiting.front().after <= durable_) {
      due.push_back(std::move(waiting.front()));
      waiting.pop_front();
    }
  }
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
  return due;
}

}  // namespace ddprun
