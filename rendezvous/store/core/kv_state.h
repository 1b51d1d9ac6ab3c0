// KvState: what a store holds, and who waits for what. The pure half of the store.
//
// A shell gives it one request after the other, each with the connection it came from, and delivers
// the replies that come out: to the connection that asked and to connections whose wait has ended.
// It knows no clock (a client's deadline reaches it as CANCEL_WAIT), no sockets and no bytes of
// requests.
//
// It holds
// ```
// values    key -> bytes; counters are decimal text, as PyTorch has them
// queues    key -> bytes, first in first out; never empty, and apart from the values of that name
// parked    connection -> the one WAIT, FETCH or BARRIER of it that has not been answered
// waits     ticket -> a WAIT or FETCH; tickets are given out in order of arrival
// waiting   key -> the tickets of the WAITs that miss it
// barriers  key -> the connections whose BARRIER misses arrivals, by how many it needs
// ```
// with these invariants: a key that has a value has nobody waiting for it; a WAIT stands in `waiting`
// once for each key it misses. So answering, cancelling and closing cost O(keys of that wait).
//
// Nothing takes long at once. A request that names many keys is performed in slices, and what follows
// from a request for many others (waiters of one key, the links of a wait that was given up) is left
// for work(). In between, others are served, so:
// - a request of one slice (kSliceCost) is one moment. Beyond, each key is looked at in its own:
//   CHECK, MULTI_GET and TRY_FETCH are no snapshot, and LIST_KEYS has every key once that is there all the
//   time, and may have those that come or go meanwhile;
// - a WAIT's key counts if it was there when it was looked at, or came later; a FETCH answers with a
//   value that is there at that moment, or waits for the next;
// - MULTI_SET begins when it has come as a whole, and then stores all its pairs, once, in order,
//   even if its connection is closed meanwhile; others may see some pairs before the rest;
// - who waits is told soon after the key has come, not always before the next request is served.
//
// Semantics are those of docs/wire_protocol.md ("The store"). Where PyTorch's two servers differ,
// the page says what we do. One owner thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun {

// Inclusive.
struct KvLimits {
  // Of a value in a reply, and of the reply of LIST_KEYS. What one request may set, another can read.
  std::size_t reply_bytes = 64 * 1024 * 1024;
  // Of everything that is held: KvState::held_bytes().
  std::size_t held_bytes = 1024 * 1024 * 1024;
};

using StoreConnectionId = Id<struct StoreConnectionTag, std::uint64_t>;

// Replies in the order in which they are to be sent; bytes for one connection that follow each
// other are one piece. Kept from turn to turn for its memory.
class Replies {
 public:
  struct Piece {
    StoreConnectionId to;
    std::string_view bytes;
  };

  // Where the next reply to `id` is appended. Valid until the next call.
  std::string& to(StoreConnectionId id) {
    if (starts_.empty() || starts_.back().to != id) starts_.push_back({id, bytes_.size()});
    return bytes_;
  }

  std::size_t bytes() const { return bytes_.size(); }
  std::size_t pieces() const { return starts_.size(); }
  Piece piece(std::size_t index) const;
  void clear();

 private:
  struct Start {
    StoreConnectionId to;
    std::size_t offset;
  };
  std::string bytes_;
  std::vector<Start> starts_;
};

// What a key holds. A long value that is being copied into a reply, in slices, is not changed but
// replaced: so the reply goes on with what it has begun, whatever happens to the key.
class Value {
 public:
  static constexpr std::size_t kLongBytes = 128 * 1024;

  explicit Value(std::string bytes) { *this = std::move(bytes); }
  Value& operator=(std::string bytes) {
    short_.clear();
    long_.reset();
    if (bytes.size() < kLongBytes) {
      short_ = std::move(bytes);
    } else {
      long_ = std::make_shared<std::string>(std::move(bytes));
    }
    return *this;
  }

  void append(std::string_view more) {
    if (long_ && long_.use_count() == 1) {
      long_->append(more);
    } else {
      *this = std::string(bytes()).append(more);
    }
  }

  std::string_view bytes() const { return long_ ? std::string_view(*long_) : short_; }
  std::size_t size() const { return bytes().size(); }
  // Null where the value is short.
  std::shared_ptr<const std::string> shared() const { return long_; }

 private:
  std::string short_;
  std::shared_ptr<std::string> long_;
};

class KvState {
 public:
  // What an entry counts beside its bytes, about what it costs to keep: a key with its value, a
  // queue, an item of one, a key that one connection waits for.
  static constexpr std::size_t kEntryBytes = 128;

