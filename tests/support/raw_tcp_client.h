// RawTcpClient: a blocking TCP socket for tests that send bytes that no real client sends. Every
// wait ends after kLimit. Then a send fails the test, and a receive returns what it has.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <string>
#include <string_view>

#include "base/unique_fd.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/tcp_address.h"
#include "tests/support/eventually.h"

namespace ddprun::testing_support {

// Returns whether a process listens on this port of 127.0.0.1.
inline bool can_connect(std::uint16_t port) {
  const auto address = numeric_address({"127.0.0.1", port});
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return ::connect(socket.get(), address->get(), address->size) == 0;
}

class RawTcpClient {
 public:
  // On a machine with much other work a service may need long for its answer.
  static constexpr Duration kLimit = 3 * kPatience;

  // Connects. receive_buffer_bytes: how much the kernel stores before the test reads it; 0: the
  // kernel's default. from: the local address to connect from; empty: any.
  explicit RawTcpClient(std::uint16_t port, const std::string& host = "127.0.0.1",
                        int receive_buffer_bytes = 0, const std::string& from = "") {
    const auto address = numeric_address({host, port});
    socket_.reset(::socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const timeval limit{.tv_sec = kLimit / std::chrono::seconds(1), .tv_usec = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(socket_.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    disable_nagle(socket_.get());
    if (receive_buffer_bytes > 0) {
      setsockopt(socket_.get(), SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes,
                 sizeof receive_buffer_bytes);
    }
    if (const auto own = numeric_address({from, 0})) {
      EXPECT_EQ(::bind(socket_.get(), own->get(), own->size), 0) << strerror(errno);
    }
    EXPECT_EQ(::connect(socket_.get(), address->get(), address->size), 0) << strerror(errno);
  }

  void send(std::string_view bytes) { ASSERT_TRUE(offer(bytes)) << strerror(errno); }

  // As send(). Returns false if the peer closed the connection before all bytes were sent.
  bool offer(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) {
        EXPECT_TRUE(errno == EPIPE || errno == ECONNRESET) << strerror(errno);
        return false;
      }
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }

  // Sends the bytes `times` times. Returns true if the peer closes the connection before the
  // end.
  bool send_until_closed(std::string_view bytes, int times) {
    for (int i = 0; i < times; ++i) {
      if (!offer(bytes)) return true;
    }
    return false;
  }

  // Returns exactly this many bytes; fewer if the peer closes or the time is over.
  std::string receive(std::size_t count) {
    std::string bytes(count, '\0');
    std::size_t have = 0;
    while (have < count) {
      const ssize_t got = ::recv(socket_.get(), bytes.data() + have, count - have, 0);
      if (got <= 0) break;
      have += static_cast<std::size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }

  // Returns the bytes that have arrived, at least one; none if the peer closes or the time is
  // over.
  std::string receive_some() {
    std::string bytes(4096, '\0');
    const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), 0);
    bytes.resize(got > 0 ? static_cast<std::size_t>(got) : 0);
    return bytes;
  }

  // Returns everything up to the end of this text, and reads no further. If the peer closes or
  // the time is over, the result does not end with the text.
  std::string receive_through(std::string_view end) {
    std::string bytes;
    while (!bytes.ends_with(end)) {
      const std::string byte = receive(1);
      if (byte.empty()) break;
      bytes += byte;
    }
    return bytes;
  }

  // Waits until something can be read. Returns whether it is the peer's close.
  bool is_closed() {
    char byte = 0;
    const ssize_t got = ::recv(socket_.get(), &byte, 1, 0);
    return got == 0 || (got < 0 && errno == ECONNRESET);
  }

  // Returns, without waiting, whether something can be read now.
  bool has_bytes() {
    char byte = 0;
    return ::recv(socket_.get(), &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0;
  }

  // Sends a TCP FIN; the connection can still be read.
  void close_sending_side() { ::shutdown(socket_.get(), SHUT_WR); }
  void close() { socket_.reset(); }

 private:
  UniqueFd socket_;
};

}  // namespace ddprun::testing_support
