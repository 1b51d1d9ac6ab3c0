#include "worker_lib/cpu_peers/node_bootstrap.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/concat.h"
#include "base/peer_user.h"
#include "base/pidfd.h"
#include "base/poll_until.h"
#include "base/random_id.h"
#include "base/small_file.h"
#include "base/would_block.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

constexpr std::size_t kFdsPerMessage = 200;  // the kernel takes at most 253
// Pending connections that may exist beyond those of the ranks.
constexpr std::size_t kMaxExtraPending = 64;
constexpr Duration kRetry = std::chrono::milliseconds(1);
constexpr const char* kDoing = "share memory with the ranks of this node";

struct PeerHello {
  char token[64] = {};
  std::int32_t local = -1;
};

// Refusal: sent to the other ranks instead of descriptors when the bootstrap fails.
struct Refusal {
  std::uint32_t descriptors = 0;
  ErrorKind kind = ErrorKind::kSystem;
  std::int32_t peer_rank = -1;
  char cause[244] = {};  // ends with a 0
};

// UnixAddress: a name in the abstract namespace.
struct UnixAddress {
  explicit UnixAddress(const std::string& name)
      : size(static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) {
    std::memcpy(address.sun_path + 1, name.data(), name.size());  // after the leading zero
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }

  sockaddr_un address{.sun_family = AF_UNIX, .sun_path = {}};
  socklen_t size;
};

UniqueFd unix_socket() {
  return UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

PeerHello make_hello(const NodeBootstrapOptions& options) {
  PeerHello hello;
  options.token.copy(hello.token, sizeof hello.token);
  hello.local = options.local;
  return hello;
}

Result<void> send_with_fds(int socket, const void* data, std::size_t bytes, std::vector<int> fds) {
  iovec part{const_cast<void*>(data), bytes};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * fds.size()));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int) * fds.size());
  std::memcpy(CMSG_DATA(header), fds.data(), sizeof(int) * fds.size());
  if (sendmsg(socket, &message, MSG_NOSIGNAL) < 0) {
    return system_error("pass descriptors to another rank", errno);
  }
  return {};
}

