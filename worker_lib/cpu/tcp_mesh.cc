#include "worker_lib/cpu/tcp_mesh.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "base/not_now.h"
#include "base/poll_until.h"

namespace ddprun {
namespace {

enum class Moved { kNothing, kSome, kClosed };

// One direction of an exchange: for each transfer, how much of it is done. Only a node's first
// unfinished transfer may move.
template <class Transfer>
class Progress {
 public:
  Progress(std::span<const Transfer> transfers, std::size_t node_count)
      : transfers_(transfers), done_(transfers.size(), 0), blocked_(node_count) {
    for (const Transfer& transfer : transfers) unfinished_ += transfer.bytes > 0;
  }

  bool finished() const { return unfinished_ == 0; }

  // move(node, transfer, offset): bytes moved; 0: not now; -1: the connection is closed.
  template <class Move>
  Moved advance(Move move, int& closed_node) {
    Moved result = Moved::kNothing;
    std::fill(blocked_.begin(), blocked_.end(), false);
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      const Transfer& transfer = transfers_[i];
      if (done_[i] == transfer.bytes || blocked_[transfer.node]) continue;
      const ssize_t moved = move(transfer, done_[i]);
      if (moved < 0) {
        closed_node = transfer.node;
        return Moved::kClosed;
      }
      if (moved > 0) result = Moved::kSome;
      done_[i] += static_cast<std::size_t>(moved);
      if (done_[i] == transfer.bytes) --unfinished_;
      blocked_[transfer.node] = done_[i] < transfer.bytes;
    }
    return result;
  }

  template <class Visit>
  void for_each_unfinished(Visit visit) const {
    for (std::size_t i = 0; i < transfers_.size(); ++i) {
      if (done_[i] < transfers_[i].bytes) visit(transfers_[i].node);
    }
  }

 private:
  std::span<const Transfer> transfers_;
  std::vector<std::size_t> done_;
  std::vector<bool> blocked_;
  std::size_t unfinished_ = 0;
};

ssize_t not_now_or_closed(ssize_t moved) {
  if (moved > 0) return moved;
  return moved < 0 && is_not_now(errno) ? 0 : -1;
}

}  // namespace

TcpMesh::End TcpMesh::exchange(std::span<const Sending> sendings,
                               std::span<const Receiving> receivings, TimePoint deadline) {
  // What is sent may come from tensors that are their owners' again: see SharedGroup::reduce_in_heap.
  if (board_.failed_by_now()) return {WaitEnd::kFailed, -1};
  Progress<Sending> out(sendings, sockets_.size());
  Progress<Receiving> in(receivings, sockets_.size());
  TimePoint spin_until = BootClock::now() + spin_;
  std::vector<pollfd> watched(sockets_.size());
  while (!out.finished() || !in.finished()) {
    int closed_node = -1;
    const Moved sent = out.advance(
        [&](const Sending& to, std::size_t done) {
          return not_now_or_closed(send(sockets_[to.node].get(),
                                        static_cast<const char*>(to.data) + done, to.bytes - done,
                                        MSG_DONTWAIT | MSG_NOSIGNAL));
        },
        closed_node);
    const Moved received = in.advance(
        [&](const Receiving& from, std::size_t done) {
          return not_now_or_closed(recv(sockets_[from.node].get(),
                                        static_cast<char*>(from.data) + done, from.bytes - done,
                                        MSG_DONTWAIT));
        },
        closed_node);
    if (sent == Moved::kClosed || received == Moved::kClosed) return {WaitEnd::kLeft, closed_node};
    const TimePoint now = BootClock::now();
    if (sent == Moved::kSome || received == Moved::kSome) {
      spin_until = now + spin_;
      continue;
    }
    if (board_.failed()) return {WaitEnd::kFailed, -1};
    if (now < spin_until) continue;

    for (std::size_t node = 0; node < sockets_.size(); ++node) watched[node] = {-1, 0, 0};
    const auto watch_for = [&](int node, short events) {
      watched[node].fd = sockets_[node].get();
      watched[node].events = static_cast<short>(watched[node].events | events);
    };
    out.for_each_unfinished([&](int node) { watch_for(node, POLLOUT); });
    in.for_each_unfinished([&](int node) { watch_for(node, POLLIN); });
    if (now >= deadline) return {WaitEnd::kTimedOut, -1};
    poll_until(watched, std::min(deadline, now + kPatience));
  }
  return {};
}

}  // namespace ddprun
