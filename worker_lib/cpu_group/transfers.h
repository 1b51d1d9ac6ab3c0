// Transfers: moves the messages between this rank and all others, in passes.
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
// for each sender. No message waits for another message that is not received. Bytes that belong to
// no transfer stay in the streams.
//
// cpu_peers/core/message_matching.h decides which receive gets which message. The group's
// failure ends all transfers.
//
// Owner: Mailbox. It calls all functions with its mutex held. Only the end
// of the group waits: for 0.5 s at most, to find out which rank failed.
#pragma once

#include <poll.h>

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "base/result.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_peers/core/message_matching.h"
#include "worker_lib/cpu_peers/message_stream.h"

namespace ddprun {

class Transfers {
 public:
  // Longer messages are announced (RTS).
  static constexpr std::size_t kEagerBytes = std::size_t{64} << 10;
  static constexpr std::size_t kPartBytes = std::size_t{256} << 10;

  using Answer = std::optional<Result<Rank>>;
  struct Transfer : MessageRequest {
    // Called at the end of an asynchronous transfer; a transfer has either this or `answer`.
    TransferDone done;
    Answer* answer = nullptr;  // set at the end of a blocking call

    std::uint64_t number = 0;
    int source = -1;            // source of the message that a receive has got
    std::size_t moved = 0;      // bytes moved
    bool is_under_way = false;  // the receiver has asked for the bytes or is reading them
    std::uint64_t receive = 0;  // of a send: the receiver's number of it
    std::optional<Error> flaw;  // a receive ends with this error once the FIN has been sent
  };
  // An asynchronous transfer that has ended.
  struct Ended {
    TransferDone done;
    Result<Rank> result;
  };

  // changed: notified when a blocking transfer gets its answer, and when nothing is in flight any
  // more.
  Transfers(GroupCore& core, std::condition_variable& changed);
  ~Transfers();

  // Accepts the transfer, unless the group has failed or is destroyed.
  Result<void> post(Transfer& posted);

  // Moves what can move now. Returns whether anything moved.
  bool step();
  // Ends a transfer whose deadline has passed or, if the last pass moved nothing, whose partner has
  // left. That ends the group.
  void end_failed(bool has_moved);
  // Ends the group, and all transfers, with this failure.
  void fail_all(ErrorKind kind, int peer_rank, const std::string& cause);
  // Ends all transfers of this rank only: the group may still be intact.
  void end_here();

  bool empty() const { return transfers_.empty(); }
  // Returns whether asynchronous transfers are in flight.
  bool has_async() const { return called_back_for_ > 0; }
  bool has_ended() const { return !ended_.empty(); }
  Ended take_ended();

  // Makes the ranks of this node notify this rank's wakeup fd of what they move. Returns whether to
  // sleep: false if something may have come since the last pass.
  bool begin_sleep();
  void end_sleep();
  // Returns the first deadline; `latest` if it is earlier.
  TimePoint first_deadline(TimePoint latest) const;

  // Appends the listener and the sockets, with several nodes. They are polled without the mutex.
  void add_polled(std::vector<pollfd>& polled);
  // events: the entries that add_polled() has appended last.
  void take_events(std::span<const pollfd> events);

 private:
  struct Head;
  struct Message;
  struct Frame;
  struct Peer;

  bool is_worth_a_look() const;
  void end_with_leavers();
  bool write(Peer& peer);
  std::optional<Frame> next_frame(Peer& peer);
  void finish_frame(Peer& peer);
  bool connect(Peer& peer);
  bool read(Peer& peer);
  void handle(Peer& peer, const Head& head);
  void finish_bytes(Peer& peer);
  void take_eager(Peer& peer, Transfer& receive, const Head& head);
  void take_set_aside(Transfer& receive, std::map<MessageId, Message>::iterator at);
  void take_rts(Peer& peer, Transfer& receive, const Head& rts);
  void give_back(Peer& peer, std::size_t bytes);
  void admit();

  Transfer* find(std::uint64_t number);
  bool is_gone(Peer& peer);
  OperationContext attempt_of(const Transfer& transfer) const;
  Error wrong_size(const Transfer& receive, std::size_t sent) const;
  void complete(Transfer& transfer, std::optional<Error> failure = {});
  void fail(Transfer& transfer, WaitEnd end);
  template <class ErrorOf>
  void end_each(ErrorOf error_of);
  void end_all();
  // Returns the error of a transfer whose group is destroyed.
  Error destroyed(const Transfer& transfer) const;

  GroupCore& core_;
  const GroupTopology& here_;
  SleepState& sleep_state_;  // this rank's
  std::condition_variable& changed_;
  bool is_over_ = false;  // the group has failed or is destroyed, and all transfers have ended

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

  std::vector<Peer*> polled_;  // by entry of add_polled(); null: the entry belongs to the listener
};

}  // namespace ddprun
