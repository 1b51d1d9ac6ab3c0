#include "launcher/main/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "launcher/options/option_table.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing_support::ChildProcess;
using testing_support::TemporaryDirectory;

// Returns what bash offers as completions of the last of these words.
std::vector<std::string> offered(const std::vector<std::string>& words) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "train.py") << "";
  std::ofstream script(directory / "complete.sh");
  script << bash_completion() << "cd " << directory.path()
         << "\ncompopt() { :; }\nCOMP_WORDS=(ddprun";
  for (const std::string& word : words) script << " '" << word << "'";
  script << ")\nCOMP_CWORD=" << words.size() << "\n_ddprun\nprintf '%s\\n' \"${COMPREPLY[@]}\"\n";
  script.close();
  ChildProcess bash({"bash", "--norc", directory / "complete.sh"});
  EXPECT_EQ(bash.wait(std::chrono::seconds(20)), 0);
  std::istringstream lines(bash.out());
  std::vector<std::string> found;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) found.push_back(line);
  }
  return found;
}

TEST(BashCompletion, OffersOptionsTheirWordsFilesAndCommands) {
  EXPECT_THAT(offered({"--nproc"}), ElementsAre("--nproc-per-node"));
  EXPECT_THAT(offered({"--on-join", "="}), ElementsAre("now", "checkpoint", "restart"));
  EXPECT_THAT(offered({"--on_join", "ch"}), ElementsAre("checkpoint"));
  EXPECT_THAT(offered({"comp"}), Contains("completion"));
  EXPECT_THAT(offered({"--standalone", "tr"}), Contains("train.py"));
  EXPECT_THAT(offered({"--config", "tr"}), ElementsAre("train.py"));
}

TEST(BashCompletion, OffersNothingOfItsOwnBehindTheProgramOrForAFreeValue) {
  EXPECT_THAT(offered({"train.py", "--nproc"}), ElementsAre());
  EXPECT_THAT(offered({"--max-restarts", "3", "train.py", "--"}), ElementsAre());
  EXPECT_THAT(offered({"--max-restarts", "--"}), ElementsAre()) << "it is a number";
  EXPECT_THAT(offered({"--max-restarts", "=", "3", "--stand"}), Contains("--standalone"));
}

// zsh parses the quoting. A test function that prints its arguments replaces zsh's own
// _arguments.
TEST(ZshCompletion, GivesArgumentsASpecForEveryOption) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "complete.zsh")
      << "compdef() { :; }\n_arguments() { print -rl -- \"$@\" }\n"
      << zsh_completion() << "_ddprun\n";
  ChildProcess zsh({"zsh", "-f", directory / "complete.zsh"});
  ASSERT_EQ(zsh.wait(std::chrono::seconds(20)), 0) << zsh.err();
  const std::string specs = zsh.out();
  for (const OptionSpec& option : option_table()) {
    const std::string begin = "--" + option.name + (option.is_switch() ? "[" : "=[");
    EXPECT_THAT(specs, ::testing::HasSubstr(begin));
  }
  EXPECT_THAT(specs, ::testing::HasSubstr(":(now checkpoint restart)\n"));
}

TEST(Completion, IsOfAShellThatThereIs) {
  EXPECT_EQ(run_completion({"fish"}), 2);
  EXPECT_EQ(run_completion({}), 2);
}

}  // namespace
}  // namespace ddprun
