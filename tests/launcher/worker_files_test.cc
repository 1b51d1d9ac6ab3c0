#include "launcher/worker_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing_support::TemporaryDirectory;

TEST(TailOfFile, IsWhatAPipeWouldHaveGiven) {
  // A progress bar, and the line ends of a program that thinks of a terminal.
  const TemporaryDirectory directory;
  const std::string path = directory / "stderr.log";
  std::ofstream(path) << " 10%\r 20%\r 30%\r\ncannot open data\r\n\nTraceback";
  EXPECT_THAT(tail_of_file(path),
              ElementsAre(" 10%", " 20%", " 30%", "cannot open data", "Traceback"));
}

TEST(TailOfFile, OfALongFileIsItsEndAndOfNoFileNothing) {
  const TemporaryDirectory directory;
  const std::string path = directory / "stderr.log";
  std::ofstream(path) << std::string(1 << 20, 'x') << "\nlast\n";
  ASSERT_FALSE(tail_of_file(path).empty());
  EXPECT_EQ(tail_of_file(path).back(), "last");
  EXPECT_THAT(tail_of_file(path + ".not"), ElementsAre());
}

}  // namespace
}  // namespace ddprun
