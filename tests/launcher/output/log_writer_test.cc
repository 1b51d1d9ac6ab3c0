#include "launcher/output/log_writer.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "launcher/output/core/gap.h"
#include "tests/support/eventually.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::eventually;
using testing_support::FileSizeLimit;
using testing_support::read_file;
using testing_support::TemporaryDirectory;

class LogWriterTest : public testing::Test {
 protected:
  LogWriterTest() { begin(0); }

  void begin(std::uint64_t max_bytes) {
    logs_.emplace(LogWriterOptions{.max_bytes = max_bytes,
                                   .on_drained = [this] { ++drained_; },
                                   .warn =
                                       [this](const std::string& text) {
                                         const std::lock_guard lock(mutex_);
                                         warnings_.push_back(text);
                                       },
                                   .on_trouble =
                                       [this](const std::string& text) {
                                         const std::lock_guard lock(mutex_);
                                         troubles_.push_back(text);
                                       }});
  }
  // Writes the text to a file of a disk that has room for 10 bytes.
  void write_to_full_disk(LogFile& file, const std::string& text) {
    const FileSizeLimit disk(10);
    logs_->write(file, text);
    ASSERT_TRUE(flush());
  }
  bool flush() {
    std::atomic<bool> flushed = false;
    logs_->when_flushed([&] { flushed = true; });
    return eventually([&] { return flushed.load(); });
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  std::vector<std::string> troubles() {
    const std::lock_guard lock(mutex_);
    return troubles_;
  }

  const TemporaryDirectory directory_;
  const std::string path_ = directory_ / "0/stdout.log";
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::vector<std::string> troubles_;
  std::atomic<int> drained_ = 0;
  std::optional<LogWriter> logs_;
};

TEST_F(LogWriterTest, WritesTheBytesAsTheyAre) {
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  logs_->write(*file, std::string_view("one\r\xff\0", 6));
  logs_->write(*file, "two\npart");
  logs_->end(*file);
  ASSERT_TRUE(flush());
  EXPECT_EQ(read_file(path_), std::string("one\r\xff\0two\npart", 14));
  EXPECT_TRUE(warnings().empty());
  EXPECT_TRUE(troubles().empty());
}

TEST_F(LogWriterTest, AFullFileBecomesDotOneAndTheOneBeforeGoes) {
  begin(4096);
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  for (int i = 0; i < 300; ++i)
    logs_->write(*file, "line " + std::to_string(1000 + i) + " " + std::string(30, 'x') + "\n");
  logs_->write(*file, "unfinished");
  logs_->end(*file);
  ASSERT_TRUE(flush());
  const std::string last = read_file(path_);
  const std::string before = read_file(path_ + ".1");
  EXPECT_LE(last.size(), 4096u);
  EXPECT_LE(before.size(), 4096u);
  EXPECT_GT(before.size(), 4000u);
  EXPECT_THAT(last, HasSubstr("line 1299"));
  EXPECT_TRUE(last.ends_with("\nunfinished"));
  EXPECT_TRUE(before.ends_with("x\n")) << "cut at a line's end";
  EXPECT_TRUE(last.starts_with("line "));
  EXPECT_FALSE(std::filesystem::exists(path_ + ".2"));
  // The two files have consecutive lines.
  EXPECT_EQ(std::stoi(last.substr(5, 4)),
            std::stoi(before.substr(before.rfind("line ") + 5, 4)) + 1);
}

TEST_F(LogWriterTest, ADiskWithoutRoomIsSaidOnceAndTheFileSaysWhatIsMissing) {
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  const std::string line = std::string(99, 'x') + "\n";
  {
    const FileSizeLimit disk(1000);
    for (int i = 0; i < 50; ++i) logs_->write(*file, line);
    ASSERT_TRUE(flush());
    ASSERT_EQ(warnings().size(), 1u);
    EXPECT_THAT(warnings()[0], HasSubstr(path_ + ": File too large"));
    for (int i = 0; i < 50; ++i) logs_->write(*file, line);
    ASSERT_TRUE(flush());
    EXPECT_EQ(warnings().size(), 1u);
  }
  logs_->end(*file);  // retries the write once more
  ASSERT_TRUE(flush());
  EXPECT_THAT(read_file(path_),
              HasSubstr("[ddprun: 9000 bytes are missing here: File too large]\n"));
  ASSERT_EQ(warnings().size(), 2u);
  EXPECT_THAT(warnings()[1], HasSubstr("9000 bytes are missing"));
  const std::string why = ": File too large (first " + path_ + ")";
  EXPECT_THAT(troubles(), ElementsAre("log files are not written, so output is lost" + why,
                                      "9000 bytes are missing in log files" + why));
}

TEST_F(LogWriterTest, ThereIsOneTroubleForAllFilesAndItGoesWithThem) {
  const std::string other = directory_ / "1/stdout.log";
  const std::shared_ptr<LogFile> first = logs_->open(path_).value();
  const std::shared_ptr<LogFile> second = logs_->open(other).value();
  {
    const FileSizeLimit disk(1000);
    for (int i = 0; i < 3; ++i) {
      logs_->write(*first, std::string(999, 'x') + "\n");
      logs_->write(*second, std::string(999, 'x') + "\n");
      ASSERT_TRUE(flush());
    }
    EXPECT_EQ(troubles().size(), 1u);
    logs_->end(*first);
    ASSERT_TRUE(flush());
    EXPECT_EQ(troubles().size(), 1u) << "the other one is still not written";
    logs_->end(*second);
    ASSERT_TRUE(flush());
  }
  ASSERT_EQ(troubles().size(), 2u);
  EXPECT_THAT(troubles()[1], StartsWith("4000 bytes are missing in log files: File too large"));
  // Those of the next generation.
  const std::shared_ptr<LogFile> next = logs_->open(directory_ / "2/stdout.log").value();
  ASSERT_EQ(troubles().size(), 3u);
  EXPECT_EQ(troubles()[2], "");
  logs_->write(*next, "well\n");
  logs_->end(*next);
  ASSERT_TRUE(flush());
  EXPECT_EQ(troubles().size(), 3u);
}

// A worker may write nothing for hours.
TEST_F(LogWriterTest, ItIsSeenThatThereIsRoomAgainAlthoughNothingIsWritten) {
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  ASSERT_NO_FATAL_FAILURE(write_to_full_disk(*file, "0123456789\nlost\n"));
  ASSERT_TRUE(eventually([&] { return troubles().size() == 2; }));
  EXPECT_THAT(troubles()[1], StartsWith("6 bytes are missing in log files: "));
  EXPECT_EQ(read_file(path_), "0123456789\n[ddprun: 6 bytes are missing here: File too large]\n");
}

// A progress bar ends no line.
TEST_F(LogWriterTest, ThatThereIsRoomAgainIsSeenInTheMiddleOfALine) {
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  ASSERT_NO_FATAL_FAILURE(write_to_full_disk(*file, "0123456789 50%\r"));
  ASSERT_TRUE(eventually([&] { return troubles().size() == 2; }));
  EXPECT_THAT(troubles()[1], StartsWith("5 bytes are missing in log files: "));
  logs_->write(*file, "100%\nnext\n");
  ASSERT_TRUE(eventually([&] { return troubles().size() == 3; }));
  EXPECT_THAT(troubles()[2], StartsWith("10 bytes are missing in log files: "));
  EXPECT_EQ(read_file(path_),
            "0123456789\n[ddprun: 5 bytes are missing here: File too large]\n"
            "[ddprun: 5 bytes are missing here: File too large]\nnext\n");
  EXPECT_EQ(warnings().size(), 2u);
}

TEST_F(LogWriterTest, ItGoesOnWithAWholeLineWhenThereIsRoomAgain) {
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  ASSERT_NO_FATAL_FAILURE(
      write_to_full_disk(*file, "0123456789 and the rest\nlost\nlost, too, its beginning "));
  testing_support::let_pass(OutputGap::kRetry + std::chrono::milliseconds(10));
  logs_->write(*file, "and its end\nnext\n");
  logs_->end(*file);
  ASSERT_TRUE(flush());
  const std::string text = read_file(path_);
  EXPECT_TRUE(text.starts_with("0123456789\n[ddprun: ")) << text;
  EXPECT_THAT(text, HasSubstr(" bytes are missing here: File too large]\nnext\n"));
  ASSERT_EQ(warnings().size(), 2u);
  EXPECT_THAT(warnings()[1], HasSubstr("is written again; "));
}

TEST_F(LogWriterTest, WhatCannotBeMadeIsNamed) {
  std::filesystem::create_directories(path_);
  ASSERT_TRUE(logs_->open(path_));
  ASSERT_TRUE(eventually([&] { return !warnings().empty(); }));
  EXPECT_THAT(warnings()[0], HasSubstr("log file " + path_ + ": Is a directory"));
  ASSERT_TRUE(eventually([&] { return !troubles().empty(); }));
  EXPECT_EQ(troubles()[0],
            "log files are not written, so output is lost: Is a directory (first " + path_ + ")");
  std::filesystem::remove(path_);
  ASSERT_TRUE(eventually([&] { return troubles().size() == 2; }));
  EXPECT_EQ(troubles()[1], "") << "nothing is missing";
}

// The worker is silent after the disk has stopped for a while.
TEST_F(LogWriterTest, ADiskThatGoesOnIsSeenAlthoughNothingIsWritten) {
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  const std::string much(LogWriter::kHighWater, 'x');
  logs_->write(*file, much + "\n");
  ASSERT_TRUE(eventually([&] { return !logs_->is_full(*file); })) << "the thread has it";
  logs_->write(*file, much + "\n");
  logs_->stop_waiting(*file);
  logs_->write(*file, "dropped\n");
  std::vector<char> buffer(1 << 16);
  ASSERT_TRUE(eventually([&] {
    std::ignore = read(reader.get(), buffer.data(), buffer.size());
    return troubles().back().starts_with("8 bytes are missing in log files: ");
  }));
}

// A FIFO that nobody reads acts like a disk that has stopped.
TEST_F(LogWriterTest, ADiskThatHasStoppedMakesWorkersWaitAndThenDropsAndCounts) {
  std::filesystem::create_directories(std::filesystem::path(path_).parent_path());
  ASSERT_EQ(mkfifo(path_.c_str(), 0600), 0);
  const UniqueFd reader(::open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  const std::shared_ptr<LogFile> file = logs_->open(path_).value();
  const std::string much(LogWriter::kHighWater, 'x');
  logs_->write(*file, much + "\n");
  ASSERT_TRUE(eventually([&] { return !logs_->is_full(*file); })) << "the thread has it";
  logs_->write(*file, much + "\n");
  EXPECT_TRUE(logs_->is_full(*file));
  logs_->stop_waiting(*file);
  EXPECT_FALSE(logs_->is_full(*file)) << "workers go on";
  logs_->write(*file, "dropped\n");
  ASSERT_EQ(warnings().size(), 1u);
  EXPECT_THAT(warnings()[0], HasSubstr("the disk has accepted nothing for 2.0 s"));
  ASSERT_EQ(troubles().size(), 1u);
  EXPECT_THAT(troubles()[0], HasSubstr(": the disk has accepted nothing for 2.0 s (first "));

  logs_->end(*file);
  std::string got;
  std::vector<char> buffer(1 << 16);
  ASSERT_TRUE(eventually([&] {
    const ssize_t size = read(reader.get(), buffer.data(), buffer.size());
    if (size > 0) got.append(buffer.data(), static_cast<std::size_t>(size));
    return size == 0;
  }));
  EXPECT_TRUE(got.ends_with(
      "x\n[ddprun: 8 bytes are missing here: the disk did not accept them in time]\n"))
      << got.substr(got.size() - 200);
  EXPECT_TRUE(eventually([&] {
    return troubles().back() ==
           "8 bytes are missing in log files: the disk did not accept them in "
           "time (first " +
               path_ + ")";
  }));
}

}  // namespace
}  // namespace ddprun
