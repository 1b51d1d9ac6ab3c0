// Tests TcpMesh between two nodes. This test is the other node.
#include "worker_lib/cpu_peers/tcp_mesh.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using testing_support::in;
using testing_support::kPatience;

class TcpMeshTest : public testing::Test {
 protected:
  TcpMeshTest() {
    std::memset(memory_.get(), 0, kBoardBytes);
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    peer_ = UniqueFd(fds[1]);
    std::vector<UniqueFd> sockets(2);
    sockets[1] = UniqueFd(fds[0]);
    mesh_ = std::make_unique<TcpMesh>(std::move(sockets), progress_, Duration::zero());
  }

  void say(const std::string& text) {
    ASSERT_EQ(send(peer_.get(), text.data(), text.size(), 0), static_cast<ssize_t>(text.size()));
  }
  std::string heard(std::size_t bytes) {
    std::string text(bytes, '\0');
    const ssize_t got = recv(peer_.get(), text.data(), bytes, MSG_WAITALL);
    text.resize(got < 0 ? 0 : static_cast<std::size_t>(got));
    return text;
  }

  static constexpr std::size_t kBoardBytes = 1 << 16;
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<void, Free> memory_{std::aligned_alloc(4096, kBoardBytes)};
  SharedProgress progress_{memory_.get(), 1, 0, Duration::zero()};
  UniqueFd peer_;
  std::unique_ptr<TcpMesh> mesh_;
};

TEST_F(TcpMeshTest, WhatGoesAheadFollowsAndIsFinishedByTheNextExchange) {
  const std::string first = "first", more = "more", last = "last";
  const std::string long_one(8 << 20, 'x');  // more than any socket buffer holds
  std::string told(4, '\0');
  say("told");
  const TcpMesh::Sending sending{1, first.data(), first.size()};
  const TcpMesh::Receiving receiving{1, told.data(), told.size()};
  const TcpMesh::Sending ahead[] = {{1, long_one.data(), long_one.size()},
                                    {1, more.data(), more.size()}};
  ASSERT_EQ(mesh_->exchange({&sending, 1}, {&receiving, 1}, in(kPatience), ahead).how,
            WaitEnd::kReady)
      << "nobody has read what went ahead";
  EXPECT_EQ(told, "told");
  auto all = std::async(std::launch::async, [&] {
    return heard(first.size() + long_one.size() + more.size() + last.size());
  });
  const TcpMesh::Sending next{1, last.data(), last.size()};
  EXPECT_EQ(mesh_->exchange({&next, 1}, {}, in(kPatience)).how, WaitEnd::kReady);
  EXPECT_TRUE(all.get() == first + long_one + more + last);
}

TEST_F(TcpMeshTest, WhatWentAheadIsWaitedForByAnExchangeOfNothing) {
  const std::string long_one(8 << 20, 'x');
  const TcpMesh::Sending ahead{1, long_one.data(), long_one.size()};
  ASSERT_EQ(mesh_->exchange({}, {}, in(kPatience), {&ahead, 1}).how, WaitEnd::kReady);
  EXPECT_EQ(mesh_->exchange({}, {}, in(milliseconds(50))).how, WaitEnd::kTimedOut);
}

TEST_F(TcpMeshTest, ADeadlineCountsAlsoWhileBytesTrickle) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  const UniqueFd peer(fds[1]);
  std::vector<UniqueFd> sockets(2);
  sockets[1] = UniqueFd(fds[0]);
  // It spins longer than the time between two bytes.
  TcpMesh spinning(std::move(sockets), progress_, std::chrono::seconds(1));
  std::atomic<bool> is_over = false;
  std::thread trickle([&] {
    while (!is_over) {
      EXPECT_EQ(send(peer.get(), "x", 1, MSG_NOSIGNAL), 1);
      testing_support::let_pass(milliseconds(1));
    }
  });
  std::string much(2000, '\0');
  const TcpMesh::Receiving receiving{1, much.data(), much.size()};
  EXPECT_EQ(spinning.exchange({}, {&receiving, 1}, in(milliseconds(50))).how, WaitEnd::kTimedOut);
  is_over = true;
  trickle.join();
}

}  // namespace
}  // namespace ddprun