  // A slice costs this much at most, and one step more: a step is a key that is looked at or a link
  // between a wait and a key; kBytesPerStep bytes of values are one more, a wait that is answered
  // kStepsPerAnswer more, because the shell has to send.
  static constexpr std::size_t kSliceCost = 128;
  static constexpr std::size_t kBytesPerStep = 1024;
  static constexpr std::size_t kStepsPerAnswer = 4;

  // How far a request has come.
  class Progress {
   public:
    bool done() const { return done_; }
    // Whether it must go on although its connection has been closed: what has begun to be stored is
    // stored whole.
    bool must_go_on() const { return !done_ && stores_; }

   private:
    friend class KvState;
    bool done_ = false;
    std::size_t next_ = 0;                 // the string whose turn it is
    bool checked_ = false;                 // of TRY_FETCH: all keys are there, and that is said
    std::optional<std::uint64_t> ticket_;  // of a WAIT that has missed a key
    bool stores_ = false;                  // it is a MULTI_SET or the SET of a long value
    std::size_t reserved_ = 0;             // bytes held for what is yet to be stored
    std::string incoming_;                 // a long value, as far as it has been copied
    std::shared_ptr<const std::string> outgoing_;  // the long value that is being copied
    std::size_t copied_ = 0;                       // bytes of it that are in replies already
    // Of LIST_KEYS: its reply, in pieces, as far as it is known.
    std::optional<std::string> last_key_;
    std::size_t listed_ = 0;
    std::size_t listed_bytes_ = 0;
    bool counted_ = false;  // all have been collected, and their number is sent
    std::list<std::string> pieces_;
  };

  // identity: what the store answers about itself (kIdentityKey).
  explicit KvState(const KvLimits& limits = {}, std::string identity = {})
      : limits_(limits), identity_(std::move(identity)) {}

  // Performs one request, or the next slice of it: to be called again with the same request and
  // progress until that is done, with other calls in between. Returns why the connection that asked
  // must be closed, nullopt normally; then the request is over and has changed nothing. Other
  // connections are never harmed. A request past a limit is refused before memory is taken for it.
  [[nodiscard]] std::optional<Refusal> handle(StoreConnectionId from, const Request& request,
                                              Progress& progress, Replies& replies);

  // Whether something is left over that no request is waiting for: a slice of it is done by work().
  bool has_work() const { return !woken_.empty() || !opened_.empty() || !given_up_.empty(); }
  void work(Replies& replies);

  // Forgets what the connection waits for, because it is closed or waits no more. Its keys stay.
  void give_up_wait(StoreConnectionId id);

  std::size_t key_count() const { return values_.size(); }
  std::size_t parked_count() const { return parked_.size(); }
  // The bytes of all keys, values and queue items, and of the keys that are waited for, once for
  // each connection that waits; and kEntryBytes for each of them.
  std::size_t held_bytes() const { return held_bytes_; }

 private:
  using MaybeRefusal = std::optional<Refusal>;
  template <class T>
  using ByKey = std::map<std::string, T, std::less<>>;  // ordered: no rehash stalls everybody
  struct BarrierWaiter {
    StoreConnectionId id;
    std::uint64_t number;  // in the order in which they came, over all barriers
  };
  using Barrier = std::multimap<std::int64_t, BarrierWaiter>;  // arrivals needed -> who needs them
  using Ticket = std::uint64_t;

  // Those who miss one key: ticket -> where it stands in Wait::missing.
  struct Waiters {
    std::map<Ticket, std::size_t> slots;
    const std::string* key = nullptr;
    bool woken = false;  // the key has come; those who are left here are yet to be told
  };
  struct Wait {
    std::optional<StoreConnectionId> by;  // nobody: it was given up, its links are yet to be cut
    bool whole = false;                   // all its keys have been looked at
    bool fetches = false;                 // a FETCH: the value is part of the answer
    std::vector<Waiters*> missing;
  };
  struct MissingArrivals {
    ByKey<Barrier>::iterator key;
    Barrier::iterator place;
  };
  struct Parked {
    std::optional<Ticket> wait;              // a WAIT or FETCH
    std::optional<MissingArrivals> barrier;  // or a BARRIER
  };
  struct OpenBarrier {
    std::string key;
    std::int64_t arrived;
    std::uint64_t before;  // of waiters: who came later waits at a new counter under the same key
  };

