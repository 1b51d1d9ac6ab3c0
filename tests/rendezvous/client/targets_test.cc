#include "rendezvous/client/targets.h"

#include <gmock/gmock.h>

namespace ddprun {
namespace {

using boost::asio::ip::make_address;
using testing::ElementsAre;
using How = Ending::How;
using Endpoint = boost::asio::ip::tcp::endpoint;

Endpoint endpoint(const char* address) { return {make_address(address), 29400}; }

Targets targets(const std::vector<const char*>& hosts) {
  std::vector<Target> given;
  for (const char* host : hosts) given.push_back({.address = {host, 29400}, .name = host});
  return Targets(given);
}

TEST(Targets, AnAddressIsAddedOnceAndOnlySoMany) {
  Targets all = targets({"a"});
  EXPECT_FALSE(all.add({.address = {"a", 29400}, .name = "other"}));
  EXPECT_TRUE(all.add({.address = {"a", 29401}, .name = "a"}));
  while (all.size() < Targets::kMost) {
    ASSERT_TRUE(all.add({.address = {"b", static_cast<std::uint16_t>(all.size())}, .name = "b"}));
  }
  EXPECT_FALSE(all.add({.address = {"c", 1}, .name = "c"}));
  EXPECT_EQ(all[0].name, "a");
}

TEST(Targets, EachAddressOfTheFirstFamilyOfANameBecomesATarget) {
  Targets all = targets({"services"});
  all[0].endpoints = {endpoint("10.0.0.1"), endpoint("10.0.0.2"), endpoint("::1")};
  all.spread();
  ASSERT_EQ(all.size(), 2u);
  EXPECT_THAT(all[0].endpoints, ElementsAre(endpoint("10.0.0.1")));
  EXPECT_THAT(all[1].endpoints, ElementsAre(endpoint("10.0.0.2")));
  EXPECT_EQ(all[1].address, (HostPort{"10.0.0.2", 29400}));
  EXPECT_EQ(all[1].name, "services") << "of its certificate";
  all[0].endpoints.clear();
  all.spread();
  EXPECT_EQ(all.size(), 2u);
}

TEST(Targets, AFailureCountsIfItIsTrueOfAllServices) {
  Targets all = targets({"a", "b", "c"});
  EXPECT_EQ(all.summary().why, "no service answered");
  all[1].ending = {How::kRefused, "the job has ended"};
  EXPECT_EQ(all.summary().how, How::kRefused);
  all[2].ending = {How::kBroken, "timed out"};
  EXPECT_EQ(all.summary().how, How::kBroken);
  EXPECT_EQ(all.summary().why, "b:29400: the job has ended");
}

TEST(Targets, TheOnlyServiceIsNotNamed) {
  Targets all = targets({"a"});
  all[0].ending = {How::kNoTls, "no TLS"};
  EXPECT_EQ(all.summary().how, How::kNoTls);
  EXPECT_EQ(all.summary().why, "no TLS");
}

}  // namespace
}  // namespace ddprun
