#include "rendezvous/net/name_service.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using testing_support::eventually_on;
using Found = Result<std::vector<SocketAddress>>;

// Its name service answers as the test says, or not at all.
class NameServiceTest : public testing::Test {
 protected:
  // Returns the address that find() gives; empty: an error, or nothing.
  std::string find() {
    std::optional<Found> got;
    names_.find({"etcd1", 2379}, [&](Found found) { got = std::move(found); });
    EXPECT_FALSE(got) << "within the call";
    eventually_on(
        io_, [&] { return got.has_value(); }, std::chrono::milliseconds(200));
    return got && *got ? (*got)->front().host() : "";
  }
  // Lets time pass until find() asks again.
  void until_asked_again() {
    const int before = asked_;
    EXPECT_TRUE(eventually_on(io_, [&] {
      find();
      return asked_ > before;
    }));
  }

  boost::asio::io_context io_;
  std::string answer_ = "10.0.0.1";  // empty: an error
  bool is_silent_ = false;
  int asked_ = 0;
  NameService names_{io_, [this](const HostPort& address, const ResolveHandler& then) {
                       ++asked_;
                       if (is_silent_) return;
                       const auto numeric = numeric_address({answer_, address.port});
                       then(numeric ? Found(std::vector{*numeric})
                                    : Error{.kind = ErrorKind::kNotFound, .cause = "no name"});
                     }};
};

TEST_F(NameServiceTest, ANameThatStopsResolvingKeepsItsAddresses) {
  EXPECT_EQ(find(), "10.0.0.1");
  EXPECT_EQ(find(), "10.0.0.1");
  EXPECT_EQ(asked_, 1) << "the address is new";
  answer_.clear();
  until_asked_again();
  EXPECT_EQ(find(), "10.0.0.1");
  is_silent_ = true;
  until_asked_again();
  EXPECT_EQ(find(), "10.0.0.1");
}

TEST_F(NameServiceTest, ANewAddressIsUsedFromTheNextCallOn) {
  EXPECT_EQ(find(), "10.0.0.1");
  answer_ = "10.0.0.2";
  EXPECT_TRUE(eventually_on(io_, [&] { return find() == "10.0.0.2"; }));
}

TEST_F(NameServiceTest, AnUnknownNameIsAskedForEachTime) {
  answer_.clear();
  EXPECT_EQ(find(), "");
  EXPECT_EQ(find(), "");
  EXPECT_EQ(asked_, 2);
  answer_ = "10.0.0.1";
  EXPECT_EQ(find(), "10.0.0.1");
}

TEST_F(NameServiceTest, AfterItsEndNobodyIsCalled) {
  bool was_called = false;
  names_.ask({"etcd1", 2379}, [&](const Found&) { was_called = true; });
  names_.end();
  io_.run();
  EXPECT_FALSE(was_called);
}

}  // namespace
}  // namespace ddprun
