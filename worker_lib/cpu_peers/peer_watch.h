// PeerWatch: a thread that notices when another rank dies, fails or leaves, and reports it to
// all ranks.
//
// It sleeps in poll(2) until one of these happens:
//
//   a pidfd of a rank of this node   -> the rank died: raise it on the SharedProgress
//   a control link to another node   -> its rank died (closed without a leave) or its node did (no
//                                       answer for node_silence), it left, reports a failure, or
//                                       asks for the state of this node's ranks
//
// A dead rank is noticed at once on its node and through its closed connection; a silent node
// after node_silence.
//
// Failures are sent in both directions. Every rank that notices a failure reports it over each
// of its links. So other nodes learn of the rank that really died before they see the closed
// connections of ranks that gave up because of it. The first failure counts, on the
// SharedProgress and everywhere.
//
// It has its own thread for three reasons. A rank learns of a death at once, whether it waits
// for memory, for a socket or not at all. It can answer for its node while it computes. Waiting
// ranks need no timer.
//
// A process that forks without exec gives its connections to its child. Other nodes then see
// them closed only when the child has ended, too. Ranks of the same node are not affected.
//
// Only the owner calls start(), leave() and the destructor. Any thread may call the rest.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "base/unique_fd.h"
#include "base/worker_page_file.h"
#include "worker_lib/cpu_peers/core/peer_frames.h"
#include "worker_lib/cpu_shm/shared_progress.h"
#include "worker_lib/cpu_shm/wakeup_fds.h"

namespace ddprun {

class PeerWatch {
 public:
  struct Link {
    int rank = -1;
    UniqueFd socket;  // non-blocking
  };
  struct Options {
    int rank = -1;
    int world_size = 0;
    std::vector<int> node_ranks;  // by local index
    std::vector<UniqueFd> lives;  // pidfds by local index
    // By local index: the page of each rank that has shown it, as in CpuGroupOptions::page.
    std::vector<std::optional<MappedPages>> pages;
    std::vector<Link> links;
    Duration node_silence{};  // how long a node may be silent before it counts as lost
  };

  // Starts a watch. progress and wakeups must outlive it. The watch notifies wakeups of everything
  // that may end a wait.
  static Result<std::unique_ptr<PeerWatch>> start(SharedProgress& progress,
                                                  const WakeupFds& wakeups, Options options);
  ~PeerWatch();

  // Raises the failure, unless there is one already, and reports it to the other nodes.
  void raise_failure(const GroupFailure& failure);
  // Reports the failure on the SharedProgress to the other nodes, once.
  void forward_failure();
  // Reports to all ranks that this rank leaves in good order. The destructor waits until the
  // kernels of the other nodes have received it, at most one second.
  void leave();
  // Returns whether a rank of another node has left in good order.
  bool has_left(int rank) const { return progress_.has_departed(rank); }

  // Returns whether the process of a rank of this node has ended.
  bool has_ended(int local) const;
  // Kills the process of a rank of this node, unless it is this process.
  void kill(int local) const;

  struct ProgressReport {
    // By ascending ranks.
    std::vector<RankProgress> progress;  // of this node and of those that answered, one per rank
    std::vector<int> silent;             // linked ranks without a report; not those that have left
  };
  // Asks the other nodes for the progress of their ranks, and reads that of this node's ranks.
  // Ends early when the group fails.
  ProgressReport query_progress(Duration patience);
  // Returns the note of each rank, by rank. A note is empty if the rank wrote none or its node
  // did not answer in time. Continues after a failure of the group. With a patience of zero, asks
  // only this node.
  std::vector<std::string> query_notes(Duration patience);

 private:
  struct Peer;

  PeerWatch(SharedProgress& progress, const WakeupFds& wakeups, Options options,
            std::vector<UniqueFd> wake);
  void run();
  void on_local_rank_ended(int local);
  void read_link(Peer& peer);
  void blame(ErrorKind kind, int rank, const std::string& what);
  bool handle(Peer& peer, const FrameHead& head, const std::string& body);
  void reply(Peer& peer, FrameType type, std::uint64_t query, const std::string& body);
  template <class Report, class Take>
  bool take_reply(const FrameHead& head, std::optional<std::vector<Report>> reports, Take take);
  std::vector<RankProgress> progress_here() const;
  std::vector<RankNote> notes_here() const;
  void keep_newest(RankProgress progress);  // holds query_mutex_
  void query_peers(FrameType query, Duration patience, std::unique_lock<std::mutex>& lock);
  void send(Peer& peer, FrameHead head, const std::string& body);  // holds send_mutex_
  void send_unsent(Peer& peer);                                    // holds send_mutex_
  bool is_delivered(Peer& peer);
  void await_delivery();
  void forward_failure_holding_lock();

  SharedProgress& progress_;
  const WakeupFds& wakeups_;
  Options options_;  // its links are in peers_
  std::vector<Peer> peers_;
  const WakeupFds wake_;  // of the thread
  std::atomic<bool> stop_requested_ = false;

  std::mutex send_mutex_;  // guards writing to links, raising, and forwarded_
  bool forwarded_ = false;

  std::mutex query_turn_;   // allows one query at a time
  std::mutex query_mutex_;  // guards the members below
  std::condition_variable reply_came_;
  std::uint64_t query_number_ = 0;
  std::vector<RankProgress> reported_;  // ascending
  std::vector<std::string> notes_;      // by rank
  std::vector<int> silent_;             // ranks of other nodes without a report yet, ascending

  std::thread thread_;
};

}  // namespace ddprun
