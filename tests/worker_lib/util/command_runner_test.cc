#include "worker_lib/util/command_runner.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/pidfd.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using namespace testing_support;

constexpr Duration kPatience = std::chrono::minutes(2);

class CommandRunners : public testing::Test {
 protected:
  // Makes a runner whose warnings are kept. The command may use $DIR.
  std::unique_ptr<CommandRunner> runner(const std::string& command) {
    return std::make_unique<CommandRunner>(
        command, [this](const std::string& text) { warnings_.push_back(text); });
  }
  CommandVariables variables(const std::string& step) const {
    return {{"DIR", directory_.path()}, {"STEP", step}};
  }
  void finish(CommandRunner& runner, Duration patience = kPatience) const {
    runner.finish(patience, [] {});
  }
  void await(const std::string& name) const {
    const TimePoint end = BootClock::now() + kPatience;
    while (!std::filesystem::exists(directory_ / name) && BootClock::now() < end)
      std::this_thread::yield();
    ASSERT_TRUE(std::filesystem::exists(directory_ / name)) << name;
  }

  const TemporaryDirectory directory_;
  std::vector<std::string> warnings_;
};

TEST_F(CommandRunners, OfTheEventsThatWaitTheNewestIsNext) {
  const auto command = runner(
      "echo $STEP >> \"$DIR/steps\"; touch \"$DIR/begun\"; "
      "until [ -e \"$DIR/go\" ]; do sleep 0.01; done");
  command->begin(variables("1"));
  await("begun");
  command->begin(variables("2"));
  command->begin(variables("3"));
  std::ofstream(directory_ / "go");
  finish(*command);
  EXPECT_EQ(read_file(directory_ / "steps"), "1\n3\n");
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(CommandRunners, AFailureIsAWarningAndTheNextEventIsServed) {
  const auto command = runner("echo $STEP >> \"$DIR/steps\"; touch \"$DIR/$STEP\"; exit $STEP");
  command->begin(variables("3"));
  await("3");
  command->begin(variables("0"));
  await("0");
  finish(*command);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("run the command 'echo $STEP"),
                                           HasSubstr(": exit code 3"))));
}

TEST_F(CommandRunners, ACommandThatIsTooSlowIsEndedWithItsChildren) {
  const auto command = runner("trap '' TERM; touch \"$DIR/begun\"; sleep 1000 & sleep 1000; wait");
  command->begin(variables("1"));
  await("begun");
  int reports = 0;
  command->finish(std::chrono::milliseconds(1), [&] { ++reports; });
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("it had not ended in time, and was ended")));
  EXPECT_EQ(reports, 1);
  command->begin(variables("2"));
  finish(*command);
  EXPECT_EQ(warnings_.size(), 1U) << "nothing begins after the end";
}

TEST_F(CommandRunners, AnEventThatWaitsAtTheEndIsAWarning) {
  const auto command = runner("touch \"$DIR/begun\"; exec sleep 1000");
  command->begin(variables("1"));
  await("begun");
  command->begin(variables("2"));
  finish(*command, std::chrono::milliseconds(1));
  EXPECT_THAT(warnings_,
              ElementsAre(HasSubstr("was ended"), HasSubstr("ended before the newest event")));
}

TEST(RunCommand, IsEndedWithoutADescriptorOfItsProcess) {
  std::vector<UniqueFd> for_the_shell;  // it has none of them, so it can open files
  for (int i = 0; i < 8; ++i) for_the_shell.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit tight{.rlim_cur = static_cast<rlim_t>(for_the_shell.back().get()) + 1,
                     .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &tight), 0);
  const bool has_descriptor = pidfd_of(::getpid()).valid();
  const Result<void> done = run_command("exec sleep 1000", {}, [] { return true; });
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_FALSE(has_descriptor);
  ASSERT_FALSE(done);
  EXPECT_THAT(done.error().message(), HasSubstr("was ended"));
}

TEST(RunCommand, SaysHowItFailed) {
  const auto never = [] { return false; };
  EXPECT_TRUE(run_command("read x; [ -z \"$x\" ]", {}, never)) << "stdin is empty";
  EXPECT_TRUE(run_command("[ \"$PATH\" = a ]", {{"PATH", "a"}}, never));
  EXPECT_THAT(run_command("kill -9 $$", {}, never).error().message(),
              HasSubstr("it was ended by signal 9"));
  EXPECT_THAT(run_command("exec sleep 1000", {}, [] { return true; }).error().message(),
              HasSubstr("was ended"));
}

}  // namespace
}  // namespace ddprun
