// Tests logs, error files and the report on a file system that stops answering for a while.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/integration/rendezvous/rendezvous_frame.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

using std::chrono::seconds;

class StalledDisk : public RendezvousTest {
 protected:
  void SetUp() override {
    RendezvousTest::SetUp();
    std::filesystem::create_directory(disk());
  }

  std::string disk() const { return directory_ / "disk"; }
  void stall() const { std::ofstream(directory_ / "stalled"); }
  void go_on() const { std::filesystem::remove(directory_ / "stalled"); }
  Variables on_the_disk() const {
    return {{"LD_PRELOAD", STALLED_DISK_LIBRARY},
            {"STALLED_DISK", disk()},
            {"STALLED_WHILE", directory_ / "stalled"}};
  }
  std::string log_of(const std::string& name) const {
    for (const auto& one : std::filesystem::recursive_directory_iterator(disk())) {
      if (one.path().string().ends_with(name)) return read_file(one.path());
    }
    return "";
  }
};

// With a lease of 4 s, a stall that blocked the agent's loop would cost the node's workers.
TEST_F(StalledDisk, AFailureARestartAndItsWorkersOutliveAStall) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0", "--lease=4"});
  const std::string endpoint = listening_address(*service);
  const std::string script = until_go_after(
      "echo gen $DDPRUN_GENERATION up; "
      "[ $DDPRUN_GENERATION = 0 ] && { until [ -e fail ]; do sleep 0.02; done; "
      "[ $RANK = 0 ] && exit 3; exec sleep 1000; }");
  const Arguments options{"--nproc-per-node=2", "--max-restarts=3"};
  auto stalled = start(node(endpoint,
                            joined(options, {"--node-rank=0", "--log-dir=" + disk(), "-t3",
                                             "--report-file=" + disk() + "/report.json"}),
                            script),
                       on_the_disk());
  auto other = start(node(endpoint, joined(options, {"--node-rank=1"}), script));
  ASSERT_TRUE(stalled->wait_for_out("gen 0 up")) << stalled->err();
  ASSERT_TRUE(other->wait_for_out("gen 0 up")) << other->err();
  stall();
  std::ofstream(directory_ / "fail");
  ASSERT_TRUE(stalled->wait_for_out("gen 1 up")) << stalled->err();
  let_pass(seconds(8));
  go_on();
  EXPECT_TRUE(eventually([&] {
    const std::string report = read_file(disk() + "/report.json");
    return report.find("\"running\"") != report.npos &&
           report.find("exited with code 3") != report.npos;
  })) << "the report of generation 0 is written later";
  let_go();
  EXPECT_EQ(stalled->wait(), 0) << stalled->err();
  EXPECT_EQ(other->wait(), 0) << other->err();
  EXPECT_THAT(stalled->err(), HasSubstr("restart 1 of 3: rank 0"));
  EXPECT_THAT(stalled->err() + other->err(), Not(HasSubstr("restart 2")));
  EXPECT_THAT(stalled->err(), HasSubstr("the disk does not answer"));
  EXPECT_THAT(log_of("attempt_1/1/stdout.log"), HasSubstr("gen 1 up")) << "it was written later";
  EXPECT_THAT(read_file(disk() + "/report.json"), HasSubstr("\"state\": \"ended\""));
  end(*service);
}

TEST_F(StalledDisk, AJobEndsWhileItsDiskDoesNotAnswer) {
  auto job = start(joined({"--standalone", "--nproc-per-node=2", "--log-dir=" + disk(), "-t3",
                           "--report-file=" + disk() + "/report.json"},
                          {"sh", "-c", "echo up; until [ -e go ]; do sleep 0.02; done; exit 5"}),
                   on_the_disk());
  ASSERT_TRUE(job->wait_for_out("up")) << job->err();
  stall();
  let_go();
  EXPECT_EQ(job->wait(seconds(30)), 5) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("exited with code 5"));
  EXPECT_THAT(job->err(), HasSubstr("report.json: the disk does not answer"));
}

}  // namespace
}  // namespace ddprun::testing_support
