#include "rendezvous/core/kv_state.h"

#include <charconv>

#include "base/assert.h"

namespace ddprun {
namespace {

// What WAIT, CHECK and BARRIER answer.
constexpr std::uint8_t kReady = 0;
constexpr std::uint8_t kNotReady = 1;
// What CANCEL_WAIT answers.
constexpr std::uint8_t kCancelled = 1;
// What WATCH_KEY answers.
constexpr std::uint8_t kWatching = 3;

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
// Memory that Replies keeps for the next turn.
constexpr std::size_t kKeptReplyBytes = 256 * 1024;

// The integer at the beginning of the text, as C's strtoll reads it: white space, a sign, digits,
// and whatever follows. nullopt: there is none, or it does not fit.
std::optional<std::int64_t> leading_integer(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\n\v\f\r");
  if (begin == std::string_view::npos) return std::nullopt;
  text.remove_prefix(begin);
  if (text.starts_with("+") && !text.starts_with("+-")) text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}

std::int64_t wrapping_sum(std::int64_t a, std::int64_t b) {
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
}

Refusal refusal_of(Refusal::Kind kind, Command command, const std::string& reason) {
  return {kind, std::string(rule_of(command).name) + ": " + reason};
}

Refusal no_number(Command command) {
  return refusal_of(Refusal::kBadRequest, command, "the key holds no number");
}

Refusal waits_already(Command command) {
  return refusal_of(Refusal::kBadRequest, command, "this connection is waiting already");
}

}  // namespace

Replies::Piece Replies::piece(std::size_t index) const {
  const std::size_t begin = starts_[index].offset;
  const std::size_t end = index + 1 < starts_.size() ? starts_[index + 1].offset : bytes_.size();
  return {starts_[index].to, std::string_view(bytes_).substr(begin, end - begin)};
}

void Replies::clear() {
  starts_.clear();
  bytes_.clear();
  if (bytes_.capacity() > kKeptReplyBytes) bytes_.shrink_to_fit();
}

std::optional<Refusal> KvState::handle(StoreConnectionId from, const Request& request,
                                       Replies& replies) {
  switch (request.command) {
    case Command::kValidate: break;
    case Command::kPing:
      put_u32(replies.to(from), static_cast<std::uint32_t>(request.number));
      break;
    case Command::kSet: return set_one(request, replies);
    case Command::kCompareSet: return compare_set(from, request, replies);
    case Command::kGet: return get(from, request, replies);
    case Command::kAdd: return add(from, request, replies);
    case Command::kCheck: check(from, request, replies); break;
    case Command::kWait: return wait(from, request, replies);
    case Command::kCancelWait:
      unpark(from);
      put_u8(replies.to(from), kCancelled);
      break;
    case Command::kGetNumKeys: put_u64(replies.to(from), values_.size()); break;
    case Command::kDeleteKey: delete_key(from, request, replies); break;
    case Command::kAppend: return append(request, replies);
    case Command::kMultiGet: return multi_get(from, request, replies);
    case Command::kMultiSet: return multi_set(request, replies);
    case Command::kQueuePush: return queue_push(request, replies);
    case Command::kQueuePop: return queue_pop(from, request, replies);
    case Command::kQueueLen: {
      const auto queue = queues_.find(request.key());
      put_u64(replies.to(from), queue == queues_.end() ? 0 : queue->second.size());
      break;
    }
    case Command::kListKeys: return list_keys(from, replies);
    case Command::kBarrier: return barrier(from, request, replies);
    // Of L1, which nobody but C++ code could call. The key is not watched: no change is ever told.
    case Command::kWatchKey: put_u8(replies.to(from), kWatching); break;
  }
  return std::nullopt;
}

bool KvState::present(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool KvState::fits(std::size_t more) const {
  return held_bytes_ <= limits_.held_bytes && more <= limits_.held_bytes - held_bytes_;
}

KvState::MaybeRefusal KvState::full(Command command) const {
  return refusal_of(Refusal::kHeldLimit, command,
                    "the store holds " + std::to_string(held_bytes_) + " bytes, at most " +
                        std::to_string(limits_.held_bytes) + " are held");
}

KvState::MaybeRefusal KvState::too_long(Command command, std::size_t reply_bytes) const {
  return refusal_of(Refusal::kReplyLimit, command,
                    "a reply of " + std::to_string(reply_bytes) + " bytes, at most " +
                        std::to_string(limits_.reply_bytes) + " are sent");
}

bool KvState::has_room_to_set(std::string_view key, std::size_t value_bytes) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return fits(key.size() + value_bytes + kEntryBytes);
  return value_bytes <= place->second.size() || fits(value_bytes - place->second.size());
}

void KvState::set(std::string_view key, std::string_view value, Replies& replies) {
  const auto place = values_.lower_bound(key);
  if (place != values_.end() && place->first == key) {
    const std::size_t before = place->second.size();
    place->second = value;
    held_bytes_ = held_bytes_ - before + value.size();
    return;
  }
  values_.emplace_hint(place, key, value);
  held_bytes_ += key.size() + value.size() + kEntryBytes;
  wake_all(key, replies);
}

KvState::MaybeRefusal KvState::set_one(const Request& request, Replies& replies) {
  if (!has_room_to_set(request.key(), request.value().size())) return full(request.command);
  set(request.key(), request.value(), replies);
  return std::nullopt;
}

KvState::MaybeRefusal KvState::append(const Request& request, Replies& replies) {
  const auto place = values_.find(request.key());
  if (place == values_.end()) return set_one(request, replies);
  if (!fits(request.value().size())) return full(request.command);
  place->second += request.value();
  held_bytes_ += request.value().size();
  return std::nullopt;
}

// There must be room for all pairs as if nothing were overwritten: what the request names twice, and
// what it finds when a pair's turn comes, need not be known in advance.
KvState::MaybeRefusal KvState::multi_set(const Request& request, Replies& replies) {
  std::size_t needed = 0;
  for (const std::string_view text : request.strings) needed += text.size();
  needed += request.strings.size() / 2 * kEntryBytes;
  if (!fits(needed)) return full(request.command);
  for (std::size_t i = 0; i < request.strings.size(); i += 2) {
    set(request.strings[i], request.strings[i + 1], replies);
  }
  return std::nullopt;
}

// A missing key answers with an empty value, as PyTorch's libuv server does; its other one hangs
// up.
KvState::MaybeRefusal KvState::get(StoreConnectionId from, const Request& request,
                                   Replies& replies) {
  const auto place = values_.find(request.key());
  const std::string_view value = place == values_.end() ? std::string_view() : place->second;
  if (kLengthBytes + value.size() > limits_.reply_bytes) {
    return too_long(request.command, kLengthBytes + value.size());
  }
  put_string(replies.to(from), value);
  return std::nullopt;
}

KvState::MaybeRefusal KvState::compare_set(StoreConnectionId from, const Request& request,
                                           Replies& replies) {
  const std::string_view expected = request.strings[1];
  const std::string_view desired = request.strings[2];
  const auto place = values_.find(request.key());
  const bool exists = place != values_.end();
  if (exists ? place->second == expected : expected.empty()) {
    if (kLengthBytes + desired.size() > limits_.reply_bytes) {
      return too_long(request.command, kLengthBytes + desired.size());
    }
    if (!has_room_to_set(request.key(), desired.size())) return full(request.command);
    set(request.key(), desired, replies);
  } else if (!exists) {
    put_string(replies.to(from), expected);  // nothing is stored: PyTorch's way to say so
    return std::nullopt;
  }
  return get(from, request, replies);
}

std::optional<std::int64_t> KvState::sum_of(std::string_view key, std::int64_t delta) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return delta;
  const std::optional<std::int64_t> value = leading_integer(place->second);
  if (!value) return std::nullopt;
  return wrapping_sum(*value, delta);
}

