// SeveralHosts: the frame of tests with hosts in network namespaces: ddprun on each, the service on
// one of them or on a host of its own, and nothing left behind when a test ends.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/random_id.h"
#include "tests/support/netns_cluster.h"

namespace ddprun::testing_support {

using Arguments = std::vector<std::string>;
inline const std::string kBin = DDPRUN_BIN_DIR;

class SeveralHosts : public testing::Test {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(scratch_);
    const std::string why_not = NetnsCluster::why_not();
    if (!why_not.empty()) GTEST_SKIP() << "no hosts in network namespaces: " << why_not;
  }
  void TearDown() override {
    jobs_.clear();
    service_.reset();
    cluster_.reset();
    EXPECT_TRUE(eventually([&] { return processes_with("DDPRUN_TEST_MARK", mark_).empty(); }));
    // A host that loses its power leaves its temporary files; here all hosts share them.
    std::filesystem::remove_all(scratch_);
  }

  // The service runs on the last host, which has no part in the job.
  void start_hosts(int nodes, bool with_service) {
    cluster_ = std::make_unique<NetnsCluster>(nodes + (with_service ? 1 : 0));
    endpoint_ = NetnsCluster::name(0) + ":29400";
    if (!with_service) return;
    // A new port: on one that agents may know from before, it would wait for them first.
    service_ = cluster_->start(nodes, {kBin + "/ddp-rendezvous", "--listen", "*:0"});
    const auto line = service_->line();
    ASSERT_TRUE(line) << service_->err();
    endpoint_ = NetnsCluster::name(nodes) + line->substr(line->rfind(':'));
  }

  // ddprun on a node, with these options and this program.
  ChildProcess& start_node(int node, const Arguments& options, const Arguments& program) {
    Arguments argv{kBin + "/ddprun", "--rdzv-endpoint=" + endpoint_, "--rdzv-id=job"};
    argv.insert(argv.end(), options.begin(), options.end());
    argv.insert(argv.end(), program.begin(), program.end());
    jobs_[node] = start_process(node, std::move(argv));
    return *jobs_[node];
  }

  ChildProcess& start_node(int node, const Arguments& options, const std::string& script) {
    return start_node(node, options, Arguments{"sh", "-c", script});
  }

  std::unique_ptr<ChildProcess> start_process(int node, Arguments argv,
                                              ChildProcess::Options environment = {}) {
    environment.variables.insert(environment.variables.end(),
                                 {{"DDPRUN_TEST_MARK", mark_}, {"TMPDIR", scratch_}});
    return cluster_->start(node, std::move(argv), std::move(environment));
  }

  // Kills one process of that program on a node.
  void kill_one(int node, const std::string& program) {
    EXPECT_EQ(cluster_->start(node, {"pkill", "-KILL", "-n", "-x", program})->wait(), 0);
  }

  const std::string mark_ = random_hex(8);
  const std::string scratch_ = std::filesystem::temp_directory_path() / ("several_hosts_" + mark_);
  std::unique_ptr<NetnsCluster> cluster_;
  std::unique_ptr<ChildProcess> service_;
  std::string endpoint_;
  std::map<int, std::unique_ptr<ChildProcess>> jobs_;
};

}  // namespace ddprun::testing_support
