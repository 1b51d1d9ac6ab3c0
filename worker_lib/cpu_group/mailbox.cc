#include "worker_lib/cpu_group/mailbox.h"

#include <sched.h>

#include <algorithm>
#include <exception>

#include "base/background_thread.h"
#include "base/poll_until.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_group/group_end.h"

namespace ddprun {
namespace {

// A sleeping driver looks again after this time at the latest.
constexpr Duration kLongestSleep = std::chrono::milliseconds(200);
// After this time a callback counts as blocked, and another thread drives.
constexpr Duration kCallbackPatience = std::chrono::milliseconds(1);
// One pass moves at most this much of one peer's stream, so that all peers get their turn.
constexpr std::size_t kBytesOfAPass = std::size_t{512} << 10;
constexpr int kFramesOfAPass = 256;

enum class What : std::uint32_t { kEager, kRts, kCts, kData, kFin, kCredit };

std::string bytes_text(std::size_t bytes) { return std::to_string(bytes) + " B"; }

}  // namespace

struct Mailbox::Head {
  What what = What::kEager;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;  // of the message or the part; credit: the credit given back
  // data: the receiver's number; RTS, CTS, FIN: the sender's; eager: unused.
  std::uint64_t transfer = 0;
  std::uint64_t receive = 0;  // CTS: the receiver's number
};

struct Mailbox::Transfer : Request {
  // Called at the end of an asynchronous transfer; a transfer has either this or `answer`.
  TransferDone done;
  Answer* answer = nullptr;  // set at the end of a blocking call

  std::uint64_t number = 0;
  int source = -1;            // source of the message that a receive has got
  std::size_t moved = 0;      // bytes moved
  bool is_under_way = false;  // the receiver has asked for the bytes or is reading them
  std::uint64_t receive = 0;  // of a send: the receiver's number of it
  std::optional<Error> flaw;  // a receive ends with this error once the FIN has been sent
};

// A message that came when no receive waited for it.
struct Mailbox::Message {
  int source = -1;
  Head head;
  std::vector<char> body;     // of an eager message
  bool is_complete = true;    // the whole body has come
  std::uint64_t receive = 0;  // the receive that waits for the rest; 0: none
};

struct Mailbox::Frame {
  Head head;
  std::span<const char> bytes;
  std::uint64_t transfer = 0;  // the transfer it belongs to; 0: none
  bool ends_it = false;
};

struct Mailbox::Peer {
  int rank = -1;
  int local = -1;  // local index; -1: the peer is on another node

  std::unique_ptr<MessageWriter> out;
  bool out_is_closed = false;
  bool may_write = true;             // cleared when the socket was full
  std::deque<Frame> answers;         // CTS, FIN and credit frames; they go first
  std::deque<std::uint64_t> sends;   // sends of which nothing has gone yet
  std::deque<std::uint64_t> wanted;  // sends whose parts go, in turns
  bool part_is_next = false;         // headers and parts take turns
  std::optional<Frame> frame;        // the frame that is being written
  std::size_t frame_done = 0;
  MessageCredit credit;

  std::unique_ptr<MessageReader> in;
  bool in_is_closed = false;
  bool may_read = true;
  Head head;
  std::size_t head_done = 0;
  std::size_t bytes_left = 0;  // of the bytes that follow the header
  std::uint64_t transfer = 0;  // the receive that gets these bytes; 0: none
  // The message set aside that gets them; if both are 0, they are dropped.
  std::uint64_t message = 0;
  std::size_t to_give_back = 0;
};

// --- from outside ---

Mailbox::Mailbox(GroupCore& core)
    : core_(core),
      here_(core.here()),
      sleep_state_(*reinterpret_cast<SleepState*>(here_.memory +
                                                  here_.segment.ring(here_.local, here_.local))) {
  const auto sleep_state_of = [&](int local) -> SleepState& {
    return *reinterpret_cast<SleepState*>(here_.memory + here_.segment.ring(local, local));
  };
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    peers_.emplace_back();
    if (rank == here_.rank) continue;
    peers_.back() = std::make_unique<Peer>();
    Peer& peer = *peers_.back();
    peer.rank = rank;
    if (!here_.on_my_node(rank)) continue;
    peer.local = here_.layout.local_of[rank];
    const RingNeighbour other{sleep_state_of(peer.local), core.wakeups(), peer.local};
    const SegmentLayout& segment = here_.segment;
    peer.out =
        write_ring(here_.memory + segment.ring(here_.local, peer.local), segment.ring_bytes, other);
    peer.in =
        read_ring(here_.memory + segment.ring(peer.local, here_.local), segment.ring_bytes, other);
  }
}

