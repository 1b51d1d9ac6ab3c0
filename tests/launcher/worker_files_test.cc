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

TEST(ErrorFile, IsReadAsPytorchAndDdprunsLibraryWriteIt) {
  const TemporaryDirectory directory;
  const std::string path = directory / "error.json";
  std::ofstream(path)
      << R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack":
      "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n    raise\nValueError: boom\n",
      "timestamp": "1795231266", "peer_rank": 2}}})";
  const OwnWords words = read_error_file(path);
  EXPECT_EQ(words.message, "ValueError: boom");
  EXPECT_THAT(words.frames, ElementsAre("File \"train.py\", line 3, in main", "raise"));
  EXPECT_EQ(words.blames, 2);
  std::ofstream(path) << R"({"message": "plain", "timestamp": 3})";
  EXPECT_EQ(read_error_file(path).message, "plain");
}

TEST(ErrorFile, WhateverStandsInItTheReportGoesOn) {
  const TemporaryDirectory directory;
  const std::string path = directory / "error.json";
  EXPECT_EQ(read_error_file(path).message, "") << "there is none";
  for (const char* text :
       {"", "[]", "{", "3", R"({"message": 3})", R"({"message": {}})",
        R"({"message": {"message": 3, "extraInfo": []}})",
        R"({"message": {"extraInfo": {"py_callstack": 3, "peer_rank": "x"}}})"}) {
    std::ofstream(path) << text;
    const OwnWords words = read_error_file(path);
    EXPECT_EQ(words.message, "") << text;
    EXPECT_EQ(words.blames, -1) << text;
  }
}

}  // namespace
}  // namespace ddprun
