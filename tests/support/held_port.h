// HeldPort: a free port of 127.0.0.1 that no other process gets while this object lives. It is
// for a program that is told where to listen.
//
// The port is bound, but not listening. A socket that sets SO_REUSEADDR, as listen_tcp() does,
// can still bind it. One owner thread.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/unique_fd.h"

namespace ddprun::testing_support {

class HeldPort {
 public:
  HeldPort() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const int yes = 1;
    setsockopt(socket_.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    sockaddr_in address{};
    socklen_t size = sizeof address;
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    auto* raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_TRUE(bind(socket_.get(), raw, size) == 0 && getsockname(socket_.get(), raw, &size) == 0);
    port_ = ntohs(address.sin_port);
  }

  std::uint16_t port() const { return port_; }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
};

}  // namespace ddprun::testing_support