Mailbox::~Mailbox() {
  Lock lock = enter();
  end_here();
  closing_ = true;
  tell_driver();
  work_.notify_all();
  call_back(lock);
  while (!threads_.empty()) {
    std::thread one = std::move(threads_.back());
    threads_.pop_back();
    lock.unlock();
    one.join();
    lock_in_turn(lock);
  }
}

bool Mailbox::await_idle(Duration patience) {
  Lock lock = enter();
  return idle_.wait_for(lock, patience, [&] { return transfers_.empty(); });
}

Result<Rank> Mailbox::carry_out(const Request& request) {
  Transfer transfer{request};
  Answer answer;
  transfer.answer = &answer;
  Lock lock = enter();
  if (const Result<void> posted = post(transfer); !posted) return posted.error();
  while (!answer) {
    if (!driving_) {
      drive(lock, [&] { return answer.has_value(); });
      call_back(lock);
    } else {
      step();  // bytes that can go now need no driver
      if (answer) break;
      tell_driver();
      changed_.wait(lock);
    }
  }
  leave(lock);
  return std::move(*answer);
}

void Mailbox::start(const Request& request, TransferDone done) {
  Transfer transfer{request};
  transfer.done = std::move(done);
  Lock lock = enter();
  if (const Result<void> posted = post(transfer); !posted) {
    lock.unlock();
    return transfer.done(posted.error());
  }
  step();
  if (called_back_for_ > 0) {
    ensure_thread();
    tell_driver();
  }
  leave(lock);
}

Mailbox::Lock Mailbox::enter() {
  Lock lock(mutex_, std::defer_lock);
  lock_in_turn(lock);
  return lock;
}

// Runs the callbacks that are due and unlocks the mutex. Leaves asynchronous transfers to a
// thread of the mailbox, unless another thread continues them.
void Mailbox::leave(Lock& lock) {
  call_back(lock);
  const bool is_taken = driving_ || (active_calls_ > 0 && is_watched_);
  const bool wakes = called_back_for_ > 0 && !is_taken && claim_thread();
  lock.unlock();
  if (wakes) work_.notify_one();
}

// Returns whether to notify a thread that waits for work. A second thread is not notified before
// the first one runs.
bool Mailbox::claim_thread() {
  if (waiting_threads_ == 0 || is_thread_woken_) return false;
  return is_thread_woken_ = true;
}

// Locks the mutex. A driver that spins unlocks the mutex when lock_waiters_ says that a thread
// waits here.
void Mailbox::lock_in_turn(Lock& lock) {
  lock_waiters_.fetch_add(1);
  lock.lock();
  lock_waiters_.fetch_sub(1);
}

// Accepts the transfer, unless the group has failed or is destroyed.
Result<void> Mailbox::post(Transfer& posted) {
  if (core_.progress().failed()) {  // the description of the transfer is built only for an error
    if (const Result<void> may = core_.may_begin(attempt_of(posted)); !may) return may.error();
  }
  if (is_over_) return destroyed(posted);
  const std::uint64_t number = next_number_++;
  posted.number = number;
  Transfer& transfer = transfers_.emplace(number, std::move(posted)).first->second;
  deadlines_.insert({transfer.deadline.when(), number});
  if (transfer.done) ++called_back_for_;
  if (transfer.is_send) {
    Peer& peer = *peers_[transfer.partner];
    peer.sends.push_back(number);
    return {};
  }
  const std::optional<MessageId> message = matching_.post(
      number, transfer.partner < 0 ? std::nullopt : std::optional(transfer.partner), transfer.tag);
  if (message) take_set_aside(transfer, set_aside_.find(*message));
  return {};
}

// --- driving ---