// Receives one message with its descriptors. Returns its length; 0: the other side is gone.
Result<std::size_t> receive_with_fds(int socket, void* data, std::size_t bytes,
                                     std::vector<UniqueFd>& fds) {
  iovec part{data, bytes};
  std::vector<char> control(CMSG_SPACE(sizeof(int) * kFdsPerMessage));
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  const ssize_t got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (got < 0 && errno != ECONNRESET) {
    return system_error("receive descriptors from another rank", errno);
  }
  for (cmsghdr* header = got < 0 ? nullptr : CMSG_FIRSTHDR(&message); header;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    std::vector<int> raw((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(raw.data(), CMSG_DATA(header), sizeof(int) * raw.size());
    for (const int fd : raw) fds.emplace_back(fd);
  }
  if (message.msg_flags & MSG_CTRUNC) {
    return system_error("receive descriptors from another rank", EMFILE);
  }
  return std::max<ssize_t>(got, 0);
}

// OwnFds: the descriptors that a rank sends of itself: its pidfd and its page. A rank without a
// page sends the pidfd in its place, so that all ranks send the same number.
struct OwnFds {
  UniqueFd life;
  int page = -1;
};

Result<OwnFds> own_fds(const NodeBootstrapOptions& options) {
  UniqueFd life = pidfd_of(getpid());
  if (!life.valid()) return system_error("open a pidfd (Linux 5.3 or newer)", errno);
  const int page = options.page < 0 ? life.get() : options.page;
  return OwnFds{std::move(life), page};
}

// Returns the error of a connection to a rank, which may be gone.
Error connection_error(int rank, const Error& error) {
  const int why = error.sys_errno;
  const bool is_gone = why == EPIPE || why == ECONNRESET || why == ECONNREFUSED;
  return is_gone ? rank_is_gone(rank, kDoing) : Error(error).within(kDoing);
}

// Calls `once` until it succeeds. Retries while the kernel says "not now": a queue is full, or
// this user's ranks have more descriptors in flight than one process may hold. That ends as the
// descriptors arrive; no event reports it.
template <class Try>
Result<void> try_until(const Deadline& deadline, Try once) {
  for (;;) {
    Result<void> done = once();
    if (done) return done;
    const int why = done.error().sys_errno;
    if ((!would_block(why) && why != ETOOMANYREFS) || deadline.passed()) return done;
    poll_until({}, std::min(deadline.when(), BootClock::now() + kRetry));
  }
}

// Returns whether the listener is closed: its rank has ended or has given up the group.
bool is_closed(const std::string& listener) {
  const UniqueFd socket = unix_socket();
  const UnixAddress address(listener);
  return socket.valid() && connect(socket.get(), address.get(), address.size) != 0 &&
         errno == ECONNREFUSED;
}

// Waits like poll_until(), but not for a rank that `check_members` knows to be dead. Returns false
// if nothing has happened yet.
Result<bool> poll_for_a_while(std::span<pollfd> watched, const NodeBootstrapOptions& options) {
  const TimePoint glance = BootClock::now() + kGlanceAtOthers;
  if (poll_until(watched, std::min(options.deadline.when(), glance))) return true;
  std::optional<Error> lost = options.check_members ? options.check_members() : std::nullopt;
  if (lost) return std::move(*lost).within(kDoing);
  return false;
}

// --- the leader ---

class Leader {
 public:
  Leader(const NodeListener& listener, const NodeBootstrapOptions& options)
      : listener_(listener),
        options_(options),
        peers_(options.ranks.size()),
        lives_(options.ranks.size()),
        pages_(options.ranks.size()) {}

  Result<NodeMembers> gather() {
    Result<NodeMembers> members = gather_peers();
    if (!members) refuse_peers(members.error());
    return members;
  }

 private:
  Result<NodeMembers> gather_peers() {
    Result<OwnFds> own = own_fds(options_);
    if (!own) return own.error();
    pages_[0] = UniqueFd(fcntl(own->page, F_DUPFD_CLOEXEC, 0));
    if (!pages_[0].valid()) return system_error(kDoing, errno);
    lives_[0] = std::move(own->life);
    missing_ = options_.ranks.size() - 1;
    while (missing_ > 0) {
      if (const Result<void> came = wait_for_an_event(); !came) return came.error();
    }
    Result<ShmSegment> segment = ShmSegment::create(options_.segment_bytes);
    if (!segment) return segment.error();
    for (std::size_t local = 0; local < peers_.size(); ++local) {
      wakeups_.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
      if (!wakeups_.back().valid()) return system_error(kDoing, errno);
    }
    for (std::size_t local = 1; local < peers_.size(); ++local) {
      if (const Result<void> sent = hand_out(peers_[local].get(), *segment); !sent) {
        return connection_error(options_.ranks[local], sent.error());
      }
    }
    return NodeMembers{std::move(*segment), std::move(lives_), std::move(wakeups_),
                       std::move(pages_)};
  }

  // Sends the reason to the ranks that have connected. Otherwise they would report this rank as
  // gone.
  void refuse_peers(const Error& why) const {
    Refusal refusal{.kind = why.kind, .peer_rank = why.peer_rank};
    why.cause.copy(refusal.cause, sizeof refusal.cause - 1);
    for (const UniqueFd& peer : peers_) {
      if (peer.valid()) send(peer.get(), &refusal, sizeof refusal, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }

  Result<void> wait_for_an_event() {
    std::vector<pollfd> watched{{listener_.socket.get(), POLLIN, 0}};
    for (const UniqueFd& pending : pending_) watched.push_back({pending.get(), POLLIN, 0});
    const std::size_t first_peer = watched.size();
    for (const UniqueFd& peer : peers_) watched.push_back({peer.get(), POLLIN, 0});
    const Result<bool> event = poll_for_a_while(watched, options_);
    if (!event) return event.error();
    if (!*event) return check_missing_ranks();
    for (std::size_t i = first_peer; i < watched.size(); ++i) {
      // A connected rank sends nothing until it is answered: an event means that it is gone.
      if (watched[i].revents != 0) {
        return rank_is_gone(options_.ranks[i - first_peer], kDoing);
      }
    }
    for (std::size_t i = first_peer; i-- > 1;) {
      if (watched[i].revents == 0) continue;
      admit(std::move(pending_[i - 1]));
      pending_.erase(pending_.begin() + static_cast<std::ptrdiff_t>(i) - 1);
    }
    if (watched[0].revents != 0) {
      UniqueFd pending(
          accept4(listener_.socket.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      if (!pending.valid() && !would_block(errno) && errno != ECONNABORTED) {
        return system_error("accept the ranks of this node", errno);
      }
      if (!pending.valid() || peer_user(pending.get()) != geteuid()) return {};
      if (pending_.size() == peers_.size() + kMaxExtraPending) {
        pending_.erase(pending_.begin());
      }
      pending_.push_back(std::move(pending));
    }
    return {};
  }

  // Accepts a connection with a correct hello; closes any other.
  void admit(UniqueFd pending) {
    PeerHello hello;
    std::vector<UniqueFd> fds;
    const Result<std::size_t> got = receive_with_fds(pending.get(), &hello, sizeof hello, fds);
    const bool right =
        got && *got == sizeof hello && fds.size() == 2 && hello.local > 0 &&
        static_cast<std::size_t>(hello.local) < peers_.size() && !peers_[hello.local].valid() &&
        std::memcmp(hello.token, make_hello(options_).token, sizeof hello.token) == 0;
    if (!right) return;
    peers_[hello.local] = std::move(pending);
    lives_[hello.local] = std::move(fds[0]);
    pages_[hello.local] = std::move(fds[1]);
    --missing_;
  }

  Result<void> hand_out(int socket, const ShmSegment& segment) {
    std::vector<int> all{segment.fd()};
    for (const std::vector<UniqueFd>* const fds : {&lives_, &wakeups_, &pages_}) {
      for (const UniqueFd& one : *fds) all.push_back(one.get());
    }
    for (std::size_t at = 0; at < all.size(); at += kFdsPerMessage) {
      const std::size_t end = std::min(all.size(), at + kFdsPerMessage);
      const std::uint32_t count = static_cast<std::uint32_t>(end - at);
      const Result<void> sent = try_until(options_.deadline, [&] {
        return send_with_fds(socket, &count, sizeof count, {all.begin() + at, all.begin() + end});
      });
      if (!sent) return sent;
    }
    return {};
  }

  // A rank that has published its info but does not connect may have died since.
  Result<void> check_missing_ranks() const {
    if (options_.deadline.passed()) {
      std::vector<int> absent;
      for (std::size_t local = 1; local < peers_.size(); ++local) {
        if (!peers_[local].valid()) absent.push_back(options_.ranks[local]);
      }
      return timeout_error(kDoing, name_ranks(absent) + " did not come", options_.deadline);
    }
    for (std::size_t local = 1; local < options_.listeners.size(); ++local) {
      if (!peers_[local].valid() && is_closed(options_.listeners[local])) {
        return rank_is_gone(options_.ranks[local], kDoing);
      }
    }
    return {};
  }

  const NodeListener& listener_;
  const NodeBootstrapOptions& options_;
  std::vector<UniqueFd> pending_;  // connected, but their hello has not come
  std::vector<UniqueFd> peers_;    // the connected ranks, by local index
  std::vector<UniqueFd> lives_;
  std::vector<UniqueFd> wakeups_;
  std::vector<UniqueFd> pages_;
  std::size_t missing_ = 0;
};

// --- the other ranks ---

Result<UniqueFd> connect_to_leader(const std::string& name, const NodeBootstrapOptions& options) {
  UniqueFd socket = unix_socket();
  if (!socket.valid()) return system_error("make a Unix socket", errno);
  const UnixAddress address(name);
  const Result<void> connected = try_until(options.deadline, [&]() -> Result<void> {
    if (connect(socket.get(), address.get(), address.size) == 0) return {};
    return system_error("connect", errno);
  });
  if (!connected) return connection_error(options.ranks[0], connected.error());
  const std::optional<uid_t> user = peer_user(socket.get());
  if (user != geteuid()) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = kDoing,
                 .cause = concat("the process that listens for ", name_rank(options.ranks[0]),
                                 " belongs to user ", user ? std::to_string(*user) : "(unknown)",
                                 ", this one to user ", geteuid(),
                                 "; the ranks of a node must run as the same user"),
                 .peer_rank = options.ranks[0]};
  }
  const Result<OwnFds> own = own_fds(options);
  if (!own) return own.error();
  const PeerHello hello = make_hello(options);
  const Result<void> said = try_until(options.deadline, [&] {
    return send_with_fds(socket.get(), &hello, sizeof hello, {own->life.get(), own->page});
  });
  if (!said) return connection_error(options.ranks[0], said.error());
  return socket;
}

Result<NodeMembers> join_leader(const std::string& name, const NodeBootstrapOptions& options) {
  const Result<UniqueFd> socket = connect_to_leader(name, options);
  if (!socket) return socket.error();
  std::vector<UniqueFd> fds;
  const std::size_t count = options.ranks.size();
  while (fds.size() < 3 * count + 1) {
    std::vector<pollfd> watched{{socket->get(), POLLIN, 0}};
    const Result<bool> event = poll_for_a_while(watched, options);
    if (!event) return event.error();
    if (!*event && options.deadline.passed()) {
      return timeout_error(kDoing, name_rank(options.ranks[0]) + " did not answer",
                           options.deadline);
    }
    if (!*event) continue;
    Refusal refusal;
    const Result<std::size_t> got = receive_with_fds(socket->get(), &refusal, sizeof refusal, fds);
    if (!got) return got.error();
    if (*got == 0) return rank_is_gone(options.ranks[0], kDoing);
    if (*got == sizeof refusal) {
      return Error{.kind = refusal.kind,
                   .doing = kDoing,
                   .cause = name_rank(options.ranks[0]) + " gave up: " + refusal.cause,
                   .peer_rank = refusal.peer_rank};
    }
  }
  Result<ShmSegment> segment = ShmSegment::adopt(std::move(fds.front()), options.segment_bytes);
  if (!segment) return segment.error();
  const auto part = [&](std::size_t index) {
    const auto begin = fds.begin() + 1 + static_cast<std::ptrdiff_t>(index * count);
    return std::vector<UniqueFd>(std::move_iterator(begin), std::move_iterator(begin + count));
  };
  return NodeMembers{std::move(*segment), part(0), part(1), part(2)};
}

}  // namespace

Error rank_is_gone(int rank, const std::string& doing) {
  return Error{.kind = ErrorKind::kPeerLost,
               .doing = doing,
               .cause = name_rank(rank) + " is gone",
               .peer_rank = rank};
}

Result<NodeListener> NodeListener::open() {
  NodeListener listener{unix_socket(), "ddprun-" + random_hex(16)};
  const UnixAddress address(listener.name);
  if (!listener.socket.valid() || bind(listener.socket.get(), address.get(), address.size) != 0 ||
      listen(listener.socket.get(), SOMAXCONN) != 0) {
    return system_error("listen on a Unix socket", errno);
  }
  return listener;
}

std::string shm_domain() {
  char network[64] = {};
  if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) network[0] = '\0';
  return machine_id() + " " + network;
}

std::string machine_id() { return first_line_of("/proc/sys/kernel/random/boot_id"); }

Result<NodeMembers> bootstrap_node(const NodeListener& listener, const std::string& leader_name,
                                   const NodeBootstrapOptions& options) {
  if (options.local != 0) return join_leader(leader_name, options);
  return Leader(listener, options).gather();
}

}  // namespace ddprun
