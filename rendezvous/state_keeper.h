// StateKeeper: writes a service's changes to its StateDirectory while the service goes on.
//
// A write waits for the disk: a fraction of a millisecond on a good one, seconds on one that is
// busy or sick. So a thread of its own does it, and heartbeats are answered meanwhile. All changes
// of one turn of the event loop, and all that come during a write, share the next one.
//
// When the disk is full, what is left of its reserve (StateDirectory) is for what runs. What the
// disk refuses is tried again every kRetryPause until it succeeds.
//
// The io_context's thread calls everything and is called back. The destructor waits for a write
// that has begun; afterwards nothing is called back.
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "rendezvous/core/job_state.h"
#include "rendezvous/state_directory.h"

namespace ddprun {

struct StateKeeperEvents {
  // All changes up to this number are safe.
  std::function<void(std::uint64_t number)> safe;
  // The disk is full or refuses to write; called before anything that was written then is called
  // safe. And: that is over. The two take turns.
  std::function<void(const Error& why)> troubled;
  std::function<void()> well;
};

class StateKeeper {
 public:
  static constexpr Duration kRetryPause = std::chrono::milliseconds(500);

  StateKeeper(boost::asio::io_context& io, StateDirectory directory, StateKeeperEvents events);
  ~StateKeeper();

  // Numbers only grow.
  void keep(std::uint64_t number, const StateChange& change);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
