#include "rendezvous/service/agent_sessions.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/service/server.h"

namespace ddprun {

void AgentSessions::adopt(const SessionPtr& session, const AgentMessage& message) {
  session->on_sent = [this, id = session->id](const Result<std::size_t>& sent) {
    on_sent(id, sent);
  };
  sessions_[session->id] = session;
  const UserRequest* request = std::get_if<UserRequest>(&message);
  if (request && request->follow) enable_keepalive(session->wire->socket().native_handle());
  events_.message(session, message);
  take_frames(session);
}

SessionPtr AgentSessions::find(AgentConnectionId id) const {
  const auto found = sessions_.find(id);
  return found == sessions_.end() || found->second->close_when_sent ? nullptr : found->second;
}

std::vector<AgentConnectionId> AgentSessions::ids() const {
  std::vector<AgentConnectionId> all;
  for (const auto& [id, session] : sessions_) all.push_back(id);
  return all;
}

bool AgentSessions::has_sent_all(AgentConnectionId id) const {
  const auto found = sessions_.find(id);
  return found != sessions_.end() && found->second->has_sent_all();
}

bool AgentSessions::has_sent_all() const {
  return std::ranges::all_of(sessions_,
                             [](const auto& entry) { return entry.second->has_sent_all(); });
}

void AgentSessions::close() {
  for (const auto& [id, session] : sessions_) session->wire->close();
  sessions_.clear();
}

void AgentSessions::read(const SessionPtr& session) {
  session->wire->read([self = shared_from_this(), session](const Result<std::string_view>& bytes) {
    if (!self->sessions_.contains(session->id)) return;
    if (bytes) return self->take(session, *bytes);
    const bool is_peers_fault = bytes.error().kind == ErrorKind::kProtocol;
    self->drop(session, is_peers_fault ? bytes.error().message() : "");
  });
}

void AgentSessions::take(const SessionPtr& session, std::string_view bytes) {
  if (is_draining_ || session->close_when_sent) return read(session);  // ignores the bytes
  counters_.bytes_received += bytes.size();
  session->frames.append(bytes);
  take_frames(session);
}

void AgentSessions::take_frames(const SessionPtr& session) {
  while (sessions_.contains(session->id) && !session->close_when_sent) {
    const auto frame = session->frames.next();
    if (!frame) return drop(session, frame.error().message());
    if (!*frame) break;
    if (const Result<void> taken = take_frame(session, **frame); !taken) {
      return drop(session, taken.error().message());
    }
  }
  if (sessions_.contains(session->id)) read(session);
}

Result<void> AgentSessions::take_frame(const SessionPtr& session, std::string_view frame) {
  const Result<AgentMessage> message = decode<AgentMessage>(frame);
  if (!message) {
    // A peer of a later version may send messages that this version does not know.
    const bool is_later = message.error().kind == ErrorKind::kUnsupported;
    if (is_later && events_.has_agent(session->id)) return {};
    return message.error();
  }
  if (std::holds_alternative<UserRequest>(*message) && !events_.has_agent(session->id)) {
    return Error{.kind = ErrorKind::kProtocol, .cause = "only agents may send several requests"};
  }
  events_.message(session, *message);
  return {};
}

bool AgentSessions::say(AgentConnectionId id, const ServiceMessage& message) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return false;
  const SessionPtr session = found->second;
  if (const Result<void> said = session->say(message); !said) {
    drop(session, said.error().message());
  } else if (session->unsent_bytes() > RendezvousServer::kMaxUnsentBytes) {
    drop(session, "it does not read its messages");
  } else {
    flush_soon(session);
  }
  return true;
}

void AgentSessions::close_when_sent(AgentConnectionId id) {
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  found->second->close_when_sent = true;
  flush_soon(found->second);
}

void AgentSessions::flush_soon(const SessionPtr& session) {
  if (!std::exchange(session->is_unflushed, true)) unflushed_.push_back(session);
}

void AgentSessions::flush() {
  for (const SessionPtr& session : std::exchange(unflushed_, {})) {
    session->is_unflushed = false;
    if (sessions_.contains(session->id)) session->flush();
  }
}

void AgentSessions::on_sent(AgentConnectionId id, const Result<std::size_t>& sent) {
  counters_.bytes_sent += sent ? *sent : 0;
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  if (!sent || found->second->close_when_sent) return drop(found->second, "");
  events_.sent(id);
}

// Closes the session. `why` becomes a warning. It is empty if the peer has disconnected, or has
// got its last message. Takes the session by value: it may be the map's own pointer, which is
// erased.
void AgentSessions::drop(SessionPtr session, const std::string& why) {
  if (!why.empty()) session->warn(log_, why);
  session->wire->close();
  sessions_.erase(session->id);
  events_.gone(session->id);
}

}  // namespace ddprun
