#include "worker_lib/cpu/peer_watch.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "base/background_thread.h"
#include "base/not_now.h"
#include "base/process_stat.h"
#include "worker_lib/cpu/rank_names.h"

namespace ddprun {
namespace {

enum class News : std::uint32_t { kFailure, kLeave, kQuestion, kAnswer };
constexpr std::uint32_t kMaxBodyBytes = 1 << 20;

// A node that dies or is cut off says nothing, and TCP alone would wait for it for ever. With these
// the kernel asks a silent one five times, but not more often than every second, and ends the
// connection with ETIMEDOUT when it has not answered for so long; what is down for less is not
// noticed. A process that is only stopped has a kernel that answers.
void ask_when_silent(int socket, Duration silence) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  constexpr Duration kMostOften = seconds(1);
  const Duration interval = std::max(kMostOften, silence / 5);
  const auto set = [socket](int level, int option, int value) {
    setsockopt(socket, level, option, &value, sizeof value);  // without it, deadlines remain
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  const int interval_seconds = static_cast<int>(interval / seconds(1));
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval_seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval_seconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence / milliseconds(1)));
}

// The state of a process that is held by a pidfd; false where /proc does not tell.
bool is_stopped(int pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd));
  pid_t pid = -1;
  for (std::string key; info >> key;) {
    if (key == "Pid:") info >> pid;
  }
  const std::optional<ProcessStat> stat = process_stat(pid);
  return stat && (stat->state == 'T' || stat->state == 't');
}

}  // namespace

// Only links: both ends run the same build on machines of one kind, which the hello has checked.
struct PeerWatch::FrameHead {
  News news = News::kLeave;
  std::uint32_t body_bytes = 0;
  ErrorKind kind = ErrorKind::kPeerLost;
  std::int32_t peer_rank = -1;
  std::int32_t reporter = -1;
  std::uint32_t padding = 0;
  std::uint64_t question = 0;
};

struct PeerWatch::Peer {
  int rank = -1;
  UniqueFd socket;       // closed by the destructor only, as other threads write to it
  bool open = true;      // for reading; the watch's thread
  bool writable = true;  // holds speaking_
  std::string unread;    // the beginning of a frame; the watch's thread
};

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(NodeBoard& board, const RankBells& bells,
                                                    Options options) {
  UniqueFd stop(eventfd(0, EFD_CLOEXEC));
  if (!stop.valid()) return system_error("start the watch over other ranks", errno);
  std::unique_ptr<PeerWatch> watch(
      new PeerWatch(board, bells, std::move(options), std::move(stop)));
  const Result<void> started =
      start_thread(watch->thread_, "ddprun-watch", [raw = watch.get()] { raw->run(); });
  if (!started) return started.error();
  return watch;
}

PeerWatch::PeerWatch(NodeBoard& board, const RankBells& bells, Options options, UniqueFd stop)
    : board_(board),
      bells_(bells),
      rank_(options.rank),
      node_silence_(options.node_silence),
      node_ranks_(std::move(options.node_ranks)),
      lives_(std::move(options.lives)),
      left_(new std::atomic<bool>[options.world_size]()),
      stop_(std::move(stop)) {
  for (Link& link : options.links) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = link.rank;
    peers_.back()->socket = std::move(link.socket);
    ask_when_silent(peers_.back()->socket.get(), node_silence_);
  }
}

