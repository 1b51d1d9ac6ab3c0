#include "launcher/worker/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "tests/support/eventually.h"
#include "tests/support/host_has.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::TemporaryDirectory;

class WorkerFilesTest : public testing::Test {
 protected:
  Result<WorkerStreams> open(WorkerFilesOptions options) { return open_streams(options, logs_); }
  bool appears(const std::string& name) const {
    return eventually([&] { return std::filesystem::exists(directory_ / name); });
  }

  const TemporaryDirectory directory_;
  LogWriter logs_{{.on_drained = [] {}, .warn = [](const std::string&) {}}};
};

TEST_F(WorkerFilesTest, OnlyStreamsThatAreAskedForHaveAFile) {
  const WorkerStreams streams =
      open({.directory = directory_ / "0", .redirects = Streams::kBoth, .tee = Streams::kErr})
          .value();
  EXPECT_TRUE(streams.out.log && streams.out.only_logged);
  EXPECT_TRUE(streams.err.log && !streams.err.only_logged);
  EXPECT_TRUE(appears("0/stdout.log"));
  const WorkerStreams none = open({.directory = directory_ / "1"}).value();
  EXPECT_FALSE(none.out.log || none.err.log);
}

TEST_F(WorkerFilesTest, WithoutADirectoryThereAreNoFiles) {
  const WorkerStreams streams = open({.redirects = Streams::kBoth}).value();
  EXPECT_FALSE(streams.out.log || streams.out.only_logged);
}

TEST_F(WorkerFilesTest, ATerminalIsOneForBothAndHasItsSize) {
  if (!testing_support::host_has_pseudo_terminals())
    GTEST_SKIP() << testing_support::kNoPseudoTerminals;
  const WorkerStreams streams =
      open({.directory = directory_ / "0", .tee = Streams::kErr, .terminal = ScreenSize{100, 30}})
          .value();
  EXPECT_EQ(isatty(streams.out.to_worker.get()), 1);
  EXPECT_STREQ(ttyname(streams.err.to_worker.get()), ttyname(streams.out.to_worker.get()));
  EXPECT_FALSE(streams.err.from_worker.valid());
  EXPECT_TRUE(streams.out.log);
  winsize size{};
  ASSERT_EQ(ioctl(streams.out.to_worker.get(), TIOCGWINSZ, &size), 0);
  EXPECT_EQ(size.ws_col, 100);
  EXPECT_EQ(size.ws_row, 30);
}

TEST_F(WorkerFilesTest, ADirectoryThatCannotBeMadeIsNamed) {
  std::ofstream(directory_ / "file") << "x";
  const Result<void> made = make_log_directories({directory_ / "0", directory_ / "file/0"});
  ASSERT_FALSE(made);
  EXPECT_TRUE(std::filesystem::is_directory(directory_ / "0"));
  EXPECT_THAT(made.error().message(),
              HasSubstr("make the log directory " + (directory_ / "file/0")));
}

TEST(ErrorFile, IsReadAsPytorchAndDdprunsLibraryWriteIt) {
  const TemporaryDirectory directory;
  const std::string path = directory / "error.json";
  std::ofstream(path)
      << R"({"message": {"message": "ValueError: boom", "extraInfo": {"py_callstack":
      "Traceback (most recent call last):\n  File \"train.py\", line 3, in main\n)"
         R"(    raise\n    ~~~~^^^\nValueError: boom\n",
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
