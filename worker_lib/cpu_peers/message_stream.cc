#include "worker_lib/cpu_peers/message_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/cache_line.h"
#include "base/would_block.h"
#include "worker_lib/collective/core/scattered.h"

namespace ddprun {
namespace {

struct RingHeader {
  // All bytes written so far; the sender changes it.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> written;
  // All bytes read so far; the receiver changes it.
  alignas(kCacheLineBytes) std::atomic<std::uint64_t> read;
};

// Ring: the common part of both ends of a ring.
class Ring {
 public:
  Ring(char* memory, std::size_t bytes, RingNeighbour other)
      : header_(*reinterpret_cast<RingHeader*>(memory)),
        bytes_(memory + sizeof(RingHeader)),
        capacity_(bytes - sizeof(RingHeader)),
        other_(other) {}

 protected:
  // Bytes are published in parts of this size, so that both sides copy at the same time.
  static constexpr std::size_t kPart = std::size_t{64} << 10;

  std::size_t contiguous(std::uint64_t position, std::size_t bytes) const {
    return std::min<std::size_t>(bytes, capacity_ - position % capacity_);
  }

  void wake_if(std::uint32_t state) const {
    if ((other_.sleep_state.state.load() & state) != state) return;
    if (other_.sleep_state.state.exchange(SleepState::kAwake) != SleepState::kAwake)
      other_.wakeups.notify(other_.local);
  }

  RingHeader& header_;
  char* bytes_;
  std::size_t capacity_;
  RingNeighbour other_;
};

class RingWriter final : public Ring, public MessageWriter {
 public:
  using Ring::Ring;

  std::ptrdiff_t write_some(std::span<const char> first, std::span<const char> second) override {
    const std::uint64_t start = header_.written.load(std::memory_order_relaxed);
    std::uint64_t written = start;
    std::uint64_t published = start;
    std::size_t room = capacity_ - (written - header_.read.load());
    const auto publish = [&] {
      header_.written.store(written);
      wake_if(SleepState::kAsleep);
      published = written;
    };
    for (std::span<const char> left : {first, second}) {
      while (!left.empty() && room > 0) {
        const std::size_t part = contiguous(written, std::min({left.size(), room, kPart}));
        std::memcpy(bytes_ + written % capacity_, left.data(), part);
        written += part;
        room -= part;
        left = left.subspan(part);
        if (written - published >= kPart) publish();
      }
    }
    if (written != published) publish();
    return static_cast<std::ptrdiff_t>(written - start);
  }

  // The writer sleeps until half of the ring is free: a wakeup for every few bytes would cost
  // more than it gains. The reader does not stop before that.
  bool has_room() const override { return used() <= capacity_ / 2; }

 private:
  std::uint64_t used() const {
    return header_.written.load(std::memory_order_relaxed) - header_.read.load();
  }
};

class RingReader final : public Ring, public MessageReader {
 public:
  using Ring::Ring;

  std::ptrdiff_t read_some(std::span<char> to) override {
    const std::uint64_t start = header_.read.load(std::memory_order_relaxed);
    std::uint64_t read = start;
    std::uint64_t there = header_.written.load() - read;
    while (!to.empty() && there > 0) {
      const std::size_t part = contiguous(read, std::min<std::uint64_t>({to.size(), there, kPart}));
      std::memcpy(to.data(), bytes_ + read % capacity_, part);
      to = to.subspan(part);
      read += part;
      there -= part;
      header_.read.store(read);
      if (there <= capacity_ / 2) wake_if(SleepState::kAsleep | SleepState::kWaitsForRoom);
    }
    return static_cast<std::ptrdiff_t>(read - start);
  }

  bool has_bytes() const override {
    return header_.written.load() != header_.read.load(std::memory_order_relaxed);
  }
};

class SocketWriter final : public MessageWriter {
 public:
  SocketWriter(UniqueFd socket, std::string hello)
      : socket_(std::move(socket)), hello_(std::move(hello)) {}

  std::ptrdiff_t write_some(std::span<const char> first, std::span<const char> second) override {
    while (!hello_.empty()) {
      const std::ptrdiff_t said = send_some(hello_, {});
      if (said <= 0) return said;
      hello_.erase(0, said);
    }
    return send_some(first, second);
  }
  int fd() const override { return socket_.get(); }

 private:
  std::ptrdiff_t send_some(std::span<const char> first, std::span<const char> second) {
    iovec parts[] = {{const_cast<char*>(first.data()), first.size()},
                     {const_cast<char*>(second.data()), second.size()}};
    msghdr message{};
    message.msg_iov = parts;
    message.msg_iovlen = 2;
    return not_now_or_closed(sendmsg(socket_.get(), &message, MSG_DONTWAIT | MSG_NOSIGNAL));
  }

  UniqueFd socket_;
  std::string hello_;  // the part that has not been sent
};

class SocketReader final : public MessageReader {
 public:
  explicit SocketReader(UniqueFd socket) : socket_(std::move(socket)), ahead_(kAheadBytes) {}

  // Headers are small: bytes that come with them are read ahead with one system call. Long reads
  // go straight to their destination.
  std::ptrdiff_t read_some(std::span<char> to) override {
    if (begin_ == end_) {
      if (to.size() >= ahead_.size()) return receive(to);
      const std::ptrdiff_t got = receive(ahead_);
      if (got <= 0) return got;
      begin_ = 0;
      end_ = got;
    }
    const std::size_t part = std::min(to.size(), end_ - begin_);
    copy_bytes(to.data(), ahead_.data() + begin_, part);
    begin_ += part;
    return static_cast<std::ptrdiff_t>(part);
  }
  bool has_bytes() const override { return begin_ != end_; }  // the kernel reports the others
  int fd() const override { return socket_.get(); }

 private:
  static constexpr std::size_t kAheadBytes = std::size_t{16} << 10;

  std::ptrdiff_t receive(std::span<char> to) {
    return not_now_or_closed(::recv(socket_.get(), to.data(), to.size(), MSG_DONTWAIT));
  }

  UniqueFd socket_;
  std::vector<char> ahead_;
  std::size_t begin_ = 0;  // of the bytes that were read ahead
  std::size_t end_ = 0;
};

}  // namespace

std::size_t ring_header_bytes() { return sizeof(RingHeader); }

std::unique_ptr<MessageWriter> write_ring(char* memory, std::size_t bytes, RingNeighbour reader) {
  return std::make_unique<RingWriter>(memory, bytes, reader);
}

std::unique_ptr<MessageReader> read_ring(char* memory, std::size_t bytes, RingNeighbour writer) {
  return std::make_unique<RingReader>(memory, bytes, writer);
}

std::unique_ptr<MessageWriter> write_socket(UniqueFd socket, std::string hello) {
  return std::make_unique<SocketWriter>(std::move(socket), std::move(hello));
}

std::unique_ptr<MessageReader> read_socket(UniqueFd socket) {
  return std::make_unique<SocketReader>(std::move(socket));
}

}  // namespace ddprun