PeerWatch::~PeerWatch() {
  const std::uint64_t one = 1;
  if (thread_.joinable()) {
    while (write(stop_.get(), &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
  }
}

void PeerWatch::run() {
  std::vector<pollfd> watched{{stop_.get(), POLLIN, 0}};
  for (std::size_t local = 0; local < lives_.size(); ++local) {
    const bool self = static_cast<int>(local) == board_.local();
    watched.push_back({self ? -1 : lives_[local].get(), POLLIN, 0});
  }
  const std::size_t first_link = watched.size();
  for (const auto& peer : peers_) watched.push_back({peer->socket.get(), POLLIN, 0});

  for (;;) {
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents != 0) return;
    for (std::size_t i = 1; i < first_link; ++i) {
      if (watched[i].revents == 0) continue;
      watched[i].fd = -1;
      neighbour_ended(static_cast<int>(i) - 1);
    }
    for (std::size_t i = first_link; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      Peer& peer = *peers_[i - first_link];
      read_link(peer);
      if (!peer.open) watched[i].fd = -1;
    }
  }
}

void PeerWatch::neighbour_ended(int local) {
  // It may have been killed after it wrote to the board and before it woke those who wait for that.
  board_.ring_own();
  bells_.ring_own();
  if (board_.has_left(local)) return;
  const int rank = node_ranks_[local];
  announce({.kind = ErrorKind::kPeerLost,
            .peer_rank = rank,
            .reporter = rank_,
            .cause = name_rank(rank) + " died (its process has ended)"});
}

void PeerWatch::read_link(Peer& peer) {
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(peer.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
    peer.unread.append(buffer, static_cast<std::size_t>(got));
  }
  const int why = got < 0 ? errno : 0;
  const bool closed = got == 0 || !is_not_now(why);
  while (peer.unread.size() >= sizeof(FrameHead)) {
    FrameHead head;
    std::memcpy(static_cast<void*>(&head), peer.unread.data(), sizeof head);
    if (head.body_bytes <= kMaxBodyBytes && peer.unread.size() < sizeof head + head.body_bytes)
      break;
    const bool understood = head.body_bytes <= kMaxBodyBytes &&
                            handle(peer, head, peer.unread.substr(sizeof head, head.body_bytes));
    if (!understood) {
      peer.open = false;
      announce({.kind = ErrorKind::kProtocol,
                .peer_rank = peer.rank,
                .reporter = rank_,
                .cause = name_rank(peer.rank) + " sent what it must not send"});
      return;
    }
    peer.unread.erase(0, sizeof head + head.body_bytes);
  }
  if (!closed) return;
  peer.open = false;
  if (has_left(peer.rank)) return;
  const bool is_silent = why == ETIMEDOUT || why == EHOSTUNREACH || why == ENETUNREACH;
  announce({.kind = ErrorKind::kPeerLost,
            .peer_rank = peer.rank,
            .reporter = rank_,
            .cause = name_rank(peer.rank) +
                     (is_silent ? " is out of reach (its node has not answered for " +
                                      to_text(node_silence_) + ")"
                                : " died (its connection was closed)")});
}

// False if the frame makes no sense.
bool PeerWatch::handle(Peer& peer, const FrameHead& head, const std::string& body) {
  switch (head.news) {
    case News::kFailure:
      announce({.kind = head.kind,
                .peer_rank = head.peer_rank,
                .reporter = head.reporter,
                .cause = body});
      return true;
    case News::kLeave:
      left_[peer.rank].store(true);
      bells_.ring_own();
      return true;
    case News::kQuestion: {
      const std::vector<Standing> standings = standings_here();
      const std::lock_guard lock(speaking_);
      send(peer, {.news = News::kAnswer, .question = head.question},
           {reinterpret_cast<const char*>(standings.data()), standings.size() * sizeof(Standing)});
      return true;
    }
    case News::kAnswer: {
      const std::lock_guard lock(asking_);
      if (body.size() % sizeof(Standing) != 0) return false;
      if (head.question != question_) return true;  // too late
      const std::size_t count = body.size() / sizeof(Standing);
      standings_.resize(standings_.size() + count);
      std::memcpy(static_cast<void*>(&*(standings_.end() - static_cast<std::ptrdiff_t>(count))),
                  body.data(), body.size());
      std::erase(silent_, peer.rank);
      answered_.notify_all();
      return true;
    }
  }
  return false;
}

std::vector<PeerWatch::Standing> PeerWatch::standings_here() const {
  std::vector<Standing> standings;
  for (std::size_t i = 0; i < node_ranks_.size(); ++i) {
    const int local = static_cast<int>(i);
    standings.push_back({.rank = node_ranks_[i],
                         .stopped = is_stopped(lives_[i].get()),
                         .entered = board_.entered(local),
                         .tick = board_.tick(local)});
  }
  return standings;
}

// Links carry a few hundred bytes in a group's life, so a send that does not fit means that the
// other side has been stopped for long; it then hears of nothing until its connection is closed.
void PeerWatch::send(Peer& peer, FrameHead head, const std::string& body) {
  if (!peer.writable) return;
  head.body_bytes = static_cast<std::uint32_t>(body.size());
  std::string frame(reinterpret_cast<const char*>(&head), sizeof head);
  frame += body;
  const ssize_t sent =
      ::send(peer.socket.get(), frame.data(), frame.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  peer.writable = sent == static_cast<ssize_t>(frame.size());
}

void PeerWatch::announce(const GroupFailure& failure) {
  const std::lock_guard lock(speaking_);
  if (board_.raise(failure)) bells_.ring_all();
  pass_on_holding_lock();
}

void PeerWatch::pass_on() {
  const std::lock_guard lock(speaking_);
  pass_on_holding_lock();
}

void PeerWatch::pass_on_holding_lock() {
  const std::optional<GroupFailure> failure = board_.failure();
  if (!failure || passed_on_) return;
  passed_on_ = true;
  for (const auto& peer : peers_) {
    send(*peer,
         {.news = News::kFailure,
          .kind = failure->kind,
          .peer_rank = failure->peer_rank,
          .reporter = failure->reporter},
         failure->cause);
  }
}

void PeerWatch::leave() {
  board_.leave();
  bells_.ring_all();
  const std::lock_guard lock(speaking_);
  for (const auto& peer : peers_) send(*peer, {.news = News::kLeave}, {});
}

PeerWatch::Answers PeerWatch::ask(Duration patience) {
  if (peers_.empty()) return {standings_here(), {}};
  std::uint64_t question = 0;
  {
    const std::lock_guard lock(asking_);
    question = ++question_;
    standings_ = standings_here();
    silent_.clear();
    for (const auto& peer : peers_) silent_.push_back(peer->rank);
  }
  {
    const std::lock_guard lock(speaking_);
    for (const auto& peer : peers_) {
      send(*peer, {.news = News::kQuestion, .question = question}, {});
    }
  }
  std::unique_lock lock(asking_);
  answered_.wait_for(lock, patience, [&] { return silent_.empty(); });
  return {standings_, silent_};
}

}  // namespace ddprun