// Starts a thread of the mailbox if all its threads run callbacks. Callbacks may wait for a
// transfer that only another thread can end.
void Mailbox::ensure_thread() {
  if (free_threads_ > 0) return;
  std::thread thread;
  if (const Result<void> started = start_thread(thread, "ddprun-mail", [this] { run(); }); !started)
    return fail_all(started.error().kind, -1, started.error().message());
  threads_.push_back(std::move(thread));
  ++free_threads_;
}

// Drives and runs callbacks. A thread that runs a callback drives again when the callback
// returns, so the other threads only watch it. Waking one of them for each callback would cost
// more than most transfers.
void Mailbox::run() {
  Lock lock(mutex_);
  std::uint64_t seen = 0;  // the last value of next_call_ seen
  while (!closing_ || !ended_.empty()) {
    if (active_calls_ == 0 && !ended_.empty()) {
      --free_threads_;
      call_back(lock);
      ++free_threads_;
    } else if (active_calls_ == 0 && called_back_for_ > 0 && !driving_) {
      drive(lock, [this] { return closing_ || called_back_for_ == 0; });
    } else if (is_watched_ || (active_calls_ == 0 && seen == next_call_)) {
      wait_for_work(lock, std::nullopt);
    } else {
      seen = next_call_;
      watch_callbacks(lock);
    }
  }
  work_.notify_all();  // the other threads may have begun to wait after ~Mailbox notified them
}

// Waits for kCallbackPatience. If no callback has begun meanwhile, the callbacks that still run
// no longer count as active.
void Mailbox::watch_callbacks(Lock& lock) {
  const std::uint64_t begun = next_call_;
  is_watched_ = true;
  const bool is_notified = wait_for_work(lock, kCallbackPatience);
  is_watched_ = false;
  if (is_notified || begun != next_call_) return;
  first_active_call_ = next_call_;
  active_calls_ = 0;
}

// Waits until there is work, at most `patience`. Returns whether it was notified in time.
bool Mailbox::wait_for_work(Lock& lock, std::optional<Duration> patience) {
  ++waiting_threads_;
  std::cv_status status = std::cv_status::no_timeout;
  if (patience) {
    status = work_.wait_for(lock, *patience);
  } else {
    work_.wait(lock);
  }
  --waiting_threads_;
  is_thread_woken_ = false;
  return status == std::cv_status::no_timeout;
}

// Turn: marks the calling thread as the driver. REQUIRES of all members: the mutex is held.
class Mailbox::Turn {
 public:
  explicit Turn(Mailbox& mailbox) : mailbox_(mailbox) { mailbox_.driving_ = true; }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  ~Turn() {
    mailbox_.driving_ = false;
    mailbox_.changed_.notify_all();
  }

 private:
  Mailbox& mailbox_;
};

// Moves bytes until over() is true or callbacks are due. A callback may wait for other messages,
// which another thread moves meanwhile. REQUIRES: no thread drives.
template <class Over>
void Mailbox::drive(Lock& lock, Over over) {
  const Turn turn(*this);
  bool is_idle = false;
  TimePoint sleep_at{};
  while (!over() && ended_.empty()) {
    const bool moved = step();
    end_at_deadline();
    if (!moved) end_with_leavers();
    if (over() || !ended_.empty()) break;
    // Hand the mutex to a waiting thread: a thread that unlocks and locks at once would win it
    // again.
    if (lock_waiters_.load() > 0) {
      lock.unlock();
      while (lock_waiters_.load() > 0) sched_yield();
      lock.lock();
    }
    const TimePoint now = BootClock::now();
    if (moved || !is_idle) sleep_at = now + core_.parts().spin;
    is_idle = !moved;
    if (moved) continue;
    if (now < sleep_at) {
      look_at_sockets(now, nullptr);
    } else {
      sleep(lock);
      is_idle = false;
    }
  }
}

// Wakes a sleeping driver because there is new work. REQUIRES: the mutex is held.
void Mailbox::tell_driver() {
  if (sleeping_) core_.wakeups().notify_own();
}

