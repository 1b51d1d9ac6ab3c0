#include "ddprun/summary_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "base/file_calls.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/read_file.h"
#include "tests/support/sanitized.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"
#include "tests/worker_lib/support/scoped_environment.h"
#include "worker_lib/serialization/core/little_endian.h"
#include "worker_lib/tensorboard/core/tf_record.h"

namespace ddprun {
namespace {

using std::chrono_literals::operator""h;
using std::chrono_literals::operator""ms;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::MatchesRegex;
using testing::StartsWith;
using testing::StrEq;
using testing_support::eventually;
using testing_support::listing;
using testing_support::TemporaryDirectory;

constexpr auto kInvalid = DistError::Kind::kInvalidArgument;

// Returns the whole records of a file, as a reader sees them.
std::vector<std::string> records_of(const std::string& path) {
  const std::string file = testing_support::read_file(path);
  std::vector<std::string> records;
  for (std::string_view left = file; left.size() >= 12;) {
    const std::uint64_t size = read_little_endian(left.substr(0, 8));
    EXPECT_EQ(read_little_endian(left.substr(8, 4)), masked_crc32c(left.substr(0, 8)));
    if (left.size() < 16 + size) break;
    records.emplace_back(left.substr(12, size));
    EXPECT_EQ(read_little_endian(left.substr(12 + size, 4)), masked_crc32c(records.back()));
    left.remove_prefix(16 + size);
  }
  return records;
}

class SummaryWriterTest : public testing::Test {
 protected:
  SummaryOptions options() const {
    return {.directory = directory_ / "run", .rank = 0, .flush_every = 1h};
  }
  // Returns the path of the newest file.
  std::string file() const { return directory_ / ("run/" + listing(directory_ / "run").back()); }
  // Returns the number of events that were added and are in the newest file.
  std::size_t written() const { return records_of(file()).size() - 2; }

