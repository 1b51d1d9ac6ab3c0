#include "worker_lib/cpu_peers/peer_watch.h"

#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>

#include "base/background_thread.h"
#include "base/deadline.h"
#include "base/flight_words.h"
#include "base/poll_until.h"
#include "base/process_stat.h"
#include "base/would_block.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

constexpr std::uint32_t kMaxBodyBytes = 1 << 20;
// Interval for checking the SharedProgress during a query: a rank of this node that raises a
// failure writes it only there.
constexpr Duration kLookInterval = std::chrono::milliseconds(10);
// Limit for frames that wait for a peer that does not read.
constexpr std::size_t kMaxUnsentBytes = 1 << 20;
// How long a leaving rank waits until its last frames are acknowledged.
constexpr Duration kDeliveryPatience = std::chrono::seconds(1);
constexpr Duration kDeliveryInterval = std::chrono::milliseconds(1);
// Holds the notes of a node of a hundred ranks.
constexpr int kSendBufferBytes = 256 << 10;

// Makes the kernel detect a silent node. A node that dies or is cut off sends nothing, and TCP
// alone would wait for it for ever. With these options the kernel probes a silent node five
// times, at most once a second. It ends the connection with ETIMEDOUT when the node has not
// answered for `silence`. A shorter outage is not noticed. The kernel of a process that is only
// stopped still answers.
void ask_when_silent(int socket, Duration silence) {
  using std::chrono::milliseconds;
  using std::chrono::seconds;
  constexpr Duration kMostOften = seconds(1);
  const Duration interval = std::max(kMostOften, silence / 5);
  const auto set = [socket](int level, int option, int value) {
    // Without the option, deadlines remain.
    setsockopt(socket, level, option, &value, sizeof value);
  };
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  const int interval_seconds = static_cast<int>(interval / seconds(1));
  set(IPPROTO_TCP, TCP_KEEPIDLE, interval_seconds);
  set(IPPROTO_TCP, TCP_KEEPINTVL, interval_seconds);
  set(IPPROTO_TCP, TCP_KEEPCNT, 5);
  set(IPPROTO_TCP, TCP_USER_TIMEOUT, static_cast<int>(silence / milliseconds(1)));
}

// Acknowledges at once: the other side waits for it before it closes the connection.
void acknowledge_now(int socket) {
  const int now = 1;
  setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
}

// Returns whether the process of the pidfd is stopped; false if /proc does not say.
bool is_stopped(int pidfd) {
  const std::optional<ProcessStat> stat = process_stat(process_behind(pidfd));
  return stat && stat->is_stopped();
}

std::string whereabouts_in(const std::optional<MappedPages>& page) {
  return page ? whereabouts((*page)[0], to_page_time(BootClock::now())) : "";
}

}  // namespace

struct PeerWatch::Peer {
  int rank = -1;
  UniqueFd socket;       // only the destructor closes it, as other threads write to it
  bool open = true;      // for reading; used by the watch's thread
  bool writable = true;  // holds send_mutex_
  std::string unsent;    // frames; a part of the first may have been sent; holds send_mutex_
  std::string unread;    // the beginning of a frame; used by the watch's thread
};

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(SharedProgress& progress,
                                                    const WakeupFds& wakeups, Options options) {
  std::vector<UniqueFd> wake;
  wake.emplace_back(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake[0].valid()) return system_error("start the watch over other ranks", errno);
  std::unique_ptr<PeerWatch> watch(
      new PeerWatch(progress, wakeups, std::move(options), std::move(wake)));
  const Result<void> started =
      start_thread(watch->thread_, "ddprun-watch", [raw = watch.get()] { raw->run(); });
  if (!started) return started.error();
  return watch;
}

PeerWatch::PeerWatch(SharedProgress& progress, const WakeupFds& wakeups, Options options,
                     std::vector<UniqueFd> wake)
    : progress_(progress),
      wakeups_(wakeups),
      options_(std::move(options)),
      wake_(std::move(wake), 0) {
  for (Link& link : options_.links) {
    const int socket = link.socket.get();
    ask_when_silent(socket, options_.node_silence);
    setsockopt(socket, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes, sizeof kSendBufferBytes);
    peers_.push_back({.rank = link.rank, .socket = std::move(link.socket)});
  }
}