void Mailbox::sleep(Lock& lock) {
  std::uint32_t state = SleepState::kAsleep;
  for (const auto& peer : peers_) {
    if (peer && peer->local >= 0 && peer->frame) state |= SleepState::kWaitsForRoom;
  }
  sleep_state_.state.store(state);
  if (!is_worth_a_look()) {
    // The rank that owes the notification may have been stopped before it sent it.
    const TimePoint look_again = BootClock::now() + kLongestSleep;
    look_at_sockets(
        deadlines_.empty() ? look_again : std::min(look_again, deadlines_.begin()->first), &lock);
  }
  sleep_state_.state.store(SleepState::kAwake);
}

// Returns whether something may have come since the last look. Ranks of this node notify this
// rank only while it sleeps.
bool Mailbox::is_worth_a_look() const {
  if (core_.progress().failed()) return true;
  for (const auto& peer : peers_) {
    if (!peer || peer->local < 0) continue;
    if (peer->in->has_bytes() || (peer->frame && peer->out->has_room())) return true;
  }
  return false;
}

// Polls the wakeup fd and, with several nodes, the listener and the sockets. lock: unlocked
// while it waits; null: it does not wait.
void Mailbox::look_at_sockets(TimePoint until, Lock* lock) {
  if (!lock && here_.one_node()) return;
  polled_.assign(1, {core_.wakeups().own_fd(), POLLIN, 0});
  watched_.clear();
  if (PeerListener* const listener = core_.listener()) listener->watch(polled_);
  watched_.resize(polled_.size() - 1);
  for (const auto& peer : peers_) {
    if (!peer || peer->local >= 0) continue;
    if (peer->in && !peer->in_is_closed) {
      polled_.push_back({peer->in->fd(), POLLIN, 0});
      watched_.push_back({peer.get()});
    }
    // Without a frame there is nothing to write now: the rest waits for credit.
    if (peer->frame && !peer->out_is_closed) {
      polled_.push_back({peer->out->fd(), POLLOUT, 0});
      watched_.push_back({peer.get()});
    }
  }
  if (lock) {
    sleeping_ = true;
    lock->unlock();
  }
  poll_until(polled_, until);
  if (lock) {
    lock->lock();
    sleeping_ = false;
  }
  if (polled_[0].revents != 0) core_.wakeups().drain();
  for (std::size_t i = 1; i < polled_.size(); ++i) {
    if (polled_[i].revents == 0) continue;
    Peer* const peer = watched_[i - 1].peer;
    if (!peer) {
      may_have_connections_ = true;
    } else if (polled_[i].events == POLLIN) {
      peer->may_read = true;
    } else {
      peer->may_write = true;
    }
  }
}

// Calls the callbacks of ended transfers without the mutex, because they may start the next
// transfer. Takes one at a time, so that another thread can call the others while one waits. An
// exception ends the group, because the program may have missed a message. The other callbacks
// are still called.
void Mailbox::call_back(Lock& lock) {
  while (!ended_.empty()) {
    Ended one = std::move(ended_.front());
    ended_.pop_front();
    const bool may_wait = !ended_.empty() || called_back_for_ > 0;
    if (may_wait) ensure_thread();
    const bool wakes = may_wait && !is_watched_ && claim_thread();
    const std::uint64_t number = next_call_++;
    ++active_calls_;
    lock.unlock();
    if (wakes) work_.notify_one();
    try {
      one.done(one.result);
    } catch (const std::exception& thrown) {
      core_.raise(ErrorKind::kSystem, here_.rank,
                  std::string("the callback at the end of a message threw: ") + thrown.what());
    } catch (...) {
      core_.raise(
          ErrorKind::kSystem, here_.rank,
          "the callback at the end of a message threw something that is not a std::exception");
    }
    one.done = nullptr;
    lock_in_turn(lock);
    if (number >= first_active_call_) --active_calls_;
  }
}

// --- one pass ---

// Moves what can move now. Returns whether anything moved.
bool Mailbox::step() {
  if (is_over_) return false;
  if (core_.progress().failed()) {
    end_all();
    return false;
  }
  if (may_have_connections_) admit();
  bool moved = false;
  const std::size_t count = peers_.size();
  first_peer_ = (first_peer_ + 1) % count;
  for (std::size_t i = 0; i < count && !is_over_; ++i) {
    Peer* const peer = peers_[(first_peer_ + i) % count].get();
    if (!peer) continue;
    moved |= read(*peer);
    if (!is_over_) moved |= write(*peer);
  }
  return moved;
}

