#include "base/durable_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(DurableDirectory, IsMadeWithThoseAboveIt) {
  const testing_support::TemporaryDirectory here;
  const std::string path = here.path() + "/a/b/c";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(make_durable_directory(path));
    EXPECT_TRUE(std::filesystem::is_directory(path));
  }
}

TEST(DurableDirectory, ThatCannotBeMadeIsNamed) {
  const testing_support::TemporaryDirectory here;
  std::ofstream(here.path() + "/file") << "x";
  const Result<void> made = make_durable_directory(here.path() + "/file/b");
  ASSERT_FALSE(made);
  EXPECT_THAT(made.error().message(), HasSubstr("make the directory " + here.path() + "/file/b: "));
}

}  // namespace
}  // namespace ddprun
