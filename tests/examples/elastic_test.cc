// Tests the example elastic with agents that join and are killed, on this host.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <map>

#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/number_after.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr int kEpochs = 40;

int lines_with(const std::string& text, const std::string& words) {
  const std::vector<std::string> lines = lines_of(text);
  return static_cast<int>(std::ranges::count_if(
      lines, [&](const std::string& line) { return line.find(words) != line.npos; }));
}

class Elastic : public RendezvousTest {
 protected:
  std::unique_ptr<ChildProcess> start_node(const std::string& endpoint) const {
    return start({"--rdzv-endpoint=" + endpoint, "--rdzv-id=job", "--nnodes=1:3",
                  "--rdzv-conf=last_call_timeout=0", "--on-join=checkpoint", "--max-restarts=3",
                  program("elastic"), "--checkpoint-dir=" + directory_ / "run",
                  "--epochs=" + std::to_string(kEpochs), "--pause=0.002"},
                 {{"OMP_NUM_THREADS", "1"}});
  }
};

TEST_F(Elastic, GoesOnWithEveryImageOnceWhileNodesComeAndAreKilled) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0", "--lease=2"});
  const std::string endpoint = listening_address(*service);
  auto first = start_node(endpoint);
  ASSERT_TRUE(first->wait_for_out("epoch  1  world 1 ")) << first->err();
  // The first node must not continue its training while the second one starts.
  const pid_t worker = tree_of(*first).worker;
  ASSERT_EQ(kill(worker, SIGSTOP), 0);
  auto second = start_node(endpoint);
  ASSERT_TRUE(second->wait_for_err("joins at the next checkpoint that is announced"))
      << second->err();
  ASSERT_EQ(kill(worker, SIGCONT), 0);
  ASSERT_TRUE(first->wait_for_out("world of 2 (was 1): continues with step "))
      << first->out() << first->err();
  // The first epoch's checkpoint may have been complete before the world of two began. The next
  // two epochs have checkpoints of the world of two.
  ASSERT_TRUE(eventually([&] { return lines_with(first->out(), "  world 2 ") >= 3; }))
      << first->out() << first->err();
  kill(tree_of(*second).agent, SIGKILL);
  ASSERT_TRUE(first->wait_for_out("world of 1 (was 2): continues with step "))
      << first->out() << first->err();
  ASSERT_EQ(first->wait(seconds(60)), 0) << first->out() << first->err();
  EXPECT_NE(second->wait(), 0);
  end(*service);

  // The kill may cause an epoch to be reported twice. Then the later report counts.
  std::map<int, std::string> epochs;
  for (const std::string& line : lines_of(first->out())) {
    const std::size_t at = line.find("epoch ");
    if (at != line.npos && line.find("world of") == line.npos)
      epochs[static_cast<int>(number_after(line, "epoch "))] = line;
  }
  ASSERT_EQ(epochs.size(), static_cast<std::size_t>(kEpochs)) << first->out();
  for (const auto& [epoch, line] : epochs) {
    EXPECT_THAT(line, HasSubstr("  1437 of 1437 images, "));
    // Images are repeated if two workers cannot divide them evenly.
    EXPECT_LE(number_after(line, "images, "), 2) << line;
  }
  EXPECT_GE(number_after(epochs[kEpochs], "test accuracy "), 90);
}

TEST_F(Elastic, ABatchThatTheWorldDoesNotDivideIsNamed) {
  auto job = start({"--standalone", "--nproc-per-node=2", program("elastic"), "--batch-size=5",
                    "--checkpoint-dir=" + directory_ / "run"});
  EXPECT_EQ(job->wait(), 1);
  EXPECT_THAT(job->err(), HasSubstr("elastic: per_rank"));
}

TEST_F(Elastic, BadOptionsAreOneLineAndExitCodeTwo) {
  for (const std::string option : {"--epochs=1", "--pause=-1", "--checkpoint-every=0"}) {
    ChildProcess refused({program("elastic"), option});
    EXPECT_EQ(refused.wait(), 2);
    EXPECT_THAT(refused.err(), StartsWith("elastic: --"));
    EXPECT_EQ(std::ranges::count(refused.err(), '\n'), 1) << refused.err();
  }
  ChildProcess help({program("elastic"), "--help"});
  EXPECT_EQ(help.wait(), 0);
  EXPECT_THAT(help.out(), AllOf(HasSubstr("--on-join=checkpoint"),
                                HasSubstr("images of all workers together")));
}

}  // namespace
}  // namespace ddprun::testing_support
