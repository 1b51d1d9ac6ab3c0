#include "worker_lib/cpu_group/transfers.h"

#include <algorithm>

#include "base/concat.h"
#include "worker_lib/collective/group_end.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_calls/chunked_call.h"

namespace ddprun {
namespace {

// One pass moves at most this much of one peer's stream, so that all peers get their turn.
constexpr std::size_t kBytesOfAPass = std::size_t{512} << 10;
constexpr int kFramesOfAPass = 256;

enum class What : std::uint32_t { kEager, kRts, kCts, kData, kFin, kCredit };

SleepState& sleep_state_of(const GroupTopology& here, int local) {
  return *reinterpret_cast<SleepState*>(here.memory + here.segment.ring(local, local));
}

}  // namespace

struct Transfers::Head {
  What what = What::kEager;
  std::int32_t tag = 0;
  std::uint64_t bytes = 0;  // of the message or the part; credit: the credit given back
  // data: the receiver's number; RTS, CTS, FIN: the sender's; eager: unused.
  std::uint64_t transfer = 0;
  std::uint64_t receive = 0;  // CTS: the receiver's number
};

// A message that came when no receive waited for it.
struct Transfers::Message {
  int source = -1;
  Head head;
  std::vector<char> body;     // of an eager message
  bool is_complete = true;    // the whole body has come
  std::uint64_t receive = 0;  // the receive that waits for the rest; 0: none
};

struct Transfers::Frame {
  Head head;
  std::span<const char> bytes;
  std::uint64_t transfer = 0;  // the transfer it belongs to; 0: none
  bool ends_it = false;
};

struct Transfers::Peer {
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

Transfers::Transfers(GroupCore& core, std::condition_variable& changed)
    : core_(core),
      here_(core.here()),
      sleep_state_(sleep_state_of(here_, here_.local)),
      changed_(changed) {
  for (int rank = 0; rank < here_.layout.world_size(); ++rank) {
    peers_.emplace_back();
    if (rank == here_.rank) continue;
    peers_.back() = std::make_unique<Peer>();
    Peer& peer = *peers_.back();
    peer.rank = rank;
    if (!here_.on_my_node(rank)) continue;
    peer.local = here_.layout.local_of[rank];
    const RingNeighbour other{sleep_state_of(here_, peer.local), core.wakeups(), peer.local};
    const SegmentLayout& segment = here_.segment;
    peer.out =
        write_ring(here_.memory + segment.ring(here_.local, peer.local), segment.ring_bytes, other);
    peer.in =
        read_ring(here_.memory + segment.ring(peer.local, here_.local), segment.ring_bytes, other);
  }
}

Transfers::~Transfers() = default;

Result<void> Transfers::post(Transfer& posted) {
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

Transfers::Ended Transfers::take_ended() {
  Ended one = std::move(ended_.front());
  ended_.pop_front();
  return one;
}

// --- between passes ---

bool Transfers::begin_sleep() {
  std::uint32_t state = SleepState::kAsleep;
  for (const auto& peer : peers_) {
    if (peer && peer->local >= 0 && peer->frame) state |= SleepState::kWaitsForRoom;
  }
  sleep_state_.state.store(state);
  return !is_worth_a_look();
}

void Transfers::end_sleep() { sleep_state_.state.store(SleepState::kAwake); }

// Returns whether something may have come since the last look. Ranks of this node notify this
// rank only while it sleeps.
bool Transfers::is_worth_a_look() const {
  if (core_.progress().failed()) return true;
  for (const auto& peer : peers_) {
    if (!peer || peer->local < 0) continue;
    if (peer->in->has_bytes() || (peer->frame && peer->out->has_room())) return true;
  }
  return false;
}

TimePoint Transfers::first_deadline(TimePoint latest) const {
  return deadlines_.empty() ? latest : std::min(latest, deadlines_.begin()->first);
}

void Transfers::add_polled(std::vector<pollfd>& polled) {
  const std::size_t before = polled.size();
  if (PeerListener* const listener = core_.listener()) listener->watch(polled);
  polled_.assign(polled.size() - before, nullptr);
  const auto add = [&](Peer& peer, int fd, short events) {
    polled.push_back({fd, events, 0});
    polled_.push_back(&peer);
  };
  for (const auto& peer : peers_) {
    if (!peer || peer->local >= 0) continue;
    if (peer->in && !peer->in_is_closed) add(*peer, peer->in->fd(), POLLIN);
    // Without a frame there is nothing to write now: the rest waits for credit.
    if (peer->frame && !peer->out_is_closed) add(*peer, peer->out->fd(), POLLOUT);
  }
}

void Transfers::take_events(std::span<const pollfd> events) {
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (events[i].revents == 0) continue;
    if (!polled_[i]) {
      may_have_connections_ = true;
    } else if (events[i].events == POLLIN) {
      polled_[i]->may_read = true;
    } else {
      polled_[i]->may_write = true;
    }
  }
}

// --- one pass ---

bool Transfers::step() {
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

void Transfers::end_failed(bool has_moved) {
  if (!is_over_ && !deadlines_.empty() && deadlines_.begin()->first <= BootClock::now())
    fail(*find(deadlines_.begin()->second), WaitEnd::kTimedOut);
  if (!has_moved) end_with_leavers();
}

// Ends a transfer whose partner has left. REQUIRES: a pass has just found nothing to move.
void Transfers::end_with_leavers() {
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
bool Transfers::is_gone(Peer& peer) {
  if (peer.local >= 0) return core_.progress().has_left(peer.local) && !peer.in->has_bytes();
  // Bytes that the peer sent earlier may arrive after the news that it no longer reads.
  if (peer.in) return peer.in_is_closed;
  if (!peer.out_is_closed && !core_.watch().has_left(peer.rank)) return false;
  admit();  // it may have connected before it left
  return !peer.in;
}

// --- out ---

bool Transfers::write(Peer& peer) {
  bool has_moved = false;
  std::size_t moved = 0;
  for (int frames = 0; frames < kFramesOfAPass && moved < kBytesOfAPass; ++frames) {
    if (!peer.may_write || peer.out_is_closed) return has_moved;
    if (!peer.frame) {
      const bool has_output = !peer.answers.empty() || !peer.sends.empty() || !peer.wanted.empty();
      if (!has_output || !connect(peer)) return has_moved;
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

std::optional<Transfers::Frame> Transfers::next_frame(Peer& peer) {
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

void Transfers::finish_frame(Peer& peer) {
  const Frame frame = std::move(*peer.frame);
  peer.frame.reset();
  if (frame.transfer == 0) return;
  Transfer& transfer = *find(frame.transfer);
  if (transfer.is_send) transfer.moved += frame.bytes.size();
  if (frame.ends_it) complete(transfer, transfer.flaw);
}

// Connects to a rank of another node when the first message is due. Returns false if the group
// has failed.
bool Transfers::connect(Peer& peer) {
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

bool Transfers::read(Peer& peer) {
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

void Transfers::handle(Peer& peer, const Head& head) {
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
void Transfers::finish_bytes(Peer& peer) {
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
void Transfers::take_eager(Peer& peer, Transfer& receive, const Head& head) {
  receive.source = peer.rank;
  receive.is_under_way = true;
  give_back(peer, head.bytes);
  peer.bytes_left = head.bytes;
  if (head.bytes != receive.bytes) return complete(receive, wrong_size(receive, head.bytes));
  if (head.bytes == 0) return complete(receive);
  peer.transfer = receive.number;
}

void Transfers::take_set_aside(Transfer& receive, std::map<MessageId, Message>::iterator at) {
  Message& message = at->second;
  Peer& peer = *peers_[message.source];
  receive.source = message.source;
  if (message.head.what == What::kRts) {
    const Head rts = message.head;
    set_aside_.erase(at);
    return take_rts(peer, receive, rts);
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

void Transfers::take_rts(Peer& peer, Transfer& receive, const Head& rts) {
  receive.source = peer.rank;
  receive.is_under_way = true;
  Frame frame{.head = {.what = What::kCts, .transfer = rts.transfer, .receive = receive.number}};
  if (rts.bytes != receive.bytes) receive.flaw = wrong_size(receive, rts.bytes);
  if (receive.flaw || rts.bytes == 0) {
    // The receive ends when the FIN has been written, because the sender waits for the FIN.
    frame = {.head = {.what = What::kFin, .transfer = rts.transfer},
             .transfer = receive.number,
             .ends_it = true};
  }
  peer.answers.push_back(frame);
}

// Gives credit back in large amounts, because each credit frame costs a header.
void Transfers::give_back(Peer& peer, std::size_t bytes) {
  peer.to_give_back += MessageCredit::cost_of(bytes);
  if (peer.to_give_back < MessageCredit::kBytes / 4) return;
  peer.answers.push_back({.head = {.what = What::kCredit, .bytes = peer.to_give_back}});
  peer.to_give_back = 0;
}

// Accepts the connections of ranks that begin to send to this rank.
void Transfers::admit() {
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

Transfers::Transfer* Transfers::find(std::uint64_t number) {
  const auto at = transfers_.find(number);
  return at == transfers_.end() ? nullptr : &at->second;
}

OperationContext Transfers::attempt_of(const Transfer& transfer) const {
  const bool is_send = transfer.is_send;
  std::string omission = is_send ? "did not receive it" : "did not send it";
  if (transfer.is_under_way) {
    omission = concat(is_send ? "received" : "sent", " only ", transfer.moved, " B of it");
  }
  const int partner = transfer.partner < 0 ? transfer.source : transfer.partner;
  if (partner < 0) omission = "no rank has sent it";
  return {.doing =
              [is_send, bytes = transfer.bytes, partner = transfer.partner, tag = transfer.tag] {
                return concat(is_send ? "send of " : "recv of ", bytes, " B",
                              is_send ? " to " : " from ",
                              partner < 0 ? "any rank" : name_rank(partner), " (tag ", tag, ")");
              },
          .deadline = transfer.deadline,
          .partner = partner,
          .omission = std::move(omission)};
}

Error Transfers::wrong_size(const Transfer& receive, std::size_t sent) const {
  const std::string whose = receive.partner < 0 ? " of " + name_rank(receive.source) : "";
  return invalid_argument(concat("the message", whose, " has ", sent, " B"))
      .within(attempt_of(receive).doing());
}

// Ends the transfer and removes it from transfers_: the reference is invalid afterwards.
void Transfers::complete(Transfer& transfer, std::optional<Error> failure) {
  const int partner = transfer.is_send ? transfer.partner : transfer.source;
  Result<Rank> result = failure ? Result<Rank>(std::move(*failure)) : Result<Rank>(Rank(partner));
  const bool is_awaited = transfer.answer != nullptr;
  if (is_awaited) {
    *transfer.answer = std::move(result);
  } else {
    ended_.push_back({std::move(transfer.done), std::move(result)});
    --called_back_for_;
  }
  deadlines_.erase({transfer.deadline.when(), transfer.number});
  transfers_.erase(transfer.number);
  if (is_awaited || transfers_.empty()) changed_.notify_all();
}

// Ends the transfer with `end`, which becomes the group's failure.
void Transfers::fail(Transfer& transfer, WaitEnd end) {
  const OperationContext attempt = attempt_of(transfer);
  const int node = attempt.partner < 0 ? -1 : here_.layout.node_of[attempt.partner];
  complete(transfer, core_.fail(attempt, end, node == here_.node ? -1 : node));
  end_all();
}

void Transfers::fail_all(ErrorKind kind, int peer_rank, const std::string& cause) {
  if (transfers_.empty()) {
    is_over_ = true;
    return core_.raise(kind, peer_rank, cause);
  }
  Transfer& first = transfers_.begin()->second;
  complete(first, core_.fail(attempt_of(first), kind, peer_rank, cause));
  end_all();
}

// Ends all transfers with error_of(transfer).
template <class ErrorOf>
void Transfers::end_each(ErrorOf error_of) {
  is_over_ = true;
  while (!transfers_.empty()) {
    Transfer& transfer = transfers_.begin()->second;
    complete(transfer, error_of(transfer));
  }
}

// Ends all transfers with the group's failure. REQUIRES: the group has failed.
void Transfers::end_all() {
  end_each([this](const Transfer& transfer) {
    return core_.fail(attempt_of(transfer), WaitEnd::kFailed);
  });
}

void Transfers::end_here() {
  end_each([this](const Transfer& transfer) { return destroyed(transfer); });
}

Error Transfers::destroyed(const Transfer& transfer) const {
  return {.kind = ErrorKind::kStopped,
          .doing = attempt_of(transfer).doing() + here_.title,
          .cause = kGroupDestroyed};
}

}  // namespace ddprun
