// ServiceClients: the clients of a service, each with a number: agents and commands on TCP, agents
// in this process, requests of the HTTP page, and browsers that follow output. It accepts
// connections, and delivers a message to the client with a number, of any kind.
//
// Owner: RendezvousServer, on the io_context's thread, which makes all calls and gets all
// callbacks. No callback follows close(). All other functions may call back from within.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "rendezvous/http/core/counters.h"
#include "rendezvous/http/rank_tails.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/service/agent_sessions.h"
#include "rendezvous/service/local_agents.h"
#include "rendezvous/service/page_requests.h"
#include "rendezvous/service/pending_connections.h"

namespace ddprun {

struct ServiceClientsEvents {
  // An agent or a command has sent this on TCP.
  std::function<void(const SessionPtr& session, const AgentMessage& message)> message;
  std::function<bool(AgentConnectionId)> has_agent;  // see AgentSessionsEvents
  std::function<bool(const Hello&)> is_own;          // see PendingConnectionsEvents
  std::function<void(const TransportPtr& wire, const std::string& first_bytes)> http;
  // Reports that all messages so far have been sent to this client.
  std::function<void(AgentConnectionId)> has_room;
  // A browser asks for output, and follows it.
  std::function<void(AgentConnectionId, const UserRequest&)> follows;
  std::function<void()> sent;  // has_sent_all() may be true now
  // Reports that a client has ended, but not an agent in this process.
  std::function<void(AgentConnectionId)> gone;
};

class ServiceClients : public std::enable_shared_from_this<ServiceClients> {
 public:
  // listener: as of RendezvousServer::make(). REQUIRES: io outlives this object,
  // log and counters live until close(), and close() is called before its end.
  ServiceClients(boost::asio::io_context& io, LimitedLog& log, ServiceCounters& counters,
                 const ServiceOptions& options, UniqueFd listener, ServiceClientsEvents events);

  // Begins to accept connections. Returns false if there is no listener.
  bool start();
  // Stops listening. Reads and ignores what all on TCP say from now on.
  void drain();
  // Closes and drops all at once.
  void close();

  // The connections that have not sent a message yet, and what they have to prove.
  PendingConnections& pending() { return *pending_; }
  // Those that have.
  AgentSessions& sessions() { return *sessions_; }
  // Returns the number of the connections, on TCP.
  std::size_t connections() const { return pending_->size() + sessions_->size(); }

  // Adds an agent in this process (LocalAgents), and returns its number.
  AgentConnectionId attach(std::function<void(const ServiceMessage&)> deliver,
                           std::function<RankReport()> ranks);
  void detach(AgentConnectionId id) { locals_.remove(id); }
  const LocalAgents& locals() const { return locals_; }

  // Begins a request of the page (PageRequests), and returns its number; nullopt: it was refused,
  // and `finish` was called.
  std::optional<AgentConnectionId> begin_page(bool is_look, const HttpFinish& finish);
  // Answers all requests of the page with this one.
  void end_pages(const HttpPage& page) { page_requests_.end_all(page); }

  // Returns the output of a rank of a job for one browser (RankTails).
  std::shared_ptr<HttpFeed> follow(const std::string& job, Rank rank, const std::string& by) {
    return tails_.open(job, rank, by);
  }

  // Returns what the table has to know of the sender of a message.
  JobTable::Origin origin_of(AgentConnectionId id) const;
  // Delivers the message, on TCP by the next flush(). is_last: a client on TCP is closed then,
  // and a browser's output ends. No effect if the client has ended.
  void deliver(AgentConnectionId id, ServiceMessage message, bool is_last);
  // Sends what all on TCP were told.
  void flush() { sessions_->flush(); }
  // Returns whether the client, not an agent in this process, is there and was sent all.
  bool has_sent_all(AgentConnectionId id) const;
  // Returns whether nothing is left to be sent on TCP.
  bool has_sent_all() const { return pending_->has_sent_all() && sessions_->has_sent_all(); }

 private:
  AgentConnectionId next_id() { return AgentConnectionId(++last_id_); }
  void sent(AgentConnectionId id);
  void gone_soon(AgentConnectionId id);

  boost::asio::io_context& io_;
  const ServiceClientsEvents events_;
  std::uint64_t last_id_ = 0;
  bool is_closed_ = false;
  std::shared_ptr<AgentSessions> sessions_;
  std::shared_ptr<PendingConnections> pending_;
  LocalAgents locals_;
  PageRequests page_requests_;
  RankTails tails_;
  std::optional<TcpAcceptor> acceptor_;
};

}  // namespace ddprun
