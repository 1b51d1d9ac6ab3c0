// Mailbox: send and recv between any two ranks of a group, blocking and not.
//
// Two streams join a pair of ranks, one each way (message_stream.h). In them travel:
//
//   whole message  head and bytes at once, if it is small and the receiver's credit has room: it
//                  is received into the buffer of a waiting receive, or set aside
//   offer          the head of any other; its bytes stay with the sender until
//   request        the receiver has a receive for it, then they come in
//   part           ... parts of at most kPartBytes, straight into the receiver's buffer, in turns
//                  with whatever else goes the same way
//   thanks         no part is needed: the message is empty, or of another size than the receive
//   credit      what whole messages used of it and was received
//
// So a receiver sets aside at most MessageCredit::kBytes, and kHeads heads, for each sender; and
// no message waits for another one that nobody receives.
//
// Progress: whoever waits in a blocking call makes it, in its own thread, for everything in flight,
// spinning and then asleep in poll(2). For transfers that nobody waits for there is a thread,
// started with the first one; one thread at a time drives, and with nothing in flight nobody does.
// What comes for no call is left in the streams.
//
// Callbacks may wait for other transfers. The thread that runs a callback drives again when the
// callback returns. If it runs for more than 1 to 2 ms, another thread of the mailbox drives
// meanwhile.
// The mailbox has at most one thread more than callbacks that have run at the same time.
//
// Which receive gets which message: cpu_peers/core/message_matching.h. The group's failure ends all
// transfers. Any thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/ids.h"
#include "base/result.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_peers/core/message_matching.h"
#include "worker_lib/cpu_peers/message_stream.h"

namespace ddprun {

class Mailbox {
 public:
  // Longer messages are offered.
  static constexpr std::size_t kEagerBytes = std::size_t{64} << 10;
  static constexpr std::size_t kPartBytes = std::size_t{256} << 10;

  explicit Mailbox(GroupCore& core);
  // Ends with kStopped what is in flight; other ranks learn of it when this one leaves.
  ~Mailbox();

  // Waits until nothing is in flight, at most so long; whether it is so.
  bool await_idle(Duration patience);

  // See CpuGroup.
  Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                    Duration timeout);
  Result<Rank> recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                    Duration timeout);
  void start_send(const void* data, std::size_t bytes, Rank destination, int tag, Duration timeout,
                  TransferDone done);
  void start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                  Duration timeout, TransferDone done);

 private:
  struct Head;
  struct Transfer;
  struct Message;
  struct Frame;
  struct Peer;
  class Turn;
  struct Ended {
    TransferDone done;
    Result<Rank> result;
  };
  using Answer = std::optional<Result<Rank>>;
  using Lock = std::unique_lock<std::mutex>;

  static Transfer make_send(const void* data, std::size_t bytes, Rank destination, int tag,
                            Duration timeout);
  static Transfer make_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                            Duration timeout);
  Result<Rank> carry_out(Transfer transfer);
  void start(Transfer transfer);

  Lock enter();
  void leave(Lock& lock);
  void lock_in_turn(Lock& lock);
  Result<void> post(Transfer& posted);
  void ensure_thread();
  void run();
  void watch_callbacks(Lock& lock);
  bool wait_for_work(Lock& lock, std::optional<Duration> patience);
  bool claim_thread();
  template <class Over>
  void drive(Lock& lock, Over over);
  void tell_driver();
  void sleep(Lock& lock);
  void look_at_sockets(TimePoint until, Lock* lock);
  bool is_worth_a_look() const;
  void call_back(Lock& lock);

  bool step();
  void end_at_deadline();
  void end_with_leavers();
  bool write(Peer& peer);
  std::optional<Frame> next_frame(Peer& peer);
  void finish_frame(Peer& peer);
  bool has_output(const Peer& peer) const;
  bool connect(Peer& peer);
  bool read(Peer& peer);
  void handle(Peer& peer, const Head& head);
  void finish_bytes(Peer& peer);
  void take_whole(Peer& peer, Transfer& receive, const Head& head);
  void take_set_aside(Transfer& receive, std::map<MessageId, Message>::iterator at);
  void take_offer(Peer& peer, Transfer& receive, const Head& offer);
  void give_back(Peer& peer, std::size_t bytes);
  void admit();

  Transfer* find(std::uint64_t id);
  bool is_gone(Peer& peer);
  OperationContext attempt_of(const Transfer& transfer) const;
  Error wrong_size(const Transfer& receive, std::size_t sent) const;
  void complete(Transfer& transfer, std::optional<Error> failure = {});
  void fail(Transfer& transfer, WaitEnd end);
  void fail_all(ErrorKind kind, int peer_rank, const std::string& cause);
  void end_all();
  void end_here();
  // What a transfer ends with when its group is destroyed.
  Error destroyed(const Transfer& transfer) const;

  GroupCore& core_;
  const GroupTopology& here_;
  SleepState& sleep_state_;  // this rank's

  std::atomic<int> accepted_ = 0;  // that want the mutex
  std::mutex mutex_;              // guards what follows, except while the driver sleeps: watched_
  std::condition_variable changed_;  // for blocking calls: a driver stopped, or an answer came
  std::condition_variable work_;     // for the mailbox's threads: see run()
  std::condition_variable idle_;     // nothing is in flight any more
  bool driving_ = false;
  bool sleeping_ = false;  // the driver is
  bool closing_ = false;
  bool is_over_ = false;  // the group has failed, and all transfers have ended
  std::vector<std::thread> threads_;
  int free_threads_ = 0;          // threads that run no callback
  bool is_watched_ = false;       // one of them is in watch_callbacks()
  int waiting_threads_ = 0;       // threads in wait_for_work(),
  bool is_thread_woken_ = false;  // of which one has been notified

  // Callbacks are numbered as they begin. Those below first_active_call_ wait for something.
  std::uint64_t next_call_ = 0;
  std::uint64_t first_active_call_ = 0;
  int active_calls_ = 0;

  std::vector<std::unique_ptr<Peer>> peers_;     // by rank; null at the own place
  std::size_t first_peer_ = 0;                   // to be looked at first next time
  std::map<std::uint64_t, Transfer> transfers_;  // not ended; by number
  std::set<std::pair<TimePoint, std::uint64_t>> deadlines_;
  std::uint64_t next_number_ = 1;
  std::size_t called_back_for_ = 0;  // transfers that nobody waits for
  MessageMatching matching_;
  std::map<MessageId, Message> set_aside_;
  std::deque<Ended> ended_;   // to be told
  bool door_is_rung_ = true;  // callers may have come while the group was formed

  struct Watched {
    Peer* peer = nullptr;  // null: the listener's
  };
  std::vector<pollfd> polled_;
  std::vector<Watched> watched_;  // whose they are, from the second on
};

}  // namespace ddprun
