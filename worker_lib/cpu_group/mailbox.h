// Mailbox: sends and receives messages between any two ranks of a group, blocking and
// non-blocking.
//
// Two streams connect each pair of ranks, one in each direction (message_stream.h). A stream
// carries frames. The frame types have MPI's names:
//
//   eager   A message of at most kEagerBytes, while the receiver's credit lasts: header and bytes
//           together. The receiver reads it into the buffer of a waiting receive or sets it aside.
//   RTS     The header of any other message. Its bytes stay with the sender.
//   CTS     The receiver has a receive for an announced message and asks for its bytes.
//   data    A part of an announced message, at most kPartBytes. It goes straight into the buffer of
//           the receiver. Parts alternate with the other frames of the same direction.
//   FIN     Ends an announced message without data: it is empty, or its size differs from the
//           receive's.
//   credit  Gives back the credit of eager messages that have been received.
//
// So a receiver sets aside at most MessageCredit::kBytes bytes and MessageCredit::kHeads headers
// for each sender. No message waits for another message that is not received.
//
// Progress: A thread in a blocking call moves everything in flight. It spins first and then
// sleeps in poll(2). The first asynchronous transfer that does not end at once starts a thread,
// which moves transfers without a waiting call. One thread at a time moves bytes: the driver.
// With nothing in flight there is no driver. Bytes that belong to no call stay in the streams.
//
// Callbacks may wait for other transfers. The thread that runs a callback drives again when the
// callback returns. If a callback runs for more than 1 to 2 ms, another thread of the mailbox
// drives meanwhile. The mailbox has at most one thread more than the number of callbacks that
// have run at the same time.
//
// cpu_peers/core/message_matching.h decides which receive gets which message. The group's
// failure ends all transfers. Thread-safe.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
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
  // Longer messages are announced (RTS).
  static constexpr std::size_t kEagerBytes = std::size_t{64} << 10;
  static constexpr std::size_t kPartBytes = std::size_t{256} << 10;

  explicit Mailbox(GroupCore& core);
  // Ends the transfers in flight with kStopped. Other ranks learn of it when this rank leaves.
  ~Mailbox();

  // Waits until nothing is in flight, at most `patience`. Returns whether nothing is in flight.
  bool await_idle(Duration patience);

  // Request: a message to send or to receive, see CpuGroup.
  struct Request {
    bool is_send = false;
    char* data = nullptr;  // a send only reads it
    std::size_t bytes = 0;
    int partner = -1;  // -1: a receive from any source
    int tag = 0;
    Deadline deadline{Duration::zero()};
  };
  // Blocks until the message is sent or received. Returns the partner.
  Result<Rank> carry_out(const Request& request);
  void start(const Request& request, TransferDone done);

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
  void take_eager(Peer& peer, Transfer& receive, const Head& head);
  void take_set_aside(Transfer& receive, std::map<MessageId, Message>::iterator at);
  void take_rts(Peer& peer, Transfer& receive, const Head& offer);
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
  // Returns the error of a transfer whose group is destroyed.
  Error destroyed(const Transfer& transfer) const;

  GroupCore& core_;
  const GroupTopology& here_;
  SleepState& sleep_state_;  // this rank's

  std::atomic<int> lock_waiters_ = 0;  // number of threads that want the mutex
  // Guards the members below; the driver uses watched_ without it while it sleeps.
  std::mutex mutex_;
  // Blocking calls wait for it: a driver stopped, or an answer came.
  std::condition_variable changed_;
  std::condition_variable work_;  // the mailbox's threads wait for it: see run()
  std::condition_variable idle_;  // nothing is in flight any more
  bool driving_ = false;
  bool sleeping_ = false;  // the driver sleeps
  bool closing_ = false;
  bool is_over_ = false;  // the group has failed or is destroyed, and all transfers have ended
  std::vector<std::thread> threads_;
  int free_threads_ = 0;          // threads that run no callback
  bool is_watched_ = false;       // one of them is in watch_callbacks()
  int waiting_threads_ = 0;       // threads in wait_for_work()
  bool is_thread_woken_ = false;  // one of them has been notified

  // Callbacks are numbered as they begin. Those below first_active_call_ count as blocked.
  std::uint64_t next_call_ = 0;
  std::uint64_t first_active_call_ = 0;
  int active_calls_ = 0;

  std::vector<std::unique_ptr<Peer>> peers_;     // by rank; null for this rank
  std::size_t first_peer_ = 0;                   // the next pass starts with it
  std::map<std::uint64_t, Transfer> transfers_;  // transfers in flight, by number
  std::set<std::pair<TimePoint, std::uint64_t>> deadlines_;
  std::uint64_t next_number_ = 1;
  std::size_t called_back_for_ = 0;  // number of asynchronous transfers in flight
  MessageMatching matching_;
  std::map<MessageId, Message> set_aside_;
  std::deque<Ended> ended_;  // their callbacks are still to be called
  // New connections may wait; true at first: they may have come while the group formed.
  bool may_have_connections_ = true;

  struct Watched {
    Peer* peer = nullptr;  // null: the entry belongs to the listener
  };
  std::vector<pollfd> polled_;
  std::vector<Watched> watched_;  // owners of the entries of polled_ from the second on
};

}  // namespace ddprun
