#include "worker_lib/cpu/mailbox.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>

#include "base/not_now.h"
#include "base/poll_until.h"
#include "worker_lib/cpu/rank_names.h"

namespace ddprun {
namespace {

struct RingHeader {
  // Bytes so far, ever; moved by the sender.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> written;
  // Moved by the receiver.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> read;
};

// A ring in the segment; both ends use this class, each its half of it.
class RingStream final : public MessageStream {
 public:
  RingStream(NodeBoard& board, char* memory, std::size_t bytes, int other_local)
      : board_(board),
        header_(*reinterpret_cast<RingHeader*>(memory)),
        bytes_(memory + sizeof(RingHeader)),
        capacity_(bytes - sizeof(RingHeader)),
        other_(other_local) {}

  // Neither side waits for so much that the other could be waiting, too: a sender for room for at
  // most half a ring, a receiver for at most a quarter.
  WaitEnd write(const void* data, std::size_t bytes, TimePoint deadline) override {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const std::uint64_t written = header_.written.load(std::memory_order_relaxed);
      const std::size_t room_wanted = std::min(bytes, capacity_ / 2);
      if (written + room_wanted > capacity_) {
        const WaitEnd end = board_.wait_for_counter(header_.read, written + room_wanted - capacity_,
                                                    other_, deadline);
        if (end != WaitEnd::kReady) return end;
      }
      const std::size_t room = capacity_ - (written - header_.read.load());
      const std::size_t part = contiguous(written, std::min({bytes, room, kPart}));
      std::memcpy(bytes_ + written % capacity_, from, part);
      header_.written.store(written + part);
      board_.nudge(other_);
      from += part;
      bytes -= part;
    }
    return WaitEnd::kReady;
  }

  WaitEnd read(void* data, std::size_t bytes, TimePoint deadline) override {
    char* to = static_cast<char*>(data);
    while (bytes > 0) {
      const std::uint64_t read = header_.read.load(std::memory_order_relaxed);
      const WaitEnd end = board_.wait_for_counter(
          header_.written, read + std::min(bytes, capacity_ / 4), other_, deadline);
      if (end != WaitEnd::kReady) return end;
      const std::size_t there = header_.written.load() - read;
      const std::size_t part = contiguous(read, std::min({bytes, there, kPart}));
      std::memcpy(to, bytes_ + read % capacity_, part);
      header_.read.store(read + part);
      board_.nudge(other_);
      to += part;
      bytes -= part;
    }
    return WaitEnd::kReady;
  }

 private:
  static constexpr std::size_t kPart = std::size_t{64}
                                       << 10;  // hand over in parts: both sides copy at once

  std::size_t contiguous(std::uint64_t position, std::size_t bytes) const {
    return std::min<std::size_t>(bytes, capacity_ - position % capacity_);
  }

  NodeBoard& board_;
  RingHeader& header_;
  char* bytes_;
  std::size_t capacity_;
  int other_;
};

class SocketStream final : public MessageStream {
 public:
  SocketStream(const NodeBoard& board, UniqueFd socket)
      : board_(board), socket_(std::move(socket)) {}

  WaitEnd write(const void* data, std::size_t bytes, TimePoint deadline) override {
    return transfer(bytes, POLLOUT, deadline, [&](std::size_t done) {
      return ::send(socket_.get(), static_cast<const char*>(data) + done, bytes - done,
                    MSG_DONTWAIT | MSG_NOSIGNAL);
    });
  }

  WaitEnd read(void* data, std::size_t bytes, TimePoint deadline) override {
    return transfer(bytes, POLLIN, deadline, [&](std::size_t done) {
      return ::recv(socket_.get(), static_cast<char*>(data) + done, bytes - done, MSG_DONTWAIT);
    });
  }