  TemporaryDirectory directory_;
};

TEST_F(SummaryWriterTest, WritesWhenAskedAndAtItsEnd) {
  {
    SummaryWriter writer(options());
    EXPECT_EQ(written(), 0U);
    writer.add_scalar("loss", 0.5, 1);
    writer.add_text("notes", "hello", 1);
    writer.flush();
    EXPECT_EQ(written(), 2U);
    writer.add_scalar("loss", 0.25, 2);
  }
  const std::vector<std::string> records = records_of(file());
  ASSERT_EQ(records.size(), 5U);
  EXPECT_THAT(records[0], HasSubstr("brain.Event:2"));
  EXPECT_THAT(records[2], HasSubstr("loss"));
  EXPECT_THAT(records[3], HasSubstr("hello"));
}

TEST_F(SummaryWriterTest, WritesAfterAWhileByItself) {
  SummaryOptions soon = options();
  soon.flush_every = 10ms;
  SummaryWriter writer(soon);
  writer.add_scalar("loss", 1, 1);
  EXPECT_TRUE(eventually([&] { return written() == 1; }));
}

TEST_F(SummaryWriterTest, OtherRanksDoNothing) {
  SummaryOptions second = options();
  second.rank = 1;
  SummaryWriter writer(second);
  EXPECT_FALSE(writer.is_writing());
  writer.add_scalar("", 1, 1);
  writer.add_image("image", std::vector<float>{}, {}, 1);
  writer.flush();
  EXPECT_EQ(writer.dropped(), 0);
  EXPECT_THAT(listing(directory_.path()), IsEmpty());
}

TEST_F(SummaryWriterTest, TheEnvironmentSaysTheRank) {
  SummaryOptions by_environment = options();
  by_environment.rank.reset();
  for (const auto& [rank, writes] : {std::pair{"0", true}, {"1", false}, {"", true}}) {
    const ScopedEnvironment scoped(std::map<std::string, std::string>{{"RANK", rank}});
    EXPECT_EQ(SummaryWriter(by_environment).is_writing(), writes) << rank;
  }
  const ScopedEnvironment scoped(std::map<std::string, std::string>{{"RANK", "first"}});
  EXPECT_DIST_ERROR(
      SummaryWriter{by_environment}, kInvalid,
      StrEq("SummaryWriter: environment variable RANK: invalid value 'first' (expected a "
            "number)"));
}

TEST_F(SummaryWriterTest, TheFileOfANewLifeSortsAfterAllEarlierOnes) {
  directory_.write("run/events.out.tfevents.4000000000.host.1", "");
  directory_.write("run/events.out.tfevents.x", "");
  SummaryWriter first(options());
  EXPECT_THAT(file(), HasSubstr("/events.out.tfevents.x"));
  std::filesystem::remove(file());
  EXPECT_THAT(file(), HasSubstr("/events.out.tfevents.4000000001."));
  const SummaryWriter second(options());
  EXPECT_THAT(file(), HasSubstr("/events.out.tfevents.4000000002."));
}

TEST_F(SummaryWriterTest, BadValuesAreRefusedAndNotQueued) {
  SummaryWriter writer(options());
  EXPECT_DIST_ERROR(writer.add_scalar("", 1, 1), kInvalid, StrEq("SummaryWriter: a tag is empty"));
  EXPECT_DIST_ERROR(writer.add_scalar("\xff", 1, 1), kInvalid,
                    StrEq("SummaryWriter: a tag is not UTF-8"));
  EXPECT_DIST_ERROR(writer.add_text("a", "\xff", 1), kInvalid,
                    StrEq("SummaryWriter: the text of 'a' is not UTF-8"));
  EXPECT_DIST_ERROR(writer.add_hparams({{"a", "\xff"}}, {}), kInvalid,
                    StrEq("SummaryWriter: the hyperparameter 'a' is not UTF-8"));
  const std::vector<std::uint8_t> pixels(4);
  EXPECT_DIST_ERROR(writer.add_image("a", pixels, {.height = 1, .width = 1}, 1), kInvalid,
                    StrEq("SummaryWriter: an image of 3 channels of 1 x 1 needs 3 values, not 4"));
  EXPECT_DIST_ERROR(writer.add_image("a", pixels, {.height = 2, .width = 2, .channels = 5}, 1),
                    kInvalid,
                    StrEq("SummaryWriter: an image has 5 channels of 2 x 2 (expected 1 to 4 "
                          "channels, and at least 1 "
                          "pixel)"));
  EXPECT_DIST_ERROR(
      writer.add_image("a", pixels, {.height = INT32_MAX, .width = INT32_MAX, .channels = 4}, 1),
      kInvalid, HasSubstr("too large"));
  const ImageShape column{.height = 1 << 26, .width = 1, .channels = 1};  // 128 MiB as a PNG
  EXPECT_DIST_ERROR(writer.add_image("a", pixels, column, 1), kInvalid, HasSubstr("too large"));
  writer.flush();
  EXPECT_EQ(written(), 0U);

  EXPECT_DIST_ERROR(SummaryWriter({.directory = "", .rank = 0}), kInvalid,
                    StrEq("SummaryWriter: the directory is empty"));
  SummaryOptions never = options();
  never.flush_every = {};
  EXPECT_DIST_ERROR(SummaryWriter{never}, kInvalid,
                    StrEq("SummaryWriter: flush_every must be above zero"));
  EXPECT_DIST_ERROR(SummaryWriter({.directory = "/proc/none", .rank = 0}), DistError::Kind::kSystem,
                    StartsWith("SummaryWriter: make /proc/none: "));
}

TEST_F(SummaryWriterTest, ADirectoryThatCannotBeReadIsAnError) {
  if (testing_support::kSanitized) GTEST_SKIP() << "UBSan opens pipes";
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  EXPECT_DIST_ERROR(SummaryWriter{options()}, DistError::Kind::kSystem,
                    "SummaryWriter: read " + options().directory + ": Too many open files");
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(SummaryWriterTest, TheChildOfAForkDoesNothing) {
  SummaryOptions small = options();
  small.max_queue_bytes = 1000;
  SummaryWriter writer(small);
  writer.add_scalar("loss", 1, 1);
  testing::internal::CaptureStderr();
  writer.add_text("large", std::string(1000, 'x'), 1);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("events are dropped"));
  EXPECT_EQ(writer.dropped(), 1);
  const pid_t child = fork();
  if (child == 0) {
    writer.add_scalar("loss", 2, 2);
    writer.flush();
    const std::int64_t dropped = writer.dropped();
    writer.~SummaryWriter();
    _exit(dropped == 0 ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  writer.flush();
  EXPECT_EQ(written(), 1U);
}

// Real calls, whose writes fail or wait while the test says so.
class FullDisk : public FileCalls {
 public:
  ssize_t write(int fd, const void* data, std::size_t bytes) override {
    std::unique_lock<std::mutex> lock(mutex_);
    ++writes_;
    changed_.notify_all();
    changed_.wait(lock, [this] { return !hangs_; });
    if (!is_full_) return FileCalls::write(fd, data, bytes);
    if (bytes > room_) bytes = room_;
    room_ -= bytes;
    if (bytes > 0) return FileCalls::write(fd, data, bytes);
    errno = ENOSPC;
    return -1;
  }
  void fill(std::size_t room) {
    set([&] { is_full_ = true, room_ = room; });
  }
  void free() {
    set([&] { is_full_ = false; });
  }
  void hang() {
    set([&] { hangs_ = true, writes_ = 0; });
  }
  void answer() {
    set([&] { hangs_ = false; });
  }
  // Waits until a write hangs.
  void await_write() {
    std::unique_lock<std::mutex> lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, testing_support::kPatience, [&] { return writes_ > 0; }));
  }

 private:
  template <class Change>
  void set(Change change) {
    const std::lock_guard<std::mutex> lock(mutex_);
    change();
    changed_.notify_all();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_full_ = false;
  bool hangs_ = false;
  std::size_t room_ = 0;
  int writes_ = 0;
};

TEST_F(SummaryWriterTest, AFullDiskCutsOneEventAndLosesNone) {
  FullDisk disk;
  const ScopedFileCalls scoped(disk);
  SummaryWriter writer(options());
  testing::internal::CaptureStderr();
  disk.fill(20);  // the first bytes of an event
  writer.add_scalar("loss", 1, 1);
  EXPECT_DIST_ERROR(writer.flush(), DistError::Kind::kSystem,
                    "write " + file() + ": No space left on device");
  EXPECT_EQ(written(), 0U);
  writer.add_scalar("loss", 2, 2);
  EXPECT_DIST_ERROR(writer.flush(), DistError::Kind::kSystem, HasSubstr("No space"));
  disk.free();
  writer.flush();
  EXPECT_EQ(written(), 2U);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "ddprun: warning: SummaryWriter: write " + file() +
                ": No space left on device; it tries again every 60.0 min\n");
}

TEST_F(SummaryWriterTest, WhatCannotBeWrittenAtTheEndIsAWarning) {
  FullDisk disk;
  const ScopedFileCalls scoped(disk);
  testing::internal::CaptureStderr();
  {
    SummaryWriter writer(options());
    disk.fill(0);
    writer.add_scalar("loss", 1, 1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "ddprun: warning: SummaryWriter: write " + file() +
                ": No space left on device; events lost: 1\n");
}

TEST_F(SummaryWriterTest, AFullQueueDropsEventsAndWarnsOnce) {
  FullDisk disk;
  const ScopedFileCalls scoped(disk);
  SummaryOptions small = options();
  small.max_queue_bytes = 1000;
  SummaryWriter writer(small);
  testing::internal::CaptureStderr();
  disk.hang();
  writer.add_text("large", std::string(5000, 'x'), 1);  // the queue is empty
  disk.await_write();
  for (int step = 2; step < 5; ++step) writer.add_scalar("loss", 1, step);
  EXPECT_EQ(writer.dropped(), 3);
  EXPECT_DIST_ERROR(writer.flush(10ms), DistError::Kind::kTimeout, HasSubstr("does not answer"));
  disk.answer();
  writer.flush();
  writer.add_scalar("loss", 1, 5);
  writer.flush();
  EXPECT_EQ(written(), 2U);
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              MatchesRegex("ddprun: warning: SummaryWriter: the queue is full, and events are "
                           "dropped: [0-9]+ bytes wait for [^\n]+\n"));
}

TEST_F(SummaryWriterTest, AHistogramTakesRoomForItsBuckets) {
  FullDisk disk;
  const ScopedFileCalls scoped(disk);
  SummaryOptions small = options();
  small.max_queue_bytes = 100'000;
  SummaryWriter writer(small);
  testing::internal::CaptureStderr();
  disk.hang();
  for (int step = 0; step < 3; ++step) {
    writer.add_histogram("float", std::vector<float>{1}, step);
    writer.add_histogram("double", std::vector<double>{1}, step);
  }
  EXPECT_EQ(writer.dropped(), 3);
  disk.answer();
  writer.flush();
  EXPECT_EQ(written(), 3U);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("events are dropped"));
}

TEST_F(SummaryWriterTest, WithoutMemoryAnEventIsLostAndTheNextIsWritten) {
  if (testing_support::kSanitized) GTEST_SKIP() << "a sanitizer ends the process without memory";
  SummaryOptions large = options();
  large.max_queue_bytes = std::size_t{1} << 30;
  SummaryWriter writer(large);
  writer.add_scalar("loss", 1, 1);
  writer.flush();  // the thread has its small memory now
  // Its copies do not fit into what the allocator has reserved: 64 MiB for a thread.
  writer.add_text("large", std::string(50'000'000, 'x'), 1);
  writer.add_scalar("loss", 1, 2);
  testing::internal::CaptureStderr();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_AS, &before), 0);
  const rlimit none{.rlim_cur = 1, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_AS, &none), 0);
  writer.flush();
  ASSERT_EQ(setrlimit(RLIMIT_AS, &before), 0);
  EXPECT_EQ(written(), 2U);
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "ddprun: warning: SummaryWriter: no memory to encode events for " + file() +
                "; events lost: 1\n");
}

}  // namespace
}  // namespace ddprun
