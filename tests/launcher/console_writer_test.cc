#include "launcher/console_writer.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <future>
#include <optional>
#include <tuple>

#include "base/pipe.h"
#include "base/unique_fd.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using testing_support::eventually;
using testing_support::kPatience;

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

// A line.
const std::string kMoreThanAPipeHolds = std::string(2 << 20, 'x') + "\n";

TEST_F(ConsoleWriterTest, GoesAwayWhileItsReaderHasStopped) {
  writer_->say(ConsoleStream::kOut, kMoreThanAPipeHolds);
  std::future<void> all = flushed();
  char byte = 0;
  ASSERT_EQ(read(reader_.get(), &byte, 1), 1) << "the writer has begun, and cannot end";
  EXPECT_EQ(all.wait_for(std::chrono::seconds(0)), std::future_status::timeout);
  writer_.reset();
  EXPECT_THROW(all.get(), std::future_error) << "nobody is called any more";
  reader_.reset();  // lets the thread that is left behind end
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

}  // namespace
}  // namespace ddprun
