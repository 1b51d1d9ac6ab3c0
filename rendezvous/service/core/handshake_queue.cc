#include "rendezvous/service/core/handshake_queue.h"

#include "base/earlier.h"

namespace ddprun {

HandshakeQueue::Step HandshakeQueue::add(const std::string& address, AgentConnectionId client,
                                         TimePoint now, const IsHere& is_here) {
  Step step;
  if (turns_.begin(address, now)) {
    step.begin.push_back(client);
    return step;
  }
  std::deque<Waiting>& waiting = waiting_[address];
  waiting.push_back({client, now});
  if (waiting.size() > HandshakeTurns::kWaiting) {
    step.put_off.push_back(waiting.front().client);
    waiting.pop_front();
  }
  serve(step, now, is_here);
  return step;
}

HandshakeQueue::Step HandshakeQueue::complete(const std::string& address, TimePoint now,
                                              const IsHere& is_here) {
  turns_.complete(address);
  return serve(now, is_here);
}

HandshakeQueue::Step HandshakeQueue::serve(TimePoint now, const IsHere& is_here) {
  Step step;
  serve(step, now, is_here);
  return step;
}

void HandshakeQueue::serve(Step& step, TimePoint now, const IsHere& is_here) {
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    auto& [address, waiting] = *it;
    while (!waiting.empty() && serve_newest(step, address, waiting, now, is_here)) continue;
    while (!waiting.empty() && waiting.front().since + HandshakeTurns::kWait <= now) {
      step.put_off.push_back(waiting.front().client);
      waiting.pop_front();
    }
    if (waiting.empty()) {
      it = waiting_.erase(it);
      continue;
    }
    keep_earlier(step.next, turns_.free_at(address, now));
    keep_earlier(step.next, waiting.front().since + HandshakeTurns::kWait);
    ++it;
  }
}

// Returns false if the newest handshake still has to wait, because the address has no turn now.
bool HandshakeQueue::serve_newest(Step& step, const std::string& address,
                                  std::deque<Waiting>& waiting, TimePoint now,
                                  const IsHere& is_here) {
  const AgentConnectionId client = waiting.back().client;
  const bool is_gone = !is_here(client);
  if (!is_gone && !turns_.begin(address, now)) return false;
  waiting.pop_back();
  (is_gone ? step.gone : step.begin).push_back(client);
  return true;
}

}  // namespace ddprun