// Ends the transfer whose deadline has passed.
void Mailbox::end_at_deadline() {
  if (!is_over_ && !deadlines_.empty() && deadlines_.begin()->first <= BootClock::now())
    fail(*find(deadlines_.begin()->second), WaitEnd::kTimedOut);
}

// Ends a transfer whose partner has left. REQUIRES: a pass has just found nothing to move.
void Mailbox::end_with_leavers() {
  if (is_over_) return;
  std::vector<bool> gone(peers_.size());
  std::size_t count = 0;
  for (const auto& peer : peers_) {
    if (!peer || !is_gone(*peer)) continue;
    gone[peer->rank] = true;
    ++count;
  }
  if (count == 0 || is_over_) return;
  for (auto& [number, transfer] : transfers_) {
    const int partner = transfer.partner < 0 ? transfer.source : transfer.partner;
    if (partner >= 0 && gone[partner]) return fail(transfer, WaitEnd::kLeft);
    if (partner < 0 && count + 1 == peers_.size()) {
      const bool all_left = std::ranges::all_of(peers_, [&](const auto& peer) {
        return !peer || peer->local >= 0 || core_.await_news(peer->rank);
      });
      if (!all_left && core_.progress().failed()) return end_all();
      const int last = here_.rank == 0 ? 1 : 0;
      return fail_all(ErrorKind::kPeerLost, last, "all other ranks have left the group");
    }
  }
}

// Returns whether nothing more will come from the peer.
bool Mailbox::is_gone(Peer& peer) {
  if (peer.local >= 0) return core_.progress().has_left(peer.local) && !peer.in->has_bytes();
  // Bytes that the peer sent earlier may arrive after the news that it no longer reads.
  if (peer.in) return peer.in_is_closed;
  if (!peer.out_is_closed && !core_.watch().has_left(peer.rank)) return false;
  admit();  // it may have connected before it left
  return !peer.in;
}

// --- out ---

bool Mailbox::has_output(const Peer& peer) const {
  return peer.frame || !peer.answers.empty() || !peer.sends.empty() || !peer.wanted.empty();
}

bool Mailbox::write(Peer& peer) {
  bool has_moved = false;
  std::size_t moved = 0;
  for (int frames = 0; frames < kFramesOfAPass && moved < kBytesOfAPass; ++frames) {
    if (!peer.may_write || peer.out_is_closed) return has_moved;
    if (!peer.frame) {
      if (!has_output(peer) || !connect(peer)) return has_moved;
      peer.frame = next_frame(peer);
      peer.frame_done = 0;
      if (!peer.frame) return has_moved;
    }
    const Frame& frame = *peer.frame;
    const std::span<const char> head(reinterpret_cast<const char*>(&frame.head), sizeof(Head));
    const std::size_t of_head = std::min(peer.frame_done, sizeof(Head));
    const std::ptrdiff_t taken =
        peer.out->write_some(head.subspan(of_head), frame.bytes.subspan(peer.frame_done - of_head));
    if (taken < 0) {
      peer.out_is_closed = true;
      peer.may_read = true;  // read once more: bytes that it sent before may be there
      return true;
    }
    if (taken == 0) {
      peer.may_write = peer.local >= 0;
      return has_moved;
    }
    has_moved = true;
    moved += taken;
    peer.frame_done += taken;
    if (peer.frame_done == sizeof(Head) + frame.bytes.size()) finish_frame(peer);
  }
  return true;
}

std::optional<Mailbox::Frame> Mailbox::next_frame(Peer& peer) {
  if (!peer.answers.empty()) {
    Frame frame = std::move(peer.answers.front());
    peer.answers.pop_front();
    return frame;
  }
  for (int turn = 0; turn < 2; ++turn) {
    peer.part_is_next = !peer.part_is_next;
    if (!peer.part_is_next && !peer.wanted.empty()) {
      Transfer& send = *find(peer.wanted.front());
      peer.wanted.pop_front();
      const std::size_t part = std::min(send.bytes - send.moved, kPartBytes);
      Frame frame{.head = {.what = What::kData, .bytes = part, .transfer = send.receive},
                  .bytes = {send.data + send.moved, part},
                  .transfer = send.number,
                  .ends_it = send.moved + part == send.bytes};
      if (!frame.ends_it) peer.wanted.push_back(send.number);
      return frame;
    }
    if (peer.part_is_next && !peer.sends.empty()) {
      Transfer& send = *find(peer.sends.front());
      Head head{.tag = send.tag, .bytes = send.bytes, .transfer = send.number};
      if (send.bytes <= kEagerBytes && peer.credit.take_message(send.bytes)) {
        peer.sends.pop_front();
        return Frame{.head = head,
                     .bytes = {send.data, send.bytes},
                     .transfer = send.number,
                     .ends_it = true};
      }
      if (!peer.credit.take_head()) continue;
      peer.sends.pop_front();
      head.what = What::kRts;
      return Frame{.head = head};
    }
  }
  return std::nullopt;
}

