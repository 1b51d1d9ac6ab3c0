#include "rendezvous/service/standby.h"

#include <utility>
#include <variant>

namespace ddprun {

bool Standby::take(const SessionPtr& session, const AgentMessage& message) {
  if (role_.leads()) return false;
  role_.look();
  const Hello* hello = std::get_if<Hello>(&message);
  const ServiceTerm served = hello && hello->assignment ? hello->assignment->term : 0;
  if (role_.has_to_wait(served) && !waiting_.contains(session->id)) {
    let_wait(session->id, message);
  } else {
    events_.send_away(session->id, role_.standby_answer());
  }
  return true;
}

// Keeps the first message of an agent until a service leads, for kElectionTime at most. If many
// agents were sent away, they would come again several times a second, and delay the election.
void Standby::let_wait(AgentConnectionId id, const AgentMessage& message) {
  if (waiting_.empty()) {
    timer_.expires_after(kElectionTime);
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      if (const auto alive = weak.lock(); alive && !error) alive->answer();
    });
  }
  waiting_.emplace(id, message);
}

void Standby::answer() {
  timer_.cancel();
  for (const auto& [id, message] : std::exchange(waiting_, {})) {
    if (!sessions_.find(id)) continue;
    if (role_.leads()) {
      events_.receive(id, message);
    } else {
      events_.send_away(id, role_.standby_answer());
    }
  }
}

}  // namespace ddprun
