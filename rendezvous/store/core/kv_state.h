// KvState: the contents of a store, and the clients that wait for keys. This is the pure part of
// the store.
//
// Its caller passes one request after the other, each with its connection. It delivers the
// replies: to the connection that asked, and to connections whose wait has ended. KvState knows
// no clock (a client's deadline arrives as CANCEL_WAIT), no sockets and no bytes of requests.
//
// It holds
// ```
// values    key -> bytes; counters are decimal text, as PyTorch has them
// queues    key -> bytes, first in first out; never empty, and apart from the values of that name
// parked    connection -> its one WAIT, FETCH or BARRIER that has not been answered
// waits     ticket -> a WAIT or FETCH; tickets are numbered in order of arrival
// waiting   key -> the tickets of the WAITs that miss it
// barriers  key -> the connections whose BARRIER misses arrivals, by how many it needs
// ```
// with these invariants: no client waits for a key that has a value; a WAIT is in `waiting` once
// for each key it misses. So answering, cancelling and closing cost O(keys of that wait).
//
// No call takes long. A request that names many keys is performed in slices. What a request
// causes for many others is left for work(): answers to the waiters of one key, and the links of
// a cancelled wait. Other clients are served in between. Therefore:
// - A request of one slice (kSliceCost) is atomic. In a longer one, each key is read at its own
//   time. CHECK, MULTI_GET and TRY_FETCH are no snapshot. LIST_KEYS has every key once that
//   exists during the whole request; it may have keys that are added or deleted in the meantime.
// - A key of a WAIT counts if it existed when it was checked, or was added later. A FETCH
//   answers with a value that exists at that moment, or waits for the next one.
// - MULTI_SET begins when the whole request has arrived. It then stores all its pairs, once, in
//   order, even if its connection is closed in the meantime. Others may see some pairs before
//   the rest.
// - A waiter is answered soon after its key was added, but not always before the next request is
//   served.
//
// Semantics are those of docs/reference/wire_protocol.md ("The store"). Where PyTorch's two servers
// differ, that page says what ours does. One owner thread.
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

// Limits, inclusive.
struct KvLimits {
  // For a value in a reply, and for the reply of LIST_KEYS. A value that one request may set can
  // be read by another.
  std::size_t reply_bytes = 64 * 1024 * 1024;
  // For everything that is held: KvState::held_bytes().
  std::size_t held_bytes = 1024 * 1024 * 1024;
};

using StoreConnectionId = Id<struct StoreConnectionTag, std::uint64_t>;

// Replies: replies in the order in which they are sent. Adjacent bytes for one connection are
// one piece. It is reused from turn to turn to keep its memory.
class Replies {
 public:
  struct Piece {
    StoreConnectionId to;
    std::string_view bytes;
  };

  // Returns where the next reply to `id` is appended. Valid until the next call.
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

// Value: the value of a key. While a long value is being copied into a reply, in slices, a
// change replaces it instead of modifying it. So the reply continues with the old bytes, no
// matter what happens to the key.
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
  // Returns the shared bytes of a long value; null if the value is short.
  std::shared_ptr<const std::string> shared() const { return long_; }

 private:
  std::string short_;
  std::shared_ptr<std::string> long_;
};

class KvState {
 public:
  // The bytes that an entry counts in addition to its own, about its memory cost. An entry is a key
  // with its value, a queue, an item of a queue, or a key that one connection waits for.
  static constexpr std::size_t kEntryBytes = 128;

  // A slice costs at most this much, and one step more. A step is a check of a key, or a link
  // between a wait and a key. kBytesPerStep bytes of values cost one more. An answered wait
  // costs kStepsPerAnswer more, because the caller has to send.
  static constexpr std::size_t kSliceCost = 128;
  static constexpr std::size_t kBytesPerStep = 1024;
  static constexpr std::size_t kStepsPerAnswer = 4;

