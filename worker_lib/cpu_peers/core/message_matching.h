// MessageMatching: which receive gets which message, and MessageCredit: what a sender may send
// before anybody has asked for it. The pure part of send and recv; the mailbox moves the bytes.
//
// A message has come when its head has (its bytes may still be on their way). Rules:
//
//   - a message goes to the receive posted first among those that ask for its tag and for its
//     source or any source;
//   - a receive from one source gets what that source sent first under the tag;
//   - a receive from any source takes turns among the sources that have something under the tag,
//     and gets what that source sent first: whoever sends much does not keep the others waiting; a
//     message that is first of its source waits for at most as many receives as there are other
//     sources.
//
// So messages of one (source, tag) are received in the order sent, by receives in the order posted.
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
  // A receive is posted; source: nullopt: any. The message it gets, if that has come; else it
  // waits.
  std::optional<MessageId> post(ReceiveId receive, std::optional<int> source, int tag);

  // A message has come. The receive that gets it; else it is set aside.
  std::optional<ReceiveId> arrive(MessageId message, int source, int tag);

  // Receives that wait, and messages that are set aside.
  std::size_t posted() const { return posted_; }
  std::size_t set_aside() const { return set_aside_; }

 private:
  struct Posted {
    std::uint64_t turn = 0;  // grows with every receive
    ReceiveId receive = 0;
  };
  // Receives and messages of one tag. Only one of the two has anything for a source.
  struct Tag {
    std::map<int, std::deque<Posted>> from;  // by source
    std::deque<Posted> from_any;
    std::map<int, std::deque<MessageId>> waiting;  // by source; none is empty
    int last_taken = -1;                           // the source that a receive from any took from
  };

  MessageId take(Tag& tag, std::map<int, std::deque<MessageId>>::iterator source);
  void forget_if_empty(std::map<int, Tag>::iterator tag);

  std::map<int, Tag> tags_;
  std::uint64_t next_turn_ = 0;
  std::size_t posted_ = 0;
  std::size_t set_aside_ = 0;
};

// How much one sender may put into the memory of one receiver that has not asked for it: whole
// messages up to a number of bytes, and beyond that the heads of messages whose bytes wait at the
// sender, up to a number of heads. The receiver gives back what it has taken. One thread at a time.
class MessageCredit {
 public:
  // Counted for a message of no bytes: what it costs to remember one.
  static constexpr std::size_t kPerMessage = 128;
  static constexpr std::size_t kBytes = std::size_t{1} << 20;
  static constexpr std::size_t kHeads = std::size_t{1} << 16;

  // Whether a whole message may go; it then counts until it is given back.
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
