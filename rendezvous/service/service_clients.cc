#include "rendezvous/service/service_clients.h"

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <utility>

namespace ddprun {

ServiceClients::ServiceClients(boost::asio::io_context& io, LimitedLog& log,
                               ServiceCounters& counters, const ServiceOptions& options,
                               UniqueFd listener, ServiceClientsEvents events)
    : io_(io),
      events_(std::move(events)),
      sessions_(std::make_shared<AgentSessions>(
          log, counters,
          AgentSessionsEvents{.message = events_.message,
                              .has_agent = events_.has_agent,
                              .sent = [this](AgentConnectionId id) { sent(id); },
                              .gone = events_.gone})),
      pending_(PendingConnections::make(
          io, log, counters, options.hello_timeout, options.handshake_turns,
          PendingConnectionsEvents{
              .agent = [this](const SessionPtr& session,
                              const AgentMessage& message) { sessions_->adopt(session, message); },
              .http = events_.http,
              .is_own = events_.is_own,
              .sent = events_.sent})),
      locals_(io),
      page_requests_(io, {.wants_more = events_.has_room,
                          .ended = [this](AgentConnectionId id) { gone_soon(id); }}),
      tails_(io, {.next_id = [this] { return next_id(); },
                  .ask = events_.follows,
                  .wants_more = events_.has_room,
                  .ended = [this](AgentConnectionId id) { gone_soon(id); }}) {
  if (!listener.valid()) return;
  acceptor_.emplace(
      io, std::move(listener),
      TcpAcceptorEvents{.client =
                            [this](boost::asio::ip::tcp::socket socket, const SocketAddress& peer) {
                              pending_->welcome(std::move(socket), peer, next_id());
                            },
                        .cannot_accept = [&log](const std::string& why) { log.warning(why); }});
}

bool ServiceClients::start() {
  if (acceptor_) acceptor_->open();
  return acceptor_.has_value();
}

void ServiceClients::drain() {
  pending_->drain();
  sessions_->drain();
  acceptor_.reset();
}

void ServiceClients::close() {
  is_closed_ = true;
  acceptor_.reset();
  pending_->close();
  sessions_->close();
  page_requests_.close();
  tails_.close();
  locals_.clear();
}

AgentConnectionId ServiceClients::attach(std::function<void(const ServiceMessage&)> deliver,
                                         std::function<RankReport()> ranks) {
  const AgentConnectionId id = next_id();
  locals_.add(id, std::move(deliver), std::move(ranks));
  return id;
}

std::optional<AgentConnectionId> ServiceClients::begin_page(bool is_look,
                                                            const HttpFinish& finish) {
  const AgentConnectionId id = next_id();
  if (!page_requests_.begin(id, is_look, finish)) return std::nullopt;
  return id;
}

JobTable::Origin ServiceClients::origin_of(AgentConnectionId id) const {
  const SessionPtr session = sessions_->find(id);
  if (!session) {
    return {
        .connection = id, .local = locals_.contains(id), .service_address = {}, .peer_address = {}};
  }
  return {.connection = id,
          .local = false,
          .service_address = session->service_address,
          .peer_address = session->peer_host,
          .user = session->user};
}

void ServiceClients::deliver(AgentConnectionId id, ServiceMessage message, bool is_last) {
  if (locals_.contains(id)) {
    locals_.deliver(id, std::move(message));
  } else if (sessions_->say(id, message)) {
    if (is_last) sessions_->close_when_sent(id);
  } else if (page_requests_.contains(id)) {
    page_requests_.take(id, message);
  } else if (tails_.contains(id)) {
    tails_.take(id, message, is_last);
  }
}

bool ServiceClients::has_sent_all(AgentConnectionId id) const {
  return sessions_->has_sent_all(id) || page_requests_.contains(id) || tails_.contains(id);
}

void ServiceClients::sent(AgentConnectionId id) {
  events_.has_room(id);
  events_.sent();
}

// Reports the end later, because the owner may be in the middle of an event.
void ServiceClients::gone_soon(AgentConnectionId id) {
  boost::asio::post(io_, [self = shared_from_this(), id] {
    if (!self->is_closed_) self->events_.gone(id);
  });
}

}  // namespace ddprun