PeerWatch::~PeerWatch() {
  if (!thread_.joinable()) return;
  if (!progress_.failed()) await_delivery();
  stop_requested_ = true;
  wake_.notify_own();
  thread_.join();
}

void PeerWatch::run() {
  std::vector<pollfd> watched{{wake_.own_fd(), POLLIN, 0}};
  for (std::size_t local = 0; local < options_.lives.size(); ++local) {
    const bool self = static_cast<int>(local) == progress_.local();
    watched.push_back({self ? -1 : options_.lives[local].get(), POLLIN, 0});
  }
  const std::size_t first_link = watched.size();
  for (const Peer& peer : peers_) watched.push_back({peer.socket.get(), POLLIN, 0});

  while (!stop_requested_) {
    {
      const std::lock_guard lock(send_mutex_);
      for (std::size_t i = first_link; i < watched.size(); ++i) {
        const bool has_more = !peers_[i - first_link].unsent.empty();
        watched[i].events = static_cast<short>(has_more ? POLLIN | POLLOUT : POLLIN);
      }
    }
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents != 0) wake_.drain();
    for (std::size_t i = 1; i < first_link; ++i) {
      if (watched[i].revents == 0) continue;
      watched[i].fd = -1;
      on_local_rank_ended(static_cast<int>(i) - 1);
    }
    for (std::size_t i = first_link; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      Peer& peer = peers_[i - first_link];
      if ((watched[i].revents & POLLOUT) != 0) {
        const std::lock_guard lock(send_mutex_);
        send_unsent(peer);
      }
      read_link(peer);
      if (!peer.open) watched[i].fd = -1;
    }
  }
}

void PeerWatch::on_local_rank_ended(int local) {
  // The rank may have been killed after it wrote to the SharedProgress and before it woke the
  // ranks that wait for that.
  progress_.notify_own();
  wakeups_.notify_own();
  if (progress_.has_left(local)) return;
  blame(ErrorKind::kPeerLost, options_.node_ranks[local], " died (its process has ended)");
}

void PeerWatch::read_link(Peer& peer) {
  char buffer[4096];
  ssize_t got = 0;
  while ((got = recv(peer.socket.get(), buffer, sizeof buffer, MSG_DONTWAIT)) > 0) {
    peer.unread.append(buffer, got);
  }
  const int why = got < 0 ? errno : 0;
  const bool closed = got == 0 || !would_block(why);
  while (peer.unread.size() >= sizeof(FrameHead)) {
    FrameHead head;
    std::memcpy(static_cast<void*>(&head), peer.unread.data(), sizeof head);
    if (head.body_bytes <= kMaxBodyBytes && peer.unread.size() < sizeof head + head.body_bytes)
      break;
    const bool understood = head.body_bytes <= kMaxBodyBytes &&
                            handle(peer, head, peer.unread.substr(sizeof head, head.body_bytes));
    if (!understood) {
      peer.open = false;
      return blame(ErrorKind::kProtocol, peer.rank, " sent an invalid message");
    }
    peer.unread.erase(0, sizeof head + head.body_bytes);
  }
  if (!closed) return;
  peer.open = false;
  if (has_left(peer.rank)) return;
  const bool is_silent = why == ETIMEDOUT || why == EHOSTUNREACH || why == ENETUNREACH;
  blame(ErrorKind::kPeerLost, peer.rank,
        is_silent ? " is out of reach (its node has not answered for " +
                        to_text(options_.node_silence) + ")"
                  : " died (its connection was closed)");
}

// Returns false if the frame is invalid.
bool PeerWatch::handle(Peer& peer, const FrameHead& head, const std::string& body) {
  switch (head.type) {
    case FrameType::kFailure:
      raise_failure({.kind = head.kind,
                     .peer_rank = head.peer_rank,
                     .reporter = head.reporter,
                     .cause = body});
      return true;
    case FrameType::kLeave:
      // The peer's links do not reach all ranks here, and any rank may wait for a message from
      // it.
      if (progress_.note_departure(peer.rank)) wakeups_.notify_all();
      acknowledge_now(peer.socket.get());
      return true;
    case FrameType::kProgressQuery:
      reply(peer, FrameType::kProgressReply, head.query, encode_progress(progress_here()));
      return true;
    case FrameType::kProgressReply:
      return take_reply(head, decode_progress(body),
                        [&](RankProgress one) { keep_newest(std::move(one)); });
    case FrameType::kNotesQuery:
      reply(peer, FrameType::kNotesReply, head.query, encode_notes(notes_here()));
      return true;
    case FrameType::kNotesReply:
      return take_reply(head, decode_notes(body, options_.world_size),
                        [&](RankNote one) { notes_[one.rank] = std::move(one.text); });
  }
  return false;
}

