#include "rendezvous/net/blocking_socket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "rendezvous/net/listen.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using testing::HasSubstr;

struct Pair {
  Listener listener;
  BlockingSocket near;
  UniqueFd far;
};

Pair connected_pair() {
  Result<Listener> listener = listen_tcp({.host = "127.0.0.1", .port = 0});
  const SocketAddress address = local_address_of(listener->socket.get());
  Result<BlockingSocket> near = BlockingSocket::connect(address, Deadline(10s));
  EXPECT_TRUE(near) << near.error().message();
  UniqueFd far(accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  EXPECT_TRUE(far.valid());
  return {std::move(*listener), std::move(*near), std::move(far)};
}

TEST(Deadline, NeverGoesBelowNothingAndTakesTheLongestDuration) {
  EXPECT_TRUE(Deadline(0s).passed());
  EXPECT_EQ(Deadline(-5s).remaining(), 0s);
  EXPECT_GT(Deadline(Duration::max()).remaining(), 24h);
}

TEST(BlockingSocket, SendsAndReceives) {
  Pair pair = connected_pair();
  ASSERT_TRUE(pair.near.send_all("hello", Deadline(10s)));
  char got[5];
  ASSERT_EQ(recv(pair.far.get(), got, 5, MSG_WAITALL), 5);
  EXPECT_EQ(std::string_view(got, 5), "hello");
  ASSERT_EQ(send(pair.far.get(), "bye", 3, 0), 3);
  char space[16];
  const auto count = pair.near.receive(space, Deadline(10s));
  ASSERT_TRUE(count);
  EXPECT_EQ(std::string_view(space, *count), "bye");
}

TEST(BlockingSocket, ReceivingEndsAtTheDeadline) {
  Pair pair = connected_pair();
  char space[16];
  const auto got = pair.near.receive(space, Deadline(20ms));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind, ErrorKind::kTimeout);
  EXPECT_GE(*got.error().waited, 20ms);
  EXPECT_EQ(*got.error().allowed, 20ms);
}

// A long receive waits in recv() first, and in poll() near its deadline.
TEST(BlockingSocket, ReceivingEndsAtALongDeadlineToo) {
  Pair pair = connected_pair();
  char space[16];
  const Deadline deadline(1020ms);
  const auto got = pair.near.receive(space, deadline);
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind, ErrorKind::kTimeout);
  EXPECT_TRUE(deadline.passed());
}

TEST(BlockingSocket, DoesWhatCanBeDoneAtOnce) {
  Pair pair = connected_pair();
  char space[16];
  EXPECT_EQ(*pair.near.receive_now(space), 0u);
  std::size_t sent = 0;
  const std::string bytes(64 << 20, 'x');
  do {
    while (const std::size_t count = *pair.near.send_some(bytes)) sent += count;
  } while (pair.near.wait_until_ready(Deadline(10ms)));  // until the kernel takes no more
  EXPECT_GT(sent, 0u);
  ASSERT_EQ(send(pair.far.get(), "abc", 3, 0), 3);
  ASSERT_TRUE(pair.near.wait_until_ready(Deadline(10s)));
  EXPECT_EQ(*pair.near.receive_now(space), 3u);
}

TEST(BlockingSocket, HandsOverASocketThatDoesNotBlock) {
  Pair pair = connected_pair();
  const UniqueFd socket = std::move(pair.near).take();
  char byte;
  EXPECT_EQ(recv(socket.get(), &byte, 1, 0), -1);
  EXPECT_EQ(errno, EAGAIN);
}

TEST(BlockingSocket, SendingToWhoDoesNotReadEndsAtTheDeadline) {
  Pair pair = connected_pair();
  const auto sent = pair.near.send_all(std::string(64 << 20, 'x'), Deadline(50ms));
  ASSERT_FALSE(sent);
  EXPECT_EQ(sent.error().kind, ErrorKind::kTimeout);
}

TEST(BlockingSocket, NoticesThatThePeerHasClosed) {
  Pair pair = connected_pair();
  EXPECT_FALSE(pair.near.is_finished());
  pair.far.reset();
  char space[16];
  const auto got = pair.near.receive(space, Deadline(10s));
  ASSERT_FALSE(got);
  EXPECT_EQ(got.error().kind, ErrorKind::kConnection);
  EXPECT_TRUE(pair.near.is_finished());
}

TEST(BlockingSocket, SaysThatNobodyListens) {
  Pair pair = connected_pair();
  const SocketAddress address = local_address_of(pair.listener.socket.get());
  pair.listener.socket.reset();
  const auto refused = BlockingSocket::connect(address, Deadline(10s));
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message(), HasSubstr("Connection refused"));
}

// The kernel gives even port numbers to clients. Sooner or later it picks the destination port
// itself.
TEST(BlockingSocket, NeverMeetsItself) {
  std::optional<SocketAddress> address;
  for (std::uint16_t port = 40000; !address; port += 2) {
    const Result<Listener> free = listen_tcp({.host = "127.0.0.1", .port = port});
    if (free) address = local_address_of(free->socket.get());
  }
  for (int i = 0; i < 60'000; ++i) {
    const auto socket = BlockingSocket::connect(*address, Deadline(10s));
    ASSERT_FALSE(socket) << "try " << i;
    ASSERT_EQ(socket.error().sys_errno, ECONNREFUSED) << socket.error().message();
  }
}

}  // namespace
}  // namespace ddprun
