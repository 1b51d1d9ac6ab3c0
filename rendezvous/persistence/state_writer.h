// StateWriter: writes a service's changes to its StateDirectory while the service continues.
//
// A write waits for the disk: a fraction of a millisecond on a good one, seconds on a busy or
// failing one. So a thread of its own writes, and heartbeats are answered in the meantime. All
// changes of one turn of the event loop, and all that come during a write, share the next
// write.
//
// When the disk is full, the rest of the reserve (StateDirectory) is for running jobs. A write
// that the disk refuses is retried every kRetryPause until it succeeds. A change that is too
// large for a frame is retried, too, together with the changes that wait with it. Nothing
// becomes durable until a smaller change has replaced it. A write that takes longer than
// kHungAfter is also reported as failed. It cannot be cancelled, and may succeed later.
//
// The io_context's thread makes all calls and gets all callbacks. The destructor waits for a
// write that has begun, however long that takes. Afterwards no callback is called. A program
// that must end while the disk hangs exits without the destructor
// (rendezvous/service/daemon.h).
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
  // All changes up to this number are durable.
  std::function<void(std::uint64_t number)> durable;
  // The disk is full, refuses to write, or does not answer. Called before a change written at that
  // time is reported as durable. It is called once until `well`. If the disk did not answer, it is
  // called again when the disk's error is known.
  std::function<void(const Error& why)> failed;
  // Writing works again.
  std::function<void()> well;
};

class StateWriter {
 public:
  static constexpr Duration kRetryPause = std::chrono::milliseconds(500);
  static constexpr Duration kHungAfter = std::chrono::seconds(1);

  StateWriter(boost::asio::io_context& io, StateDirectory directory, StateWriterEvents events);
  ~StateWriter();

  // Queues a change for the next write. Its number must be larger than the last one.
  void keep(std::uint64_t number, const StateChange& change);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
