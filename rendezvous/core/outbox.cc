#include "rendezvous/core/outbox.h"

namespace ddprun {

std::optional<Outbox::Send> Outbox::put(Send send) {
  if (send.after <= safe_) return send;
  std::deque<Send>& waiting = waiting_[send.connection];
  const bool replaces =
      !waiting.empty() && !std::holds_alternative<Welcome>(waiting.back().message);
  if (replaces) waiting.pop_back();
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
