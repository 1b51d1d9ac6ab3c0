#include "launcher/doctor/names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(NameServersOf, ReadsAtMostThreeAsTheCLibraryDoes) {
  EXPECT_THAT(name_servers_of(""), IsEmpty());
  EXPECT_THAT(name_servers_of("# nameserver 10.0.0.9\n;nameserver 10.0.0.8\nsearch a.example\n"
                              "nameserver 10.0.0.1\n  nameserver\tfd00::1 \nnameserver\n"
                              "options timeout:1\nnameserver 10.0.0.3\nnameserver 10.0.0.4\n"),
              ElementsAre("10.0.0.1", "fd00::1", "10.0.0.3"));
}

TEST(LookUpName, KnowsANumericAddressByItself) {
  const NamedLookUp look_up = look_up_name({"10.1.2.3", 29400});
  EXPECT_EQ(look_up.seen.outcome, LookUp::Outcome::kFound);
  EXPECT_THAT(look_up.seen.found, ElementsAre("10.1.2.3"));
  ASSERT_EQ(look_up.addresses.size(), 1U);
  EXPECT_EQ(look_up.addresses[0].port(), 29400);
}

TEST(LookUpAddress, TakesNoNames) {
  EXPECT_EQ(look_up_address("x:y").outcome, LookUp::Outcome::kNotFound);
}

TEST(AskNameServer, SaysWhyItCannotBeAsked) {
  const NameServer server = ask_name_server("no.address");
  EXPECT_EQ(server.outcome, NameServer::Outcome::kFailed);
  EXPECT_EQ(server.why, "not a numeric address");
}

}  // namespace
}  // namespace ddprun
