// StateWriter: writes a service's changes to its StateDirectory while the service continues.
//
// A write waits for the disk: a fraction of a millisecond on a good one, seconds on a busy or
// failing one. So a thread of its own writes, and heartbeats are answered in the meantime. All
// changes of one turn of the event loop, and all that come during a write, share the next
// write.
//
// When the disk is full:
//   - `failed` is called, and the server admits no new jobs and agents.
//   - Running jobs continue in what is left of the reserve (StateDirectory::kReserveBytes).
//   - A write that the disk refuses is retried every kRetryPause until it succeeds. Then `well` is
//     called.
//
// A change that is too large for a frame is retried, too, together with the changes that wait with
// it. None of them becomes durable until a smaller change has replaced the large one. A write that
// takes longer than kHungAfter is also reported as failed. It cannot be cancelled, and may succeed
// later.
//
// The io_context's thread makes all calls and gets all callbacks. The destructor waits for a
// write that has begun, however long that takes. Afterwards no callback is called. A program
// that must end while the disk hangs exits without the destructor
// (rendezvous/service/daemon.h).
#pragma once

#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "rendezvous/persistence/state_directory.h"
#include "rendezvous/persistence/state_store.h"

namespace ddprun {

class StateWriter final : public StateStore {
 public:
  static constexpr Duration kRetryPause = std::chrono::milliseconds(500);
  static constexpr Duration kHungAfter = std::chrono::seconds(1);

  // failed: the disk is full, refuses to write, or does not answer. If it did not answer, failed is
  // called again when the disk's error is known.
  StateWriter(boost::asio::io_context& io, StateDirectory directory, StateStoreEvents events);
  ~StateWriter() override;

  void keep(std::uint64_t number, const StateChange& change) override;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