 private:
  template <class Move>
  WaitEnd transfer(std::size_t bytes, short event, TimePoint deadline, Move move) {
    for (std::size_t done = 0; done < bytes;) {
      const ssize_t moved = move(done);
      if (moved > 0) {
        done += static_cast<std::size_t>(moved);
        continue;
      }
      if (moved == 0 || !is_not_now(errno)) return WaitEnd::kLeft;
      if (board_.failed()) return WaitEnd::kFailed;
      const TimePoint now = BootClock::now();
      if (now >= deadline) return WaitEnd::kTimedOut;
      pollfd watched{socket_.get(), event, 0};
      poll_until({&watched, 1}, std::min(deadline, now + TcpMesh::kPatience));
    }
    return WaitEnd::kReady;
  }

  const NodeBoard& board_;
  UniqueFd socket_;
};

}  // namespace

struct Mailbox::Head {
  std::uint64_t bytes = 0;
  std::int32_t tag = 0;
  std::uint32_t padding = 0;
};

std::size_t Mailbox::ring_header_bytes() { return sizeof(RingHeader); }

Result<void> Mailbox::send(const void* data, std::size_t bytes, Rank destination, int tag,
                           Duration timeout) {
  const Attempt attempt{.doing =
                            [=] {
                              return "send of " + std::to_string(bytes) + " B to rank " +
                                     to_text(destination) + " (tag " + std::to_string(tag) + ")";
                            },
                        .deadline = Deadline(timeout),
                        .partner = destination.value,
                        .omission = "did not receive it"};
  if (const Result<void> may = core_.may_begin(attempt); !may) return may.error();
  const Result<MessageStream*> stream = stream_to(destination.value, attempt);
  if (!stream) return stream.error();
  const Head head{.bytes = bytes, .tag = tag};
  WaitEnd end = (*stream)->write(&head, sizeof head, attempt.deadline.when());
  if (end == WaitEnd::kReady) end = (*stream)->write(data, bytes, attempt.deadline.when());
  if (end != WaitEnd::kReady) return broken(attempt, end);
  return {};
}

Result<void> Mailbox::recv(void* data, std::size_t bytes, Rank source, int tag, Duration timeout) {
  const Attempt attempt{.doing =
                            [=] {
                              return "recv of " + std::to_string(bytes) + " B from rank " +
                                     to_text(source) + " (tag " + std::to_string(tag) + ")";
                            },
                        .deadline = Deadline(timeout),
                        .partner = source.value,
                        .omission = "did not send it"};
  if (const Result<void> may = core_.may_begin(attempt); !may) return may.error();

  Inbox& inbox = in_[source.value];
  std::vector<char> body;
  if (take_set_aside(inbox, tag, body)) {
    if (body.size() != bytes) return wrong_size(attempt, body.size());
    copy_bytes(data, body.data(), bytes);
    return {};
  }
  const Result<MessageStream*> stream = stream_from(source.value, attempt);
  if (!stream) return stream.error();
  for (;;) {
    Head head;
    WaitEnd end = (*stream)->read(&head, sizeof head, attempt.deadline.when());
    if (end != WaitEnd::kReady) return broken(attempt, end);
    if (head.tag == tag && head.bytes == bytes) {
      end = (*stream)->read(data, bytes, attempt.deadline.when());
      if (end != WaitEnd::kReady) return broken(attempt, end);
      return {};
    }
    if (inbox.set_aside_bytes + head.bytes > kMaxSetAsideBytes && head.tag != tag) {
      return core_.fail(attempt, ErrorKind::kResource, source.value,
                        name_rank(source.value) + " sent more than " +
                            std::to_string(kMaxSetAsideBytes >> 20) +
                            " MiB under other tags before tag " + std::to_string(tag));
    }
    if (head.tag == tag) {
      char dropped[4096];
      for (std::uint64_t left = head.bytes; left > 0 && end == WaitEnd::kReady;) {
        const std::size_t part = std::min<std::uint64_t>(left, sizeof dropped);
        end = (*stream)->read(dropped, part, attempt.deadline.when());
        left -= part;
      }
      if (end != WaitEnd::kReady) return broken(attempt, end);
      return wrong_size(attempt, head.bytes);
    }
    SetAside message{.tag = head.tag, .body = std::vector<char>(head.bytes)};
    end = (*stream)->read(message.body.data(), head.bytes, attempt.deadline.when());
    if (end != WaitEnd::kReady) return broken(attempt, end);
    inbox.set_aside_bytes += head.bytes;
    inbox.set_aside.push_back(std::move(message));
  }
}

