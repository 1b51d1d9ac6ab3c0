// Outbox: holds back the messages of a service with a disk until the changes that they report
// are durable.
//
// Owner: RendezvousServer, on its one thread. Pure.
//
// For each connection these messages may wait:
//   - the Welcome;
//   - the newest directive, which replaces the one before it, because a directive is complete in
//     itself. An answer between two directives keeps both;
//   - at most kAnswers answers to requests. While the disk does not answer, further requests get no
//     answer;
//   - at most kPassOns signals for workers. They wait after the directive that starts the workers.
//
// A service that may not answer now holds everything back. Acknowledgements of heartbeats are then
// dropped, because each says that the service serves at that moment.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <vector>

#include "rendezvous/membership/core/job_table.h"

namespace ddprun {

class Outbox {
 public:
  using Send = ServiceOutput::Send;
  static constexpr std::size_t kAnswers = 16;
  static constexpr std::size_t kPassOns = 16;

  // Returns the message if it may be sent at once; nullopt: it waits, or a limit has dropped
  // it.
  std::optional<Send> put(Send send);
  // Marks every change up to that number as durable. Returns the messages that may be sent
  // now, in order for each connection.
  std::vector<Send> take_durable(std::uint64_t number);
  // Holds back all messages, or ends that: call take_durable() then.
  void hold(bool is_held) { is_held_ = is_held; }
  // Drops the waiting messages of a connection: it is closed, or their changes will never be
  // durable.
  void forget(AgentConnectionId connection) { waiting_.erase(connection); }

  // Returns the number up to which every change is durable; 0 at first.
  std::uint64_t durable() const { return durable_; }

 private:
  std::uint64_t durable_ = 0;
  bool is_held_ = false;
  std::map<AgentConnectionId, std::deque<Send>> waiting_;
};

}  // namespace ddprun
