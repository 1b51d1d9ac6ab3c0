// TcpMesh: the data connections of one rank to the ranks of its lane on the other nodes.
//
// An exchange sends and receives between any of them at once, so that no order of calls can make
// two nodes wait for each other's full buffers. Sizes are known to both sides: bytes travel bare.
//
// Owner: the thread that makes the group's calls.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"
#include "worker_lib/cpu_shm/shared_progress.h"

namespace ddprun {

class TcpMesh {
 public:
  struct Sending {
    int node = -1;
    const void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct Receiving {
    int node = -1;
    void* data = nullptr;
    std::size_t bytes = 0;
  };
  struct End {
    WaitEnd how = WaitEnd::kReady;
    int node = -1;  // kLeft: whose connection is closed
  };

  // sockets: by node, non-blocking; not valid for this rank's own node.
  // spin: how long to look at sockets again and again before sleeping.
  TcpMesh(std::vector<UniqueFd> sockets, SharedProgress& progress, Duration spin)
      : sockets_(std::move(sockets)), progress_(progress), spin_(spin) {}

  // Several entries for one node travel in the order given. kFailed when the group's failure was
  // raised meanwhile (noticed within kPatience), also by this rank's other threads.
  //
  // ahead: what follows the sendings, as far as it leaves until the exchange is over; the next one sends
  // the rest before anything else, and until then the bytes stay as they are.
  End exchange(std::span<const Sending> sendings, std::span<const Receiving> receivings,
               TimePoint deadline, std::span<const Sending> ahead = {});

  static constexpr Duration kPatience = std::chrono::milliseconds(50);

 private:
  std::vector<UniqueFd> sockets_;
  SharedProgress& progress_;
  Duration spin_;
  std::vector<Sending> unsent_;  // of what was to go ahead
};

}  // namespace ddprun
