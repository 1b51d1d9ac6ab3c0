// How ranks of different nodes connect: a listening socket, and the hello that opens a connection.
//
// The caller connects and sends its hello at once; the kernel accepts for the other rank, which
// looks at it when it is ready. Nothing is answered: a caller at the wrong listener is cut off. A hello
// carries the group's token, so neither a stranger nor a rank of an older generation gets in.
//
// Owner: the thread that forms the group, then its mailbox.
#pragma once

#include <poll.h>

#include <cstddef>
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
  kMessages,  // send/recv, from the caller to the called
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

  // Who may come in, and what they must say.
  void expect(std::string token, int own_rank, int world_size);

  // The next caller that said the right words and comes for one of these uses; waits for one until
  // `until`, nullopt when there is none by then. Callers for other uses wait at the listener until they
  // are asked for. Strangers are cut off: those who say something wrong, and the one who has been
  // silent longest when too many are. Fails when there are no descriptors left.
  Result<std::optional<AcceptedPeer>> admit(std::initializer_list<ConnectionUse> uses, TimePoint until);

  // What to watch for callers, appended.
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
  std::deque<PendingConnection> pending_;  // have not said all of their hello
  std::deque<AcceptedPeer> accepted_;      // have, and it was right
};

// Connects to a numeric address and says hello. The socket is non-blocking, with TCP_NODELAY.
Result<UniqueFd> connect_to_peer(const HostPort& address, const std::string& token, int from, int to,
                              ConnectionUse use, const Deadline& deadline);

// The same without waiting: the socket may still be connecting, and `hello` is yet to be said.
struct BegunConnect {
  UniqueFd socket;
  std::string hello;
};
Result<BegunConnect> begin_connect_to_peer(const HostPort& address, const std::string& token, int from,
                                     int to, ConnectionUse use);

}  // namespace ddprun
