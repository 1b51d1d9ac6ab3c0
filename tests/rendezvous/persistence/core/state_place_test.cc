#include "rendezvous/persistence/core/state_place.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

std::string trouble_of(const std::string& text) {
  const Result<StatePlace> place = parse_state_place(text);
  return place ? "" : place.error().message();
}

TEST(StatePlace, ADirectory) {
  const auto place = parse_state_place("dir:/var/lib/x");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->directory, "/var/lib/x");
  EXPECT_TRUE(place->etcd.empty());
}

TEST(StatePlace, MembersOfEtcdAndAPrefix) {
  const auto place = parse_state_place("etcd://h1:2380,h2,[::1]:9/ddprun/cluster1/");
  ASSERT_TRUE(place);
  EXPECT_EQ(place->etcd, (std::vector<HostPort>{{"h1", 2380}, {"h2", 2379}, {"::1", 9}}));
  EXPECT_EQ(place->prefix, "/ddprun/cluster1");
  EXPECT_TRUE(place->directory.empty());
}

TEST(StatePlace, WithoutAPrefixThereIsADefault) {
  for (const char* text : {"etcd://h1", "etcd://h1/"}) {
    const auto place = parse_state_place(text);
    ASSERT_TRUE(place) << text;
    EXPECT_EQ(place->prefix, "/ddprun") << text;
  }
}

TEST(StatePlace, OtherTextsAreRefused) {
  for (const char* text :
       {"", "dir:", "/var/lib/x", "http://h1:2379", "etcd://", "etcd://,h1", "etcd://h1:x",
        "etcd://h1:0", "etcd:///p", "etcd://h1//p", "etcd://h1/p?x=1", "etcd://h1/p\n"}) {
    EXPECT_NE(trouble_of(text), "") << text;
  }
  EXPECT_NE(trouble_of("etcd://h1/" + std::string(StatePlace::kMaxPrefixBytes, 'p')), "");
}

TEST(StatePlace, AMemberIsNamedOnce) {
  EXPECT_EQ(trouble_of("etcd://h1,h2,h1:2379/p"),
            "invalid value 'etcd://h1,h2,h1:2379/p' (h1:2379 is named twice)");
  EXPECT_EQ(trouble_of("etcd://h1,h1:2380/p"), "") << "two members on one host";
}

TEST(StatePlace, APasswordIsNotRepeated) {
  EXPECT_EQ(trouble_of("etcd://me:secret@h1/p").find("secret"), std::string::npos);
  EXPECT_NE(trouble_of("etcd://me:secret@h1/p").find("--etcd-password-file"), std::string::npos);
  EXPECT_EQ(trouble_of("etcd://h1/p@q"), "") << "only members have no @";
}

}  // namespace
}  // namespace ddprun
