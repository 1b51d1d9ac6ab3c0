#include "launcher/process/command_output.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>

#include <csignal>

#include "base/unique_fd.h"

namespace ddprun {
namespace {

using std::chrono::seconds;

CommandOutput shell(const std::string& script, Stderr errors = Stderr::kDropped) {
  return output_of({"sh", "-c", script}, Deadline(seconds(20)), errors);
}

TEST(CommandOutput, OfAProgramThatIsNotThereIsEmpty) {
  const CommandOutput output = output_of({"no-such-program"}, Deadline(seconds(20)));
  EXPECT_FALSE(output.is_started);
  EXPECT_EQ(output.text, "");
  EXPECT_EQ(output.exit_code, std::nullopt);
}

TEST(CommandOutput, HoldsWhatIsPrintedAndTheExitCode) {
  const CommandOutput output = shell("echo out; echo err >&2; exit 3");
  EXPECT_TRUE(output.is_started);
  EXPECT_EQ(output.text, "out\n");
  EXPECT_EQ(output.exit_code, 3);
  EXPECT_EQ(shell("echo out; echo err >&2", Stderr::kRead).text, "out\nerr\n");
}

TEST(CommandOutput, WaitsForAProgramThatHasClosedItsOutput) {
  EXPECT_EQ(shell("exec >&-; sleep 0.1; exit 4").exit_code, 4);
}

TEST(CommandOutput, OfAKilledProgramHasTheCodeOfItsSignal) {
  EXPECT_EQ(shell("kill -KILL $$").exit_code, 137);
}

TEST(CommandOutput, EndsAtTheDeadline) {
  const Deadline deadline(seconds(1));
  const CommandOutput output = output_of({"sh", "-c", "echo begun; exec sleep 60"}, deadline);
  EXPECT_EQ(output.text, "begun\n");
  EXPECT_EQ(output.exit_code, std::nullopt);
  EXPECT_LT(deadline.waited(), seconds(30));
}

TEST(CommandOutput, EndsWhenItIsStopped) {
  const UniqueFd stop(eventfd(1, EFD_CLOEXEC));
  const Deadline deadline(seconds(60));
  EXPECT_EQ(output_of({"sleep", "60"}, deadline, Stderr::kDropped, stop.get()).exit_code,
            std::nullopt);
  EXPECT_LT(deadline.waited(), seconds(30));
}

// system(3) ignores SIGINT meanwhile, which drops one that is blocked and has come.
TEST(CommandOutput, LeavesSignalsThatAreBlockedHere) {
  sigset_t blocked;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGINT);
  sigaddset(&blocked, SIGTERM);
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, &blocked, &before);
  raise(SIGINT);
  EXPECT_EQ(shell("kill -TERM $$; echo blocked").exit_code, 143);
  EXPECT_EQ(shell("kill -INT $$; echo blocked").exit_code, 130);
  sigset_t pending;
  sigpending(&pending);
  EXPECT_EQ(sigismember(&pending, SIGINT), 1);
  const timespec now{};
  EXPECT_EQ(sigtimedwait(&blocked, nullptr, &now), SIGINT);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace ddprun
