#include "launcher/cluster/core/pod_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/launcher/cluster/core/detecting.h"

namespace ddprun {
namespace {

TEST(PodNames, AHostIsNamedWithOrWithoutADomain) {
  EXPECT_TRUE(is_name_of("train-0", "train-0"));
  EXPECT_TRUE(is_name_of("train-0.train", "train-0"));
  EXPECT_TRUE(is_name_of("train-0.train.default.svc.cluster.local", "train-0"));
  EXPECT_FALSE(is_name_of("train-01.train", "train-0"));
  EXPECT_FALSE(is_name_of("train", "train-0"));
  EXPECT_FALSE(is_name_of("train-0.train", ""));
}

TEST(PodNames, AnUnknownNameSaysWhatItNeeds) {
  const Error error =
      within_pod({.kind = ErrorKind::kNotFound, .doing = "resolve a.b", .cause = "unknown"});
  EXPECT_EQ(error.kind, ErrorKind::kNotFound);
  EXPECT_THAT(error.message(), testing::StartsWith("resolve a.b: unknown (in a pod: "));
  EXPECT_THAT(error.message(), testing::HasSubstr("publishNotReadyAddresses: true"));
}

}  // namespace
}  // namespace ddprun
