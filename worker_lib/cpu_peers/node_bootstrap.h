// bootstrap_node(): lets the ranks of a node share one segment, and gives each a pidfd of every
// other.
//
// Every rank opens a listener (a Unix socket in the abstract namespace: it is no file and
// disappears with its process). It publishes the listener's random name through the store. The
// first rank of the node, the leader, makes the segment; the other ranks connect to its
// listener.
//
// Descriptors travel over these connections. Each rank sends a pidfd of itself and the file of
// its worker page to the leader. The leader then sends the segment and all ranks' pidfds, wakeup
// fds and pages. A pidfd made by its own process works in every PID namespace. It cannot mean
// another process that later got the same number. The same holds for a page that its own process
// opened.
//
// Both sides check the user of the other process (SO_PEERCRED): another user gets no segment and
// cannot supply one. Seals prevent every holder of the segment from shrinking it.
//
//   rank 1 ──hello, own pidfd and page─────▶ rank 0     (one message each, SOCK_SEQPACKET)
//   rank 1 ◀─segment, pidfds, wakeups, pages─ rank 0    (once all have connected)
//
// Owner: the thread that forms the group. Every wait has the caller's deadline.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "worker_lib/cpu_shm/shm_segment.h"

namespace ddprun {

// NodeListener: the listener of a rank for ranks of its node. Ranks with different shm_domain()
// cannot share memory this way.
struct NodeListener {
  UniqueFd socket;
  std::string name;

  static Result<NodeListener> open();
};

// Returns a text that is equal for processes that can connect through a NodeListener: the boot
// id of the host and the network namespace.
std::string shm_domain();

// Returns a text that is equal for processes of one kernel and for no others. That kernel shares
// its processors among them.
std::string machine_id();

// Returns a kPeerLost for a rank whose listener or connection is closed.
Error rank_is_gone(int rank, const std::string& doing);

// How often a rank checks a peer that has published its info but has not connected.
inline constexpr Duration kGlanceAtOthers = std::chrono::milliseconds(500);

struct NodeBootstrapOptions {
  std::vector<int> ranks;              // of this node; the first one leads
  std::vector<std::string> listeners;  // their listeners; empty: not known
  int local = 0;                       // this rank's local index
  std::string token;                   // the group's secret; a connection without it is closed
  int page = -1;                       // the file of its worker page; -1: none
  std::size_t segment_bytes = 0;
  Deadline deadline;
  std::function<std::optional<Error>()> check_members = {};  // CpuGroupOptions
};

struct NodeMembers {
  ShmSegment segment;
  std::vector<UniqueFd> lives;    // pidfds by local index; readable when the process has ended
  std::vector<UniqueFd> wakeups;  // eventfds by local index, see WakeupFds
  std::vector<UniqueFd> pages;    // by local index; a rank without a page has another file here
};

// Shares memory and descriptors with the ranks of this node. leader_name: the name of the
// leader's listener.
//
// - kPeerLost: the leader is gone. For the leader: a rank that had connected is gone, or the
//   listener of a missing rank is closed.
// - kTimeout names the ranks that did not come.
// - kProtocol: the leader's process belongs to another user, or its segment is not sealed.
Result<NodeMembers> bootstrap_node(const NodeListener& listener, const std::string& leader_name,
                                   const NodeBootstrapOptions& options);

}  // namespace ddprun
