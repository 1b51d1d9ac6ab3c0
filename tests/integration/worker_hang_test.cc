// --hang-timeout with programs of the worker library: what their collectives leave in the flight record.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/integration/launcher_frame.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class WorkerHangTest : public LauncherTest {
 protected:
  std::unique_ptr<ChildProcess> play(const std::string& name) const {
    return start({"--nproc-per-node=3", "--hang-timeout=1", "--max-restarts=1",
                  "--report-file=report.json", program("worker_test_rank"), name});
  }
  json failures() const {
    return json::parse(read_file(directory_ / "report.json"))["failed_generations"];
  }
};

TEST_F(WorkerHangTest, TheRankThatDoesNotComeIsNamedWithTheCollective) {
  for (const char* name : {"hang", "hang_async"}) {
    auto job = play(name);
    ASSERT_EQ(job->wait(), 0) << job->err();
    ASSERT_EQ(failures().size(), 1u) << name;
    const json first = failures()[0]["first"];
    ASSERT_EQ(first.size(), 1u) << failures().dump(2);
    EXPECT_EQ(first[0]["rank"], 1);
    EXPECT_EQ(first[0]["step"], 3);
    EXPECT_THAT(
        first[0]["message"].get<std::string>(),
        HasSubstr("it has not come to all_reduce of 16 bytes (sum of float32) (collective 4), where ranks 0,2 "
                  "wait since 1."));
  }
}

TEST_F(WorkerHangTest, WhoWaitsForARankThatWorksAloneDoesNotHang) {
  auto job = play("work_alone");
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(failures().size(), 0u) << failures().dump(2);
}

}  // namespace
}  // namespace ddprun::testing_support