void PeerWatch::reply(Peer& peer, FrameType type, std::uint64_t query, const std::string& body) {
  const std::lock_guard lock(send_mutex_);
  send(peer, {.type = type, .query = query}, body);
}

// Calls take(report of a rank), unless the reply comes too late. Returns false if it is invalid.
template <class Report, class Take>
bool PeerWatch::take_reply(const FrameHead& head, std::optional<std::vector<Report>> reports,
                           Take take) {
  if (!reports) return false;
  const std::lock_guard lock(query_mutex_);
  if (head.query != query_number_) return true;
  for (Report& one : *reports) {
    std::erase(silent_, one.rank);
    take(std::move(one));
  }
  reply_came_.notify_all();
  return true;
}

bool PeerWatch::has_ended(int local) const {
  pollfd watched{options_.lives[local].get(), POLLIN, 0};
  return ::poll(&watched, 1, 0) > 0;
}

void PeerWatch::kill(int local) const {
  const int life = options_.lives[local].get();
  if (process_behind(life) == getpid()) return;
  syscall(SYS_pidfd_send_signal, life, SIGKILL, nullptr, 0);
}

std::vector<RankProgress> PeerWatch::progress_here() const {
  std::vector<RankProgress> ranks;
  for (std::size_t i = 0; i < options_.node_ranks.size(); ++i) {
    const int local = static_cast<int>(i);
    ranks.push_back({.rank = options_.node_ranks[i],
                     .stopped = is_stopped(options_.lives[i].get()),
                     .entered = progress_.entered(local),
                     .tick = progress_.tick(local),
                     .whereabouts = whereabouts_in(options_.pages[i])});
  }
  return ranks;
}

std::vector<RankNote> PeerWatch::notes_here() const {
  std::vector<RankNote> notes;
  for (std::size_t i = 0; i < options_.node_ranks.size(); ++i) {
    notes.push_back({options_.node_ranks[i], progress_.note_of(static_cast<int>(i))});
  }
  return notes;
}

// Sends a frame, or keeps it if the socket is full. Links carry little, and it is read at once.
// Frames wait here only if the other side has been stopped for long. Queries and replies are
// dropped when too much waits. A failure and a leave are never dropped, and come once each.
void PeerWatch::send(Peer& peer, FrameHead head, const std::string& body) {
  const bool comes_once = head.type == FrameType::kFailure || head.type == FrameType::kLeave;
  if (!peer.writable || (!comes_once && peer.unsent.size() > kMaxUnsentBytes)) return;
  head.body_bytes = static_cast<std::uint32_t>(body.size());
  const bool is_first = peer.unsent.empty();
  peer.unsent.append(reinterpret_cast<const char*>(&head), sizeof head);
  peer.unsent += body;
  if (!is_first) return;
  send_unsent(peer);
  if (!peer.unsent.empty()) wake_.notify_own();  // the thread polls for room
}

void PeerWatch::send_unsent(Peer& peer) {
  std::size_t done = 0;
  while (done < peer.unsent.size()) {
    const ssize_t sent = ::send(peer.socket.get(), peer.unsent.data() + done,
                                peer.unsent.size() - done, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0 && would_block(errno)) break;
    if (sent < 0) {
      peer.writable = false;
      done = peer.unsent.size();
      break;
    }
    done += sent;
  }
  peer.unsent.erase(0, done);
}

// Returns whether the other side's kernel has received all frames, or will accept no more.
bool PeerWatch::is_delivered(Peer& peer) {
  pollfd watched{peer.socket.get(), 0, 0};
  if (::poll(&watched, 1, 0) > 0) return true;  // POLLERR, POLLHUP: the connection is gone
  const std::lock_guard lock(send_mutex_);
  if (!peer.writable) return true;
  int on_its_way = 0;
  return peer.unsent.empty() &&
         (ioctl(peer.socket.get(), SIOCOUTQ, &on_its_way) != 0 || on_its_way == 0);
}

