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
// parked    connection -> the one WAIT or BARRIER of it that has not been answered
// waiting   key -> the connections whose WAIT misses it, oldest first
// barriers  key -> the connections whose BARRIER misses arrivals, by how many it needs
// ```
// with these invariants: a key that has a value has nobody waiting for it; a parked WAIT stands in
// `waiting` once for each key it misses, and misses at least one; nothing stands in `waiting` or
// `barriers` that is not parked. So answering, cancelling and closing cost O(keys of that wait).
//
// Semantics are those of docs/wire_protocol.md ("The store"). Where PyTorch's two servers differ,
// the page says what we do. One owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/ids.h"
#include "rendezvous/core/wire_format.h"

namespace ddprun {

// Inclusive.
struct KvLimits {
  // Of a single reply. What one request may set, another can read.
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

class KvState {
 public:
  // What an entry counts beside its bytes, about what it costs to keep: a key with its value, a
  // queue, an item of one, a key that one connection waits for.
  static constexpr std::size_t kEntryBytes = 128;

  explicit KvState(const KvLimits& limits = {}) : limits_(limits) {}

  // Performs one request. Returns why the connection that asked must be closed, nullopt normally;
  // then the request has changed nothing. Other connections are never harmed. A request past a limit
  // is refused before any memory is taken for it.
  [[nodiscard]] std::optional<Refusal> handle(StoreConnectionId from, const Request& request,
                                              Replies& replies);

  // Forgets what the connection waits for, because it is closed or waits no more. Its keys stay.
  void give_up_wait(StoreConnectionId id) { unpark(id); }

  std::size_t key_count() const { return values_.size(); }
  std::size_t parked_count() const { return parked_.size(); }
  // The bytes of all keys, values and queue items, and of the keys that are waited for, once for
  // each connection that waits; and kEntryBytes for each of them.
  std::size_t held_bytes() const { return held_bytes_; }

 private:
  using MaybeRefusal = std::optional<Refusal>;
  template <class T>
  using ByKey = std::map<std::string, T, std::less<>>;  // ordered: no rehash stalls everybody
  using Barrier =
      std::multimap<std::int64_t, StoreConnectionId>;  // arrivals needed -> who needs them

  struct Waiter {
    StoreConnectionId id;
    std::size_t slot;  // of Parked::missing
  };
  using Waiters = std::list<Waiter>;

  struct MissingKey {
    ByKey<Waiters>::iterator key;
    Waiters::iterator place;
  };
  struct MissingArrivals {
    ByKey<Barrier>::iterator key;
    Barrier::iterator place;
  };
  struct Parked {
    std::vector<MissingKey> missing;         // of a WAIT
    std::optional<MissingArrivals> barrier;  // of a BARRIER
  };

  MaybeRefusal get(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal compare_set(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal add(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal wait(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal multi_get(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal queue_pop(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal list_keys(StoreConnectionId from, Replies& replies);
  MaybeRefusal barrier(StoreConnectionId from, const Request& request, Replies& replies);
  void check(StoreConnectionId from, const Request& request, Replies& replies);
  void delete_key(StoreConnectionId from, const Request& request, Replies& replies);
  MaybeRefusal set_one(const Request& request, Replies& replies);
  MaybeRefusal append(const Request& request, Replies& replies);
  MaybeRefusal multi_set(const Request& request, Replies& replies);
  MaybeRefusal queue_push(const Request& request, Replies& replies);

  // Whether there is room for so many bytes more.
  bool fits(std::size_t more) const;
  MaybeRefusal full(Command command) const;
  MaybeRefusal too_long(Command command, std::size_t reply_bytes) const;
  bool has_room_to_set(std::string_view key, std::size_t value_bytes) const;

  bool present(std::string_view key) const;
  void set(std::string_view key, std::string_view value, Replies& replies);
  // What ADD makes of the counter under the key; nullopt when it holds no number.
  std::optional<std::int64_t> sum_of(std::string_view key, std::int64_t delta) const;
  void wake_all(std::string_view key, Replies& replies);
  void wake_oldest(std::string_view key, Replies& replies);
  // One key less to wait for; answers the connection when it was the last one.
  void found(const Waiter& waiter, Replies& replies);
  void park(StoreConnectionId from, const Request& request);
  // The one link of the wait that leads to this key is gone.
  void forget(std::string_view key) { held_bytes_ -= key.size() + kEntryBytes; }
  void unpark(StoreConnectionId id);

  KvLimits limits_;
  std::size_t held_bytes_ = 0;
  ByKey<std::string> values_;
  ByKey<std::list<std::string>> queues_;  // a deque takes 600 bytes for its first item
  std::unordered_map<std::uint64_t, Parked> parked_;
  ByKey<Waiters> waiting_;
  ByKey<Barrier> barriers_;
};

}  // namespace ddprun