  // Progress: how much of a request has been performed.
  class Progress {
   public:
    bool done() const { return done_; }
    // Returns true if the request must go on although its connection was closed. A MULTI_SET or
    // the SET of a long value is completed once it has begun.
    bool must_go_on() const { return !done_ && stores_; }

   private:
    friend class KvState;
    bool done_ = false;
    std::size_t next_ = 0;                 // index of the string to handle next
    bool checked_ = false;                 // TRY_FETCH: all keys exist, and the reply says so
    std::optional<std::uint64_t> ticket_;  // of a WAIT that misses a key
    bool stores_ = false;                  // a MULTI_SET or the SET of a long value has begun
    std::size_t reserved_ = 0;             // bytes held for what is yet to be stored
    std::string incoming_;                 // the copied part of a long value
    std::shared_ptr<const std::string> outgoing_;  // the long value that is being copied
    std::size_t copied_ = 0;                       // how many bytes of it are in replies
    // For LIST_KEYS: the known part of its reply, in pieces.
    std::optional<std::string> last_key_;
    std::size_t listed_ = 0;
    std::size_t listed_bytes_ = 0;
    bool counted_ = false;  // all keys are collected, and their number is in the reply
    std::list<std::string> pieces_;
  };

  // identity: what the store answers about itself (kIdentityKey).
  explicit KvState(const KvLimits& limits = {}, std::string identity = {})
      : limits_(limits), identity_(std::move(identity)) {}

  // Performs one request, or its next slice. Call it again with the same request and progress
  // until that is done; other calls may come in between. Normally returns nullopt. Otherwise
  // returns why the connection must be closed; the request is then over and has changed nothing.
  // It never harms other connections. A request beyond a limit is refused before memory is
  // allocated for it.
  [[nodiscard]] std::optional<Refusal> handle(StoreConnectionId from, const Request& request,
                                              Progress& progress, Replies& replies);

  // Returns true if there is work that no request waits for. work() does one slice of it.
  bool has_work() const { return !woken_.empty() || !opened_.empty() || !given_up_.empty(); }
  void work(Replies& replies);

  // Drops the wait of a connection that is closed or no longer waits. Its keys stay.
  void give_up_wait(StoreConnectionId id);

  std::size_t key_count() const { return values_.size(); }
  std::size_t parked_count() const { return parked_.size(); }
  // Returns the bytes of all keys, values and queue items, and of the keys that are waited for,
  // once per waiting connection. Each of them also counts kEntryBytes.
  std::size_t held_bytes() const { return held_bytes_; }

 private:
  using MaybeRefusal = std::optional<Refusal>;
  // One call of handle().
  struct Turn {
    StoreConnectionId from;
    const Request& request;
    Progress& progress;
    Replies& replies;

    std::string_view key() const { return request.key(); }
    std::string_view value() const { return request.value(); }
    std::string& out() const { return replies.to(from); }
  };
  template <class T>
  // Ordered, because a rehash would stall all clients.
  using ByKey = std::map<std::string, T, std::less<>>;
  struct BarrierWaiter {
    StoreConnectionId id;
    std::uint64_t number;  // in order of arrival, over all barriers
  };
  using Barrier = std::multimap<std::int64_t, BarrierWaiter>;  // arrivals needed -> waiter
  using Ticket = std::uint64_t;

  // The waits that miss one key: ticket -> its index in Wait::missing.
  struct Waiters {
    std::map<Ticket, std::size_t> slots;
    const std::string* key = nullptr;
    bool woken = false;  // the key was added; the remaining waits are yet to be answered
  };
  struct Wait {
    // nullopt: it was cancelled, and its links are yet to be removed.
    std::optional<StoreConnectionId> by;
    bool whole = false;    // all its keys have been checked
    bool fetches = false;  // a FETCH: the value is part of the answer
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
    // barrier_waiters_ when it opened. A later waiter belongs to a new counter under the same key.
    std::uint64_t before;
  };