  MaybeRefusal get(StoreConnectionId from, const Request& request, Progress& progress,
                   Replies& replies);
  MaybeRefusal get_at_once(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal compare_set(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal add(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal wait(StoreConnectionId from, const Request& request, Progress& progress,
                    Replies& replies);
  MaybeRefusal multi_get(StoreConnectionId from, const Request& request, Progress& progress,
                         Replies& replies);
  MaybeRefusal queue_pop(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal list_keys(StoreConnectionId from, Progress& progress, Replies& replies);
  MaybeRefusal collect_keys(Progress& progress);
  MaybeRefusal barrier(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal fetch(StoreConnectionId from, const Request& request, Progress& progress,
                     Replies& replies);
  MaybeRefusal try_fetch(StoreConnectionId from, const Request& request, Progress& progress,
                         Replies& replies);
  void check(StoreConnectionId from, const Request& request, Progress& progress, Replies& replies);
  // Whether all keys are there; nullopt when the slice is used up before that is known.
  std::optional<bool> all_present(const Request& request, Progress& progress);
  void begin_fetch(std::string_view key, Progress& progress, std::string& out);
  // Whole, in one go.
  void answer_fetch(StoreConnectionId to, std::string_view key, Replies& replies);
  void delete_key(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal set_one(const Request& request, Progress& progress, Replies& replies);
  MaybeRefusal set_at_once(const Request& request, Replies& replies);
  MaybeRefusal append(const Request& request, Replies& replies);
  MaybeRefusal multi_set(const Request& request, Progress& progress, Replies& replies);
  MaybeRefusal queue_push(const Request& request, Replies& replies);

  // Whether there is room for so many bytes more.
  bool fits(std::size_t more) const;
  MaybeRefusal full(Command command) const;
  MaybeRefusal too_long(Command command, std::size_t reply_bytes) const;
  // Where a reply cannot hold the value.
  MaybeRefusal too_long(Command command, const Value* value) const;
  bool has_room_to_set(std::string_view key, std::size_t value_bytes) const;

  bool present(std::string_view key) const;
  void set(std::string_view key, std::string value, Replies& replies);
  // The value under the key; null: there is none.
  const Value* find(std::string_view key) const;
  // Takes the value into progress.incoming_, as far as the slice reaches. False: not all of it.
  bool copy_in(std::string_view value, Progress& progress);
  // Begins the string of a reply: a short value whole, a long one with its length.
  void begin_copy(const Value* value, Progress& progress, std::string& out);
  // Goes on with a long value. False: the slice is used up before its end.
  bool copy_out(StoreConnectionId to, Progress& progress, Replies& replies);
  void give_back(Progress& progress);
  // What ADD makes of the counter under the key; nullopt when it holds no number.
  std::optional<std::int64_t> sum_of(std::string_view key, std::int64_t delta) const;
  // Takes a step of the slice. False: the slice is used up, and the request is not done.
  bool step(Progress& progress);
  void spend(std::size_t steps) { cost_left_ -= std::min(cost_left_, steps); }

  void wake_all(std::string_view key, Replies& replies);
  void wake_oldest(std::string_view key, Replies& replies);
  // Go on with what is left over, as far as the slice reaches.
  void tell_woken(Replies& replies);
  void tell_opened(Replies& replies);
  void cut_links();

  Ticket begin_wait(StoreConnectionId from, std::size_t keys);
  void end_wait(Ticket ticket);
  Wait& wait_of(Ticket ticket);
  void link(Ticket ticket, std::string_view key);
  // Takes the wait out of the list of one key that it misses; that list may be empty then.
  void unlink(Wait& wait, Ticket ticket, std::size_t slot);
  // The key has come for the oldest of its waiters. False when that one had given up. A FETCH whose
  // key has gone again by now goes on waiting.
  bool found(Waiters& waiters, Replies& replies);
  void unpark(StoreConnectionId id);
  // One link of a wait to this key is gone.
  void forget(std::string_view key) { held_bytes_ -= key.size() + kEntryBytes; }

  KvLimits limits_;
  std::string identity_;
  std::size_t held_bytes_ = 0;
  ByKey<Value> values_;
  ByKey<std::list<std::string>> queues_;  // a deque takes 600 bytes for its first item
  std::unordered_map<std::uint64_t, Parked> parked_;
  std::map<Ticket, Wait> waits_;
  Ticket next_ticket_ = 1;
  ByKey<Waiters> waiting_;
  ByKey<Barrier> barriers_;

  // What is left over.
  std::multimap<std::string, Waiters, std::less<>> woken_;  // moved here from waiting_
  std::uint64_t barrier_waiters_ = 0;                       // ever
  std::deque<OpenBarrier> opened_;
  std::deque<Ticket> given_up_;
  std::size_t cost_left_ = 0;  // of this slice
};

}  // namespace ddprun
