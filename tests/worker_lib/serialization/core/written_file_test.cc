#include "worker_lib/serialization/core/written_file.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(WrittenFile, TemporaryNamesEndInTmpAndDifferByWriter) {
  const std::string one = temporary_name("/checkpoints/step-1.pt", "5f00");
  EXPECT_TRUE(one.starts_with("/checkpoints/step-1.pt")) << one;
  EXPECT_TRUE(one.ends_with(kTemporarySuffix)) << one;
  EXPECT_NE(one, temporary_name("/checkpoints/step-1.pt", "5f01"));
}

TEST(WrittenFile, EqualOnlyIfNameSizeAndDigestAre) {
  const WrittenFile file{.name = "step-1.pt", .bytes = 3, .sha256 = "aa"};
  EXPECT_EQ(file, (WrittenFile{"step-1.pt", 3, "aa"}));
  EXPECT_NE(file, (WrittenFile{"step-1.pt", 4, "aa"}));
  EXPECT_NE(file, (WrittenFile{"step-1.pt", 3, "ab"}));
}

}  // namespace
}  // namespace ddprun
