#include "base/durable_directory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/read_whole.h"
#include "base/unique_fd.h"
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

TEST(ReadWhole, GivesWhatThereIsUpToItsLimit) {
  const testing_support::TemporaryDirectory here;
  const std::string path = here.path() + "/file";
  std::ofstream(path) << "12345";
  const auto read = [&](std::uint64_t limit) {
    const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    return read_whole<std::string>(file.get(), path, limit);
  };
  EXPECT_EQ(read(5).value(), "12345");
  ASSERT_FALSE(read(4));
  EXPECT_EQ(read(4).error().kind, ErrorKind::kCorrupt);
  EXPECT_EQ(read(4).error().message(),
            "read " + path + ": it has 5 bytes, 4 is the most it can have");
}

}  // namespace
}  // namespace ddprun
