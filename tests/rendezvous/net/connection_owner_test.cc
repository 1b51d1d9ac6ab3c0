#include "rendezvous/net/connection_owner.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <functional>
#include <optional>
#include <string>

#include "base/unique_fd.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/store/server.h"
#include "tests/support/eventually.h"
#include "tests/support/raw_tcp_client.h"

namespace ddprun {
namespace {

constexpr uid_t kOtherUser = 54321;

// Starts a process that connects to the listener and sends `bytes`. Its exit status is 0 if it
// got an answer, and 1 if the connection was closed. user: the user that it becomes first;
// nullopt: the same user.
pid_t caller(const SocketAddress& to, const std::string& bytes, std::optional<uid_t> user = {}) {
  const pid_t child = fork();
  if (child != 0) return child;
  alarm(20);  // ends this process whatever happens to the test
  if (user && setuid(*user) != 0) _exit(2);
  const int s = socket(to.family(), SOCK_STREAM, 0);
  if (connect(s, to.get(), to.size) != 0) _exit(3);
  if (!bytes.empty() && send(s, bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) _exit(1);
  char byte = 0;
  _exit(recv(s, &byte, 1, 0) == 1 ? 0 : 1);
}

int status_of(pid_t child) {
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

using Ask = std::function<Result<uid_t>(const SocketAddress&, const SocketAddress&)>;
const Ask kWays[] = {owner_of_connection,
                     [](const SocketAddress& peer, const SocketAddress& local) {
                       const Result<SocketOwner> owner = owner_by_proc(peer, local);
                       return owner ? Result<uid_t>(owner->user) : Result<uid_t>(owner.error());
                     }};

class ConnectionOwner : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    const auto listener = listen_tcp({GetParam(), 0});
    if (!listener) GTEST_SKIP() << listener.error().message();
    listener_ = UniqueFd(dup(listener->socket.get()));
    ASSERT_EQ(fcntl(listener_.get(), F_SETFL, 0), 0);  // accept() blocks
    address_ = local_address_of(listener_.get());
  }
  UniqueFd accept_one() {
    UniqueFd accepted(accept(listener_.get(), nullptr, nullptr));
    EXPECT_TRUE(accepted.valid());
    peer_ = peer_address_of(accepted.get());
    local_ = local_address_of(accepted.get());
    return accepted;
  }
  UniqueFd listener_;
  SocketAddress address_;
  SocketAddress peer_;
  SocketAddress local_;
};

TEST_P(ConnectionOwner, IsTheUserOfTheProcessThatConnected) {
  testing_support::RawTcpClient own(address_.port(), GetParam());
  const UniqueFd accepted = accept_one();
  for (const Ask& ask : kWays) {
    const Result<uid_t> owner = ask(peer_, local_);
    ASSERT_TRUE(owner) << owner.error().message();
    EXPECT_EQ(*owner, geteuid());
  }
  EXPECT_TRUE(is_within_this_host(peer_, local_));
}

TEST_P(ConnectionOwner, IsAnotherUserWhereItIsOne) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  const pid_t child = caller(address_, "", kOtherUser);
  UniqueFd accepted = accept_one();
  for (const Ask& ask : kWays) {
    const Result<uid_t> owner = ask(peer_, local_);
    EXPECT_TRUE(owner) << (owner ? "" : owner.error().message());
    if (owner) {
      EXPECT_EQ(*owner, kOtherUser);
    }
  }
  accepted.reset();
  EXPECT_EQ(status_of(child), 1);
}

// After a process has closed its socket, the kernel reports root as the owner.
TEST_P(ConnectionOwner, IsNobodyWhereTheProcessIsGone) {
  std::optional<testing_support::RawTcpClient> own(std::in_place, address_.port(), GetParam());
  const UniqueFd accepted = accept_one();
  own.reset();
  for (const Ask& ask : kWays) {
    EXPECT_FALSE(ask(peer_, local_));
  }
}

// In a user namespace without ids, every user has the id 65534, this process's user too.
TEST_P(ConnectionOwner, IsNotThisUserBecauseNeitherHasAnId) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  const pid_t other = caller(address_, "", kOtherUser);
  UniqueFd accepted = accept_one();
  const SocketAddress others = peer_;
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWUSER) != 0) _exit(77);
    const pid_t own = caller(address_, "");  // a process that this one may inspect
    UniqueFd accepted_own = accept_one();
    const Result<uid_t> mine = owner_of_connection(peer_, local_);
    const bool is_mine = mine && *mine == geteuid();
    const bool is_theirs = owner_of_connection(others, local_).has_value();
    accepted_own.reset();
    status_of(own);
    _exit((is_mine ? 0 : 1) + (is_theirs ? 2 : 0));
  }
  const int status = status_of(child);
  accepted.reset();
  status_of(other);
  if (status == 77) GTEST_SKIP() << "this system makes no user namespaces";
  EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(OnLoopback, ConnectionOwner, testing::Values("127.0.0.1", "::1"));

// --- a store for the processes of this user only ---

class PrivateStore : public testing::Test {
 protected:
  void SetUp() override {
    auto listener = listen_tcp({"127.0.0.1", 0});
    ASSERT_TRUE(listener);
    address_ = local_address_of(listener->socket.get());
    server_.emplace(
        io_, [this](const std::string& text) { said_ += text + "\n"; }, std::move(listener->socket),
        StoreServerOptions{.this_user_only = true});
    server_->start();
  }
  boost::asio::io_context io_;
  std::optional<StoreServer> server_;
  SocketAddress address_;
  std::string said_;
};

// A PING with its nonce, as in docs/reference/wire_protocol.md.
const std::string kPing("\x0d\x01\x02\x03\x04", 5);

TEST_F(PrivateStore, ServesThisUserAndClosesTheConnectionsOfOthers) {
  if (geteuid() != 0) GTEST_SKIP() << "only root becomes another user";
  const std::string validated = std::string("\x00\xce\xf7\x85\x3c", 5) + kPing;
  for (const uid_t user : {kOtherUser, uid_t{0}}) {
    const pid_t child = caller(address_, validated, user);
    std::optional<int> status;
    while (!status) {
      io_.run_for(std::chrono::milliseconds(20));
      int raw = 0;
      if (waitpid(child, &raw, WNOHANG) == child) status = WIFEXITED(raw) ? WEXITSTATUS(raw) : -1;
    }
    EXPECT_EQ(*status, user == 0 ? 0 : 1) << user << " " << said_;
  }
  EXPECT_NE(said_.find("user 54321"), std::string::npos) << said_;
}

}  // namespace
}  // namespace ddprun
