// PageRequests: requests of the HTTP page (stop, restart, stacks, flight records) that are not
// answered yet. To the JobTable each is a connection, as that of a command is.
//
// Owner: ServiceClients, on the io_context's thread, which makes all calls and gets all
// callbacks. No callback follows the end of this object.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>

#include "base/clock.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

struct PageRequestsEvents {
  std::function<void(AgentConnectionId)> wants_more;  // the last message was not the whole answer
  std::function<void(AgentConnectionId)> ended;       // called before the page is sent
};

class PageRequests {
 public:
  // Limit of the requests at a time.
  static constexpr std::size_t kMost = 8;
  // Limit of those among them that a page makes by itself: buttons always have room.
  static constexpr std::size_t kMostLooks = kMost / 2;
  // Within this time a request is answered. Stacks come within 30 s of a node.
  static constexpr Duration kPatience = std::chrono::seconds(45);

  // REQUIRES: io outlives this object.
  PageRequests(boost::asio::io_context& io, PageRequestsEvents events);
  ~PageRequests();
  PageRequests(const PageRequests&) = delete;
  PageRequests& operator=(const PageRequests&) = delete;

  // Begins a request. is_look: a page makes it by itself. `finish` is called once with the page
  // that answers it. Returns false if as many as may be are open; `finish` then got a 503 page.
  bool begin(AgentConnectionId id, bool is_look, const HttpFinish& finish);
  bool contains(AgentConnectionId id) const { return open_.contains(id); }

  // Takes what the table answers. REQUIRES: contains(id).
  void take(AgentConnectionId id, const ServiceMessage& message);
  // Answers all that are open with this page.
  void end_all(const HttpPage& page);
  // Drops all, without an answer.
  void close();

 private:
  struct Request;
  void end(AgentConnectionId id, const HttpPage& page);

  boost::asio::io_context& io_;
  const PageRequestsEvents events_;
  std::map<AgentConnectionId, std::shared_ptr<Request>> open_;
};

}  // namespace ddprun
