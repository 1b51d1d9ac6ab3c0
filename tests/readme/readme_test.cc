// Tests what the README promises a newcomer. after.cc differs from before.cc only in the lines
// that the README shows, at most twelve. It does what the README says of these lines.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/job_workers.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

const std::string kSource = DDPRUN_SOURCE_DIR;

// Returns the difference in the README's form: without file names, times and line numbers.
std::vector<std::string> difference() {
  ChildProcess diff(
      {"diff", "-U1", kSource + "/tests/readme/before.cc", kSource + "/tests/readme/after.cc"});
  EXPECT_EQ(diff.wait(), 1) << "they do not differ: " << diff.err();
  std::vector<std::string> lines;
  for (const std::string& line : lines_of(diff.out())) {
    if (line.starts_with("---") || line.starts_with("+++")) continue;
    lines.push_back(line.starts_with("@@") ? "@@" : line);
  }
  return lines;
}

TEST(Readme, ShowsTheLinesThatMakeATrainingFaultTolerant) {
  const std::string readme = read_file(kSource + "/README.md");
  const std::string begin = "```diff\n";
  const std::size_t at = readme.find(begin);
  ASSERT_NE(at, std::string::npos);
  const std::size_t from = at + begin.size();
  EXPECT_EQ(lines_of(readme.substr(from, readme.find("```", from) - from)), difference());
}

TEST(Readme, TheyAreAtMostTwelve) {
  const std::vector<std::string> lines = difference();
  const auto begin_with = [&](char sign) {
    return std::ranges::count_if(lines, [&](const std::string& line) { return line[0] == sign; });
  };
  EXPECT_THAT(begin_with('+'), testing::AllOf(testing::Gt(0), testing::Le(12)));
  EXPECT_LE(begin_with('-'), begin_with('+')) << "a line that goes away is a change, too";
}

// Returns the program in `text` without comments.
std::vector<std::string> program_in(const std::string& text) {
  const std::string program = text.substr(text.find("#include"));
  return lines_of(std::regex_replace(program, std::regex("\\s*//.*"), ""));
}

// tutorial.fault_tolerant_training, which builds and runs that program, has the label long.
TEST(Readme, TheTutorialShowsTheSameProgramButForEpochsAndOutput) {
  const std::string page = read_file(kSource + "/docs/tutorials/fault_tolerant_training.md");
  const std::size_t begin = page.find("```cpp\n");
  const std::vector<std::string> shown =
      program_in(page.substr(begin, page.find("```\n", begin + 7) - begin));
  const std::vector<std::string> after = program_in(read_file(kSource + "/tests/readme/after.cc"));
  ASSERT_EQ(shown.size(), after.size());
  for (std::size_t i = 0; i < after.size(); ++i) {
    const bool may_differ =
        after[i].find("epoch < 40") != after[i].npos || after[i].find("cout") != after[i].npos;
    EXPECT_TRUE(may_differ || shown[i] == after[i]) << shown[i] << "\n" << after[i];
  }
}

using ReadmeTraining = LauncherTest;

TEST_F(ReadmeTraining, IsOneWithoutThem) {
  ChildProcess training({program("readme_before")}, environment({{"OMP_NUM_THREADS", "1"}}));
  ASSERT_EQ(training.wait(seconds(60)), 0) << training.err();
  EXPECT_TRUE(std::filesystem::exists(directory_ / "net.pt"));
}

// Two jobs run in their own directories, and one of them loses a worker. Their nets must be the
// same, byte for byte.
TEST_F(ReadmeTraining, OfTwoWorkersThatLosesOneEndsWithTheSameBits) {
  const auto start_in = [&](const std::string& name) {
    ChildProcess::Options options = environment();
    options.directory = directory_ / name;
    std::filesystem::create_directory(options.directory);
    return std::make_unique<ChildProcess>(
        Arguments{program("ddprun"), "--standalone", "--nproc-per-node=2", "--max-restarts=3",
                  program("readme_after")},
        options);
  };
  auto undisturbed = start_in("undisturbed");
  ASSERT_EQ(undisturbed->wait(seconds(60)), 0) << undisturbed->err();

  auto killed = start_in("killed");
  const std::vector<JobWorker> workers = workers_of(mark_, 2);
  ASSERT_EQ(workers.size(), 2u) << killed->err();
  ASSERT_TRUE(killed->wait_for_out("epoch 3 ")) << killed->err();
  workers[1].kill();
  ASSERT_EQ(killed->wait(seconds(60)), 0) << killed->err();
  EXPECT_THAT(killed->err(), HasSubstr("succeeded after 1 of 3 restarts"));

  const std::string net = read_file(directory_ / "undisturbed/net.pt");
  EXPECT_THAT(net, HasSubstr("PK"));
  EXPECT_TRUE(net == read_file(directory_ / "killed/net.pt")) << "the nets differ";
}

}  // namespace
}  // namespace ddprun::testing_support