void Mailbox::finish_frame(Peer& peer) {
  const Frame frame = std::move(*peer.frame);
  peer.frame.reset();
  if (frame.transfer == 0) return;
  Transfer& transfer = *find(frame.transfer);
  if (transfer.is_send) transfer.moved += frame.bytes.size();
  if (frame.ends_it) complete(transfer, transfer.flaw);
}

// Connects to a rank of another node when the first message is due. Returns false if the group
// has failed.
bool Mailbox::connect(Peer& peer) {
  if (peer.out) return true;
  Result<BegunConnect> call =
      begin_connect_to_peer(core_.parts().addresses[peer.rank], core_.parts().token, here_.rank,
                            peer.rank, ConnectionUse::kMessages);
  if (!call) {
    fail_all(call.error().kind, -1, call.error().message());
    return false;
  }
  peer.out = write_socket(std::move(call->socket), std::move(call->hello));
  return true;
}

// --- in ---

bool Mailbox::read(Peer& peer) {
  if (!peer.in || peer.in_is_closed || !peer.may_read) return false;
  bool has_moved = false;
  std::size_t moved = 0;
  for (int frames = 0; frames < kFramesOfAPass && moved < kBytesOfAPass && !is_over_;) {
    std::span<char> to;
    char nowhere[4096];
    Transfer* receive = nullptr;
    if (peer.bytes_left == 0) {
      to = std::span(reinterpret_cast<char*>(&peer.head), sizeof(Head)).subspan(peer.head_done);
    } else if (peer.transfer != 0) {
      receive = find(peer.transfer);
      to = {receive->data + receive->moved, peer.bytes_left};
    } else if (peer.message != 0) {
      std::vector<char>& body = set_aside_.at(peer.message).body;
      to = {body.data() + body.size() - peer.bytes_left, peer.bytes_left};
    } else {
      to = {nowhere, std::min(sizeof nowhere, peer.bytes_left)};
    }
    const std::ptrdiff_t got = peer.in->read_some(to);
    if (got <= 0) {
      peer.may_read = peer.local >= 0;
      peer.in_is_closed = got < 0;
      return has_moved || got < 0;
    }
    has_moved = true;
    moved += got;
    if (peer.bytes_left == 0) {
      peer.head_done += got;
      if (peer.head_done < sizeof(Head)) continue;
      peer.head_done = 0;
      ++frames;
      handle(peer, peer.head);
    } else {
      if (receive) receive->moved += got;
      peer.bytes_left -= got;
      if (peer.bytes_left == 0) finish_bytes(peer);
    }
  }
  return has_moved;
}

