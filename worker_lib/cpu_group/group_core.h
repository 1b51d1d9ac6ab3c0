// GroupCore: the common part of a group's collectives and messages. It has the rank's topology,
// the SharedProgress and the PeerWatch. It turns a wait that failed into an error that is the
// same on every rank.
//
// Owned by SharedGroup. Only the thread that makes the group's collectives publishes progress
// and uses the mesh. Everything else is thread-safe.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.h"
#include "base/result.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_peers/peer_listener.h"
#include "worker_lib/cpu_peers/peer_watch.h"
#include "worker_lib/cpu_peers/tcp_mesh.h"
#include "worker_lib/cpu_shm/peer_memory.h"
#include "worker_lib/cpu_shm/shared_progress.h"
#include "worker_lib/cpu_shm/shm_segment.h"
#include "worker_lib/cpu_shm/wakeup_fds.h"

namespace ddprun {

// GroupParts: all that forming a group yields.
struct GroupParts {
  GroupTopology here;
  std::string token;
  Duration spin{};
  std::shared_ptr<const ShmSegment> segment;
  PeerMemory memory;
  std::unique_ptr<WakeupFds> wakeups;
  PeerWatch::Options watch;
  std::vector<UniqueFd> data_sockets;      // by node; empty on a single node
  std::unique_ptr<PeerListener> listener;  // null on a single node
  std::vector<HostPort> addresses;         // by rank
  AbsenceExplainer explain_absence;        // CpuGroupOptions
};

// OperationContext: describes one call in progress, for errors.
struct OperationContext {
  std::function<std::string()>
      doing;  // "all_reduce #3 of 4 f32 (sum)"; called when something fails
  Deadline deadline;
  std::uint64_t round = 0;  // of a collective
  int partner = -1;         // of send and recv; -1: any
  std::string omission;     // of send and recv: what the partner (any: "no rank ...") did not do
};

class GroupCore {
 public:
  static Result<std::unique_ptr<GroupCore>> create(GroupParts parts);
  ~GroupCore();

  const GroupTopology& here() const { return parts_.here; }
  const GroupParts& parts() const { return parts_; }
  SharedProgress& progress() { return progress_; }
  PeerWatch& watch() { return *watch_; }
  const WakeupFds& wakeups() const { return *parts_.wakeups; }
  PeerListener* listener() { return parts_.listener.get(); }

  // Returns kStopped if the group is finished already, or the failure if another rank has raised
  // one meanwhile.
  Result<void> may_begin(const OperationContext& attempt);

  // Raises the failure that the end of a wait means, reports it to all ranks, and finishes the
  // group. node: the node whose connection was closed or silent; -1: it was no connection.
  Error fail(const OperationContext& attempt, WaitEnd end, int node = -1);
  // Raises a failure that this rank has found itself, as above.
  Error fail(const OperationContext& attempt, ErrorKind kind, int peer_rank,
             const std::string& cause);
  // Returns from where ranks have called the operations that they are in, as text to append to a
  // cause: ". rank 0: it has been in ..., called from ...". Empty if that is not recorded
  // (DDPRUN_TRACE).
  std::string origins_of_calls();

  // Waits briefly until the watch knows why a connection to a rank of another node has closed. Call
  // it after that. Returns whether the rank has left in good order. If it returns false, the group
  // has failed, or the reason is unknown.
  bool await_news(int peer) const;

  // Returns the other ranks of this node, by local index, that are writing to tensors of others
  // (SharedProgress::begin_work). Once it returns an empty list after a failure, it always does.
  std::vector<int> ranks_at_work() const;

  // Does what CpuGroup says.
  std::vector<int> ranks_ahead(Duration patience);

  // Ends the group with a failure that no call of this rank has met.
  void raise(ErrorKind kind, int peer_rank, const std::string& cause);

  std::optional<Error> failure() const;

 private:
  explicit GroupCore(GroupParts parts);

  Error error_of_failure(const OperationContext& attempt);
  void raise_departure(const OperationContext& attempt, int node);
  void raise_timeout(const OperationContext& attempt);

  GroupParts parts_;
  SharedProgress progress_;
  std::unique_ptr<TcpMesh> mesh_;
  std::unique_ptr<PeerWatch> watch_;
  mutable std::mutex finishing_;   // guards the members below
  std::optional<Error> finished_;  // the error that finished the group
};

}  // namespace ddprun
