#include "worker_lib/cpu_peers/tcp_mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "base/poll_until.h"
#include "base/would_block.h"

namespace ddprun {
namespace {

enum class Moved { kNothing, kSome, kClosed };

// Progress: one direction of an exchange, with the finished bytes of each transfer. Only a
// node's first unfinished transfer may move. The first `needed` transfers must be finished.
template <class Transfer>
class Progress {
 public:
  Progress(std::span<const Transfer> transfers, std::size_t needed, std::size_t node_count)
      : transfers_(transfers), needed_(needed), done_(transfers.size(), 0), blocked_(node_count) {
    for (const Transfer& transfer : transfers.first(needed)) unfinished_ += transfer.bytes > 0;
  }

  bool finished() const { return unfinished_ == 0; }

  // move(index, offset): returns the bytes moved; 0: not now; -1: the connection is closed.
  template <class Move>
  Moved advance(Move move, int& closed_node) {
    Moved result = Moved::kNothing;
    std::fill(blocked_.begin(), blocked_.end(), false);
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      const Transfer& transfer = transfers_[i];
      if (done_[i] == transfer.bytes || blocked_[transfer.node]) continue;
      const ssize_t moved = move(i, done_[i]);
      if (moved < 0) {
        closed_node = transfer.node;
        return Moved::kClosed;
      }
      if (moved > 0) result = Moved::kSome;
      done_[i] += moved;
      if (done_[i] == transfer.bytes && i < needed_) --unfinished_;
      blocked_[transfer.node] = done_[i] < transfer.bytes;
    }
    return result;
  }

  // visit(transfer, bytes done)
  template <class Visit>
  void for_each_unfinished(Visit visit) const {
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      if (done_[i] < transfers_[i].bytes) visit(transfers_[i], done_[i]);
    }
  }

 private:
  std::span<const Transfer> transfers_;
  std::size_t needed_;
  std::vector<std::size_t> done_;
  std::vector<bool> blocked_;
  std::size_t unfinished_ = 0;
};

// Returns the flags of each transfer: MSG_MORE if another one follows to the same node, because
// both may share a packet.
std::vector<int> flags_of(std::span<const TcpMesh::Sending> transfers, std::size_t node_count) {
  std::vector<int> flags(transfers.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  std::vector<bool> is_followed(node_count);
  for (std::size_t i = transfers.size(); i-- > 0;) {
    if (transfers[i].bytes == 0) continue;
    if (is_followed[transfers[i].node]) flags[i] |= MSG_MORE;
    is_followed[transfers[i].node] = true;
  }
  return flags;
}

}  // namespace

TcpMesh::End TcpMesh::exchange(std::span<const Sending> sendings,
                               std::span<const Receiving> receivings, TimePoint deadline,
                               std::span<const Sending> ahead) {
  // The bytes to send may come from tensors that belong to their owners again: see
  // SharedGroup::reduce_in_heap.
  if (progress_.failed_by_now()) return {WaitEnd::kFailed, -1};
  std::vector<Sending> all;
  std::span<const Sending> to_send = sendings;
  if (!unsent_.empty() || !ahead.empty()) {
    all = std::exchange(unsent_, {});
    all.insert(all.end(), sendings.begin(), sendings.end());
    all.insert(all.end(), ahead.begin(), ahead.end());
    to_send = all;
  }
  Progress<Sending> out(to_send, to_send.size() - ahead.size(), sockets_.size());
  Progress<Receiving> in(receivings, receivings.size(), sockets_.size());
  TimePoint spin_until = BootClock::now() + spin_;
  const std::vector<int> flags = flags_of(to_send, sockets_.size());
  std::vector<pollfd> watched(sockets_.size());
  while (!out.finished() || !in.finished()) {
    int closed_node = -1;
    const Moved sent = out.advance(
        [&](std::size_t i, std::size_t done) {
          const Sending& to = to_send[i];
          return not_now_or_closed(send(sockets_[to.node].get(),
                                        static_cast<const char*>(to.data) + done, to.bytes - done,
                                        flags[i]));
        },
        closed_node);
    const Moved received = in.advance(
        [&](std::size_t i, std::size_t done) {
          const Receiving& from = receivings[i];
          return not_now_or_closed(recv(sockets_[from.node].get(),
                                        static_cast<char*>(from.data) + done, from.bytes - done,
                                        MSG_DONTWAIT));
        },
        closed_node);
    if (sent == Moved::kClosed || received == Moved::kClosed) return {WaitEnd::kLeft, closed_node};
    if (out.finished() && in.finished()) break;
    // Checked also while a few bytes still come, which are not a reason to continue.
    if (progress_.failed()) return {WaitEnd::kFailed, -1};
    const TimePoint now = BootClock::now();
    if (now >= deadline) return {WaitEnd::kTimedOut, -1};
    if (sent == Moved::kSome || received == Moved::kSome) {
      spin_until = now + spin_;
      continue;
    }
    if (now < spin_until) continue;

    for (std::size_t node = 0; node < sockets_.size(); ++node) watched[node] = {-1, 0, 0};
    const auto watch_for = [&](int node, short events) {
      watched[node].fd = sockets_[node].get();
      watched[node].events = static_cast<short>(watched[node].events | events);
    };
    out.for_each_unfinished([&](const Sending& to, std::size_t) { watch_for(to.node, POLLOUT); });
    in.for_each_unfinished(
        [&](const Receiving& from, std::size_t) { watch_for(from.node, POLLIN); });
    poll_until(watched, std::min(deadline, now + kPatience));
  }
  out.for_each_unfinished([&](const Sending& to, std::size_t done) {
    unsent_.push_back({to.node, static_cast<const char*>(to.data) + done, to.bytes - done});
  });
  return {};
}

}  // namespace ddprun
