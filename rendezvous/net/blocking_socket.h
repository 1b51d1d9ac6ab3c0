// BlockingSocket: a connected TCP socket whose every wait has a deadline.
//
// For clients without an event loop. A call blocks its caller until it is done or its Deadline has
// passed; errors say what was done, with whom, and how long was waited. One thread at a time.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/deadline.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

// Small messages leave at once (TCP_NODELAY), instead of waiting for the answer to the last one.
void send_at_once(int socket);

// For connections on which nothing may be said for days: they end, with an error, when the other host
// has not answered the kernel for a minute.
void notice_when_gone(int socket);

class BlockingSocket {
 public:
  // One try to connect. The socket has TCP_NODELAY and is closed on exec.
  static Result<BlockingSocket> connect(const SocketAddress& address, const Deadline& deadline);

  // Sends all of it. kTimeout: how much was sent is not known.
  Result<void> send_all(std::string_view bytes, const Deadline& deadline);

  // Sends what the socket takes now; 0 when it is full.
  Result<std::size_t> send_some(std::string_view bytes);
  // What has come already, possibly nothing. kConnection when the peer has closed.
  Result<std::size_t> receive_now(std::span<char> space);
  // Waits until either of the two has something to do.
  Result<void> wait_to_go_on(const Deadline& deadline);

  // Waits for some bytes; at least one. kConnection when the peer has closed.
  Result<std::size_t> receive(std::span<char> space, const Deadline& deadline);

  // Whether the peer has closed, or sent what nobody asked for; without waiting.
  bool is_finished() const;

  // Hands the socket over; it is non-blocking.
  UniqueFd take() &&;

  // This host's end.
  SocketAddress local_address() const { return local_address_of(socket_.get()); }

 private:
  explicit BlockingSocket(UniqueFd socket) : socket_(std::move(socket)) {}

  // 0: nothing has come, as long as recv() waits with these flags.
  Result<std::size_t> receive_with(int flags, std::span<char> space);

  UniqueFd socket_;
};

}  // namespace ddprun