KvState::MaybeRefusal KvState::add(StoreConnectionId from, const Request& request,
                                   Replies& replies) {
  const std::optional<std::int64_t> sum = sum_of(request.key(), request.number);
  if (!sum) return no_number(request.command);
  const std::string text = std::to_string(*sum);
  if (!has_room_to_set(request.key(), text.size())) return full(request.command);
  set(request.key(), text, replies);
  put_i64(replies.to(from), *sum);
  return std::nullopt;
}

void KvState::check(StoreConnectionId from, const Request& request, Replies& replies) {
  bool all = true;
  for (const std::string_view key : request.strings) all = all && present(key);
  put_u8(replies.to(from), all ? kReady : kNotReady);
}

void KvState::delete_key(StoreConnectionId from, const Request& request, Replies& replies) {
  const auto place = values_.find(request.key());
  const bool existed = place != values_.end();
  if (existed) {
    held_bytes_ -= place->first.size() + place->second.size() + kEntryBytes;
    values_.erase(place);
  }
  put_i64(replies.to(from), existed ? 1 : 0);
}

KvState::MaybeRefusal KvState::multi_get(StoreConnectionId from, const Request& request,
                                         Replies& replies) {
  std::vector<std::string_view> found_values;
  std::size_t bytes = 0;
  for (const std::string_view key : request.strings) {
    const auto place = values_.find(key);
    found_values.push_back(place == values_.end() ? std::string_view() : place->second);
    bytes += kLengthBytes + found_values.back().size();
  }
  if (bytes > limits_.reply_bytes) return too_long(request.command, bytes);
  for (const std::string_view value : found_values) put_string(replies.to(from), value);
  return std::nullopt;
}

