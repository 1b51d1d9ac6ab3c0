#include "launcher/output/console_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <future>
#include <mutex>
#include <optional>
#include <tuple>
#include <vector>

#include "base/pipe.h"
#include "base/unique_fd.h"
#include "launcher/output/core/gap.h"
#include "tests/support/eventually.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::eventually;
using testing_support::FileSizeLimit;
using testing_support::kPatience;
using testing_support::read_file;

class ConsoleWriterTest : public testing::Test {
 protected:
  ConsoleWriterTest() {
    Pipe ends = make_pipe().value();
    reader_ = std::move(ends.read);
    pipe_ = std::move(ends.write);
    writer_.emplace([this] { ++drained_; },
                    ConsoleOptions{.descriptors = {pipe_.get(), pipe_.get()}});
  }

  std::future<void> flushed() {
    auto promise = std::make_shared<std::promise<void>>();
    writer_->when_flushed([promise] { promise->set_value(); });
    return promise->get_future();
  }
  std::size_t read_all() {
    std::string buffer(1 << 16, '\0');
    std::size_t count = 0;
    for (ssize_t size = 0; (size = read(reader_.get(), buffer.data(), buffer.size())) > 0;) {
      count += static_cast<std::size_t>(size);
    }
    return count;
  }

  UniqueFd reader_;
  UniqueFd pipe_;
  std::atomic<int> drained_ = 0;
  std::optional<ConsoleWriter> writer_;
};

// A single line of 2 MiB.
const std::string kMoreThanAPipeHolds = std::string(2 << 20, 'x') + "\n";

