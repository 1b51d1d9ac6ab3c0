// BlockingSocket: a connected TCP socket whose every wait has a deadline.
//
// For clients without an event loop. A call blocks until it is done or its Deadline has passed.
// Errors name the operation and the peer, and the time waited. One thread at a time.
#pragma once

#include <span>
#include <string_view>

#include "base/deadline.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// Sends small messages at once (TCP_NODELAY), instead of waiting for the acknowledgement of the
// last one.
void disable_nagle(int socket);

// Detects a lost peer on connections that may be idle for days. They end with an error if the
// peer's kernel has not answered for a minute.
void enable_keepalive(int socket);

class BlockingSocket {
 public:
  // Makes one attempt to connect. The socket has TCP_NODELAY and close-on-exec.
  static Result<BlockingSocket> connect(const SocketAddress& address, const Deadline& deadline);

  // Takes over a connected socket, such as an accepted one.
  static Result<BlockingSocket> of(UniqueFd socket);

  // Sends all bytes. kTimeout: it is unknown how much was sent.
  Result<void> send_all(std::string_view bytes, const Deadline& deadline);

  // Sends what the socket takes now, and returns its size; 0 if the socket is full.
  Result<std::size_t> send_some(std::string_view bytes);
  // Returns the size of what has come already, possibly 0. kConnection: the peer has closed.
  Result<std::size_t> receive_now(std::span<char> space);
  // Waits until the socket can send or has received bytes.
  Result<void> wait_until_ready(const Deadline& deadline);

  // Waits until there is at least one byte, and returns how many came. kConnection: the peer has
  // closed.
  Result<std::size_t> receive(std::span<char> space, const Deadline& deadline);

  // Returns true if the peer has closed, or has sent bytes that no request asked for. Does not
  // wait.
  bool is_finished() const;

  // Transfers the socket to the caller, as a non-blocking one.
  UniqueFd take() &&;

  // Returns the address of this host's end.
  SocketAddress local_address() const { return local_address_of(socket_.get()); }

 private:
  explicit BlockingSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  // Receives with these flags of recv(). Returns 0 if nothing came within the wait that the
  // flags allow.
  Result<std::size_t> receive_with(int flags, std::span<char> space);

  UniqueFd socket_;
};

}  // namespace ddprun
