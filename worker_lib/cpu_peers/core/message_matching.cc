#include "worker_lib/cpu_peers/core/message_matching.h"

namespace ddprun {

std::optional<MessageId> MessageMatching::post(ReceiveId receive, std::optional<int> source,
                                               int tag) {
  const auto entry = tags_.try_emplace(tag).first;
  Tag& at = entry->second;
  auto from = at.waiting.end();
  if (source) {
    from = at.waiting.find(*source);
  } else if (!at.waiting.empty()) {
    from = at.waiting.upper_bound(at.last_taken);
    if (from == at.waiting.end()) from = at.waiting.begin();
    at.last_taken = from->first;
  }
  if (from != at.waiting.end()) {
    const MessageId message = from->second.front();
    from->second.pop_front();
    if (from->second.empty()) at.waiting.erase(from);
    forget_if_empty(entry);
    return message;
  }
  (source ? at.from[*source] : at.from_any).push_back({next_turn_++, receive});
  return std::nullopt;
}

std::optional<ReceiveId> MessageMatching::arrive(MessageId message, int source, int tag) {
  const auto entry = tags_.try_emplace(tag).first;
  Tag& at = entry->second;
  const auto asked = at.from.find(source);
  std::deque<Posted>* first = asked == at.from.end() ? nullptr : &asked->second;
  if (!at.from_any.empty() && (!first || at.from_any.front().turn < first->front().turn)) {
    first = &at.from_any;
    at.last_taken = source;
  }
  if (!first) {
    at.waiting[source].push_back(message);
    return std::nullopt;
  }
  const ReceiveId receive = first->front().receive;
  first->pop_front();
  if (first != &at.from_any && first->empty()) at.from.erase(asked);
  forget_if_empty(entry);
  return receive;
}

// Forgets a tag with nothing waiting, because a program may use any number of tags, one after
// the other. The turn among sources is forgotten too: no receive waits then.
void MessageMatching::forget_if_empty(std::map<int, Tag>::iterator tag) {
  const Tag& at = tag->second;
  if (at.from.empty() && at.from_any.empty() && at.waiting.empty()) tags_.erase(tag);
}

bool MessageCredit::take_message(std::size_t bytes) {
  const std::size_t cost = cost_of(bytes);
  if (cost > bytes_left_) return false;
  bytes_left_ -= cost;
  return true;
}

bool MessageCredit::take_head() {
  if (heads_left_ == 0) return false;
  --heads_left_;
  return true;
}

}  // namespace ddprun
