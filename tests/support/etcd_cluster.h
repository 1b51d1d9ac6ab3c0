// EtcdCluster: a real etcd of some members on loopback, run by the testbed's etcd-cluster. It ends
// with the object. One owner thread.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "base/base64.h"
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

  enum class Tls { kNo, kYes };
  // kYes: clients must use TLS and show a certificate.
  explicit EtcdCluster(int members, Tls tls = Tls::kNo) : tls_(tls) {
    run({"up", std::to_string(members)});
  }
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
  // Returns a file for clients: "ca.crt", "client.crt" or "client.key".
  std::string tls_file(const std::string& name) const { return state_ / "etcd/tls/" + name; }
  std::string leader() {
    std::string index = run({"leader"});
    return index.substr(0, index.find('\n'));
  }
  void kill(const std::string& member) { run({"kill", member}); }
  void freeze(const std::string& member) { run({"freeze", member}); }
  void thaw(const std::string& member) { run({"thaw", member}); }
  void start(const std::string& member) { run({"start", member}); }
  // Returns the answer to a request.
  std::string curl(const std::string& path, const std::string& json) {
    return run({"curl", "0", path, json});
  }
  // Sets or ends the alarm of a full quota.
  void set_alarm(const std::string& action) {
    post("maintenance/alarm", R"({"action":")" + action + R"(","alarm":"NOSPACE"})");
  }
  // Makes etcd require a user. This one may use the keys that begin with `prefix`.
  void enable_users(const std::string& user, const std::string& password,
                    const std::string& prefix) {
    post("auth/user/add", R"({"name":"root","password":"root"})");
    post("auth/user/grant", R"({"user":"root","role":"root"})");
    post("auth/user/add", R"({"name":")" + user + R"(","password":")" + password + R"("})");
    post("auth/role/add", R"({"name":"role"})");
    std::string end = prefix;
    ++end.back();
    post("auth/role/grant", R"({"name":"role","perm":{"permType":"READWRITE","key":")" +
                                to_base64(prefix) + R"(","range_end":")" + to_base64(end) +
                                R"("}})");
    post("auth/user/grant", R"({"user":")" + user + R"(","role":"role"})");
    post("auth/enable", "{}");
  }

 private:
  void post(const std::string& path, const std::string& json) {
    const std::string answer = curl("/v3/" + path, json);
    EXPECT_EQ(answer.find("\"error\""), std::string::npos) << path << ": " << answer;
  }
  std::string run(const Arguments& command) {
    const char* testbed = std::getenv("DDPRUN_TESTBED");
    ChildProcess process(joined({"env", "EC_STATE=" + (state_ / "etcd"),
                                 std::string("EC_TLS=") + (tls_ == Tls::kYes ? "1" : "0"),
                                 std::string(testbed ? testbed : "") + "/etcd-cluster"},
                                command));
    EXPECT_EQ(process.wait(), 0) << command[0] << ": " << process.err();
    return process.out();
  }

  const TemporaryDirectory state_;
  const Tls tls_;
};

}  // namespace ddprun::testing_support
