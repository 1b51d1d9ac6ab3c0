// NetnsCluster: several hosts on this machine, made of Linux namespaces, for tests of what crosses
// a network. Needs root, iproute2 and util-linux.
//
// Each node has its own network, host name, process ids, /dev/shm and /etc/hosts, and shares the
// file system. As Debian's installer leaves it, a node's own name leads to 127.0.1.1 there. All
// hang on a bridge in a namespace of its own: the machine's own network gets no interface, no
// address and no route. Everything is gone with the object, also when the test is killed: the
// kernel ends a namespace's processes with its init, and the inits end with this process.
//
// Called from the test's thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/child_process.h"
#include "tests/support/temporary_directory.h"

namespace ddprun::testing_support {

class NetnsCluster {
 public:
  // Why there can be no cluster here; empty if there can.
  static std::string why_not();

  explicit NetnsCluster(int nodes);
  ~NetnsCluster();

  static std::string name(int node) { return "node" + std::to_string(node); }
  static std::string address(int node) { return "10.77.1." + std::to_string(10 + node); }

  // Runs a program on a node. Signals sent to the ChildProcess do not reach it; the end of its node
  // does.
  std::unique_ptr<ChildProcess> start(int node, Arguments argv,
                                      ChildProcess::Options options = {}) const;

  // The node's cable: packets vanish, the carrier stays on, nobody gets a reset.
  void cut(int node);
  void heal(int node);
  // Every process of the node is killed at once; its kernel lives on and resets its connections.
  void kill_processes(int node);
  // Power failure: the node falls silent, then its processes are gone. boot() makes a new one.
  void crash(int node);
  void boot(int node);

 private:
  struct Namespace {
    std::unique_ptr<ChildProcess> holder;  // unshare
    pid_t init = -1;
  };

  Namespace make_namespace(const std::string& script, bool with_processes) const;
  void connect(int node);

  Namespace switch_;
  std::vector<Namespace> nodes_;
  const TemporaryDirectory directory_;
};

}  // namespace ddprun::testing_support