KvState::MaybeRefusal KvState::list_keys(StoreConnectionId from, Replies& replies) {
  std::size_t bytes = kLengthBytes;
  for (const auto& [key, value] : values_) bytes += kLengthBytes + key.size();
  if (bytes > limits_.reply_bytes) return too_long(Command::kListKeys, bytes);
  std::string& out = replies.to(from);
  put_u64(out, values_.size());
  for (const auto& [key, value] : values_) put_string(out, key);
  return std::nullopt;
}

KvState::MaybeRefusal KvState::queue_push(const Request& request, Replies& replies) {
  const auto place = queues_.find(request.key());
  const std::size_t of_queue = place == queues_.end() ? request.key().size() + kEntryBytes : 0;
  const std::size_t more = of_queue + request.value().size() + kEntryBytes;
  if (!fits(more)) return full(request.command);
  std::list<std::string> item{std::string(request.value())};
  auto& queue = place == queues_.end() ? queues_[std::string(request.key())] : place->second;
  queue.splice(queue.end(), item);
  held_bytes_ += more;
  wake_oldest(request.key(), replies);
  return std::nullopt;
}

// The length before the pop, and the value if there was one.
KvState::MaybeRefusal KvState::queue_pop(StoreConnectionId from, const Request& request,
                                         Replies& replies) {
  const auto queue = queues_.find(request.key());
  const std::size_t length = queue == queues_.end() ? 0 : queue->second.size();
  std::string& out = replies.to(from);
  put_u64(out, length);
  if (length == 0) return std::nullopt;
  put_string(out, queue->second.front());
  held_bytes_ -= queue->second.front().size() + kEntryBytes;
  queue->second.pop_front();
  if (queue->second.empty()) {
    held_bytes_ -= queue->first.size() + kEntryBytes;
    queues_.erase(queue);
  }
  return std::nullopt;
}

KvState::MaybeRefusal KvState::wait(StoreConnectionId from, const Request& request,
                                    Replies& replies) {
  bool ready = true;
  for (const std::string_view key : request.strings) ready = ready && present(key);
  if (ready) {
    put_u8(replies.to(from), kReady);
    return std::nullopt;
  }
  // No client does this, and the answers could not be told apart.
  if (parked_.contains(from.value)) return waits_already(request.command);
  park(from, request);
  if (held_bytes_ <= limits_.held_bytes) return std::nullopt;
  // Only now is it known which keys are missing, and each once.
  const MaybeRefusal refusal = full(request.command);
  unpark(from);
  return refusal;
}

