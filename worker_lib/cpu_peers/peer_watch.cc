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
#include "base/clock.h"
#include "base/deadline.h"
#include "base/flight_words.h"
#include "base/poll_until.h"
#include "base/process_stat.h"
#include "base/would_block.h"
#include "worker_lib/collective/rank_names.h"

namespace ddprun {
namespace {

constexpr std::uint32_t kMaxBodyBytes = 1 << 20;
// Interval for checking the SharedProgress during a question: a rank of this node that raises a
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
  return stat && (stat->state == 'T' || stat->state == 't');
}

std::string whereabouts_in(const std::optional<MappedPages>& page) {
  return page ? whereabouts((*page)[0], to_page_time(BootClock::now())) : "";
}

}  // namespace

enum class PeerWatch::News : std::uint32_t {
  kFailure,
  kLeave,
  kQuestion,
  kAnswer,
  kNotesQuestion,
  kNotes,
};

// FrameHead: travels on links only. Both ends run the same build on machines of one kind, which
// the hello has checked.
struct PeerWatch::FrameHead {
  News news = News::kLeave;
  std::uint32_t body_bytes = 0;
  ErrorKind kind = ErrorKind::kPeerLost;
  std::int32_t peer_rank = -1;
  std::int32_t reporter = -1;
  std::uint32_t padding = 0;
  std::uint64_t question = 0;
};

namespace {
// StandingHead: precedes the whereabouts in each standing that is sent.
struct StandingHead {
  std::int32_t rank = -1;
  std::uint32_t stopped = 0;
  std::uint64_t entered = 0;
  std::uint64_t tick = 0;
  std::uint64_t bytes = 0;
};

// NoteHead: precedes each note that is sent.
struct NoteHead {
  std::int32_t rank = -1;
  std::uint32_t bytes = 0;
};
}  // namespace

struct PeerWatch::Peer {
  int rank = -1;
  UniqueFd socket;       // only the destructor closes it, as other threads write to it
  bool open = true;      // for reading; used by the watch's thread
  bool writable = true;  // holds speaking_
  std::string unsent;    // frames; a part of the first may have been sent; holds speaking_
  std::string unread;    // the beginning of a frame; used by the watch's thread
};