TEST_F(ConsoleWriterTest, GoesAwayWhileItsReaderHasStopped) {
  writer_->say(ConsoleStream::kOut, kMoreThanAPipeHolds);
  std::future<void> all = flushed();
  char byte = 0;
  ASSERT_EQ(read(reader_.get(), &byte, 1), 1) << "the writer has begun, and cannot end";
  EXPECT_EQ(all.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  writer_.reset();
  EXPECT_THROW(all.get(), std::future_error) << "nobody is called any more";
  reader_.reset();  // ends the detached thread of the writer
  std::ignore = pipe_.release();
}

TEST_F(ConsoleWriterTest, SaysWhenEverythingIsWritten) {
  EXPECT_EQ(flushed().wait_for(kPatience), std::future_status::ready) << "there was nothing";
  writer_->say(ConsoleStream::kOut, kMoreThanAPipeHolds);
  writer_->say(ConsoleStream::kErr, "end\n");
  const std::future<void> all = flushed();
  std::future<std::size_t> count = std::async(std::launch::async, [this] { return read_all(); });
  EXPECT_EQ(all.wait_for(kPatience), std::future_status::ready);
  writer_.reset();
  pipe_.reset();
  EXPECT_EQ(count.get(), kMoreThanAPipeHolds.size() + 4);
}

TEST_F(ConsoleWriterTest, AFullQueueIsToldOfAndItsEndToo) {
  EXPECT_FALSE(writer_->is_full());
  while (!writer_->is_full()) writer_->say(ConsoleStream::kOut, kMoreThanAPipeHolds);
  std::future<std::size_t> count = std::async(std::launch::async, [this] { return read_all(); });
  EXPECT_TRUE(eventually([&] { return drained_ > 0 && !writer_->is_full(); }));
  EXPECT_EQ(flushed().wait_for(kPatience), std::future_status::ready);
  writer_.reset();
  pipe_.reset();
  EXPECT_GE(count.get(), ConsoleWriter::kHighWater);
}

TEST_F(ConsoleWriterTest, StreamsThatLeadToTheSamePipeKeepTheirOrder) {
  ConsoleSource out{.prefix = "o "};
  ConsoleSource err{.prefix = "e "};
  for (int i = 0; i < 3; ++i) {
    writer_->write(ConsoleStream::kOut, out, "1\n", PieceEnd::kLines);
    writer_->write(ConsoleStream::kErr, err, "2\n", PieceEnd::kLines);
  }
  writer_->write(ConsoleStream::kOut, out, "10%\r", PieceEnd::kReturn);
  writer_->write(ConsoleStream::kErr, err, "3\n", PieceEnd::kLines);
  ASSERT_EQ(flushed().wait_for(kPatience), std::future_status::ready);
  writer_.reset();
  std::string text(1000, '\0');
  const ssize_t size = read(reader_.get(), text.data(), text.size());
  ASSERT_GT(size, 0);
  EXPECT_EQ(text.substr(0, static_cast<std::size_t>(size)),
            "o 1\ne 2\no 1\ne 2\no 1\ne 2\no 10%\r\ne 3\n");
}

// ConsoleWriterDiskTest: the console is a file. A limit on the file size acts like a full disk.
class ConsoleWriterDiskTest : public testing::Test {
 protected:
  ConsoleWriterDiskTest() {
    file_.reset(open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    null_.reset(open("/dev/null", O_WRONLY | O_CLOEXEC));
    writer_.emplace([] {}, ConsoleOptions{.descriptors = {file_.get(), null_.get()},
                                          .warn = [this](const std::string& text) {
                                            const std::lock_guard lock(mutex_);
                                            warnings_.push_back(text);
                                          }});
  }

  bool flush() {
    std::atomic<bool> flushed = false;
    writer_->when_flushed([&] { flushed = true; });
    return eventually([&] { return flushed.load(); });
  }
  std::vector<std::string> warnings() {
    const std::lock_guard lock(mutex_);
    return warnings_;
  }

  const testing_support::TemporaryDirectory directory_;
  const std::string path_ = directory_ / "out";
  UniqueFd file_;
  UniqueFd null_;
  std::mutex mutex_;
  std::vector<std::string> warnings_;
  std::optional<ConsoleWriter> writer_;
};

TEST_F(ConsoleWriterDiskTest, WhatADiskDoesNotTakeIsSaidOnceAndCounted) {
  writer_->say(ConsoleStream::kOut, "before\n");
  ASSERT_TRUE(flush());
  EXPECT_FALSE(writer_->has_losses());
  const FileSizeLimit disk(10);
  writer_->say(ConsoleStream::kOut, "0123456789\n");
  writer_->say(ConsoleStream::kErr, "there is room\n");
  ASSERT_TRUE(flush());
  writer_->say(ConsoleStream::kOut, "lost\n");
  ASSERT_TRUE(flush());
  EXPECT_TRUE(writer_->has_losses());
  EXPECT_EQ(warnings(), std::vector<std::string>{"standard output: File too large; output to it is "
                                                 "dropped until this is over, workers continue"});
  EXPECT_EQ(writer_->losses(),
            std::vector<std::string>{"standard output: 13 bytes are missing: File too large"});
  EXPECT_EQ(read_file(path_), "before\n012");
}

TEST_F(ConsoleWriterDiskTest, ItGoesOnWithAWholeLineWhenThereIsRoomAgain) {
  {
    const FileSizeLimit disk(3);
    writer_->say(ConsoleStream::kOut, "0123456789\n");
    ASSERT_TRUE(flush());
  }
  testing_support::let_pass(OutputGap::kRetry + std::chrono::milliseconds(10));
  writer_->say(ConsoleStream::kOut, "next\n");
  ASSERT_TRUE(flush());
  EXPECT_EQ(read_file(path_), "012\nnext\n");
  ASSERT_EQ(warnings().size(), 2u);
  EXPECT_EQ(warnings()[1], "standard output is written again; 8 bytes are missing");
  EXPECT_TRUE(writer_->has_losses()) << "but they are lost";
  EXPECT_TRUE(writer_->losses().empty()) << "it was said";
}

TEST_F(ConsoleWriterTest, AReaderWhoHasGoneIsNoTrouble) {
  std::signal(SIGPIPE, SIG_IGN);
  reader_.reset();
  writer_->say(ConsoleStream::kOut, "for nobody\n");
  ASSERT_EQ(flushed().wait_for(kPatience), std::future_status::ready);
  EXPECT_FALSE(writer_->has_losses());
}

}  // namespace
}  // namespace ddprun