void KvState::park(StoreConnectionId from, const Request& request) {
  Parked& parked = parked_[from.value];
  parked.missing.reserve(request.strings.size());
  for (const std::string_view key : request.strings) {
    if (present(key)) continue;
    // Every allocation comes before the first link, so that a failed one leaves no half of a link.
    Waiters one{{from, parked.missing.size()}};
    const auto place = waiting_.try_emplace(std::string(key)).first;
    Waiters& waiters = place->second;
    if (!waiters.empty() && waiters.back().id == from) continue;  // the same key twice in one WAIT
    waiters.splice(waiters.end(), one);
    parked.missing.push_back({place, std::prev(waiters.end())});
    held_bytes_ += key.size() + kEntryBytes;
  }
}

void KvState::wake_all(std::string_view key, Replies& replies) {
  const auto place = waiting_.find(key);
  if (place == waiting_.end()) return;
  for (const Waiter& waiter : place->second) found(waiter, replies);
  waiting_.erase(place);
}

void KvState::wake_oldest(std::string_view key, Replies& replies) {
  const auto place = waiting_.find(key);
  if (place == waiting_.end()) return;
  found(place->second.front(), replies);
  place->second.pop_front();
  if (place->second.empty()) waiting_.erase(place);
}

void KvState::found(const Waiter& waiter, Replies& replies) {
  const auto parked = parked_.find(waiter.id.value);
  DDPRUN_ASSERT(parked != parked_.end(), "who stands in a waiting list is parked");
  std::vector<MissingKey>& missing = parked->second.missing;
  DDPRUN_ASSERT(waiter.slot < missing.size() && &*missing[waiter.slot].place == &waiter,
                "list and wait point at each other");
  forget(missing[waiter.slot].key->first);
  missing.back().place->slot = waiter.slot;
  missing[waiter.slot] = missing.back();
  missing.pop_back();
  if (!missing.empty()) return;
  parked_.erase(parked);
  put_u8(replies.to(waiter.id), kReady);
}

KvState::MaybeRefusal KvState::barrier(StoreConnectionId from, const Request& request,
                                       Replies& replies) {
  const std::string_view name = request.key();
  if (parked_.contains(from.value)) return waits_already(request.command);
  const std::optional<std::int64_t> arrived = sum_of(name, 1);
  if (!arrived) return no_number(request.command);
  const std::string count = std::to_string(*arrived);
  // As if the counter were new, and the connection had to wait.
  if (!fits(2 * (name.size() + kEntryBytes) + count.size())) return full(request.command);
  set(name, count, replies);
  const auto place = barriers_.find(name);
  if (*arrived < request.number) {
    const auto key =
        place != barriers_.end() ? place : barriers_.try_emplace(std::string(name)).first;
    parked_[from.value].barrier = {key, key->second.emplace(request.number, from)};
    held_bytes_ += name.size() + kEntryBytes;
    return std::nullopt;
  }
  put_u8(replies.to(from), kReady);
  if (place == barriers_.end()) return std::nullopt;
  const auto end = place->second.upper_bound(*arrived);
  for (auto it = place->second.begin(); it != end; ++it) {
    parked_.erase(it->second.value);
    forget(place->first);
    put_u8(replies.to(it->second), kReady);
  }
  place->second.erase(place->second.begin(), end);
  if (place->second.empty()) barriers_.erase(place);
  return std::nullopt;
}

void KvState::unpark(StoreConnectionId id) {
  const auto parked = parked_.find(id.value);
  if (parked == parked_.end()) return;
  for (const MissingKey& missing : parked->second.missing) {
    forget(missing.key->first);
    missing.key->second.erase(missing.place);
    if (missing.key->second.empty()) waiting_.erase(missing.key);
  }
  if (const auto& barrier = parked->second.barrier) {
    forget(barrier->key->first);
    barrier->key->second.erase(barrier->place);
    if (barrier->key->second.empty()) barriers_.erase(barrier->key);
  }
  parked_.erase(parked);
}

}  // namespace ddprun
