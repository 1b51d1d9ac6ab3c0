// PeerWatch: a thread that notices when another rank dies, fails or leaves, and reports it to
// all ranks.
//
// It sleeps in poll(2) until one of these happens:
//
//   a pidfd of a rank of this node   -> the rank died: raise it on the SharedProgress
//   a control link to another node   -> its rank died (closed without a leave) or its node did (no
//                                       answer for the lease), it left, reports a failure, or asks
//                                       for the state of this node's ranks
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

  // progress and wakeups must outlive the watch. It notifies the wakeups of all news that may
  // end a wait.
  static Result<std::unique_ptr<PeerWatch>> start(SharedProgress& progress,
                                                  const WakeupFds& wakeups, Options options);
  ~PeerWatch();

  // Raises the failure, unless there is one already, and reports it to the other nodes.
  void announce(const GroupFailure& failure);
  // Reports the failure on the SharedProgress to the other nodes, once.
  void pass_on();
  // Reports to all ranks that this rank leaves in good order. The destructor waits until the
  // kernels of the other nodes have received it, at most one second.
  void leave();
  // Returns whether a rank of another node has left in good order.
  bool has_left(int rank) const { return progress_.has_departed(rank); }

  // Returns whether the process of a rank of this node has ended.
  bool has_ended(int local) const;
  // Kills the process of a rank of this node, unless it is this process.
  void kill(int local) const;

  // Standing: the state of a rank: the round it entered last, and its tick.
  struct Standing {
    int rank = -1;
    bool stopped = false;  // by a signal or a debugger
    std::uint64_t entered = 0;
    std::uint64_t tick = 0;
    std::string whereabouts;  // what the rank does according to its worker page; empty: it has none
  };
  struct Answers {
    std::vector<Standing> standings;  // of this node and of those that answered, one per rank
    std::vector<int> silent;          // linked ranks without a report; not those that have left
  };
  // Asks the other nodes for the state of their ranks, and reads that of this node's ranks. Ends
  // early when the group fails.
  Answers ask(Duration patience);
  // Returns the notes of all ranks, by rank, in the same way. A note is empty if none was
  // written or no answer came in time. patience: zero: only this node.
  std::vector<std::string> notes(Duration patience);

 private:
  struct Peer;
  enum class News : std::uint32_t;
  struct FrameHead;
  struct Note {
    int rank = -1;
    std::string text;
  };

  PeerWatch(SharedProgress& progress, const WakeupFds& wakeups, Options options, UniqueFd wake);
  void run();
  void neighbour_ended(int local);
  void read_link(Peer& peer);
  bool handle(Peer& peer, const FrameHead& head, const std::string& body);
  std::vector<Standing> standings_here() const;
  static std::string frames_of(const std::vector<Standing>& standings);
  static std::optional<std::vector<Standing>> standings_in(const std::string& frames);
  std::vector<Note> notes_here() const;
  static std::string frames_of(const std::vector<Note>& notes);
  static std::optional<std::vector<Note>> notes_in(const std::string& frames, int world_size);
  void take(Standing standing);  // holds asking_
  void put_question(News question, Duration patience, std::unique_lock<std::mutex>& asking);
  void send(Peer& peer, FrameHead head, const std::string& body);  // holds speaking_
  void send_unsent(Peer& peer);                                    // holds speaking_
  void wake();
  bool is_delivered(Peer& peer);
  void await_delivery();
  void pass_on_holding_lock();

  SharedProgress& progress_;
  const WakeupFds& wakeups_;
  int rank_;
  int world_size_;
  Duration node_silence_;
  std::vector<int> node_ranks_;
  std::vector<UniqueFd> lives_;
  std::vector<std::optional<MappedPages>> pages_;
  std::vector<std::unique_ptr<Peer>> peers_;
  UniqueFd wake_;  // an eventfd
  std::atomic<bool> stops_ = false;

  std::mutex speaking_;  // guards writing to links, raising, and passed_on_
  bool passed_on_ = false;

  std::mutex questions_;  // allows one question at a time
  std::mutex asking_;     // guards the members below
  std::condition_variable answered_;
  std::uint64_t question_ = 0;
  std::vector<Standing> standings_;
  std::vector<std::string> notes_;  // by rank
  std::vector<int> silent_;         // ranks of other nodes without a report yet

  std::thread thread_;
};

}  // namespace ddprun
