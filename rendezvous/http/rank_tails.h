// RankTails: the browsers that follow the output of a rank. To the JobTable each is a connection,
// as that of `ddprun logs --follow` is. So the nodes are asked only while a browser reads.
//
// Bounds: kMost browsers, kOfJob of one job. A browser is sent kLines earlier lines, and then what
// its worker writes. Agents get OutputInquiries::kTurns turns of 64 KiB, then a pause of kPause.
// What a browser does not take is left out and counted: OutputEvents keeps the newest 64 KiB, and
// agents leave out what they cannot send.
//
// Owner: ServiceClients, on the io_context's thread, which makes all calls and gets all
// callbacks. No callback follows close().
#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/membership/core/output_inquiries.h"

namespace ddprun {

struct RankTailsEvents {
  std::function<AgentConnectionId()> next_id;
  std::function<void(AgentConnectionId, const UserRequest&)> ask;
  std::function<void(AgentConnectionId)> wants_more;  // the browser has taken all
  std::function<void(AgentConnectionId)> ended;       // no browser follows this
};

class RankTails {
 public:
  static constexpr std::size_t kMost = 32;
  // Leaves inquiries of a job to commands.
  static constexpr std::size_t kOfJob = OutputInquiries::kOfJob - 2;
  static constexpr int kLines = 200;
  static constexpr Duration kPause = std::chrono::seconds(1);

  // REQUIRES: io outlives this object.
  RankTails(boost::asio::io_context& io, RankTailsEvents events);
  ~RankTails();
  RankTails(const RankTails&) = delete;
  RankTails& operator=(const RankTails&) = delete;

  // Returns the output of this rank as events for one browser. They end with the reason if there is
  // no output, or too many browsers follow it. by: who asks, for people.
  std::shared_ptr<HttpFeed> open(const std::string& job, Rank rank, const std::string& by);

  bool contains(AgentConnectionId id) const;
  // Takes what the table answers. is_last: no answer follows. After the last one the browser is not
  // counted any more, and `ended` is called. REQUIRES: contains(id).
  void take(AgentConnectionId id, const ServiceMessage& message, bool is_last);
  // Forgets all.
  void close();

 private:
  class Tail;
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
