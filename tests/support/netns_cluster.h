// NetnsCluster: several hosts on this machine, made of Linux namespaces, for tests of network
// traffic between hosts. Needs root, iproute2 and util-linux.
//
// - Each node has its own network, host name, process ids, /dev/shm and /etc/hosts. The nodes
//   share the file system.
// - A node's own name resolves to 127.0.1.1 on that node, as Debian's installer sets it up.
// - All nodes are connected to a bridge in a namespace of its own. The machine's own network
//   gets no interface, no address and no route.
// - Everything ends with the object, also when the test is killed. The kernel ends a namespace's
//   processes with its init, and the inits end with this process.
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
  // Returns why there can be no cluster on this machine; empty if there can be one.
  static std::string why_not();

  explicit NetnsCluster(int nodes);
  ~NetnsCluster();

  static std::string name(int node) { return "node" + std::to_string(node); }
  static std::string address(int node) { return "10.77.1." + std::to_string(10 + node); }

  // Runs a program on a node. A signal that is sent to the ChildProcess does not reach the
  // program. The program ends when its node ends.
  std::unique_ptr<ChildProcess> start(int node, Arguments argv,
                                      ChildProcess::Options options = {}) const;

  // Cuts the node's cable: packets are lost, the carrier stays on, and no peer gets a reset.
  // heal() undoes it.
  void cut(int node);
  void heal(int node);
  // Cut one way only: what the node sends is lost, or what is sent to it. heal_one_way() undoes
  // both.
  void cut_from(int node);
  void cut_to(int node);
  void heal_one_way(int node);
  // Limits the node's link to this rate in each direction. rate: as of tc, such as "20mbit".
  void limit_rate(int node, const std::string& rate);
  // Kills every process of the node at once. The node's kernel continues and resets its
  // connections.
  void kill_processes(int node);
  // Stops every process of the node (SIGSTOP); lets all go on (SIGCONT). The node's kernel still
  // answers. The ChildProcess of a frozen program stops, too, and must be sent SIGCONT.
  void freeze(int node);
  void thaw(int node);
  // Simulates a power failure: the node falls silent, then its processes are gone. boot() makes
  // a new node.
  void crash(int node);
  void boot(int node);

 private:
  struct Namespace {
    std::unique_ptr<ChildProcess> holder;  // runs unshare
    pid_t init = -1;
  };

  Namespace make_namespace(const std::string& script, bool with_processes) const;
  void connect(int node);
  void signal_processes(int node, const std::string& signals);

  Namespace switch_;
  std::vector<Namespace> nodes_;
  const TemporaryDirectory directory_;
};

}  // namespace ddprun::testing_support
