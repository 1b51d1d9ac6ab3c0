// How the ranks of a node come to share one segment, and hold a handle on each other's life.
//
// Every rank opens a listener (a Unix socket in the abstract namespace: it is no file and is gone with
// its process) and tells the others its random name through the store. The node's first rank makes
// the segment; the others knock at its listener. Descriptors travel over the socket: each rank's pidfd
// of itself and the file of its worker page to the first rank, then the segment, everybody's pidfd,
// wakeup and page back. A pidfd made by its own process works in every PID namespace and cannot mean
// another process that got the same number later; no more can a page that was opened by its own.
//
// Both sides look at whose process the other is (SO_PEERCRED): another user gets no segment, and can plant none.
// The segment's seals keep whoever holds it from shrinking it.
//
//   rank 1 ──hello, own pidfd and page─────▶ rank 0     (one message each, SOCK_SEQPACKET)
//   rank 1 ◀─segment, pidfds, wakeups, pages─ rank 0     (once all have knocked)
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

// Where a rank of the same node can be met. Ranks whose realms differ cannot share memory this way.
struct NodeListener {
  UniqueFd listener;
  std::string name;

  static Result<NodeListener> open();
};

// Text that is equal for processes that can meet through a NodeListener: the host's boot, the network
// namespace.
std::string shm_domain();

// What processes of one kernel have in common, and no others: it shares its processors among them.
std::string machine_id();

// How often those who wait for a rank that has shown its card look whether it is still there.
inline constexpr Duration kGlanceAtOthers = std::chrono::milliseconds(500);

struct NodeBootstrapOptions {
  std::vector<int> ranks;          // of this node; the first one leads
  std::vector<std::string> listeners;  // theirs; empty: not known
  int local = 0;                   // this rank's place among them
  std::string token;               // the group's secret: who does not know it is turned away
  int page = -1;                   // the file of its worker page; -1: none
  std::size_t segment_bytes = 0;
  Deadline deadline;
  std::function<std::optional<Error>()> fate = {};  // CpuGroupOptions
};

struct NodeMembers {
  ShmSegment segment;
  std::vector<UniqueFd> lives;  // pidfds by local index; readable when the process has ended
  std::vector<UniqueFd> wakeups;  // eventfds by local index, see WakeupFds
  std::vector<UniqueFd> pages;  // by local index; of a rank that has none something that is no page
};

// leader_address: the name of the first rank's listener. kPeerLost when the leader (or, for the leader, a
// rank that had knocked, or whose listener is closed) is gone, kTimeout names who did not come, kProtocol: the
// leader's process belongs to another user, or its segment is not sealed.
Result<NodeMembers> bootstrap_node(const NodeListener& listener, const std::string& leader_address,
                              const NodeBootstrapOptions& options);

}  // namespace ddprun
