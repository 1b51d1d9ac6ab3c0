// Tests --node-check with real agents: faults that are planted, and nodes without a fault.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "launcher/node_check/measure.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/http_get.h"
#include "tests/support/whole.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::ContainsRegex;
using testing::HasSubstr;

const Variables kFlipped{{"DDPRUN_TEST_NODE_CHECK", "flip-digest"}};
constexpr const char* kFault = "core: a known computation gave ";

// QuotaGroup: a control group whose processes get 4 % of a core. On a machine with much other work
// they might get no more than 10 % without a quota.
class QuotaGroup {
 public:
  QuotaGroup() {
    // Version 1 has a hierarchy for the controller; in version 2 the root group must have it.
    const std::string name = "/ddprun-node-check-" + std::to_string(getpid());
    for (const bool is_v1 : {true, false}) {
      path_ = (is_v1 ? "/sys/fs/cgroup/cpu" : "/sys/fs/cgroup") + name;
      const std::string quota = path_ + (is_v1 ? "/cpu.cfs_quota_us" : "/cpu.max");
      if (mkdir(path_.c_str(), 0755) != 0) continue;
      std::ofstream file(quota);
      if (std::filesystem::exists(quota) && file << (is_v1 ? "4000" : "4000 100000") << std::flush)
        return;
      rmdir(path_.c_str());
    }
    path_.clear();
  }
  ~QuotaGroup() {
    // The kernel may take a moment to forget processes that have ended.
    if (!path_.empty()) eventually([this] { return rmdir(path_.c_str()) == 0; });
  }
  QuotaGroup(const QuotaGroup&) = delete;
  QuotaGroup& operator=(const QuotaGroup&) = delete;

  bool exists() const { return !path_.empty(); }
  // Returns a line of shell that enters the group and becomes "$@".
  std::string entering() const { return "echo $$ > " + path_ + "/cgroup.procs; exec \"$@\""; }

 private:
  std::string path_;
};

class NodeCheckTest : public RendezvousTest {
 protected:
  std::string report() const { return read_file(directory_ / "report.json"); }
};

TEST_F(NodeCheckTest, ANodeThatIsNotFitGivesWayToASpareAndIsNamed) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0"});
  const std::string endpoint = listening_address(*service);
  const Arguments options{"--node-check", "--node-rank=0", "--report-file=report.json"};
  const std::string script = until_go_after("echo gen $DDPRUN_GENERATION rank $RANK");
  auto bad = start(node(endpoint, {"--node-check"}, script), kFlipped);
  ASSERT_TRUE(bad->wait_for_err("waiting: 1 of 2 nodes here")) << bad->err();
  auto good = start(node(endpoint, options, script));
  ASSERT_TRUE(bad->wait_for_err("is not fit: " + std::string(kFault))) << bad->err();
  ASSERT_TRUE(good->wait_for_err("; not fit: ")) << good->err();
  EXPECT_THAT(good->err(), ContainsRegex("waiting: 2 of 2 nodes here: .*; not fit: .* \\(core: "));
  auto spare = start(node(endpoint, {"--node-check"}, script));
  ASSERT_TRUE(good->wait_for_out("gen 1")) << good->err();
  ASSERT_TRUE(spare->wait_for_out("gen 1")) << spare->err();

  const auto address = parse_host_port(endpoint);
  const json status = json::parse(http_get(address->port, "/status.json").body);
  const json& job = status["jobs"][0];
  EXPECT_EQ(job["restarts_used"], 0) << "a check that fails uses no budget";
  EXPECT_EQ(job["failures"][0]["kind"], "node_unfit");
  int unfit = 0;
  for (const json& one : job["nodes"]) unfit += one.contains("unfit") ? 1 : 0;
  EXPECT_EQ(unfit, 1);
  EXPECT_THAT(job["events"].dump(), ContainsRegex("node [01] \\([^)]*\\) is not fit: core: "));
  auto asked = start({"status", "--rdzv-endpoint=" + endpoint, "job"});
  EXPECT_EQ(asked->wait(), 0) << asked->err();
  EXPECT_THAT(asked->out(), ContainsRegex("unfit +.*" + std::string(kFault)));

  let_go();
  for (ChildProcess* one : {good.get(), spare.get(), bad.get()}) {
    EXPECT_EQ(one->wait(), 0) << one->err();
  }
  EXPECT_EQ(bad->out(), "") << "it has started no worker";
  const json failed = json::parse(report())["failed_generations"];
  ASSERT_EQ(failed.size(), 1u) << report();
  EXPECT_EQ(failed[0]["first"][0]["kind"], "node_unfit");
  EXPECT_THAT(failed[0]["what"].get<std::string>(), HasSubstr(kFault));
  end(*service);
}

