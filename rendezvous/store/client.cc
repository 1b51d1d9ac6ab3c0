#include "rendezvous/store/client.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <thread>

#include "base/assert.h"
#include "base/random_id.h"
#include "rendezvous/net/core/backoff.h"

namespace ddprun {
namespace {

// Timeout of one attempt. A host that drops packets must not use up the time in which its other
// address would have answered.
constexpr Duration kOneTry = std::chrono::seconds(10);

constexpr Duration kShortestPause = std::chrono::milliseconds(1);
// Pipelined requests are sent when this many bytes have gathered.
constexpr std::size_t kQueuedBytes = 8 * 1024;

Error protocol_error(std::string cause) {
  return Error{.kind = ErrorKind::kProtocol, .cause = std::move(cause)};
}

std::vector<std::string_view> views_of(const std::vector<std::string>& strings) {
  return {strings.begin(), strings.end()};
}

std::string_view first_of(const std::vector<std::string>& keys) {
  return keys.empty() ? std::string_view() : std::string_view(keys[0]);
}

Error with_times(Error&& error, const Deadline& deadline) {
  error.waited = deadline.waited();
  error.allowed = deadline.allowed();
  return std::move(error);
}

bool may_retry(const Deadline& deadline) { return deadline.remaining() >= kShortestPause; }

// Pauses. Near the deadline the pauses get shorter, so that the last attempt comes shortly
// before it.
void pause_before_retry(Backoff& backoff, const Deadline& deadline) {
  std::this_thread::sleep_for(std::min(backoff.next(), deadline.remaining() / 2));
}

std::string name_of(const StoreClientOptions& options) {
  return "store " + to_text(options.address);
}

}  // namespace

// --- what is pending ---

PendingGet& PendingGet::operator=(PendingGet&& other) noexcept {
  if (this == &other) return *this;
  if (client_) client_->release(number_);
  client_ = std::exchange(other.client_, nullptr);
  number_ = other.number_;
  return *this;
}

PendingGet::~PendingGet() {
  if (client_) client_->release(number_);
}

Result<std::string> PendingGet::take() && {
  DDPRUN_ASSERT(client_, "a value is taken once");
  StoreClient& client = *std::exchange(client_, nullptr);
  Result<std::string> value = client.take(number_);
  client.release(number_);
  return value;
}

// --- connecting ---

StoreClient::StoreClient(StoreClientOptions options, BlockingSocket socket)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      local_address_(socket_.local_address().host()),
      key_prefix_(options_.prefix.empty() ? "/" : "/" + options_.prefix + "/") {}

Result<std::unique_ptr<StoreClient>> StoreClient::connect(StoreClientOptions options) {
  const std::string what = "connect to " + name_of(options);
  if (options.address.host.empty() || options.address.port == 0) {
    return invalid_argument("a host and a port other than 0 are required").within(what);
  }
  const Deadline deadline(options.connect_timeout);
  Backoff backoff{Rng(random_seed())};
  for (;;) {
    Result<std::unique_ptr<StoreClient>> client = try_connect(options, deadline);
    if (client) return client;
    Error error = std::move(client).error();
    if (error.kind == ErrorKind::kProtocol || options.tries_once || !may_retry(deadline)) {
      error = with_times(std::move(error), deadline);
      if (error.kind != ErrorKind::kProtocol) error.kind = ErrorKind::kConnection;
      return std::move(error).within(what);
    }
    pause_before_retry(backoff, deadline);
  }
}

// Makes one attempt. It resolves the name again each time, because the host may have started or
// moved.
Result<std::unique_ptr<StoreClient>> StoreClient::try_connect(const StoreClientOptions& options,
                                                              const Deadline& deadline) {
  const auto addresses = resolve(options.address, deadline.remaining());
  if (!addresses) return addresses.error();
  Error last;
  for (const SocketAddress& address : *addresses) {
    const Deadline one_try(std::min(kOneTry, deadline.remaining()));
    Result<BlockingSocket> socket = BlockingSocket::connect(address, one_try);
    if (!socket) {
      last = std::move(socket).error();
      continue;
    }
    std::unique_ptr<StoreClient> client(new StoreClient(options, std::move(*socket)));
    const Result<void> welcome = client->shake_hands(deadline);
    if (welcome) return client;
    last = welcome.error();
  }
  return last;
}

// Sends VALIDATE, which has no answer, and then the question for the store's identity. If the
// answer is neither an identity nor the expected value, the peer is not a TCPStore.
Result<void> StoreClient::shake_hands(const Deadline& deadline) {
  put_handshake(queued_);
  put_request(queued_, Command::kCompareSet,
              std::array<std::string_view, 3>{kIdentityKey, kNoIdentity, kNoIdentity});
  const Result<void> sent = send_queued(deadline.remaining());
  if (!sent) return sent.error();
  Result<std::string> identity = answer_within(deadline, &ReplyReader::take_string);
  if (!identity) return std::move(identity).error().within("handshake");
  const bool is_ours = *identity != kNoIdentity;
  if (!replies_.empty() || (is_ours && identity->size() != kIdentityBytes)) {
    return protocol_error("the program that answers is not a TCPStore");
  }
  if (is_ours) identity_ = std::move(*identity);
  return {};
}

// --- a connection that breaks ---

// A store lives in the memory of one process and listens until that process ends. So if no
// process listens, the store has ended. If another store answers, its keys are different.
Result<void> StoreClient::be_connected(const Call& call, const Deadline& deadline) {
  if (finished_) return *finished_;
  if (!broken_) return {};
  Backoff backoff{Rng(random_seed())};
  for (;;) {
    Result<std::unique_ptr<StoreClient>> next = try_connect(options_, deadline);
    if (next) return go_on_with(call, **next);
    Error error = std::move(next).error();
    error.cause = broken_->cause + ", then: " + error.cause;
    error = with_times(std::move(error), deadline);
    if (error.sys_errno == ECONNREFUSED || error.kind == ErrorKind::kProtocol) {
      error.kind = ErrorKind::kConnection;
      return finish(call, std::move(error));
    }
    if (!may_retry(deadline)) {
      error.kind = ErrorKind::kConnection;
      error.doing = doing(call);
      return error;
    }
    pause_before_retry(backoff, deadline);
  }
}

Result<void> StoreClient::go_on_with(const Call& call, StoreClient& next) {
  if (next.identity_ != identity_) {
    return finish(call, {.kind = ErrorKind::kConnection,
                         .cause = broken_->cause + ", then another store answered: " +
                                  next.identity_.value_or("PyTorch's") + ", not " + *identity_});
  }
  socket_ = std::move(next.socket_);
  replies_ = {};
  broken_.reset();
  return {};
}

// The client may reconnect later if the store has an identity, and no request that the caller
// takes for done may be lost.
Error StoreClient::break_off(const Call& call, Error&& error) {
  const bool is_lost = error.kind == ErrorKind::kConnection || error.kind == ErrorKind::kSystem;
  if (!is_lost || !identity_) return finish(call, std::move(error));
  if (!unconfirmed_.empty()) {
    error.cause += ", and " + unconfirmed_ + " before it may not have been done";
    return finish(call, std::move(error));
  }
  forget_sent();
  error.doing = doing(call);
  broken_ = error;
  return std::move(error);
}

Error StoreClient::finish(const Call& call, Error&& error) {
  forget_sent();
  error.doing = doing(call);
  finished_ = error;
  return std::move(error);
}

void StoreClient::forget_sent() {
  queued_.clear();
  value_follows_ = false;
  for (Slot& slot : slots_) {
    if (slot.state == Slot::kSent) slot.state = Slot::kToAsk;
  }
  skip_answered();
}

template <class T, class Ask>
Result<T> StoreClient::repeatedly(const Call& call, const Deadline& deadline, Ask ask) {
  const Result<void> connected = be_connected(call, deadline);
  if (!connected) return connected.error();
  Result<T> result = ask();
  if (!broken_) return result;
  // Repeats once only, because this request may be the reason why the store closes the
  // connection.
  const Result<void> again = be_connected(call, deadline);
  if (!again) return again.error();
  return ask();
}

template <class T, class Ask>
Result<T> StoreClient::once(const Call& call, Ask ask) {
  const bool is_idle = !finished_ && !broken_ && all_answered();
  if (is_idle && socket_.is_finished()) {
    break_off(call, {.kind = ErrorKind::kConnection, .cause = "it closed the connection"});
  }
  const Result<void> connected = be_connected(call, Deadline(options_.timeout));
  if (!connected) return connected.error();
  Result<T> result = ask();
  if (!broken_ && !finished_) return result;
  Error error = std::move(result).error();
  error.cause += "; it is not known whether it was done";
  return error;
}

// --- requests and answers ---

Result<void> StoreClient::send(const Call& call, Command command,
                               std::span<const std::string_view> strings, std::int64_t number) {
  std::string refusal = refusal_of(command, strings, RequestLimits{});
  if (!refusal.empty()) {
    return invalid_argument(std::move(refusal)).within(doing(call));
  }
  put_request(queued_, command, strings, number);
  Result<void> sent = send_queued(options_.timeout);
  if (!sent) return break_off(call, std::move(sent).error());
  return {};
}

// Takes answers meanwhile, because a server that cannot send does not read.
Result<void> StoreClient::send_queued(Duration timeout) {
  std::string_view rest = queued_;
  const Result<std::size_t> at_once = socket_.send_some(rest);
  if (at_once && *at_once == rest.size()) {
    queued_.clear();
    return {};
  }
  // Made late, so that only a call that must wait reads the clock.
  const Deadline deadline(timeout);
  if (!at_once) return with_times(Error(at_once.error()), deadline);
  rest.remove_prefix(*at_once);
  while (!rest.empty()) {
    const Result<void> ready = socket_.wait_until_ready(deadline);
    if (!ready) return ready.error();
    const Result<std::size_t> got = socket_.receive_now(replies_.space());
    if (!got) return with_times(Error(got.error()), deadline);
    replies_.commit(*got);
    const Result<void> sane = sort_answers();
    if (!sane) return sane.error();
    const Result<std::size_t> sent = socket_.send_some(rest);
    if (!sent) return with_times(Error(sent.error()), deadline);
    rest.remove_prefix(*sent);
  }
  queued_.clear();
  return {};
}

template <class T>
std::optional<T> StoreClient::answer_at_hand(std::optional<T> (ReplyReader::*take)()) {
  if (!all_answered()) return std::nullopt;
  std::optional<T> field = (replies_.*take)();
  if (field) unconfirmed_.clear();
  return field;
}

template <class T>
Result<T> StoreClient::answer_within(const Deadline& deadline,
                                     std::optional<T> (ReplyReader::*take)()) {
  for (;;) {
    const Result<void> sane = sort_answers();
    if (!sane) return sane.error();
    if (std::optional<T> field = answer_at_hand(take)) return std::move(*field);
    if (replies_.failed()) return protocol_error("an answer of invalid length");
    const Result<void> more = receive(deadline);
    if (!more) return more.error();
  }
}

Result<void> StoreClient::receive(const Deadline& deadline) {
  const Result<std::size_t> got = socket_.receive(replies_.space(), deadline);
  if (!got) return with_times(Error(got.error()), deadline);
  replies_.commit(*got);
  return {};
}

template <class T>
Result<T> StoreClient::answer(const Call& call, std::optional<T> (ReplyReader::*take)()) {
  // The bytes after a first byte have usually come with it.
  if (std::optional<T> field = answer_at_hand(take)) return std::move(*field);
  Result<T> field = answer_within(Deadline(options_.timeout), take);
  if (!field) return break_off(call, std::move(field).error());
  return field;
}

// Cancels the wait when its time is up. Its answer may already be on the way. It then comes
// before the answer to the cancellation, and the wait has succeeded.
template <class T, class Rest>
Result<T> StoreClient::deferred_answer(const Call& call, const Deadline& deadline, Rest rest) {
  Result<std::uint8_t> first = answer_within(deadline, &ReplyReader::take_u8);
  const bool is_cancelled = !first && first.error().kind == ErrorKind::kTimeout;
  if (is_cancelled) {
    const Result<void> sent = send(call, Command::kCancelWait, {});
    if (!sent) return sent.error();
    first = answer(call, &ReplyReader::take_u8);
    if (!first) return first.error();
    if (*first == kAnswerCancelled) {
      return timeout_error(doing(call),
                           call.keys == 1 ? "the key is not there" : "not all keys are there",
                           deadline.waited(), deadline.allowed());
    }
  }
  if (!first) return break_off(call, std::move(first).error());
  Result<T> result = rest(*first);
  if (!is_cancelled || broken_ || finished_) return result;
  const Result<std::uint8_t> last = answer(call, &ReplyReader::take_u8);
  if (!last) return last.error();
  if (*last != kAnswerCancelled) {
    return finish(call, protocol_error("invalid answer to a cancelled wait"));
  }
  return result;
}

std::string StoreClient::named(const Call& call) const {
  std::string text = call.verb;
  if (!call.key.empty()) text += " '" + std::string(call.key) + "'";
  if (call.keys > 1) text += " and " + std::to_string(call.keys - 1) + " more";
  return text;
}

std::string StoreClient::doing(const Call& call) const {
  return named(call) + " at " + name_of(options_);
}

std::string StoreClient::full_key(std::string_view key) const {
  return key_prefix_ + std::string(key);
}

std::vector<std::string> StoreClient::full_keys(const std::vector<std::string>& keys) const {
  std::vector<std::string> full;
  full.reserve(keys.size());
  for (const std::string& key : keys) full.push_back(full_key(key));
  return full;
}

// --- pipelining ---

PendingGet StoreClient::get_async(std::string_view key, Duration timeout) {
  Slot& slot = slots_.emplace_back(Slot{std::string(key), Deadline(timeout)});
  const std::string full = full_key(key);
  const std::array<std::string_view, 1> strings{full};
  const bool can_send = identity_ && !finished_ && !broken_ &&
                        refusal_of(Command::kTryFetch, strings, RequestLimits{}).empty();
  const std::uint64_t number = first_slot_ + slots_.size() - 1;
  if (can_send) {
    slot.state = Slot::kSent;
    put_request(queued_, Command::kTryFetch, strings);
    if (queued_.size() >= kQueuedBytes) flush();
  }
  skip_answered();
  return PendingGet(this, number);
}

// An error is reported by the calls that take the values.
void StoreClient::flush() {
  if (queued_.empty()) return;
  Result<void> sent = send_queued(options_.timeout);
  if (!sent) break_off({"get", slots_.back().key}, std::move(sent).error());
}

Result<void> StoreClient::sort_answers() {
  for (; !all_answered(); skip_answered()) {
    Slot& slot = slots_[next_answer_ - first_slot_];
    if (!value_follows_) {
      const std::optional<std::uint8_t> first = replies_.take_u8();
      if (!first) return {};
      if (*first == to_u8(Fetched::kMissing)) slot.state = Slot::kToAsk;
      if (slot.state == Slot::kToAsk) continue;
      if (*first != to_u8(Fetched::kHere)) return protocol_error("invalid answer to a get");
      value_follows_ = true;
    }
    std::optional<std::string> value = replies_.take_string();
    if (replies_.failed()) return protocol_error("an answer of invalid length");
    if (!value) return {};
    value_follows_ = false;
    if (!slot.is_released) slot.value = std::move(*value);
    slot.state = Slot::kHere;
  }
  return {};
}

void StoreClient::skip_answered() {
  while (!all_answered() && slots_[next_answer_ - first_slot_].state != Slot::kSent) {
    ++next_answer_;
  }
}

bool StoreClient::all_answered() const { return next_answer_ == first_slot_ + slots_.size(); }

Result<std::string> StoreClient::take(std::uint64_t number) {
  Slot& slot = slots_[number - first_slot_];
  const Call call{"get", slot.key};
  flush();
  while (slot.state == Slot::kSent) {
    Result<void> sane = sort_answers();
    if (sane && slot.state == Slot::kSent) sane = receive(slot.deadline);
    if (sane) continue;
    Error error = std::move(sane).error();
    if (error.kind == ErrorKind::kTimeout) {  // the late answer will be skipped
      error.doing = doing(call);
      return error;
    }
    break_off(call, std::move(error));
  }
  if (slot.state == Slot::kHere) return std::move(slot.value);
  return get_within(slot.key, slot.deadline);
}

void StoreClient::release(std::uint64_t number) {
  slots_[number - first_slot_].is_released = true;
  while (!slots_.empty() && first_slot_ < next_answer_ && slots_.front().is_released) {
    slots_.pop_front();
    ++first_slot_;
  }
}

// --- the operations ---

Result<void> StoreClient::set(std::string_view key, std::string_view value) {
  const Call call{"set", key};
  const std::string full = full_key(key);
  return once<void>(call, [&] {
    const Result<void> sent =
        send(call, Command::kSet, std::array<std::string_view, 2>{full, value});
    if (sent) unconfirmed_ = named(call);
    return sent;
  });
}

Result<void> StoreClient::ask_to_wait(const Call& call, std::span<const std::string_view> full,
                                      const Deadline& deadline) {
  const Result<void> sent = send(call, Command::kWait, full);
  if (!sent) return sent.error();
  return deferred_answer<void>(call, deadline, [&](std::uint8_t first) -> Result<void> {
    if (first == kAnswerReady) return {};
    return finish(call, protocol_error("invalid answer to a wait"));
  });
}

Result<std::string> StoreClient::get(std::string_view key, Duration timeout) {
  return get_within(key, Deadline(timeout));
}

Result<std::string> StoreClient::get_within(std::string_view key, const Deadline& deadline) {
  const Call call{"get", key};
  const std::string full = full_key(key);
  return repeatedly<std::string>(call, deadline, [&] {
    return identity_ ? fetch(call, full, deadline) : wait_and_get(call, full, deadline);
  });
}

Result<std::string> StoreClient::fetch(const Call& call, std::string_view full,
                                       const Deadline& deadline) {
  const Result<void> sent = send(call, Command::kFetch, std::array<std::string_view, 1>{full});
  if (!sent) return sent.error();
  return deferred_answer<std::string>(
      call, deadline, [&](std::uint8_t first) -> Result<std::string> {
        if (first == to_u8(Fetched::kHere)) return answer(call, &ReplyReader::take_string);
        if (first != to_u8(Fetched::kTooLong)) {
          return finish(call, protocol_error("invalid answer to a get"));
        }
        return Error{.kind = ErrorKind::kResource,
                     .doing = doing(call),
                     .cause = "the value is longer than the store's replies may be"};
      });
}

// Uses two round trips, as PyTorch's client does. PyTorch's older server closes the connection
// if a missing key is read.
Result<std::string> StoreClient::wait_and_get(const Call& call, std::string_view full,
                                              const Deadline& deadline) {
  const std::array<std::string_view, 1> strings{full};
  const Result<void> there = ask_to_wait(call, strings, deadline);
  if (!there) return there.error();
  return ask(call, Command::kGet, strings, 0, &ReplyReader::take_string);
}

Result<std::vector<std::string>> StoreClient::multi_get(const std::vector<std::string>& keys,
                                                        Duration timeout) {
  const Call call{"multi_get", first_of(keys), keys.size()};
  const std::vector<std::string> full = full_keys(keys);
  const std::vector<std::string_view> strings = views_of(full);
  const Deadline deadline(timeout);
  return repeatedly<Strings>(call, deadline, [&]() -> Result<Strings> {
    if (identity_) {
      Result<std::optional<Strings>> values = try_fetch(call, strings);
      if (!values) return values.error();
      if (*values) return std::move(**values);
    }
    Result<void> done = ask_to_wait(call, strings, deadline);
    if (done) done = send(call, Command::kMultiGet, strings);
    if (!done) return done.error();
    return take_strings(call, strings.size());
  });
}

Result<std::optional<StoreClient::Strings>> StoreClient::try_fetch(
    const Call& call, std::span<const std::string_view> full) {
  const auto first = ask(call, Command::kTryFetch, full, 0, &ReplyReader::take_u8);
  if (!first) return first.error();
  if (*first == to_u8(Fetched::kMissing)) return std::optional<Strings>();
  if (*first != to_u8(Fetched::kHere)) {
    return finish(call, protocol_error("invalid answer to a get"));
  }
  Result<Strings> values = take_strings(call, full.size());
  if (!values) return values.error();
  return std::optional<Strings>(std::move(*values));
}

Result<StoreClient::Strings> StoreClient::take_strings(const Call& call, std::size_t count) {
  Strings values;
  while (values.size() < count) {
    Result<std::string> value = answer(call, &ReplyReader::take_string);
    if (!value) return value.error();
    values.push_back(std::move(*value));
  }
  return values;
}

template <class T>
Result<T> StoreClient::ask(const Call& call, Command command,
                           std::span<const std::string_view> strings, std::int64_t number,
                           std::optional<T> (ReplyReader::*take)()) {
  const Result<void> sent = send(call, command, strings, number);
  if (!sent) return sent.error();
  return answer(call, take);
}

Result<std::int64_t> StoreClient::ask_once(const Call& call, Command command, std::int64_t number) {
  const std::string full = full_key(call.key);
  return once<std::int64_t>(call, [&] {
    return ask(call, command, std::array<std::string_view, 1>{full}, number,
               &ReplyReader::take_i64);
  });
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t delta) {
  return ask_once({"add", key}, Command::kAdd, delta);
}

Result<bool> StoreClient::check(const std::vector<std::string>& keys) {
  const Call call{"check", first_of(keys), keys.size()};
  const std::vector<std::string> full = full_keys(keys);
  const auto missing = repeatedly<std::uint8_t>(call, Deadline(options_.timeout), [&] {
    return ask(call, Command::kCheck, views_of(full), 0, &ReplyReader::take_u8);
  });
  if (!missing) return missing.error();
  return *missing == kAnswerReady;
}

Result<bool> StoreClient::delete_key(std::string_view key) {
  const auto count = ask_once({"delete", key}, Command::kDeleteKey);
  if (!count) return count.error();
  return *count > 0;
}

Result<std::int64_t> StoreClient::num_keys() {
  const Call call{"count keys", ""};
  return repeatedly<std::int64_t>(call, Deadline(options_.timeout), [&] {
    return ask(call, Command::kGetNumKeys, {}, 0, &ReplyReader::take_i64);
  });
}

Result<std::vector<std::string>> StoreClient::list_keys() {
  const Call call{"list keys", ""};
  const auto all = repeatedly<Strings>(call, Deadline(options_.timeout), [&]() -> Result<Strings> {
    const auto count = ask(call, Command::kListKeys, {}, 0, &ReplyReader::take_i64);
    if (!count) return count.error();
    return take_strings(call, static_cast<std::size_t>(std::max<std::int64_t>(*count, 0)));
  });
  if (!all) return all.error();
  Strings keys;
  for (const std::string& key : *all) {
    if (key.starts_with(key_prefix_)) keys.push_back(key.substr(key_prefix_.size()));
  }
  return keys;
}

}  // namespace ddprun
