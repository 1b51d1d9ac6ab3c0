// AgentSessions: the connections of agents and commands, from their first message to their end. It
// cuts and decodes what they send, collects what they are sent, and closes those that break the
// protocol.
//
// Owner: ServiceClients, on the io_context's thread, which makes all calls and gets all
// callbacks. A pending read keeps this object alive, but no callback follows close(). All other
// functions may call back from within.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/result.h"
#include "rendezvous/http/core/counters.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/service/session.h"

namespace ddprun {

struct AgentSessionsEvents {
  std::function<void(const SessionPtr& session, const AgentMessage& message)> message;
  // Returns whether an agent was welcomed on this connection. Only an agent may send several
  // requests, and messages that this version does not know.
  std::function<bool(AgentConnectionId)> has_agent;
  // Reports that all messages so far have been sent.
  std::function<void(AgentConnectionId)> sent;
  // Reports that the session has ended. Not called by close().
  std::function<void(AgentConnectionId)> gone;
};

class AgentSessions : public std::enable_shared_from_this<AgentSessions> {
 public:
  // REQUIRES: log and counters outlive this object until close().
  AgentSessions(LimitedLog& log, ServiceCounters& counters, AgentSessionsEvents events)
      : log_(log), counters_(counters), events_(std::move(events)) {}

  // Takes over a connection with its first message. REQUIRES: no read is pending.
  void adopt(const SessionPtr& session, const AgentMessage& message);

  // Returns the session; null: it has ended, or is closed as soon as all is sent.
  SessionPtr find(AgentConnectionId id) const;
  std::vector<AgentConnectionId> ids() const;
  std::size_t size() const { return sessions_.size(); }
  // Returns whether the session is there and nothing is left to be sent.
  bool has_sent_all(AgentConnectionId id) const;
  bool has_sent_all() const;

  // Adds the message to what flush() sends. The session ends if it does not read its messages.
  // Returns false if the session has ended.
  bool say(AgentConnectionId id, const ServiceMessage& message);
  // Closes the session when all is sent. What it says is ignored from now on. No effect on one that
  // has ended.
  void close_when_sent(AgentConnectionId id);
  // Sends what all sessions were told in this turn of the event loop.
  void flush();

  // Reads and ignores what all say from now on.
  void drain() { is_draining_ = true; }
  // Closes all.
  void close();

 private:
  void read(const SessionPtr& session);
  void take(const SessionPtr& session, std::string_view bytes);
  void take_frames(const SessionPtr& session);
  Result<void> take_frame(const SessionPtr& session, std::string_view frame);
  void flush_soon(const SessionPtr& session);
  void on_sent(AgentConnectionId id, const Result<std::size_t>& sent);
  void drop(SessionPtr session, const std::string& why);

  LimitedLog& log_;
  ServiceCounters& counters_;
  const AgentSessionsEvents events_;
  std::map<AgentConnectionId, SessionPtr> sessions_;
  std::vector<SessionPtr> unflushed_;
  bool is_draining_ = false;
};

}  // namespace ddprun
