// EtcdCluster: a real etcd of some members on loopback, run by the testbed's etcd-cluster. It ends
// with the object. One owner thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/host_port.h"
#include "base/split.h"
#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace ddprun::testing_support {

class EtcdCluster {
 public:
  // Returns why there can be none; empty if there can.
  static std::string why_not() {
    const char* testbed = std::getenv("DDPRUN_TESTBED");
    if (!testbed) return "DDPRUN_TESTBED does not name the testbed's folder";
    if (ChildProcess({"sh", "-c", "command -v etcd"}).wait() != 0)
      return "the program 'etcd' is missing (etcd-server)";
    return "";
  }

  explicit EtcdCluster(int members) { run({"up", std::to_string(members)}); }
  ~EtcdCluster() { run({"down"}); }
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  std::vector<HostPort> endpoints() {
    std::vector<HostPort> found;
    std::string urls = run({"endpoints"});
    while (!urls.empty() && urls.back() == '\n') urls.pop_back();
    for (const std::string_view url : split(urls, ',')) {
      const auto address = parse_host_port(url.substr(url.find("//") + 2));
      EXPECT_TRUE(address) << url;
      if (address) found.push_back(*address);
    }
    return found;
  }
  std::string leader() {
    std::string index = run({"leader"});
    return index.substr(0, index.find('\n'));
  }
  void kill(const std::string& member) { run({"kill", member}); }
  void freeze(const std::string& member) { run({"freeze", member}); }
  void thaw(const std::string& member) { run({"thaw", member}); }
  void start(const std::string& member) { run({"start", member}); }

 private:
  std::string run(const Arguments& command) {
    const char* testbed = std::getenv("DDPRUN_TESTBED");
    ChildProcess process(joined({"env", "EC_STATE=" + (state_ / "etcd"),
                                 std::string(testbed ? testbed : "") + "/etcd-cluster"},
                                command));
    EXPECT_EQ(process.wait(), 0) << command[0] << ": " << process.err();
    return process.out();
  }

  TemporaryDirectory state_;
};

}  // namespace ddprun::testing_support
