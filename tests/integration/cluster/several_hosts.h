// SeveralHosts: the fixture of tests with hosts in network namespaces. ddprun runs on each
// host. The service runs on one of them or on its own host. Nothing may be left when a test
// ends.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "tests/support/netns_cluster.h"
#include "tests/support/program.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_mark.h"

namespace ddprun::testing_support {

class SeveralHosts : public testing::Test {
 protected:
  void SetUp() override {
    const std::string why_not = NetnsCluster::why_not();
    if (!why_not.empty()) GTEST_SKIP() << "no hosts in network namespaces: " << why_not;
  }
  void TearDown() override {
    jobs_.clear();
    service_.reset();
    cluster_.reset();
    EXPECT_TRUE(eventually([&] { return mark_.processes().empty(); }));
  }

  // Makes the hosts. The service runs on the last host, which has no part in the job.
  void start_hosts(int nodes, bool with_service) {
    cluster_ = std::make_unique<NetnsCluster>(nodes + (with_service ? 1 : 0));
    endpoint_ = NetnsCluster::name(0) + ":29400";
    if (!with_service) return;
    // The port is new: on a port that agents may know from before, the service would wait for
    // them first.
    service_ = cluster_->start(nodes, {program("ddp-rendezvous"), "--listen", "*:0"});
    const auto address = parse_host_port(listening_address(*service_));
    ASSERT_TRUE(address) << service_->err();
    endpoint_ = to_text(HostPort{NetnsCluster::name(nodes), address->port});
  }

  // Starts ddprun on a node, with these options and this worker.
  ChildProcess& start_node(int node, const Arguments& options, const Arguments& worker) {
    jobs_[node] = start_process(
        node, joined({program("ddprun"), "--rdzv-endpoint=" + endpoint_, "--rdzv-id=job"}, options,
                     worker));
    return *jobs_[node];
  }

  ChildProcess& start_node(int node, const Arguments& options, const std::string& script) {
    return start_node(node, options, Arguments{"sh", "-c", script});
  }

  std::unique_ptr<ChildProcess> start_process(int node, Arguments argv,
                                              ChildProcess::Options environment = {}) {
    environment.variables.insert(environment.variables.end(),
                                 {mark_.variable(), {"TMPDIR", scratch_.path()}});
    return cluster_->start(node, std::move(argv), std::move(environment));
  }

  // Kills one process of that name on a node.
  void kill_one(int node, const std::string& name) {
    EXPECT_EQ(cluster_->start(node, {"pkill", "-KILL", "-n", "-x", name})->wait(), 0);
  }

  const TestMark mark_;
  // All hosts share it. A host that loses its power leaves its temporary files.
  const TemporaryDirectory scratch_;
  std::unique_ptr<NetnsCluster> cluster_;
  std::unique_ptr<ChildProcess> service_;
  std::string endpoint_;
  std::map<int, std::unique_ptr<ChildProcess>> jobs_;
};

}  // namespace ddprun::testing_support
