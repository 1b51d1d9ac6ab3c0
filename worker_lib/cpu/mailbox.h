// Mailbox: send and recv between any two ranks of a group.
//
// A message is a head (bytes, tag) and its bytes, in a stream from one rank to another: a ring in
// the node's segment, or a connection of its own that the sender makes with its first message. The
// stream holds a bounded amount (the ring, or the kernel's socket buffers); beyond that a sender
// waits for the receiver. Messages of one tag arrive in the order sent; those of other tags that
// come before are set aside, up to kMaxSetAsideBytes for each sender.
//
// Owner: the thread that makes the group's calls.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <vector>

#include "base/clock.h"
#include "base/ids.h"
#include "base/result.h"
#include "worker_lib/cpu/group_core.h"

namespace ddprun {

// One direction between two ranks.
class MessageStream {
 public:
  virtual ~MessageStream() = default;
  // All of the bytes, or how waiting for the other side ended.
  virtual WaitEnd write(const void* data, std::size_t bytes, TimePoint deadline) = 0;
  virtual WaitEnd read(void* data, std::size_t bytes, TimePoint deadline) = 0;
};

class Mailbox {
 public:
  static constexpr std::size_t kMaxSetAsideBytes = std::size_t{64} << 20;
  // Needed in the segment in front of each ring's bytes.
  static std::size_t ring_header_bytes();

  explicit Mailbox(GroupCore& core) : core_(core) {}

  Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                    Duration timeout);
  // kInvalidArgument if the message has another size: it is dropped, and the group stays usable.
  Result<void> recv(void* data, std::size_t bytes, Rank source, int tag, Duration timeout);

 private:
  struct SetAside {
    int tag = 0;
    std::vector<char> body;
  };
  struct Inbox {
    std::unique_ptr<MessageStream> stream;
    std::deque<SetAside> set_aside;
    std::size_t set_aside_bytes = 0;
  };
  struct Head;

  Result<MessageStream*> stream_to(int rank, const Attempt& attempt);
  Result<MessageStream*> stream_from(int rank, const Attempt& attempt);
  Result<void> await_caller(int rank, const Attempt& attempt);
  bool take_set_aside(Inbox& inbox, int tag, std::vector<char>& body);
  Error wrong_size(const Attempt& attempt, std::size_t sent);
  Error broken(const Attempt& attempt, WaitEnd end);

  GroupCore& core_;
  std::map<int, std::unique_ptr<MessageStream>> out_;
  std::map<int, Inbox> in_;
};

}  // namespace ddprun
