// Tests <ddprun/store.h> as its users see it, and how the library calls a Store of a user.
#include "worker_lib/store/tcp_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/support/expect_dist_error.h"
#include "tests/support/held_port.h"
#include "tests/support/map_store.h"
#include "tests/support/rank_threads.h"
#include "worker_lib/store/result_store.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::MapStore;
using Kind = DistError::Kind;

// --- a store of our own

TEST(TcpStore, WithoutAServerTheConnectionFails) {
  const testing_support::HeldPort port;
  EXPECT_DIST_ERROR(connect_tcp_store({.port = port.port(), .connect_timeout = milliseconds(50)}),
                    Kind::kConnection, HasSubstr("connect to store " + port.endpoint()));
}

TEST(TcpStore, APortThatIsTakenCannotBeServed) {
  const TcpStoreServer first;
  EXPECT_DIST_ERROR(TcpStoreServer({.port = first.port()}), Kind::kSystem,
                    HasSubstr("Address already in use"));
  EXPECT_DIST_ERROR(TcpStoreServer({.host = "node7"}), Kind::kInvalidArgument,
                    HasSubstr("'node7' is not a numeric address"));
}

TEST(TcpStore, AKeyThatDoesNotComeIsATimeoutAndLeavesTheStoreUsable) {
  const TcpStoreServer server;
  const auto store = connect_tcp_store({.port = server.port()});
  EXPECT_DIST_ERROR(store->get("k", milliseconds(10)), Kind::kTimeout, HasSubstr("get 'k'"));
  EXPECT_DIST_ERROR(store->multi_get({"k", "l"}, milliseconds(10)), Kind::kTimeout,
                    HasSubstr("multi_get 'k' and 1 more"));
  store->set("k", "v");
  EXPECT_EQ(store->get("k", seconds(10)), "v");
}

TEST(TcpStore, KeepsWhatItIsGiven) {
  const TcpStoreServer server;
  EXPECT_EQ(server.host(), "127.0.0.1");
  const auto store = connect_tcp_store({.port = server.port()});
  const auto prefixed = connect_tcp_store({.port = server.port(), .prefix = "a"});
  EXPECT_FALSE(store->check({"k"}));
  store->set("k", std::string("\0\xff", 2));
  EXPECT_EQ(store->get("k", seconds(10)), std::string("\0\xff", 2));
  EXPECT_TRUE(store->check({"k"}));
  EXPECT_FALSE(prefixed->check({"k"}));
  prefixed->set("l", "w");
  EXPECT_EQ(store->multi_get({"a/l", "k"}, seconds(10))[0], "w");
  EXPECT_EQ(store->add("n", 2), 2);
  EXPECT_EQ(store->add("n", -1), 1);
  EXPECT_TRUE(store->delete_key("k"));
  EXPECT_FALSE(store->delete_key("k"));
  EXPECT_EQ(store->local_address(), "127.0.0.1");
}

TEST(TcpStore, AServerThatEndsClosesItsConnections) {
  auto server = std::make_unique<TcpStoreServer>();
  const auto store = connect_tcp_store({.port = server->port()});
  server.reset();
  EXPECT_DIST_ERROR(store->get("k", seconds(10)), Kind::kConnection, HasSubstr("get 'k'"));
}

// --- a store of a user

TEST(Store, MultiGetIsMadeOfGetsAndKeepsOneDeadline) {
  MapStore store;
  store.set("a", "1");
  store.set("b", "2");
  EXPECT_EQ(store.multi_get({"b", "a"}, seconds(10)), (std::vector<std::string>{"2", "1"}));
  EXPECT_DIST_ERROR(store.multi_get({"a", "c"}, milliseconds(10)), Kind::kTimeout, HasSubstr("c"));
}

class FailingStore final : public MapStore {
 public:
  void set(const std::string&, const std::string&) override { throw std::runtime_error("full"); }
  bool check(const std::vector<std::string>&) override { throw 7; }
  std::vector<std::string> multi_get(const std::vector<std::string>&,
                                     std::chrono::nanoseconds) override {
    return {"one"};
  }
  bool delete_key(const std::string&) override {
    throw DistError(Kind::kPeerLost, "rank 3 is gone", 3);
  }
};

TEST(ResultStore, WhateverAUsersStoreThrowsBecomesAnError) {
  FailingStore store;
  ResultStore calls(store);
  EXPECT_EQ(calls.set("k", "v").error().message(), "set 'k' in the store: full");
  EXPECT_EQ(calls.check({"k"}).error().message(),
            "check 'k' in the store: an exception that is not a std::exception");
  EXPECT_EQ(calls.multi_get({"k", "l"}, seconds(1)).error().message(),
            "get 'k' in the store: it returned 1 values for 2 keys");
  const Error lost = calls.delete_key("k").error();
  EXPECT_EQ(lost.kind, ErrorKind::kPeerLost);
  EXPECT_EQ(lost.peer_rank, 3);
  EXPECT_EQ(lost.message(), "rank 3 is gone");
  EXPECT_EQ(calls.add("n", 1).value(), 1);
}

}  // namespace
}  // namespace ddprun