bool Mailbox::take_set_aside(Inbox& inbox, int tag, std::vector<char>& body) {
  const auto found = std::find_if(inbox.set_aside.begin(), inbox.set_aside.end(),
                                  [&](const SetAside& message) { return message.tag == tag; });
  if (found == inbox.set_aside.end()) return false;
  body = std::move(found->body);
  inbox.set_aside_bytes -= body.size();
  inbox.set_aside.erase(found);
  return true;
}

Error Mailbox::wrong_size(const Attempt& attempt, std::size_t sent) {
  return invalid_argument("the message has " + std::to_string(sent) + " B").within(attempt.doing());
}

Error Mailbox::broken(const Attempt& attempt, WaitEnd end) {
  const int node = core_.here().layout.node_of[attempt.partner];
  return core_.fail(attempt, end, node == core_.here().node ? -1 : node);
}

Result<MessageStream*> Mailbox::stream_to(int rank, const Attempt& attempt) {
  std::unique_ptr<MessageStream>& stream = out_[rank];
  if (stream) return stream.get();
  const Surroundings& here = core_.here();
  if (here.on_my_node(rank)) {
    const int other = here.layout.local_of[rank];
    stream = std::make_unique<RingStream>(core_.board(),
                                          here.memory + here.segment.ring(here.local, other),
                                          here.segment.ring_bytes, other);
    return stream.get();
  }
  Result<UniqueFd> socket =
      call_at_door(core_.parts().addresses[rank], core_.parts().token, here.rank, rank,
                   ConnectionUse::kMessages, attempt.deadline);
  if (!socket && socket.error().kind == ErrorKind::kTimeout)
    return core_.fail(attempt, WaitEnd::kTimedOut);
  if (!socket) return broken(attempt, WaitEnd::kLeft);
  stream = std::make_unique<SocketStream>(core_.board(), std::move(*socket));
  return stream.get();
}

Result<MessageStream*> Mailbox::stream_from(int rank, const Attempt& attempt) {
  std::unique_ptr<MessageStream>& stream = in_[rank].stream;
  if (stream) return stream.get();
  const Surroundings& here = core_.here();
  if (here.on_my_node(rank)) {
    const int other = here.layout.local_of[rank];
    stream = std::make_unique<RingStream>(core_.board(),
                                          here.memory + here.segment.ring(other, here.local),
                                          here.segment.ring_bytes, other);
    return stream.get();
  }
  if (const Result<void> called = await_caller(rank, attempt); !called) return called.error();
  return stream.get();
}

// Ranks that call meanwhile get their place, too.
Result<void> Mailbox::await_caller(int rank, const Attempt& attempt) {
  for (;;) {
    const TimePoint now = BootClock::now();
    Result<std::optional<TcpDoor::Caller>> caller = core_.door()->admit(
        {ConnectionUse::kMessages}, std::min(attempt.deadline.when(), now + TcpMesh::kPatience));
    if (!caller) return core_.fail(attempt, caller.error().kind, -1, caller.error().message());
    if (*caller) {
      in_[(*caller)->rank].stream =
          std::make_unique<SocketStream>(core_.board(), std::move((*caller)->socket));
    }
    if (in_[rank].stream) return {};
    if (*caller) continue;
    if (core_.board().failed()) return core_.fail(attempt, WaitEnd::kFailed);
    if (core_.watch().has_left(rank)) return broken(attempt, WaitEnd::kLeft);
    if (now >= attempt.deadline.when()) return core_.fail(attempt, WaitEnd::kTimedOut);
  }
}

}  // namespace ddprun