void Mailbox::handle(Peer& peer, const Head& head) {
  peer.transfer = 0;
  peer.message = 0;
  Transfer* const transfer = find(head.transfer);
  switch (head.what) {
    case What::kEager:
    case What::kRts: {
      const bool is_eager = head.what == What::kEager;
      if (is_eager && head.bytes > kEagerBytes) break;
      const MessageId id = next_number_++;
      const std::optional<ReceiveId> receive = matching_.arrive(id, peer.rank, head.tag);
      if (receive) {
        Transfer& matched = *find(*receive);
        return is_eager ? take_eager(peer, matched, head) : take_rts(peer, matched, head);
      }
      Message message{.source = peer.rank, .head = head};
      if (is_eager && head.bytes > 0) {
        message.body.resize(head.bytes);
        message.is_complete = false;
        peer.bytes_left = head.bytes;
        peer.message = id;
      }
      set_aside_.emplace(id, std::move(message));
      return;
    }
    case What::kCts:
      if (!transfer || !transfer->is_send || transfer->partner != peer.rank) break;
      peer.credit.give_head_back();
      transfer->is_under_way = true;
      transfer->receive = head.receive;
      peer.wanted.push_back(transfer->number);
      return;
    case What::kFin:
      if (!transfer || !transfer->is_send || transfer->partner != peer.rank) break;
      peer.credit.give_head_back();
      return complete(*transfer);
    case What::kData:
      if (!transfer || transfer->is_send || transfer->source != peer.rank || head.bytes == 0 ||
          head.bytes > transfer->bytes - transfer->moved) {
        break;
      }
      peer.bytes_left = head.bytes;
      peer.transfer = transfer->number;
      return;
    case What::kCredit: peer.credit.give_back(head.bytes); return;
  }
  fail_all(ErrorKind::kProtocol, peer.rank, name_rank(peer.rank) + " sent an invalid message");
}

// Runs when all bytes that follow a header have come.
void Mailbox::finish_bytes(Peer& peer) {
  if (peer.transfer != 0) {
    Transfer& receive = *find(peer.transfer);
    if (receive.moved == receive.bytes) complete(receive);
  } else if (peer.message != 0) {
    const auto at = set_aside_.find(peer.message);
    at->second.is_complete = true;
    if (at->second.receive != 0) take_set_aside(*find(at->second.receive), at);
  }
}

// Accepts an eager message whose bytes come next.
void Mailbox::take_eager(Peer& peer, Transfer& receive, const Head& head) {
  receive.source = peer.rank;
  receive.is_under_way = true;
  give_back(peer, head.bytes);
  peer.bytes_left = head.bytes;
  if (head.bytes != receive.bytes) return complete(receive, wrong_size(receive, head.bytes));
  if (head.bytes == 0) return complete(receive);
  peer.transfer = receive.number;
}

void Mailbox::take_set_aside(Transfer& receive, std::map<MessageId, Message>::iterator at) {
  Message& message = at->second;
  Peer& peer = *peers_[message.source];
  receive.source = message.source;
  if (message.head.what == What::kRts) {
    const Head offer = message.head;
    set_aside_.erase(at);
    return take_rts(peer, receive, offer);
  }
  receive.is_under_way = true;
  message.receive = receive.number;
  if (!message.is_complete) return;  // it waits for the rest
  give_back(peer, message.head.bytes);
  const bool fits = message.head.bytes == receive.bytes;
  if (fits) copy_bytes(receive.data, message.body.data(), receive.bytes);
  std::optional<Error> flaw;
  if (!fits) flaw = wrong_size(receive, message.head.bytes);
  set_aside_.erase(at);
  complete(receive, std::move(flaw));
}

void Mailbox::take_rts(Peer& peer, Transfer& receive, const Head& offer) {
  receive.source = peer.rank;
  receive.is_under_way = true;
  Frame frame{.head = {.what = What::kCts, .transfer = offer.transfer, .receive = receive.number}};
  if (offer.bytes != receive.bytes) receive.flaw = wrong_size(receive, offer.bytes);
  if (receive.flaw || offer.bytes == 0) {
    // The receive ends when the FIN has been written, because the sender waits for the FIN.
    frame = {.head = {.what = What::kFin, .transfer = offer.transfer},
             .transfer = receive.number,
             .ends_it = true};
  }
  peer.answers.push_back(frame);
}

// Gives credit back in large amounts, because each credit frame costs a header.
void Mailbox::give_back(Peer& peer, std::size_t bytes) {
  peer.to_give_back += MessageCredit::cost_of(bytes);
  if (peer.to_give_back < MessageCredit::kBytes / 4) return;
  peer.answers.push_back({.head = {.what = What::kCredit, .bytes = peer.to_give_back}});
  peer.to_give_back = 0;
}

