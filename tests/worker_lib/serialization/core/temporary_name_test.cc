#include "worker_lib/serialization/core/temporary_name.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

TEST(TemporaryName, EndsInTmpAndDiffersByWriter) {
  const std::string one = temporary_name("/checkpoints/step-1.pt", "5f00");
  EXPECT_TRUE(one.starts_with("/checkpoints/step-1.pt")) << one;
  EXPECT_TRUE(one.ends_with(kTemporarySuffix)) << one;
  EXPECT_NE(one, temporary_name("/checkpoints/step-1.pt", "5f01"));
}

}  // namespace
}  // namespace ddprun
