// TcpMesh: the data connections of one rank to the ranks of its lane on the other nodes.
//
// An exchange sends to and receives from any of them at once. So no order of calls can make two
// nodes wait for each other's full buffers. Both sides know the sizes: bytes travel without
// headers.
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
    int node = -1;  // kLeft: the node whose connection is closed
  };

  // sockets: by node, non-blocking; not valid for this rank's own node. spin: how long to poll
  // the sockets repeatedly before sleeping.
  TcpMesh(std::vector<UniqueFd> sockets, SharedProgress& progress, Duration spin)
      : sockets_(std::move(sockets)), progress_(progress), spin_(spin) {}

  // Sends and receives all entries. Entries for one node travel in the order given. Returns
  // kFailed if the group's failure was raised meanwhile, also by another thread of this rank.
  // The failure is noticed within kPatience.
  //
  // ahead: bytes that follow the sendings. They are sent as far as possible until the exchange
  // is over. The next exchange sends the rest before anything else. Until then the bytes must
  // not change.
  End exchange(std::span<const Sending> sendings, std::span<const Receiving> receivings,
               TimePoint deadline, std::span<const Sending> ahead = {});

  static constexpr Duration kPatience = std::chrono::milliseconds(50);

 private:
  std::vector<UniqueFd> sockets_;
  SharedProgress& progress_;
  Duration spin_;
  std::vector<Sending> unsent_;  // the rest of `ahead`
};

}  // namespace ddprun
