#include "launcher/dashboard/command_feed.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <boost/asio/io_context.hpp>
#include <cerrno>
#include <memory>
#include <string>

#include "base/parse_number.h"

namespace ddprun {
namespace {

constexpr std::chrono::seconds kPatience(60);
const std::string kEnd = "event: end\ndata: {}\n\n";

class CommandFeedTest : public testing::Test {
 protected:
  void begin(std::vector<std::string> words) {
    feed_ = std::make_shared<CommandFeed>(
        io_, std::move(words), std::map<std::string, std::string>{{"DDPRUN_FEED", "given"}});
    feed_->begin([this] { events_ += feed_->take(); });
  }
  // Runs the loop until the events end so.
  bool runs_until(const std::string& end) {
    const auto deadline = std::chrono::steady_clock::now() + kPatience;
    io_.restart();
    while (!events_.ends_with(end) && std::chrono::steady_clock::now() < deadline) {
      io_.run_one_until(deadline);
      io_.restart();
    }
    return events_.ends_with(end);
  }

  boost::asio::io_context io_;
  std::shared_ptr<CommandFeed> feed_;
  std::string events_;
};

TEST_F(CommandFeedTest, HasBothStreamsAndTheEnd) {
  begin({"sh", "-c", "echo $DDPRUN_FEED; echo wrong >&2; cat"});  // stdin is /dev/null
  ASSERT_TRUE(runs_until(kEnd)) << events_;
  EXPECT_EQ(events_.find("data: {\"text\":\"given\\n"), 0u) << events_;
  EXPECT_NE(events_.find("wrong\\n\"}"), events_.npos) << events_;
}

TEST_F(CommandFeedTest, HasLinesWhileTheCommandRuns) {
  begin({"sh", "-c", "echo one; exec sleep 1000"});
  EXPECT_TRUE(runs_until("data: {\"text\":\"one\\n\"}\n\n")) << events_;
}

TEST_F(CommandFeedTest, KillsTheCommandWhenTheReaderHasGone) {
  begin({"sh", "-c", "trap '' TERM HUP PIPE; echo $$; while :; do sleep 1000; done"});
  ASSERT_TRUE(runs_until("\\n\"}\n\n")) << events_;
  const std::string digits = events_.substr(15, events_.find("\\n") - 15);
  const auto pid = parse_number<pid_t>(digits);
  ASSERT_TRUE(pid) << events_;
  feed_.reset();
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  io_.restart();
  io_.run_until(deadline);  // until the process was reaped
  EXPECT_NE(kill(*pid, 0), 0);
  EXPECT_EQ(errno, ESRCH);
}

TEST_F(CommandFeedTest, SaysWhyACommandCannotStart) {
  begin({"/no such program"});
  EXPECT_EQ(events_,
            "data: {\"text\":\"ddprun: error: start /no such program: No such file or "
            "directory\\n\"}\n\n" +
                kEnd);
}

TEST_F(CommandFeedTest, AFloodIsBounded) {
  begin({"sh", "-c", "head -c 8000000 /dev/zero | tr '\\0' 'x' | fold -w 99; echo last"});
  ASSERT_TRUE(runs_until(kEnd)) << events_.size();
  EXPECT_NE(events_.find("last\\n"), events_.npos);
  EXPECT_NE(events_.find("\"left_out\":"), events_.npos) << "it came faster than it was read";
}

}  // namespace
}  // namespace ddprun
