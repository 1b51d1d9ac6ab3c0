#include "base/read_whole.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <fstream>

#include "base/unique_fd.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

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
  EXPECT_EQ(read(4).error().message(), "read " + path + ": it has 5 bytes (at most 4 are allowed)");
}

}  // namespace
}  // namespace ddprun
