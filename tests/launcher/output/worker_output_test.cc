#include "launcher/output/worker_output.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <csignal>
#include <thread>

#include "base/pipe.h"
#include "tests/support/eventually.h"

namespace ddprun {
namespace {

class WorkerOutputTest : public testing::Test {
 protected:
  WorkerOutputTest() {
    Pipe pipe = make_pipe().value();
    writer_ = std::move(pipe.write);
    null_.reset(open("/dev/null", O_WRONLY | O_CLOEXEC));
    console_.emplace([] {}, ConsoleOptions{.descriptors = {null_.get(), null_.get()}});
    output_ = std::make_shared<WorkerOutput>(
        io_, *console_, nullptr, std::move(pipe.read),
        WorkerOutputOptions{.stream = ConsoleStream::kErr, .keeps_tail = true});
  }

  // A thread of the ConsoleWriter that is writing outlives it, and must not outlive null_.
  void TearDown() override {
    std::atomic<bool> flushed = false;
    console_->when_flushed([&] { flushed = true; });
    ASSERT_TRUE(testing_support::eventually([&] { return flushed.load(); }));
  }

  boost::asio::io_context io_;
  UniqueFd writer_;
  UniqueFd null_;
  std::optional<ConsoleWriter> console_;
  std::shared_ptr<WorkerOutput> output_;
};

TEST_F(WorkerOutputTest, DrainingEndsAlsoWhileAProcessWritesWithoutEnd) {
  std::signal(SIGPIPE, SIG_IGN);
  std::atomic<int> writes = 0;
  std::thread grandchild([&] {
    const std::string line = std::string(4000, 'y') + "\n";
    while (write(writer_.get(), line.data(), line.size()) > 0) ++writes;
  });
  EXPECT_TRUE(testing_support::eventually([&] { return writes >= 8; }));
  for (int i = 0; i < 100; ++i) output_->drain();
  output_->finish();  // closes the pipe, which breaks it for the writer
  grandchild.join();
  EXPECT_FALSE(output_->tail().empty());
}

TEST_F(WorkerOutputTest, WhatIsDrainedIncludesAnUnfinishedLastLine) {
  ASSERT_EQ(write(writer_.get(), "one\ntwo", 7), 7);
  output_->drain();
  EXPECT_EQ(output_->tail(), std::vector<std::string>{"one"}) << "it may go on";
  writer_.reset();
  output_->drain();
  EXPECT_EQ(output_->tail(), (std::vector<std::string>{"one", "two"}));
}

}  // namespace
}  // namespace ddprun
