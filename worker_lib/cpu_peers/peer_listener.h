// PeerListener and connect_to_peer(): connect ranks of different nodes. A connection begins with
// a hello.
//
// The connecting rank sends its hello at once. The kernel accepts the connection; the other rank
// reads the hello when it is ready. There is no answer: a connection at the wrong listener is
// closed. A hello has the group's token, so neither an unknown process nor a rank of an older
// generation is accepted.
//
// Owner: the thread that forms the group, then its mailbox.
#pragma once

#include <poll.h>

#include <cstdint>
#include <deque>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/net/listen.h"

namespace ddprun {

enum class ConnectionUse : std::uint32_t {
  kData,      // of collectives, between the leaders of a lane
  kControl,   // news of failures
  kMessages,  // send/recv, from the rank that connects to the rank that listens
};

class PeerListener {
 public:
  // Listens at this numeric address only, on a free port of the range.
  static Result<PeerListener> open(const std::string& host, PortRange ports = {});
  const HostPort& address() const { return listener_.address; }

  struct AcceptedPeer {
    UniqueFd socket;  // non-blocking
    int rank = -1;
    ConnectionUse use = ConnectionUse::kData;
  };

  // Sets what the hello of an accepted connection must contain.
  void expect(std::string token, int own_rank, int world_size);

  // Returns the next connection with a correct hello for one of these uses. Waits until `until`;
  // returns nullopt if there is none by then. Connections for other uses are kept until they are
  // asked for. Closes connections with a wrong hello. If too many have sent no hello, closes the
  // oldest of them. Fails when no file descriptors are left.
  Result<std::optional<AcceptedPeer>> admit(std::initializer_list<ConnectionUse> uses,
                                            TimePoint until);

  // Appends the descriptors to poll for new connections.
  void watch(std::vector<pollfd>& watched) const;

 private:
  Result<void> accept_pending();
  void read_pending();

  explicit PeerListener(Listener listener) : listener_(std::move(listener)) {}
  struct PendingConnection {
    UniqueFd socket;
    std::string said;
  };

  Listener listener_;
  std::string token_;
  int own_rank_ = -1;
  int world_size_ = 0;
  std::deque<PendingConnection> pending_;  // their hello is incomplete
  std::deque<AcceptedPeer> accepted_;      // their hello was correct
};

// Connects to a numeric address and sends the hello. The socket is non-blocking, with
// TCP_NODELAY.
Result<UniqueFd> connect_to_peer(const HostPort& address, const std::string& token, int from,
                                 int to, ConnectionUse use, const Deadline& deadline);

// The same without waiting: the socket may still be connecting, and `hello` is still to be sent.
struct BegunConnect {
  UniqueFd socket;
  std::string hello;
};
Result<BegunConnect> begin_connect_to_peer(const HostPort& address, const std::string& token,
                                           int from, int to, ConnectionUse use);

}  // namespace ddprun
