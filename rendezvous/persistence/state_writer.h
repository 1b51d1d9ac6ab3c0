// StateWriter: writes a service's changes to its StateDirectory while the service goes on.
//
// A write waits for the disk: a fraction of a millisecond on a good one, seconds on one that is
// busy or sick. So a thread of its own does it, and heartbeats are answered meanwhile. All changes
// of one turn of the event loop, and all that come during a write, share the next one.
//
// When the disk is full, what is left of its reserve (StateDirectory) is for what runs. What the
// disk refuses is tried again every kRetryPause until it succeeds. So is a change that is too large
// to be written ever, and what waits with it: nothing is safe until a smaller one has taken its
// place. A write that is under way for kHungAfter is trouble, too; it cannot be called back, and may
// succeed later.
//
// The io_context's thread calls everything and is called back. The destructor waits for a write
// that has begun, however long that takes; afterwards nothing is called back. A program that must
// end while the disk hangs leaves without it (rendezvous/service/daemon.h).
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>

#include "base/clock.h"
#include "rendezvous/membership/core/job_state.h"
#include "rendezvous/persistence/state_directory.h"

namespace ddprun {

struct StateWriterEvents {
  // All changes up to this number are safe.
  std::function<void(std::uint64_t number)> durable;
  // The disk is full, refuses to write, or does not answer; called before anything that was written
  // then is called safe. Once, and again where one that did not answer says what is wrong. And: that
  // is over.
  std::function<void(const Error& why)> failed;
  std::function<void()> well;
};

class StateWriter {
 public:
  static constexpr Duration kRetryPause = std::chrono::milliseconds(500);
  static constexpr Duration kHungAfter = std::chrono::seconds(1);

  StateWriter(boost::asio::io_context& io, StateDirectory directory, StateWriterEvents events);
  ~StateWriter();

  // Numbers only grow.
  void keep(std::uint64_t number, const StateChange& change);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