Result<std::unique_ptr<PeerWatch>> PeerWatch::start(SharedProgress& progress,
                                                    const WakeupFds& wakeups, Options options) {
  UniqueFd wake(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return system_error("start the watch over other ranks", errno);
  std::unique_ptr<PeerWatch> watch(
      new PeerWatch(progress, wakeups, std::move(options), std::move(wake)));
  const Result<void> started =
      start_thread(watch->thread_, "ddprun-watch", [raw = watch.get()] { raw->run(); });
  if (!started) return started.error();
  return watch;
}

PeerWatch::PeerWatch(SharedProgress& progress, const WakeupFds& wakeups, Options options,
                     UniqueFd wake)
    : progress_(progress),
      wakeups_(wakeups),
      rank_(options.rank),
      world_size_(options.world_size),
      node_silence_(options.node_silence),
      node_ranks_(std::move(options.node_ranks)),
      lives_(std::move(options.lives)),
      pages_(std::move(options.pages)),
      wake_(std::move(wake)) {
  for (Link& link : options.links) {
    peers_.push_back(std::make_unique<Peer>());
    peers_.back()->rank = link.rank;
    peers_.back()->socket = std::move(link.socket);
    ask_when_silent(peers_.back()->socket.get(), node_silence_);
    setsockopt(peers_.back()->socket.get(), SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes,
               sizeof kSendBufferBytes);
  }
}

PeerWatch::~PeerWatch() {
  if (!thread_.joinable()) return;
  if (!progress_.failed()) await_delivery();
  stops_ = true;
  wake();
  thread_.join();
}

// Wakes the thread. EAGAIN: enough wakeups are pending.
void PeerWatch::wake() {
  const std::uint64_t one = 1;
  while (write(wake_.get(), &one, sizeof one) < 0 && errno == EINTR) {
  }
}

void PeerWatch::run() {
  std::vector<pollfd> watched{{wake_.get(), POLLIN, 0}};
  for (std::size_t local = 0; local < lives_.size(); ++local) {
    const bool self = static_cast<int>(local) == progress_.local();
    watched.push_back({self ? -1 : lives_[local].get(), POLLIN, 0});
  }
  const std::size_t first_link = watched.size();
  for (const auto& peer : peers_) watched.push_back({peer->socket.get(), POLLIN, 0});

  while (!stops_) {
    {
      const std::lock_guard lock(speaking_);
      for (std::size_t i = first_link; i < watched.size(); ++i) {
        const bool has_more = !peers_[i - first_link]->unsent.empty();
        watched[i].events = static_cast<short>(has_more ? POLLIN | POLLOUT : POLLIN);
      }
    }
    if (::poll(watched.data(), watched.size(), -1) < 0) continue;
    if (watched[0].revents != 0) {
      eventfd_t count = 0;
      eventfd_read(wake_.get(), &count);
    }
    for (std::size_t i = 1; i < first_link; ++i) {
      if (watched[i].revents == 0) continue;
      watched[i].fd = -1;
      neighbour_ended(static_cast<int>(i) - 1);
    }
    for (std::size_t i = first_link; i < watched.size(); ++i) {
      if (watched[i].revents == 0) continue;
      Peer& peer = *peers_[i - first_link];
      if ((watched[i].revents & POLLOUT) != 0) {
        const std::lock_guard lock(speaking_);
        send_unsent(peer);
      }
      read_link(peer);
      if (!peer.open) watched[i].fd = -1;
    }
  }
}

void PeerWatch::neighbour_ended(int local) {
  // The rank may have been killed after it wrote to the SharedProgress and before it woke the
  // ranks that wait for that.
  progress_.notify_own();
  wakeups_.notify_own();
  if (progress_.has_left(local)) return;
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
      announce({.kind = ErrorKind::kProtocol,
                .peer_rank = peer.rank,
                .reporter = rank_,
                .cause = name_rank(peer.rank) + " sent an invalid message"});
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

// Returns false if the frame is invalid.
bool PeerWatch::handle(Peer& peer, const FrameHead& head, const std::string& body) {
  switch (head.news) {
    case News::kFailure:
      announce({.kind = head.kind,
                .peer_rank = head.peer_rank,
                .reporter = head.reporter,
                .cause = body});
      return true;
    case News::kLeave:
      // The peer's links do not reach all ranks here, and any rank may wait for a message from
      // it.
      if (progress_.note_departure(peer.rank)) wakeups_.notify_all();
      acknowledge_now(peer.socket.get());
      return true;
    case News::kQuestion: {
      const std::string standings = frames_of(standings_here());
      const std::lock_guard lock(speaking_);
      send(peer, {.news = News::kAnswer, .question = head.question}, standings);
      return true;
    }
    case News::kAnswer: {
      std::optional<std::vector<Standing>> answer = standings_in(body);
      if (!answer) return false;
      const std::lock_guard lock(asking_);
      if (head.question != question_) return true;  // too late
      for (Standing& one : *answer) {
        std::erase(silent_, one.rank);
        take(std::move(one));
      }
      answered_.notify_all();
      return true;
    }
    case News::kNotesQuestion: {
      const std::string notes = frames_of(notes_here());
      const std::lock_guard lock(speaking_);
      send(peer, {.news = News::kNotes, .question = head.question}, notes);
      return true;
    }
    case News::kNotes: {
      std::optional<std::vector<Note>> answer = notes_in(body, world_size_);
      if (!answer) return false;
      const std::lock_guard lock(asking_);
      if (head.question != question_) return true;  // too late
      for (Note& one : *answer) {
        std::erase(silent_, one.rank);
        notes_[one.rank] = std::move(one.text);
      }
      answered_.notify_all();
      return true;
    }
  }
  return false;
}

bool PeerWatch::has_ended(int local) const {
  pollfd watched{lives_[static_cast<std::size_t>(local)].get(), POLLIN, 0};
  return ::poll(&watched, 1, 0) > 0;
}

void PeerWatch::kill(int local) const {
  const int life = lives_[static_cast<std::size_t>(local)].get();
  if (process_behind(life) == getpid()) return;
  syscall(SYS_pidfd_send_signal, life, SIGKILL, nullptr, 0);
}

std::vector<PeerWatch::Standing> PeerWatch::standings_here() const {
  std::vector<Standing> standings;
  for (std::size_t i = 0; i < node_ranks_.size(); ++i) {
    const int local = static_cast<int>(i);
    standings.push_back({.rank = node_ranks_[i],
                         .stopped = is_stopped(lives_[i].get()),
                         .entered = progress_.entered(local),
                         .tick = progress_.tick(local),
                         .whereabouts = whereabouts_in(pages_[i])});
  }
  return standings;
}

std::string PeerWatch::frames_of(const std::vector<Standing>& standings) {
  std::string frames;
  for (const Standing& one : standings) {
    const StandingHead head{.rank = one.rank,
                            .stopped = one.stopped,
                            .entered = one.entered,
                            .tick = one.tick,
                            .bytes = one.whereabouts.size()};
    frames.append(reinterpret_cast<const char*>(&head), sizeof head);
    frames += one.whereabouts;
  }
  return frames;
}

// Returns nullopt if the frames are invalid.
std::optional<std::vector<PeerWatch::Standing>> PeerWatch::standings_in(const std::string& frames) {
  std::vector<Standing> standings;
  for (std::size_t at = 0; at < frames.size();) {
    StandingHead head;
    if (frames.size() - at < sizeof head) return std::nullopt;
    std::memcpy(&head, frames.data() + at, sizeof head);
    at += sizeof head;
    if (head.bytes > frames.size() - at) return std::nullopt;
    standings.push_back({.rank = head.rank,
                         .stopped = head.stopped != 0,
                         .entered = head.entered,
                         .tick = head.tick,
                         .whereabouts = frames.substr(at, head.bytes)});
    at += head.bytes;
  }
  return standings;
}

std::vector<PeerWatch::Note> PeerWatch::notes_here() const {
  std::vector<Note> notes;
  for (std::size_t i = 0; i < node_ranks_.size(); ++i) {
    notes.push_back({node_ranks_[i], progress_.note_of(static_cast<int>(i))});
  }
  return notes;
}

std::string PeerWatch::frames_of(const std::vector<Note>& notes) {
  std::string frames;
  for (const Note& one : notes) {
    const NoteHead head{.rank = one.rank, .bytes = static_cast<std::uint32_t>(one.text.size())};
    frames.append(reinterpret_cast<const char*>(&head), sizeof head);
    frames += one.text;
  }
  return frames;
}

// Returns nullopt if the frames are invalid.
std::optional<std::vector<PeerWatch::Note>> PeerWatch::notes_in(const std::string& frames,
                                                                int world_size) {
  std::vector<Note> notes;
  for (std::size_t at = 0; at < frames.size();) {
    NoteHead head;
    if (frames.size() - at < sizeof head) return std::nullopt;
    std::memcpy(&head, frames.data() + at, sizeof head);
    at += sizeof head;
    const bool makes_sense =
        head.bytes <= frames.size() - at && head.rank >= 0 && head.rank < world_size;
    if (!makes_sense) return std::nullopt;
    notes.push_back({head.rank, frames.substr(at, head.bytes)});
    at += head.bytes;
  }
  return notes;
}

// Sends a frame, or keeps it if the socket is full. Links carry little, and it is read at once.
// Frames wait here only if the other side has been stopped for long. Questions and answers are
// dropped when too much waits. A failure and a leave are never dropped, and come once each.
void PeerWatch::send(Peer& peer, FrameHead head, const std::string& body) {
  const bool comes_once = head.news == News::kFailure || head.news == News::kLeave;
  if (!peer.writable || (!comes_once && peer.unsent.size() > kMaxUnsentBytes)) return;
  head.body_bytes = static_cast<std::uint32_t>(body.size());
  const bool is_first = peer.unsent.empty();
  peer.unsent.append(reinterpret_cast<const char*>(&head), sizeof head);
  peer.unsent += body;
  if (!is_first) return;
  send_unsent(peer);
  if (!peer.unsent.empty()) wake();  // the thread polls for room
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
    done += static_cast<std::size_t>(sent);
  }
  peer.unsent.erase(0, done);
}

// Returns whether the other side's kernel has received all frames, or will accept no more.
bool PeerWatch::is_delivered(Peer& peer) {
  pollfd watched{peer.socket.get(), 0, 0};
  if (::poll(&watched, 1, 0) > 0) return true;  // POLLERR, POLLHUP: the connection is gone
  const std::lock_guard lock(speaking_);
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
  for (const auto& peer : peers_) {
    while (!is_delivered(*peer) && !patience.passed()) {
      poll_until({}, BootClock::now() + kDeliveryInterval);
    }
  }
}

void PeerWatch::announce(const GroupFailure& failure) {
  const std::lock_guard lock(speaking_);
  if (progress_.raise(failure)) wakeups_.notify_all();
  pass_on_holding_lock();
}

void PeerWatch::pass_on() {
  const std::lock_guard lock(speaking_);
  pass_on_holding_lock();
}

void PeerWatch::pass_on_holding_lock() {
  const std::optional<GroupFailure> failure = progress_.failure();
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
  progress_.leave();
  wakeups_.notify_all();
  const std::lock_guard lock(speaking_);
  for (const auto& peer : peers_) send(*peer, {.news = News::kLeave}, {});
}

PeerWatch::Answers PeerWatch::ask(Duration patience) {
  if (peers_.empty()) return {standings_here(), {}};
  const std::lock_guard turn(questions_);
  std::unique_lock lock(asking_);
  standings_ = standings_here();
  put_question(News::kQuestion, patience, lock);
  return {standings_, silent_};
}

std::vector<std::string> PeerWatch::notes(Duration patience) {
  std::vector<std::string> here(static_cast<std::size_t>(world_size_));
  for (Note& one : notes_here()) here[one.rank] = std::move(one.text);
  if (peers_.empty() || patience == Duration::zero()) return here;
  const std::lock_guard turn(questions_);
  std::unique_lock lock(asking_);
  notes_ = std::move(here);
  put_question(News::kNotesQuestion, patience, lock);
  return notes_;
}

// Several ranks of a node answer, each with what it sees: the latest state is kept.
void PeerWatch::take(Standing standing) {
  const auto known = std::ranges::find(standings_, standing.rank, &Standing::rank);
  if (known == standings_.end()) return standings_.push_back(std::move(standing));
  if (std::pair(standing.entered, standing.tick) > std::pair(known->entered, known->tick)) {
    *known = std::move(standing);
  }
}

// Asks all linked ranks; one answer per node covers all its ranks. Returns when all have been
// reported, the group has failed, or the patience is over. silent_ then has the ranks without a
// report.
void PeerWatch::put_question(News question, Duration patience,
                             std::unique_lock<std::mutex>& asking) {
  silent_.clear();
  for (const auto& peer : peers_) {
    if (!has_left(peer->rank)) silent_.push_back(peer->rank);
  }
  const FrameHead head{.news = question, .question = ++question_};
  {
    const std::lock_guard lock(speaking_);
    for (const auto& peer : peers_) send(*peer, head, {});
  }
  const Deadline deadline(patience);
  // After a failure, only notes are asked for.
  const auto is_over = [&] {
    return silent_.empty() || (question == News::kQuestion && progress_.failed());
  };
  while (!is_over() && !deadline.passed()) {
    answered_.wait_for(asking, std::min(deadline.remaining(), kLookInterval), is_over);
  }
}

}  // namespace ddprun
