#include "worker_lib/cpu_peers/forked_sockets.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "base/deadline.h"
#include "worker_lib/cpu_peers/peer_listener.h"

namespace ddprun {
namespace {

bool is_open(int file) { return fcntl(file, F_GETFD) != -1; }

TEST(ForkedSockets, ThoseOfAnAddressAreClosedAtBothEndsAndNoOthers) {
  PeerListener first = PeerListener::open("127.0.0.1").value();
  PeerListener other = PeerListener::open("127.0.0.1").value();
  first.expect("token", 0, 2);
  const Deadline deadline{std::chrono::seconds(20)};
  UniqueFd connected =
      connect_to_peer(first.address(), "token", 1, 0, ConnectionUse::kData, deadline).value();
  const UniqueFd elsewhere =
      connect_to_peer(other.address(), "token", 1, 0, ConnectionUse::kData, deadline).value();
  auto accepted = first.admit({ConnectionUse::kData}, deadline.when()).value();
  ASSERT_TRUE(accepted);

  // Copies, as a child of a fork has them.
  const int near = dup(connected.get());
  const int far = dup(accepted->socket.get());
  const std::array addresses{first.address()};
  EXPECT_TRUE(is_open(near) && is_open(far));
  close_sockets_at(addresses);
  EXPECT_FALSE(is_open(near) || is_open(far));
  EXPECT_FALSE(is_open(connected.release()) || is_open(accepted->socket.release()));
  EXPECT_TRUE(is_open(elsewhere.get()));
}

}  // namespace
}  // namespace ddprun
