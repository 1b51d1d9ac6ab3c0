// MessageMatching: decides which receive gets which message. MessageCredit: limits what a sender
// may send before the receiver asks for it. Both are the pure part of send and recv; the mailbox
// moves the bytes.
//
// A message has come when its header has come; its bytes may still be on their way. Rules:
//
// - A message goes to the receive that was posted first, among those for its tag and for its
//   source or any source.
// - A receive from one source gets the first message that this source sent under the tag.
// - A receive from any source takes turns among the sources that have a message under the tag.
//   It gets the first message of that source. So a source that sends much does not block the
//   others. The first message of a source waits for at most as many receives as there are other
//   sources.
//
// So messages of one (source, tag) are received in the order sent, by receives in the order
// posted.
//
// A value machine: no clock, no I/O. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>

namespace ddprun {

using ReceiveId = std::uint64_t;
using MessageId = std::uint64_t;

class MessageMatching {
 public:
  // Posts a receive; source: nullopt: any source. Returns the message it gets if that has come;
  // otherwise the receive waits.
  std::optional<MessageId> post(ReceiveId receive, std::optional<int> source, int tag);

  // Adds a message that has come. Returns the receive that gets it; if there is none, the
  // message is set aside.
  std::optional<ReceiveId> arrive(MessageId message, int source, int tag);

 private:
  struct Posted {
    std::uint64_t turn = 0;  // grows with every receive
    ReceiveId receive = 0;
  };
  // Tag: the receives and messages of one tag. A source has either waiting receives or waiting
  // messages.
  struct Tag {
    std::map<int, std::deque<Posted>> from;  // by source
    std::deque<Posted> from_any;
    std::map<int, std::deque<MessageId>> waiting;  // by source; none is empty
    int last_taken = -1;                           // the source of the last receive from any source
  };

  void forget_if_empty(std::map<int, Tag>::iterator tag);

  std::map<int, Tag> tags_;
  std::uint64_t next_turn_ = 0;
};

// MessageCredit: how much one sender may put into the memory of one receiver that has not asked
// for it. Eager messages may use a number of bytes. Beyond that, headers of messages whose bytes
// stay with the sender may use a number of headers. The receiver gives back what it has
// received. One thread at a time.
class MessageCredit {
 public:
  // The cost of a message without bytes: the memory to remember it.
  static constexpr std::size_t kPerMessage = 128;
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static constexpr std::size_t kHeads = std::size_t{1} << 16;

  // Takes the credit for an eager message. Returns whether it may go; it then counts until
  // give_back().
  bool take_message(std::size_t bytes);
  void give_back(std::size_t cost) { bytes_left_ += cost; }

  bool take_head();
  void give_head_back() { ++heads_left_; }

  static std::size_t cost_of(std::size_t bytes) { return bytes + kPerMessage; }

 private:
  std::size_t bytes_left_ = kBytes;
  std::size_t heads_left_ = kHeads;
};

}  // namespace ddprun
