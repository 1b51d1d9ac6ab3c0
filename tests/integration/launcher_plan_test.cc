// Tests what ddprun prints about itself without starting anything.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "tests/integration/launcher_frame.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;

using testing::Not;

TEST_F(LauncherTest, PrintConfigShowsEachValueAndItsSource) {
  std::ofstream(directory_ / "job.json") << R"({"max-restarts": 2, "program": "./train"})";
  auto shown = start({"--config=job.json", "--nproc_per_node", "4", "--print-config"},
                     {{"PET_ROLE", "trainer"}});
  ASSERT_EQ(shown->wait(), 0) << shown->err();
  std::map<std::string, std::pair<std::string, std::string>> rows;
  for (const std::string& line : lines_of(shown->out())) {
    std::istringstream words(line);
    std::string name;
    words >> name >> rows[name].first;
    std::getline(words >> std::ws, rows[name].second);
  }
  using Row = std::pair<std::string, std::string>;
  EXPECT_EQ(rows["nproc-per-node"], (Row{"4", "command line"}));
  EXPECT_EQ(rows["role"], (Row{"trainer", "PET_ROLE"}));
  EXPECT_EQ(rows["max-restarts"], (Row{"2", "job.json"}));
  EXPECT_EQ(rows["nnodes"], (Row{"1", "default"}));
  EXPECT_EQ(rows["standalone"], (Row{"false", "default"}));
  EXPECT_EQ(rows["program"], (Row{"./train", "job.json"}));
}

TEST_F(LauncherTest, PrintConfigNamesAWrongValueAsAStartWould) {
  auto shown = start({"--nnodes=x", "--print-config"});
  EXPECT_EQ(shown->wait(), 2);
  EXPECT_THAT(shown->err(), HasSubstr("--nnodes: invalid value 'x'"));
  EXPECT_EQ(shown->out(), "");
}

// The variables are those of a worker of the same command line.
TEST_F(LauncherTest, ADryRunPrintsTheEnvironmentThatWorkersWouldHaveAndStartsNothing) {
  const Arguments line{"--nproc-per-node=2", "--rdzv-id=j", "--max-restarts=3", "--umask=027"};
  auto dry = start(joined({"--dry-run"}, line, {"sh", "-c", "touch started-$RANK"}));
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_FALSE(std::filesystem::exists(directory_ / "started-0"));
  EXPECT_THAT(dry->out(),
              HasSubstr("job: 'j', 1 node, 2 workers on this one, 3 restarts at most\n"));
  EXPECT_THAT(dry->out(), HasSubstr("/sh -c 'touch started-$RANK'\numask: 027\n"));

  auto job = start_shell(line, "env > env-$RANK");
  ASSERT_EQ(job->wait(), 0) << job->err();
  for (const std::string rank : {"0", "1"}) {
    const std::vector<std::string> real = lines_of(read_file(directory_ / ("env-" + rank)));
    const std::string heading = "worker with local rank " + rank + "\n";
    std::istringstream block(dry->out().substr(dry->out().find(heading) + heading.size()));
    int shown = 0;
    for (std::string row; std::getline(block, row) && !row.empty(); ++shown) {
      ASSERT_TRUE(row.starts_with("  ")) << row;
      row = row.substr(2);
      const std::string name = row.substr(0, row.find('=') + 1);
      const auto found = std::find_if(real.begin(), real.end(), [&](const std::string& variable) {
        return variable.starts_with(name);
      });
      ASSERT_NE(found, real.end()) << name << " is no variable of the worker";
      if (row.find('<') == std::string::npos) {
        EXPECT_EQ(*found, row);
      }
    }
    EXPECT_GT(shown, 15);
    for (const std::string& variable : real) {
      const std::string name = variable.substr(0, variable.find('='));
      const bool is_inherited = std::getenv(name.c_str()) || name == mark_.variable().first;
      if (!name.starts_with("DDPRUN_") || is_inherited) continue;
      EXPECT_THAT(dry->out(), HasSubstr("  " + name + "="));
    }
  }
}

TEST_F(LauncherTest, ADryRunOfManyNodesSaysWhatIsDecidedOnlyWhenTheyMeet) {
  auto dry =
      start({"--dry-run", "--nnodes=3", "--nproc-per-node=2", "--rdzv-endpoint=node0", "true"});
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), HasSubstr("meets: at node0:29400\n"));
  EXPECT_THAT(dry->out(), HasSubstr("node rank: assigned by the service; 0 is shown\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  WORLD_SIZE=6\n"));
  EXPECT_THAT(dry->out(), HasSubstr("  MASTER_ADDR=<address of node rank 0>\n"));
  auto second = start({"--dry-run", "--nnodes=3", "--nproc-per-node=2", "--node-rank=1",
                       "--master-addr=10.0.0.1", "true"});
  ASSERT_EQ(second->wait(), 0) << second->err();
  EXPECT_THAT(second->out(), HasSubstr("  RANK=3\n"));
  EXPECT_THAT(second->out(), HasSubstr("  MASTER_PORT=29500\n"));
  EXPECT_THAT(second->out(), Not(HasSubstr("assigned by the service")));
}

TEST_F(LauncherTest, ADryRunFindsWhatAStartWouldNotFind) {
  auto dry = start({"--dry-run", "./no-such-program"});
  EXPECT_EQ(dry->wait(), 2);
  EXPECT_THAT(dry->err(), HasSubstr("./no-such-program: no such file"));
}

TEST_F(LauncherTest, AFirstWordThatNamesACommandIsOneAndAPathIsNot) {
  auto command = start({"completion"});
  EXPECT_EQ(command->wait(), 2);
  EXPECT_THAT(command->err(),
              HasSubstr("missing or unknown shell: ddprun completion bash, or zsh"));
  std::ofstream(directory_ / "completion") << "#!/bin/sh\necho ran\n";
  std::filesystem::permissions(directory_ / "completion", std::filesystem::perms::owner_all);
  auto path = start({"./completion"});
  EXPECT_EQ(path->wait(), 0) << path->err();
  EXPECT_EQ(path->out(), "ran\n");
  auto behind_options = start({"--standalone", "--", "./completion"});
  EXPECT_EQ(behind_options->wait(), 0);
  EXPECT_EQ(behind_options->out(), "ran\n");
}

}  // namespace
}  // namespace ddprun::testing_support
