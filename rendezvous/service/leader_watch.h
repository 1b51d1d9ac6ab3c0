// LeaderWatch: notices at once that the process of the leading service is gone.
//
// It holds a connection to the leader's port. If that breaks, it connects again. A connection that
// is refused then means that no process listens there. It sends a GET of /healthz now and then,
// because a service closes silent connections.
//
// One thread, which runs the io_context, makes all calls and does all work. After the destructor
// nothing is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "base/host_port.h"

namespace ddprun {

class LeaderWatch {
 public:
  static constexpr Duration kRetryPause = std::chrono::milliseconds(500);
  static constexpr Duration kAskPause = std::chrono::seconds(4);  // below HttpLimits::patience

  // gone: called at most once.
  LeaderWatch(boost::asio::io_context& io, const HostPort& leader, std::function<void()> gone);
  ~LeaderWatch();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