// Waits until all frames are acknowledged. A connection that is closed with unread bytes is
// reset, and bytes still in flight are lost. The others would then report a rank as dead that
// has left in good order. No event reports an acknowledgement.
void PeerWatch::await_delivery() {
  const Deadline patience(kDeliveryPatience);
  for (Peer& peer : peers_) {
    while (!is_delivered(peer) && !patience.passed()) {
      poll_until({}, BootClock::now() + kDeliveryInterval);
    }
  }
}

void PeerWatch::blame(ErrorKind kind, int rank, const std::string& what) {
  raise_failure({.kind = kind,
                 .peer_rank = rank,
                 .reporter = options_.rank,
                 .cause = name_rank(rank) + what});
}

void PeerWatch::raise_failure(const GroupFailure& failure) {
  const std::lock_guard lock(send_mutex_);
  if (progress_.raise(failure)) wakeups_.notify_all();
  forward_failure_holding_lock();
}

void PeerWatch::forward_failure() {
  const std::lock_guard lock(send_mutex_);
  forward_failure_holding_lock();
}

void PeerWatch::forward_failure_holding_lock() {
  const std::optional<GroupFailure> failure = progress_.failure();
  if (!failure || forwarded_) return;
  forwarded_ = true;
  for (Peer& peer : peers_) {
    send(peer,
         {.type = FrameType::kFailure,
          .kind = failure->kind,
          .peer_rank = failure->peer_rank,
          .reporter = failure->reporter},
         failure->cause);
  }
}

void PeerWatch::leave() {
  progress_.leave();
  wakeups_.notify_all();
  const std::lock_guard lock(send_mutex_);
  for (Peer& peer : peers_) send(peer, {.type = FrameType::kLeave}, {});
}

PeerWatch::ProgressReport PeerWatch::query_progress(Duration patience) {
  if (peers_.empty()) return {progress_here(), {}};
  const std::lock_guard turn(query_turn_);
  std::unique_lock lock(query_mutex_);
  reported_ = progress_here();
  query_peers(FrameType::kProgressQuery, patience, lock);
  return {reported_, silent_};
}

std::vector<std::string> PeerWatch::query_notes(Duration patience) {
  std::vector<std::string> here(options_.world_size);
  for (RankNote& one : notes_here()) here[one.rank] = std::move(one.text);
  if (peers_.empty() || patience == Duration::zero()) return here;
  const std::lock_guard turn(query_turn_);
  std::unique_lock lock(query_mutex_);
  notes_ = std::move(here);
  query_peers(FrameType::kNotesQuery, patience, lock);
  return notes_;
}

// Several ranks of a node reply, each with the progress that it sees. The newest is kept.
void PeerWatch::keep_newest(RankProgress progress) {
  const auto known = std::ranges::lower_bound(reported_, progress.rank, {}, &RankProgress::rank);
  if (known == reported_.end() || known->rank != progress.rank) {
    reported_.insert(known, std::move(progress));
  } else if (std::pair(progress.entered, progress.tick) > std::pair(known->entered, known->tick)) {
    *known = std::move(progress);
  }
}

// Asks all linked ranks; one reply per node covers all its ranks. Returns when all have been
// reported or the patience is over. If progress is asked for, it also returns when the group has
// failed. silent_ then has the ranks without a report. lock: of query_mutex_.
void PeerWatch::query_peers(FrameType query, Duration patience,
                            std::unique_lock<std::mutex>& lock) {
  silent_.clear();
  for (const Peer& peer : peers_) {
    if (!has_left(peer.rank)) silent_.push_back(peer.rank);
  }
  std::ranges::sort(silent_);
  const FrameHead head{.type = query, .query = ++query_number_};
  {
    const std::lock_guard sending(send_mutex_);
    for (Peer& peer : peers_) send(peer, head, {});
  }
  const Deadline deadline(patience);
  // After a failure, only notes are asked for.
  const auto is_over = [&] {
    return silent_.empty() || (query == FrameType::kProgressQuery && progress_.failed());
  };
  while (!is_over() && !deadline.passed()) {
    reply_came_.wait_for(lock, std::min(deadline.remaining(), kLookInterval), is_over);
  }
}

}  // namespace ddprun
