#include "tests/support/netns_cluster.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

namespace ddprun::testing_support {
namespace {

void run(const Arguments& argv) {
  ChildProcess process(argv);
  const std::optional<int> code = process.wait();
  std::string text;
  for (const std::string& word : argv) text += word + " ";
  EXPECT_EQ(code, 0) << text << ": " << process.err();
}

Arguments inside(pid_t init, const Arguments& flags, const Arguments& argv) {
  return joined({"nsenter", "-t", std::to_string(init)}, flags, argv);
}

std::string port_of(int node) { return "port" + std::to_string(node); }

// Names the queue of a cut, so that heal_one_way() removes no other one.
constexpr auto kCutQueue = "c0:";

// A queue of no packets loses all that the device should send. Fails if the device has a queue.
Arguments cut_queue(const std::string& device) {
  return {"tc", "qdisc", "add", "dev", device, "root", "handle", kCutQueue, "pfifo", "limit", "0"};
}

}  // namespace

std::string NetnsCluster::why_not() {
  if (geteuid() != 0) return "it needs root";
  for (const char* tool : {"ip", "unshare", "nsenter", "mount"}) {
    ChildProcess which({"sh", "-c", std::string("command -v ") + tool});
    if (which.wait() != 0)
      return std::string("the program '") + tool + "' is missing (iproute2, util-linux)";
  }
  // A process that enters a mount namespace gets the root of that namespace. In a chroot this is
  // not the current root.
  const Arguments look{"stat", "--format=%d:%i", "/"};
  ChildProcess here(look);
  ChildProcess there(inside(getpid(), {"-m"}, look));
  if (here.wait() != 0 || there.wait() != 0 || here.out() != there.out())
    return "this is a chroot, which a process leaves when it enters a host (nsenter): " +
           there.err();
  ChildProcess attempt({"unshare", "--net", "--pid", "--fork", "--mount-proc", "true"});
  if (attempt.wait() != 0) return "namespaces cannot be made here: " + attempt.err();
  return "";
}

NetnsCluster::NetnsCluster(int nodes) {
  for (int node = 0; node < nodes; ++node) {
    std::ofstream hosts(directory_ / ("hosts." + name(node)));
    hosts << "127.0.0.1 localhost\n::1 localhost\n";
    for (int i = 0; i < nodes; ++i) {
      hosts << (i == node ? "127.0.1.1" : address(i)) << " " << name(i) << "\n";
    }
  }
  std::ofstream(directory_ / "resolv.conf") << "# no name server\n";

  switch_ = make_namespace("ip link add br0 type bridge && ip link set br0 up", false);
  nodes_.resize(static_cast<std::size_t>(nodes));
  for (int i = 0; i < nodes; ++i) boot(i);
}

NetnsCluster::~NetnsCluster() {
  for (Namespace& node : nodes_) {
    if (node.init > 0) kill(node.init, SIGKILL);
  }
  if (switch_.init > 0) kill(switch_.init, SIGKILL);
  nodes_.clear();
  switch_.holder.reset();
}

// Makes the namespaces and returns the process that holds them, which ends with this process.
// The script runs in them first.
NetnsCluster::Namespace NetnsCluster::make_namespace(const std::string& script,
                                                     bool with_processes) const {
  const Arguments processes{"--uts", "--ipc", "--pid", "--mount-proc"};
  Namespace made;
  made.holder = std::make_unique<ChildProcess>(
      joined({"setpriv", "--pdeathsig", "KILL", "unshare", "--net", "--fork", "--kill-child"},
             with_processes ? processes : Arguments(),
             {"sh", "-c", script + " && echo up && exec sleep infinity"}));
  EXPECT_TRUE(made.holder->wait_for_out("up")) << made.holder->err();
  made.init = first_child_of(made.holder->pid());
  EXPECT_GT(made.init, 1);
  return made;
}

void NetnsCluster::boot(int node) {
  nodes_[static_cast<std::size_t>(node)] = make_namespace(
      "hostname " + name(node) + " && ip link set lo up && mount --bind " +
          directory_ / ("hosts." + name(node)) + " /etc/hosts && mount --bind " +
          directory_ / "resolv.conf" + " /etc/resolv.conf && " + "mount -t tmpfs none /dev/shm",
      true);
  connect(node);
}

void NetnsCluster::connect(int node) {
  const pid_t init = nodes_[static_cast<std::size_t>(node)].init;
  const std::string port = port_of(node);
  run(inside(switch_.init, {"-n"},
             {"ip", "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns",
              std::to_string(init)}));
  run(inside(switch_.init, {"-n"}, {"ip", "link", "set", port, "master", "br0", "up"}));
  run(inside(init, {"-n"}, {"ip", "addr", "add", address(node) + "/24", "dev", "eth0"}));
  run(inside(init, {"-n"}, {"ip", "link", "set", "eth0", "up"}));
}

std::unique_ptr<ChildProcess> NetnsCluster::start(int node, Arguments argv,
                                                  ChildProcess::Options options) const {
  const pid_t init = nodes_[static_cast<std::size_t>(node)].init;
  Arguments flags{"-m", "-u", "-i", "-n", "-p"};
  if (!options.directory.empty()) flags.push_back("--wd=" + std::exchange(options.directory, ""));
  return std::make_unique<ChildProcess>(inside(init, flags, argv), std::move(options));
}

void NetnsCluster::cut(int node) {
  run(inside(switch_.init, {"-n"}, {"ip", "link", "set", port_of(node), "nomaster"}));
}

void NetnsCluster::heal(int node) {
  run(inside(switch_.init, {"-n"}, {"ip", "link", "set", port_of(node), "master", "br0"}));
}

void NetnsCluster::cut_from(int node) {
  run(inside(nodes_[static_cast<std::size_t>(node)].init, {"-n"}, cut_queue("eth0")));
}

void NetnsCluster::cut_to(int node) { run(inside(switch_.init, {"-n"}, cut_queue(port_of(node)))); }

void NetnsCluster::heal_one_way(int node) {
  const auto heal = [](pid_t init, const std::string& device) {
    run(inside(init, {"-n"},
               {"sh", "-c",
                "all=$(tc qdisc show dev $0) || exit 1; case $all in *\" $1 root\"*) "
                "exec tc qdisc del dev $0 root handle $1;; esac",
                device, kCutQueue}));
  };
  heal(nodes_[static_cast<std::size_t>(node)].init, "eth0");
  heal(switch_.init, port_of(node));
}

void NetnsCluster::limit_rate(int node, const std::string& rate) {
  const auto limit = [&](pid_t init, const std::string& device) {
    run(inside(init, {"-n"},
               {"tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate", rate, "burst",
                "32kb", "latency", "400ms"}));
  };
  limit(switch_.init, port_of(node));
  limit(nodes_[static_cast<std::size_t>(node)].init, "eth0");
}

// Signals all processes except the init, so that the node's network stays up.
void NetnsCluster::signal_processes(int node, const std::string& signals) {
  run(inside(nodes_[static_cast<std::size_t>(node)].init, {"-p", "-m"},
             {"sh", "-c",
              "for signal in " + signals +
                  "; do for p in /proc/[0-9]*; do p=${p#/proc/}; "
                  "[ $p = 1 ] || [ $p = $$ ] || kill -$signal $p; done; done; true"}));
}

void NetnsCluster::kill_processes(int node) {
  // All are stopped first, so that none can see another die and report it.
  signal_processes(node, "STOP KILL");
}

void NetnsCluster::freeze(int node) { signal_processes(node, "STOP"); }

void NetnsCluster::thaw(int node) { signal_processes(node, "CONT"); }

void NetnsCluster::crash(int node) {
  Namespace& crashed = nodes_[static_cast<std::size_t>(node)];
  cut(node);
  kill(crashed.init, SIGKILL);
  crashed.holder->wait();
  run(inside(switch_.init, {"-n"},
             {"sh", "-c", "ip link del " + port_of(node) + " 2>/dev/null; true"}));
  crashed = {};
}

}  // namespace ddprun::testing_support
