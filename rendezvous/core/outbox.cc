#include "rendezvous/core/outbox.h"

#include <algorithm>

namespace ddprun {

std::optional<Outbox::Send> Outbox::put(Send send) {
  if (send.after <= safe_) return send;
  std::deque<Send>& waiting = waiting_[send.connection];
  if (!directive_of(send.message)) {
    const auto answers = std::count_if(waiting.begin(), waiting.end(), [](const Send& one) {
      return std::holds_alternative<Answer>(one.message);
    });
    if (static_cast<std::size_t>(answers) >= kAnswers) return std::nullopt;
  } else if (!waiting.empty() && directive_of(waiting.back().message)) {
    waiting.pop_back();
  }
  waiting.push_back(std::move(send));
  return std::nullopt;
}

std::vector<Outbox::Send> Outbox::take_safe(std::uint64_t number) {
  safe_ = number;
  std::vector<Send> due;
  for (auto& [connection, waiting] : waiting_) {
    while (!waiting.empty() && waiting.front().after <= safe_) {
      due.push_back(std::move(waiting.front()));
      waiting.pop_front();
    }
  }
  std::erase_if(waiting_, [](const auto& entry) { return entry.second.empty(); });
  return due;
}

}  // namespace ddprun