// Accepts the connections of ranks that begin to send to this rank.
void Mailbox::admit() {
  may_have_connections_ = false;
  PeerListener* const listener = core_.listener();
  while (listener) {
    Result<std::optional<PeerListener::AcceptedPeer>> caller =
        listener->admit({ConnectionUse::kMessages}, BootClock::now());
    if (!caller) return fail_all(caller.error().kind, -1, caller.error().message());
    if (!*caller) return;
    const int rank = (*caller)->rank;
    if (rank == here_.rank || here_.on_my_node(rank)) continue;
    Peer& peer = *peers_[rank];
    if (peer.in) continue;  // a second connection of one rank is dropped
    peer.in = read_socket(std::move((*caller)->socket));
  }
}

// --- ends ---

Mailbox::Transfer* Mailbox::find(std::uint64_t number) {
  const auto at = transfers_.find(number);
  return at == transfers_.end() ? nullptr : &at->second;
}

OperationContext Mailbox::attempt_of(const Transfer& transfer) const {
  const bool is_send = transfer.is_send;
  std::string omission = is_send ? "did not receive it" : "did not send it";
  if (transfer.is_under_way) {
    omission = std::string(is_send ? "received" : "sent") + " only " + bytes_text(transfer.moved) +
               " of it";
  }
  const int partner = transfer.partner < 0 ? transfer.source : transfer.partner;
  if (partner < 0) omission = "no rank has sent it";
  return {.doing =
              [is_send, bytes = transfer.bytes, partner = transfer.partner, tag = transfer.tag] {
                return (is_send ? "send of " : "recv of ") + bytes_text(bytes) +
                       (is_send ? " to " : " from ") +
                       (partner < 0 ? "any rank" : name_rank(partner)) + " (tag " +
                       std::to_string(tag) + ")";
              },
          .deadline = transfer.deadline,
          .partner = partner,
          .omission = std::move(omission)};
}

Error Mailbox::wrong_size(const Transfer& receive, std::size_t sent) const {
  const std::string whose = receive.partner < 0 ? " of " + name_rank(receive.source) : "";
  return invalid_argument("the message" + whose + " has " + bytes_text(sent))
      .within(attempt_of(receive).doing());
}

// Ends the transfer and removes it from transfers_: the reference is invalid afterwards.
void Mailbox::complete(Transfer& transfer, std::optional<Error> failure) {
  const int partner = transfer.is_send ? transfer.partner : transfer.source;
  Result<Rank> result = failure ? Result<Rank>(std::move(*failure)) : Result<Rank>(Rank(partner));
  if (transfer.answer) {
    *transfer.answer = std::move(result);
    changed_.notify_all();
  } else {
    ended_.push_back({std::move(transfer.done), std::move(result)});
    --called_back_for_;
  }
  deadlines_.erase({transfer.deadline.when(), transfer.number});
  transfers_.erase(transfer.number);
  if (transfers_.empty()) idle_.notify_all();
}

// Ends the transfer with `end`, which becomes the group's failure.
void Mailbox::fail(Transfer& transfer, WaitEnd end) {
  const OperationContext attempt = attempt_of(transfer);
  const int node = attempt.partner < 0 ? -1 : here_.layout.node_of[attempt.partner];
  complete(transfer, core_.fail(attempt, end, node == here_.node ? -1 : node));
  end_all();
}

void Mailbox::fail_all(ErrorKind kind, int peer_rank, const std::string& cause) {
  if (transfers_.empty()) {
    is_over_ = true;
    return core_.raise(kind, peer_rank, cause);
  }
  Transfer& first = transfers_.begin()->second;
  complete(first, core_.fail(attempt_of(first), kind, peer_rank, cause));
  end_all();
}

// Ends all transfers with the group's failure. REQUIRES: the group has failed.
void Mailbox::end_all() {
  is_over_ = true;
  while (!transfers_.empty()) {
    Transfer& transfer = transfers_.begin()->second;
    complete(transfer, core_.fail(attempt_of(transfer), WaitEnd::kFailed));
  }
}

Error Mailbox::destroyed(const Transfer& transfer) const {
  return {.kind = ErrorKind::kStopped,
          .doing = attempt_of(transfer).doing() + here_.title,
          .cause = kGroupDestroyed};
}

// Ends all transfers of this rank only: the group may still be intact.
void Mailbox::end_here() {
  is_over_ = true;
  while (!transfers_.empty()) {
    Transfer& transfer = transfers_.begin()->second;
    complete(transfer, destroyed(transfer));
  }
}

}  // namespace ddprun
