#include "rendezvous/store/core/kv_state.h"

#include <charconv>
#include <new>

#include "base/assert.h"
#include "base/concat.h"

namespace ddprun {
namespace {

constexpr std::size_t kLengthBytes = sizeof(std::uint64_t);
// Memory that Replies keeps for the next turn.
constexpr std::size_t kKeptReplyBytes = 256 * 1024;

// Returns the integer at the beginning of the text, as C's strtoll reads it: white space, a
// sign, digits, and any text after them. nullopt: there is none, or it does not fit.
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

Refusal make_refusal(Refusal::Kind kind, const Request& request, const std::string& reason) {
  return {kind, concat(rule_of(request.command).name, ": ", reason)};
}

Refusal no_number(const Request& request) {
  return make_refusal(Refusal::kBadRequest, request, "the value of the key is not a number");
}

Refusal waits_already(const Request& request) {
  return make_refusal(Refusal::kBadRequest, request, "this connection is already waiting");
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
                                       Progress& progress, Replies& replies) {
  using enum Command;
  cost_left_ = kSliceCost;
  progress.done_ = true;  // requests that are cut into slices clear it
  const Turn turn{from, request, progress, replies};
  switch (request.command) {
    case kValidate: break;
    case kPing: put_u32(turn.out(), static_cast<std::uint32_t>(request.number)); break;
    case kSet: return set_one(turn);
    case kCompareSet: return compare_set(turn);
    case kGet: return get(turn);
    case kAdd: return add(turn);
    case kCheck: check(turn); break;
    case kWait: return wait(turn);
    case kCancelWait:
      unpark(from);
      put_u8(turn.out(), kAnswerCancelled);
      break;
    case kGetNumKeys: put_u64(turn.out(), values_.size()); break;
    case kDeleteKey: delete_key(turn); break;
    case kAppend: return append(turn);
    case kMultiGet: return multi_get(turn);
    case kMultiSet: return multi_set(turn);
    case kQueuePush: return queue_push(turn);
    case kQueuePop: return queue_pop(turn);
    case kQueueLen: {
      const auto queue = queues_.find(request.key());
      put_u64(turn.out(), queue == queues_.end() ? 0 : queue->second.size());
      break;
    }
    case kListKeys: return list_keys(turn);
    case kBarrier: return barrier(turn);
    // WATCH_KEY exists only in L1, and only C++ code could call it. The key is not watched:
    // changes are never reported.
    case kWatchKey: put_u8(turn.out(), kAnswerWatching); break;
    case kFetch: return fetch(turn);
    case kTryFetch: return try_fetch(turn);
  }
  return std::nullopt;
}

void KvState::work(Replies& replies) {
  cost_left_ = kSliceCost;
  answer_woken(replies);
  answer_opened(replies);
  cut_links();
}

void KvState::give_up_wait(StoreConnectionId id) {
  cost_left_ = kSliceCost;
  unpark(id);
}

bool KvState::step(Progress& progress) {
  progress.done_ = cost_left_ > 0;
  spend(1);
  return progress.done_;
}

bool KvState::present(std::string_view key) const {
  return values_.contains(key) || queues_.contains(key);
}

bool KvState::fits(std::size_t more) const {
  return held_bytes_ <= limits_.held_bytes && more <= limits_.held_bytes - held_bytes_;
}

KvState::MaybeRefusal KvState::full(const Turn& turn) const {
  return make_refusal(
      Refusal::kHeldLimit, turn.request,
      concat("the store holds ", held_bytes_, " bytes (at most ", limits_.held_bytes, ")"));
}

KvState::MaybeRefusal KvState::too_long(const Turn& turn, const Value* value) const {
  const std::size_t reply_bytes = kLengthBytes + (value ? value->size() : 0);
  return reply_bytes > limits_.reply_bytes ? too_long(turn, reply_bytes) : std::nullopt;
}

KvState::MaybeRefusal KvState::too_long(const Turn& turn, std::size_t reply_bytes) const {
  return make_refusal(
      Refusal::kReplyLimit, turn.request,
      concat("a reply of ", reply_bytes, " bytes (at most ", limits_.reply_bytes, ")"));
}

bool KvState::has_room_to_set(std::string_view key, std::size_t value_bytes) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return fits(key.size() + value_bytes + kEntryBytes);
  return value_bytes <= place->second.size() || fits(value_bytes - place->second.size());
}

void KvState::set(std::string_view key, std::string value, Replies& replies) {
  const std::size_t size = value.size();
  const auto place = values_.lower_bound(key);
  if (place != values_.end() && place->first == key) {
    const std::size_t before = place->second.size();
    place->second = std::move(value);
    held_bytes_ = held_bytes_ - before + size;
    return;
  }
  values_.emplace_hint(place, key, std::move(value));
  held_bytes_ += key.size() + size + kEntryBytes;
  wake_all(key, replies);
}

const Value* KvState::find(std::string_view key) const {
  const auto place = values_.find(key);
  return place == values_.end() ? nullptr : &place->second;
}

bool KvState::copy_in(std::string_view value, Progress& progress) {
  std::string& copy = progress.incoming_;
  if (value.size() < Value::kLongBytes) {
    spend(value.size() / kBytesPerStep);
    copy = value;
    return true;
  }
  copy.reserve(value.size());
  while (copy.size() < value.size()) {
    if (!step(progress)) return false;
    const std::size_t steps = std::min(cost_left_, (value.size() - copy.size()) / kBytesPerStep);
    spend(steps);
    copy += value.substr(copy.size(), (1 + steps) * kBytesPerStep);
  }
  return true;
}

void KvState::begin_copy(const Value* value, Progress& progress, std::string& out) {
  if (!value || !value->shared()) {
    const std::string_view bytes = value ? value->bytes() : std::string_view();
    spend(bytes.size() / kBytesPerStep);
    return put_string(out, bytes);
  }
  put_u64(out, value->size());
  progress.outgoing_ = value->shared();
  progress.copied_ = 0;
}

bool KvState::copy_out(const Turn& turn) {
  Progress& progress = turn.progress;
  if (!progress.outgoing_) return true;
  const std::string_view value = *progress.outgoing_;
  while (progress.copied_ < value.size()) {
    if (!step(progress)) return false;
    const std::size_t steps =
        std::min(cost_left_, (value.size() - progress.copied_) / kBytesPerStep);
    spend(steps);
    const std::string_view piece = value.substr(progress.copied_, (1 + steps) * kBytesPerStep);
    turn.out() += piece;
    progress.copied_ += piece.size();
  }
  progress.outgoing_.reset();
  return true;
}

void KvState::give_back(Progress& progress) {
  held_bytes_ -= std::exchange(progress.reserved_, 0);
  progress.stores_ = false;
}

// Stores a long value as a MULTI_SET does, if there is room for it in addition to the old value.
KvState::MaybeRefusal KvState::set_one(const Turn& turn) {
  const std::size_t needed = turn.key().size() + turn.value().size() + kEntryBytes;
  const bool is_long = turn.value().size() >= Value::kLongBytes;
  if (turn.progress.stores_ || (is_long && fits(needed))) return multi_set(turn);
  return set_at_once(turn);
}

KvState::MaybeRefusal KvState::set_at_once(const Turn& turn) {
  if (!has_room_to_set(turn.key(), turn.value().size())) return full(turn);
  set(turn.key(), std::string(turn.value()), turn.replies);
  return std::nullopt;
}

KvState::MaybeRefusal KvState::append(const Turn& turn) {
  const auto place = values_.find(turn.key());
  if (place == values_.end()) return set_at_once(turn);
  if (!fits(turn.value().size())) return full(turn);
  place->second.append(turn.value());
  held_bytes_ += turn.value().size();
  return std::nullopt;
}

// Requires room for all pairs as if no key were overwritten. So it need not know which keys the
// request names twice, or which exist when a pair is stored. It reserves the room at once. For
// each stored pair, it releases the reserved bytes, because set() counts those that are really
// needed.
KvState::MaybeRefusal KvState::multi_set(const Turn& turn) {
  Progress& progress = turn.progress;
  const std::vector<std::string_view>& strings = turn.request.strings;
  if (!progress.stores_) {
    std::size_t needed = strings.size() / 2 * kEntryBytes;
    for (const std::string_view text : strings) needed += text.size();
    if (!fits(needed)) return full(turn);
    progress.stores_ = true;
    held_bytes_ += progress.reserved_ = needed;
  }
  try {
    while (progress.next_ < strings.size() && step(progress)) {
      const std::string_view key = strings[progress.next_], value = strings[progress.next_ + 1];
      if (!copy_in(value, progress)) return std::nullopt;
      set(key, std::exchange(progress.incoming_, {}), turn.replies);
      progress.next_ += 2;
      progress.reserved_ -= key.size() + value.size() + kEntryBytes;
      held_bytes_ -= key.size() + value.size() + kEntryBytes;
    }
  } catch (const std::bad_alloc&) {
    give_back(progress);
    throw;
  }
  if (progress.done_) give_back(progress);
  return std::nullopt;
}

// Answers a missing key with an empty value, as PyTorch's libuv server does. PyTorch's other
// server closes the connection.
KvState::MaybeRefusal KvState::get(const Turn& turn) {
  if (!turn.progress.outgoing_) {
    const Value* value = find(turn.key());
    if (const MaybeRefusal refusal = too_long(turn, value)) return refusal;
    begin_copy(value, turn.progress, turn.out());
  }
  copy_out(turn);
  return std::nullopt;
}

KvState::MaybeRefusal KvState::get_at_once(const Turn& turn) {
  const Value* value = find(turn.key());
  if (const MaybeRefusal refusal = too_long(turn, value)) return refusal;
  put_string(turn.out(), value ? value->bytes() : std::string_view());
  return std::nullopt;
}

KvState::MaybeRefusal KvState::compare_set(const Turn& turn) {
  const std::string_view expected = turn.request.strings[1];
  const std::string_view desired = turn.request.strings[2];
  if (turn.key() == kIdentityKey) {
    put_string(turn.out(), identity_);
    return std::nullopt;
  }
  const auto place = values_.find(turn.key());
  const bool exists = place != values_.end();
  if (exists ? place->second.bytes() == expected : expected.empty()) {
    if (kLengthBytes + desired.size() > limits_.reply_bytes) {
      return too_long(turn, kLengthBytes + desired.size());
    }
    if (!has_room_to_set(turn.key(), desired.size())) return full(turn);
    set(turn.key(), std::string(desired), turn.replies);
  } else if (!exists) {
    put_string(turn.out(), expected);  // nothing is stored; PyTorch reports it this way
    return std::nullopt;
  }
  return get_at_once(turn);
}

std::optional<std::int64_t> KvState::sum_of(std::string_view key, std::int64_t delta) const {
  const auto place = values_.find(key);
  if (place == values_.end()) return delta;
  const std::optional<std::int64_t> value = leading_integer(place->second.bytes());
  if (!value) return std::nullopt;
  return wrapping_sum(*value, delta);
}

KvState::MaybeRefusal KvState::add(const Turn& turn) {
  const std::optional<std::int64_t> sum = sum_of(turn.key(), turn.request.number);
  if (!sum) return no_number(turn.request);
  const std::string text = std::to_string(*sum);
  if (!has_room_to_set(turn.key(), text.size())) return full(turn);
  set(turn.key(), text, turn.replies);
  put_i64(turn.out(), *sum);
  return std::nullopt;
}

void KvState::check(const Turn& turn) {
  const std::optional<bool> all = all_present(turn);
  if (all) put_u8(turn.out(), *all ? kAnswerReady : kAnswerNotReady);
}

std::optional<bool> KvState::all_present(const Turn& turn) {
  while (turn.progress.next_ < turn.request.strings.size()) {
    if (!step(turn.progress)) return std::nullopt;
    if (!present(turn.request.strings[turn.progress.next_++])) return false;
  }
  return true;
}

void KvState::delete_key(const Turn& turn) {
  const auto place = values_.find(turn.key());
  const bool existed = place != values_.end();
  if (existed) {
    held_bytes_ -= place->first.size() + place->second.size() + kEntryBytes;
    values_.erase(place);
  }
  put_i64(turn.out(), existed ? 1 : 0);
}

KvState::MaybeRefusal KvState::multi_get(const Turn& turn) {
  Progress& progress = turn.progress;
  while (copy_out(turn) && progress.next_ < turn.request.strings.size() && step(progress)) {
    const Value* value = find(turn.request.strings[progress.next_++]);
    if (const MaybeRefusal refusal = too_long(turn, value)) return refusal;
    begin_copy(value, progress, turn.out());
  }
  return std::nullopt;
}

// Does what CHECK and then MULTI_GET would do.
KvState::MaybeRefusal KvState::try_fetch(const Turn& turn) {
  if (!turn.progress.checked_) {
    const std::optional<bool> all = all_present(turn);
    if (!all) return std::nullopt;
    put_u8(turn.out(), to_u8(*all ? Fetched::kHere : Fetched::kMissing));
    if (!*all) return std::nullopt;
    turn.progress.checked_ = true;
    turn.progress.next_ = 0;
  }
  return multi_get(turn);
}

// Does what WAIT and then GET would do.
KvState::MaybeRefusal KvState::fetch(const Turn& turn) {
  if (turn.progress.outgoing_ || present(turn.key())) {
    if (!turn.progress.outgoing_) begin_fetch(turn.key(), turn.progress, turn.out());
    copy_out(turn);
    return std::nullopt;
  }
  if (parked_.contains(turn.from.value)) return waits_already(turn.request);
  if (!fits(turn.key().size() + kEntryBytes)) return full(turn);
  const Ticket ticket = begin_wait(turn.from, 1);
  link(ticket, turn.key());
  Wait& wait = wait_of(ticket);
  wait.whole = wait.fetches = true;
  return std::nullopt;
}

// Many may be answered in one turn, and a refusal is not possible there. So the answer says if
// the value is too long.
void KvState::begin_fetch(std::string_view key, Progress& progress, std::string& out) {
  const Value* value = find(key);
  const std::size_t size = value ? value->size() : 0;
  if (sizeof(Fetched) + kLengthBytes + size > limits_.reply_bytes) {
    put_u8(out, to_u8(Fetched::kTooLong));
    return;
  }
  put_u8(out, to_u8(Fetched::kHere));
  begin_copy(value, progress, out);
}

void KvState::answer_fetch(StoreConnectionId to, std::string_view key, Replies& replies) {
  const Value* value = find(key);
  std::string& out = replies.to(to);
  out.reserve(out.size() + sizeof(Fetched) + kLengthBytes + (value ? value->size() : 0));
  Progress progress;
  begin_fetch(key, progress, out);
  if (!progress.outgoing_) return;
  out += *progress.outgoing_;
  spend(progress.outgoing_->size() / kBytesPerStep);
}

// Collects all keys first, because the reply begins with their number.
KvState::MaybeRefusal KvState::list_keys(const Turn& turn) {
  Progress& progress = turn.progress;
  if (!progress.counted_) {
    const MaybeRefusal refusal = collect_keys(turn);
    if (refusal || !progress.done_) return refusal;
    put_u64(turn.out(), progress.listed_);
    progress.counted_ = true;
  }
  while (!progress.pieces_.empty() && step(progress)) {
    spend(progress.pieces_.front().size() / kBytesPerStep);
    turn.out() += progress.pieces_.front();
    progress.pieces_.pop_front();
  }
  return std::nullopt;
}

KvState::MaybeRefusal KvState::collect_keys(const Turn& turn) {
  Progress& progress = turn.progress;
  constexpr std::size_t kPieceBytes = 16 * kBytesPerStep;
  auto next = progress.last_key_ ? values_.upper_bound(*progress.last_key_) : values_.begin();
  for (; next != values_.end() && step(progress); ++next) {
    const std::string& key = next->first;
    progress.listed_bytes_ += kLengthBytes + key.size();
    if (kLengthBytes + progress.listed_bytes_ > limits_.reply_bytes) {
      return too_long(turn, kLengthBytes + progress.listed_bytes_);
    }
    if (progress.pieces_.empty() || progress.pieces_.back().size() >= kPieceBytes) {
      progress.pieces_.emplace_back().reserve(kPieceBytes);
    }
    put_string(progress.pieces_.back(), key);
    ++progress.listed_;
  }
  if (!progress.done_) progress.last_key_ = std::prev(next)->first;
  return std::nullopt;
}

KvState::MaybeRefusal KvState::queue_push(const Turn& turn) {
  const auto place = queues_.find(turn.key());
  const std::size_t of_queue = place == queues_.end() ? turn.key().size() + kEntryBytes : 0;
  const std::size_t more = of_queue + turn.value().size() + kEntryBytes;
  if (!fits(more)) return full(turn);
  std::list<std::string> item{std::string(turn.value())};
  auto& queue = place == queues_.end() ? queues_[std::string(turn.key())] : place->second;
  queue.splice(queue.end(), item);
  held_bytes_ += more;
  wake_oldest(turn.key(), turn.replies);
  return std::nullopt;
}

// Answers with the length before the pop, and with the value if there was one.
KvState::MaybeRefusal KvState::queue_pop(const Turn& turn) {
  const auto queue = queues_.find(turn.key());
  const std::size_t length = queue == queues_.end() ? 0 : queue->second.size();
  std::string& out = turn.out();
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

KvState::MaybeRefusal KvState::wait(const Turn& turn) {
  Progress& progress = turn.progress;
  while (progress.next_ < turn.request.strings.size() && step(progress)) {
    const std::string_view key = turn.request.strings[progress.next_++];
    if (present(key)) continue;
    if (!progress.ticket_) {
      // No client does this, and the two answers could not be told apart.
      if (parked_.contains(turn.from.value)) return waits_already(turn.request);
      progress.ticket_ = begin_wait(turn.from, turn.request.strings.size());
    }
    link(*progress.ticket_, key);
    if (held_bytes_ > limits_.held_bytes) {
      const MaybeRefusal refusal = full(turn);
      unpark(turn.from);
      return refusal;
    }
  }
  if (!progress.done_) return std::nullopt;
  if (!progress.ticket_) {
    put_u8(turn.out(), kAnswerReady);
    return std::nullopt;
  }
  Wait& wait = wait_of(*progress.ticket_);
  wait.whole = true;
  if (!wait.missing.empty()) return std::nullopt;
  put_u8(turn.out(), kAnswerReady);
  end_wait(*progress.ticket_);
  return std::nullopt;
}

KvState::Ticket KvState::begin_wait(StoreConnectionId from, std::size_t keys) {
  Wait& wait = waits_[next_ticket_];
  wait.by = from;
  wait.missing.reserve(keys);
  parked_[from.value].wait = next_ticket_;
  return next_ticket_++;
}

KvState::Wait& KvState::wait_of(Ticket ticket) {
  const auto wait = waits_.find(ticket);
  DDPRUN_ASSERT(wait != waits_.end(), "a ticket is that of a wait until its last link is gone");
  return wait->second;
}

void KvState::link(Ticket ticket, std::string_view key) {
  Wait& wait = wait_of(ticket);
  // All allocations come before the first link, so that a failed one leaves no partial link.
  std::map<Ticket, std::size_t> one{{ticket, wait.missing.size()}};
  const auto place = waiting_.try_emplace(std::string(key)).first;
  place->second.key = &place->first;
  place->second.slots.merge(one);
  if (!one.empty()) return;  // the WAIT names the key twice
  wait.missing.push_back(&place->second);
  held_bytes_ += key.size() + kEntryBytes;
}

void KvState::unlink(Wait& wait, Ticket ticket, std::size_t slot) {
  Waiters& waiters = *wait.missing[slot];
  forget(*waiters.key);
  waiters.slots.erase(ticket);
  Waiters& last = *wait.missing.back();
  wait.missing.pop_back();
  if (&last == &waiters) return;
  wait.missing[slot] = &last;
  last.slots.find(ticket)->second = slot;
}

bool KvState::found(Waiters& waiters, Replies& replies) {
  const auto [ticket, slot] = *waiters.slots.begin();
  Wait& wait = wait_of(ticket);
  if (wait.by && wait.fetches && !present(*waiters.key)) {
    link(ticket, *waiters.key);
  } else if (wait.by && wait.whole && wait.missing.size() == 1) {
    if (wait.fetches) {
      answer_fetch(*wait.by, *waiters.key, replies);
    } else {
      put_u8(replies.to(*wait.by), kAnswerReady);
    }
    spend(kStepsPerAnswer);
  }
  unlink(wait, ticket, slot);
  if (!wait.by) return false;
  if (wait.whole && wait.missing.empty()) end_wait(ticket);
  return true;
}

void KvState::end_wait(Ticket ticket) {
  const auto wait = waits_.find(ticket);
  parked_.erase(wait->second.by->value);
  waits_.erase(wait);
}

void KvState::wake_all(std::string_view key, Replies& replies) {
  const auto place = waiting_.find(key);
  if (place == waiting_.end()) return;
  place->second.woken = true;
  woken_.insert(waiting_.extract(place));
  answer_woken(replies);
}

void KvState::wake_oldest(std::string_view key, Replies& replies) {
  const auto place = waiting_.find(key);
  if (place == waiting_.end()) return;
  bool is_answered = false;
  while (!is_answered && !place->second.slots.empty()) is_answered = found(place->second, replies);
  if (place->second.slots.empty()) waiting_.erase(place);
}

void KvState::answer_woken(Replies& replies) {
  while (!woken_.empty()) {
    Waiters& waiters = woken_.begin()->second;
    for (; !waiters.slots.empty(); found(waiters, replies)) {
      if (cost_left_ == 0) return;
      spend(1);
    }
    woken_.erase(woken_.begin());
  }
}

KvState::MaybeRefusal KvState::barrier(const Turn& turn) {
  const std::string_view name = turn.key();
  if (parked_.contains(turn.from.value)) return waits_already(turn.request);
  const std::optional<std::int64_t> arrived = sum_of(name, 1);
  if (!arrived) return no_number(turn.request);
  const std::string count = std::to_string(*arrived);
  // Requires the room that a new counter and a waiting connection need.
  if (!fits(2 * (name.size() + kEntryBytes) + count.size())) return full(turn);
  set(name, count, turn.replies);
  const auto place = barriers_.find(name);
  if (*arrived < turn.request.number) {
    const auto key =
        place != barriers_.end() ? place : barriers_.try_emplace(std::string(name)).first;
    parked_[turn.from.value].barrier = {
        key,
        key->second.emplace(turn.request.number, BarrierWaiter{turn.from, barrier_waiters_++})};
    held_bytes_ += name.size() + kEntryBytes;
    return std::nullopt;
  }
  put_u8(turn.out(), kAnswerReady);
  if (place == barriers_.end()) return std::nullopt;
  opened_.push_back({place->first, *arrived, barrier_waiters_});
  answer_opened(turn.replies);
  return std::nullopt;
}

void KvState::answer_opened(Replies& replies) {
  for (; !opened_.empty(); opened_.pop_front()) {
    const auto place = barriers_.find(opened_.front().key);
    if (place == barriers_.end()) continue;  // all its waiters are gone
    Barrier& barrier = place->second;
    auto next = barrier.begin();
    while (next != barrier.end() && next->first <= opened_.front().arrived) {
      const auto waiter = next++;
      if (waiter->second.number >= opened_.front().before) continue;
      if (cost_left_ == 0) return;
      spend(1 + kStepsPerAnswer);
      put_u8(replies.to(waiter->second.id), kAnswerReady);
      parked_.erase(waiter->second.id.value);
      forget(place->first);
      barrier.erase(waiter);
    }
    if (barrier.empty()) barriers_.erase(place);
  }
}

void KvState::unpark(StoreConnectionId id) {
  const auto parked = parked_.find(id.value);
  if (parked == parked_.end()) return;
  if (const auto& barrier = parked->second.barrier) {
    forget(barrier->key->first);
    barrier->key->second.erase(barrier->place);
    if (barrier->key->second.empty()) barriers_.erase(barrier->key);
  }
  if (const auto& ticket = parked->second.wait) {
    given_up_.push_back(*ticket);
    wait_of(*ticket).by.reset();
  }
  parked_.erase(parked);
  cut_links();
}

void KvState::cut_links() {
  for (; !given_up_.empty(); given_up_.pop_front()) {
    const Ticket ticket = given_up_.front();
    Wait& wait = wait_of(ticket);
    while (!wait.missing.empty()) {
      if (cost_left_ == 0) return;
      spend(1);
      Waiters& waiters = *wait.missing.back();
      unlink(wait, ticket, wait.missing.size() - 1);
      if (waiters.slots.empty() && !waiters.woken) waiting_.erase(waiting_.find(*waiters.key));
    }
    waits_.erase(ticket);
  }
}

}  // namespace ddprun
