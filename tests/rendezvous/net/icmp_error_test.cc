// Tests two failures to connect: a host refuses, or a firewall rejects by ICMP. The test itself
// is the firewall: it answers a SYN that nothing else answers.
#include "rendezvous/net/icmp_error.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/ip.h>
#include <netinet/ip_icmp.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/utsname.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <vector>

#include "base/unique_fd.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using testing_support::eventually;

constexpr in_addr_t kLoopback = INADDR_LOOPBACK;

sockaddr_in at(std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(kLoopback);
  address.sin_port = htons(port);
  return address;
}

int connect_to(int socket, const sockaddr_in& address) {
  return ::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

// FullListener: a bound port. After fill() it listens with a full queue, and answers no SYN.
class FullListener {
 public:
  FullListener() : socket_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in own = at(0);
    EXPECT_EQ(bind(socket_.get(), reinterpret_cast<sockaddr*>(&own), sizeof own), 0);
    socklen_t size = sizeof own;
    EXPECT_EQ(getsockname(socket_.get(), reinterpret_cast<sockaddr*>(&own), &size), 0);
    port_ = ntohs(own.sin_port);
  }
  void fill() {
    EXPECT_EQ(listen(socket_.get(), 0), 0);
    for (int i = 0; i < 2; ++i) {
      waiting_.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
      connect_to(waiting_.back().get(), at(port_));
    }
  }
  std::uint16_t port() const { return port_; }

 private:
  UniqueFd socket_;
  std::uint16_t port_ = 0;
  std::vector<UniqueFd> waiting_;
};

std::uint16_t checksum(const std::uint8_t* bytes, std::size_t size) {
  std::uint32_t sum = 0;
  for (std::size_t i = 0; i + 1 < size; i += 2) sum += (bytes[i] << 8U) | bytes[i + 1];
  while (sum >> 16U) sum = (sum & 0xffffU) + (sum >> 16U);
  return htons(static_cast<std::uint16_t>(~sum));
}

std::uint16_t port_of(int socket) {
  sockaddr_in own{};
  socklen_t size = sizeof own;
  EXPECT_EQ(getsockname(socket, reinterpret_cast<sockaddr*>(&own), &size), 0);
  return ntohs(own.sin_port);
}

// Answers the next SYN from that port with "port unreachable".
void reject(int tcp_packets, int icmp, std::uint16_t from) {
  std::array<std::uint8_t, 256> packet{};
  ASSERT_TRUE(eventually([&] {
    const ssize_t size = recv(tcp_packets, packet.data(), packet.size(), MSG_DONTWAIT);
    if (size < static_cast<ssize_t>(sizeof(iphdr) + sizeof(tcphdr))) return false;
    tcphdr tcp;
    std::memcpy(&tcp, packet.data() + sizeof(iphdr), sizeof tcp);
    return tcp.syn == 1 && ntohs(tcp.source) == from;
  }));
  std::array<std::uint8_t, sizeof(icmphdr) + sizeof(iphdr) + 8> answer{};
  answer[0] = ICMP_DEST_UNREACH;
  answer[1] = ICMP_PORT_UNREACH;
  std::memcpy(answer.data() + sizeof(icmphdr), packet.data(), sizeof(iphdr) + 8);
  const std::uint16_t sum = checksum(answer.data(), answer.size());
  std::memcpy(answer.data() + 2, &sum, sizeof sum);
  const sockaddr_in to = at(0);
  ASSERT_EQ(sendto(icmp, answer.data(), answer.size(), 0, reinterpret_cast<const sockaddr*>(&to),
                   sizeof to),
            static_cast<ssize_t>(answer.size()));
}

int error_of(int socket) {
  pollfd one{.fd = socket, .events = POLLOUT, .revents = 0};
  EXPECT_EQ(poll(&one, 1, 10000), 1) << "the try has not ended";
  int error = 0;
  socklen_t size = sizeof error;
  getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

TEST(IcmpError, AHostThatRefusesGivesNone) {
  const FullListener silent;  // nothing listens
  const UniqueFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  keep_icmp_errors(caller.get());
  EXPECT_EQ(connect_to(caller.get(), at(silent.port())), -1);
  EXPECT_EQ(errno, ECONNREFUSED);
  EXPECT_FALSE(has_icmp_error(caller.get()));
}

// Before 5.8, the kernel does not keep ICMP errors of an attempt to connect.
bool is_kernel_before_5_8() {
  utsname system{};
  int major = 0, minor = 0;
  if (uname(&system) != 0) return false;
  if (std::sscanf(system.release, "%d.%d", &major, &minor) != 2) return false;
  return major < 5 || (major == 5 && minor < 8);
}

TEST(IcmpError, AFirewallThatRejectsGivesOneWithTheSameErrno) {
  if (is_kernel_before_5_8()) GTEST_SKIP() << "this needs Linux 5.8";
  const UniqueFd packets(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_TCP));
  const UniqueFd icmp(::socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_ICMP));
  if (!packets.valid() || !icmp.valid()) GTEST_SKIP() << "only root sends ICMP messages";
  FullListener full;
  full.fill();
  const UniqueFd caller(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  keep_icmp_errors(caller.get());
  ASSERT_EQ(connect_to(caller.get(), at(full.port())), -1);
  ASSERT_EQ(errno, EINPROGRESS);
  ASSERT_NO_FATAL_FAILURE(reject(packets.get(), icmp.get(), port_of(caller.get())));
  EXPECT_EQ(error_of(caller.get()), ECONNREFUSED);
  EXPECT_TRUE(has_icmp_error(caller.get()));
}

}  // namespace
}  // namespace ddprun
