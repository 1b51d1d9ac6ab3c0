// PeerWatch: a thread that knows when another rank dies, fails or leaves, and tells everyone.
//
// It sleeps in poll(2) until something happens:
//
//   a pidfd of a rank of this node    -> it died: raise it on the node's progress
//   a control link to another node    -> its rank died (closed without a word) or its node did (no
//                                        answer for the lease), it left, reports a failure, or asks how
//                                        far this node's ranks are
//
// News goes both ways: whatever fails on a node is told over every link of every rank that notices
// it, so ranks of other nodes hear of the rank that really died before the closed connections of
// those who then give up. The first failure is the story, on the progress as everywhere.
//
// Why a thread of its own: a rank learns of a death at once, whether it waits for memory, a socket
// or not at all, and can answer for its node while it computes; and waiting ranks need no timer.
//
// A process that forks without exec gives its child the connections, and other nodes then see them
// closed only when the child is gone as well; ranks of the same node are not fooled.
//
// start(), leave() and destruction belong to the owner; the rest may be called by any thread.
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
    // By local index: one page of each rank that has shown it, as CpuGroupOptions::page.
    std::vector<std::optional<MappedPages>> pages;
    std::vector<Link> links;
    Duration node_silence{};  // of a node, until it counts as lost
  };

  // Board and wakeups must outlive the watch. The wakeups are rung with all news that may end a wait.
  static Result<std::unique_ptr<PeerWatch>> start(SharedProgress& progress, const WakeupFds& wakeups,
                                                  Options options);
  ~PeerWatch();

  // Raises the failure, unless there was one before, and tells the other nodes.
  void announce(const GroupFailure& failure);
  // Tells the other nodes of the failure that is on the progress, once.
  void pass_on();
  // Tells everyone that this rank leaves in good order. The destructor waits, for a second at most, until the
  // kernels of the other nodes have it.
  void leave();
  // Whether a rank of another node has left in good order.
  bool has_left(int rank) const { return progress_.has_departed(rank); }

  // Whether the process of a rank of this node has ended.
  bool has_ended(int local) const;
  // Ends the process of a rank of this node, unless it is this one.
  void kill(int local) const;

  // How far a rank is: the round it entered last, and its tick.
  struct Standing {
    int rank = -1;
    bool stopped = false;  // by a signal or a debugger
    std::uint64_t entered = 0;
    std::uint64_t tick = 0;
    std::string whereabouts;  // what its worker page says that it does; empty: it has none
  };
  struct Answers {
    std::vector<Standing> standings;  // of this node and of those that answered, one of a rank
    std::vector<int> silent;  // linked ranks that nobody has told of; not those that have left
  };
  // Asks the other nodes how far their ranks are, and looks at this node's. Ends early when the group fails.
  Answers ask(Duration patience);
  // The notes of all ranks, by rank, the same way; empty: none was written, or no answer came in
  // time. patience: zero: those of this node.
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
  UniqueFd wake_;  // eventfd
  std::atomic<bool> stops_ = false;

  std::mutex speaking_;  // guards writing to links, raising, and passed_on_
  bool passed_on_ = false;

  std::mutex questions_;  // one at a time
  std::mutex asking_;     // guards what follows
  std::condition_variable answered_;
  std::uint64_t question_ = 0;
  std::vector<Standing> standings_;
  std::vector<std::string> notes_;  // by rank
  std::vector<int> silent_;         // ranks of other nodes that nobody has told of yet

  std::thread thread_;
};

}  // namespace ddprun