TEST_F(NodeCheckTest, AJobOfOneNodeThatIsNotFitEndsAtOnce) {
  auto job = start_shell({"--node-check", "--report-file=report.json"}, "echo started", kFlipped);
  EXPECT_EQ(job->wait(), 68) << job->err();
  EXPECT_EQ(job->out(), "");
  EXPECT_THAT(job->err(), HasSubstr(kFault));
  EXPECT_THAT(job->err(), HasSubstr("not restarted: the job has no other node"));
  EXPECT_EQ(json::parse(report())["kind"], "node_unfit");
}

TEST_F(NodeCheckTest, WithoutASpareTheJobEndsWithTheReasonWhenNoneCame) {
  auto service = start_rendezvous({"--listen=127.0.0.1:0"});
  const std::string endpoint = listening_address(*service);
  const Arguments options{"--node-check", "--rdzv-conf=join_timeout=3"};
  auto bad = start(node(endpoint, options, "true"), kFlipped);
  auto good = start(node(endpoint, options, "sleep 1000"));
  EXPECT_EQ(good->wait(), 65) << good->err();
  EXPECT_EQ(bad->wait(), 65) << bad->err();
  EXPECT_THAT(good->err(), ContainsRegex("not enough nodes within .*; not fit: .*core: a known"));
  end(*service);
}

TEST_F(NodeCheckTest, WithoutTheOptionNothingIsChecked) {
  auto job = start_shell({}, "echo started", kFlipped);
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(NodeCheckTest, FindsEachCpuQuota) {
  const QuotaGroup group;
  if (!group.exists()) GTEST_SKIP() << "no control group with a CPU quota can be made";
  for (int i = 0; i < (is_whole() ? 100 : 3); ++i) {
    ChildProcess job(
        {"sh", "-c", group.entering(), "sh", program("ddprun"), "--node-check", "true"},
        environment());
    EXPECT_EQ(job.wait(), 68) << i << ": " << job.err();
    EXPECT_THAT(job.err(), HasSubstr("core: a CPU quota (cpu.max) stopped it for")) << i;
  }
}

TEST_F(NodeCheckTest, FindsEachFlippedDigest) {
  for (int i = 0; i < (is_whole() ? 100 : 3); ++i) {
    auto job = start({"--node-check", "true"}, kFlipped);
    EXPECT_EQ(job->wait(), 68) << i << ": " << job->err();
  }
}

TEST_F(NodeCheckTest, FindsNoFaultInHealthyStarts) {
  NodeStep step{""};
  Duration fastest = kLongestTimeout;
  for (int i = 0; i < (is_whole() ? 1000 : 50); ++i) {
    const TimePoint begun = BootClock::now();
    const NodeMeasurements measured = measure_node(directory_.path(), NodeLimits(), step);
    fastest = std::min(fastest, BootClock::now() - begun);
    EXPECT_EQ(fault_of(measured, NodeLimits()), "") << i;
  }
  // Other programs disturb the fastest one least.
  EXPECT_LE(fastest, std::chrono::milliseconds(200)) << to_text(fastest);
}

}  // namespace
}  // namespace ddprun::testing_support