  MaybeRefusal get(const Turn& turn);
  MaybeRefusal get_at_once(const Turn& turn);
  MaybeRefusal compare_set(const Turn& turn);
  MaybeRefusal add(const Turn& turn);
  MaybeRefusal wait(const Turn& turn);
  MaybeRefusal multi_get(const Turn& turn);
  MaybeRefusal queue_pop(const Turn& turn);
  MaybeRefusal list_keys(const Turn& turn);
  MaybeRefusal collect_keys(const Turn& turn);
  MaybeRefusal barrier(const Turn& turn);
  MaybeRefusal fetch(const Turn& turn);
  MaybeRefusal try_fetch(const Turn& turn);
  void check(const Turn& turn);
  // Returns whether all keys exist; nullopt: the slice was used up before that is known.
  std::optional<bool> all_present(const Turn& turn);
  void begin_fetch(std::string_view key, Progress& progress, std::string& out);
  // Writes the whole answer at once.
  void answer_fetch(StoreConnectionId to, std::string_view key, Replies& replies);
  void delete_key(const Turn& turn);
  MaybeRefusal set_one(const Turn& turn);
  MaybeRefusal set_at_once(const Turn& turn);
  MaybeRefusal append(const Turn& turn);
  MaybeRefusal multi_set(const Turn& turn);
  MaybeRefusal queue_push(const Turn& turn);

  // Returns true if there is room for `more` bytes.
  bool fits(std::size_t more) const;
  MaybeRefusal full(const Turn& turn) const;
  MaybeRefusal too_long(const Turn& turn, std::size_t reply_bytes) const;
  // Returns a refusal if a reply cannot hold the value.
  MaybeRefusal too_long(const Turn& turn, const Value* value) const;
  bool has_room_to_set(std::string_view key, std::size_t value_bytes) const;

  bool present(std::string_view key) const;
  void set(std::string_view key, std::string value, Replies& replies);
  // Returns the value of the key; null: there is none.
  const Value* find(std::string_view key) const;
  // Copies the value into progress.incoming_, as far as the slice allows. Returns false if it is
  // incomplete.
  bool copy_in(std::string_view value, Progress& progress);
  // Begins the string of a reply: the whole of a short value, or the length of a long one.
  void begin_copy(const Value* value, Progress& progress, std::string& out);
  // Continues with a long value. Returns false if the slice is used up before its end.
  bool copy_out(const Turn& turn);
  void give_back(Progress& progress);
  // Returns the sum of the counter and `delta`; nullopt: the value of the key is not a number.
  std::optional<std::int64_t> sum_of(std::string_view key, std::int64_t delta) const;
  // Takes a step of the slice. Returns false if the slice is used up; the request is then not
  // done.
  bool step(Progress& progress);
  void spend(std::size_t steps) { cost_left_ -= std::min(cost_left_, steps); }

  void wake_all(std::string_view key, Replies& replies);
  void wake_oldest(std::string_view key, Replies& replies);
  // Continue with deferred work, as far as the slice allows.
  void answer_woken(Replies& replies);
  void answer_opened(Replies& replies);
  void cut_links();

  Ticket begin_wait(StoreConnectionId from, std::size_t keys);
  void end_wait(Ticket ticket);
  Wait& wait_of(Ticket ticket);
  void link(Ticket ticket, std::string_view key);
  // Removes the wait from the list of one key that it misses. The list may be empty then.
  void unlink(Wait& wait, Ticket ticket, std::size_t slot);
  // Tells the oldest waiter that its key was added. Returns false if that waiter had been
  // cancelled. A FETCH whose key was deleted again continues to wait.
  bool found(Waiters& waiters, Replies& replies);
  void unpark(StoreConnectionId id);
  // Releases the bytes of one link between a wait and this key.
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

  // Deferred work.
  std::multimap<std::string, Waiters, std::less<>> woken_;  // moved here from waiting_
  std::uint64_t barrier_waiters_ = 0;                       // in total, so far
  std::deque<OpenBarrier> opened_;
  std::deque<Ticket> given_up_;
  std::size_t cost_left_ = 0;  // of this slice
};

}  // namespace ddprun
