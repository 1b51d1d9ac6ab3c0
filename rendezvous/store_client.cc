#include "rendezvous/store_client.h"

#include <algorithm>
#include <array>
#include <thread>

#include "base/random_id.h"
#include "rendezvous/core/backoff.h"

namespace ddprun {
namespace {

// A host that drops packets must not use up the time in which its other address would have
// answered.
constexpr Duration kOneTry = std::chrono::seconds(10);

constexpr Duration kShortestPause = std::chrono::milliseconds(1);
// More keys than this are an answer in another protocol: text, for one.
constexpr std::int64_t kMostKeys = std::int64_t{1} << 40;

constexpr std::uint8_t kReady = 0;
constexpr std::uint8_t kCancelled = 1;

Error protocol_error(std::string cause) {
  return Error{.kind = ErrorKind::kProtocol, .cause = std::move(cause)};
}

std::vector<std::string_view> views_of(const std::vector<std::string>& strings) {
  return {strings.begin(), strings.end()};
}

std::string_view first_of(const std::vector<std::string>& keys) {
  return keys.empty() ? std::string_view() : std::string_view(keys[0]);
}

std::string name_of(const StoreClientOptions& options) {
  return "store " + to_text(HostPort{.host = options.host, .port = options.port});
}

}  // namespace

// --- connecting ---

StoreClient::StoreClient(StoreClientOptions options, BlockingSocket socket)
    : options_(std::move(options)),
      socket_(std::move(socket)),
      local_address_(socket_.local_address().host()),
      key_prefix_(options_.prefix.empty() ? "/" : "/" + options_.prefix + "/") {}

Result<std::unique_ptr<StoreClient>> StoreClient::connect(StoreClientOptions options) {
  const std::string what = "connect to " + name_of(options);
  if (options.host.empty() || options.port == 0) {
    return Error{.kind = ErrorKind::kInvalidArgument,
                 .doing = what,
                 .cause = "a host and a port other than 0 are needed"};
  }
  const Deadline deadline(options.connect_timeout);
  Backoff backoff{Rng(random_seed())};
  for (;;) {
    Result<std::unique_ptr<StoreClient>> client = try_connect(options, deadline);
    if (client) return client;
    Error error = std::move(client).error();
    if (error.kind == ErrorKind::kProtocol || deadline.remaining() < kShortestPause) {
      error.waited = deadline.waited();
      error.allowed = deadline.allowed();
      if (error.kind != ErrorKind::kProtocol) error.kind = ErrorKind::kConnection;
      return std::move(error).within(what);
    }
    // Towards the end the tries come closer, so that none of the time is given away.
    std::this_thread::sleep_for(std::min(backoff.next(), deadline.remaining() / 2));
  }
}

// The name is resolved anew each time: the host may have come up, or moved.
Result<std::unique_ptr<StoreClient>> StoreClient::try_connect(const StoreClientOptions& options,
                                                              const Deadline& deadline) {
  const auto addresses =
      resolve({.host = options.host, .port = options.port}, deadline.remaining());
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

// The handshake has no answer, so a request with one follows. PING would be the one to take, but
// servers before 2.5 hang up on it; every server counts keys.
Result<void> StoreClient::shake_hands(const Deadline& deadline) {
  request_.clear();
  put_handshake(request_);
  put_request(request_, Command::kGetNumKeys, {});
  const Result<void> sent = socket_.send_all(request_, deadline);
  if (!sent) return sent.error();
  const Result<std::int64_t> keys = answer_within(deadline, &ReplyReader::take_i64);
  if (!keys) return Error(keys.error()).within("handshake");
  if (*keys < 0 || *keys > kMostKeys || !replies_.empty())
    return protocol_error("what answers there is no TCPStore");
  return {};
}

// --- requests and answers ---

Result<void> StoreClient::send(const Call& call, Command command,
                               std::span<const std::string_view> strings, std::int64_t number) {
  if (finished_) return *finished_;
  std::string refusal = refusal_of(command, strings, RequestLimits{});
  if (!refusal.empty()) {
    return Error{
        .kind = ErrorKind::kInvalidArgument, .doing = doing(call), .cause = std::move(refusal)};
  }
  request_.clear();
  put_request(request_, command, strings, number);
  Result<void> sent = socket_.send_all(request_, Deadline(options_.timeout));
  if (!sent) return finish(call, std::move(sent).error());
  return {};
}

Result<void> StoreClient::tell(const Call& call, Command command,
                               std::span<const std::string_view> strings) {
  if (!finished_ && socket_.is_finished()) {
    return finish(call, {.kind = ErrorKind::kConnection, .cause = "it has closed the connection"});
  }
  return send(call, command, strings);
}

template <class T>
Result<T> StoreClient::answer_within(const Deadline& deadline,
                                     std::optional<T> (ReplyReader::*take)()) {
  for (;;) {
    if (std::optional<T> field = (replies_.*take)()) return std::move(*field);
    if (replies_.failed()) return protocol_error("an answer of impossible length");
    const Result<std::size_t> got = socket_.receive(replies_.space(), deadline);
    if (!got) return got.error();
    replies_.commit(*got);
  }
}

template <class T>
Result<T> StoreClient::answer(const Call& call, std::optional<T> (ReplyReader::*take)()) {
  Result<T> field = answer_within(Deadline(options_.timeout), take);
  if (!field) return finish(call, std::move(field).error());
  return field;
}

Result<void> StoreClient::await_ready(const Call& call, Duration timeout) {
  Result<std::uint8_t> ready = answer_within(Deadline(timeout), &ReplyReader::take_u8);
  if (!ready) {
    Error error = std::move(ready).error();
    if (error.kind == ErrorKind::kTimeout) return cancel_wait(call, std::move(error));
    return finish(call, std::move(error));
  }
  if (*ready != kReady) return finish(call, protocol_error("a wait was answered with nonsense"));
  return {};
}

// The answer may be on its way while we give up: then it comes before that of the cancelling, and
// what we waited for is there after all.
Result<void> StoreClient::cancel_wait(const Call& call, Error&& timeout) {
  const Result<void> sent = send(call, Command::kCancelWait, {});
  if (!sent) return sent.error();
  Result<std::uint8_t> first = answer(call, &ReplyReader::take_u8);
  if (!first) return first.error();
  if (*first == kCancelled) {
    timeout.doing = doing(call);
    timeout.cause = call.keys == 1 ? "the key is not there" : "not all keys are there";
    return std::move(timeout);
  }
  const Result<std::uint8_t> second = answer(call, &ReplyReader::take_u8);
  if (!second) return second.error();
  if (*first != kReady || *second != kCancelled) {
    return finish(call, protocol_error("a cancelled wait was answered with nonsense"));
  }
  return {};
}

Error StoreClient::finish(const Call& call, Error&& error) {
  error.doing = doing(call);
  finished_ = error;
  return std::move(error);
}

std::string StoreClient::doing(const Call& call) const {
  std::string text = call.verb;
  if (!call.key.empty()) text += " '" + std::string(call.key) + "'";
  if (call.keys > 1) text += " and " + std::to_string(call.keys - 1) + " more";
  return text + " at " + name_of(options_);
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

// --- the operations ---

Result<void> StoreClient::set(std::string_view key, std::string_view value) {
  const std::string full = full_key(key);
  return tell({"set", key}, Command::kSet, std::array<std::string_view, 2>{full, value});
}

Result<void> StoreClient::append(std::string_view key, std::string_view value) {
  const std::string full = full_key(key);
  return tell({"append", key}, Command::kAppend, std::array<std::string_view, 2>{full, value});
}

Result<void> StoreClient::multi_set(const std::vector<std::pair<std::string, std::string>>& pairs) {
  std::vector<std::string> keys;
  for (const auto& pair : pairs) keys.push_back(full_key(pair.first));
  std::vector<std::string_view> strings;
  for (std::size_t i = 0; i < pairs.size(); ++i) {
    strings.push_back(keys[i]);
    strings.push_back(pairs[i].second);
  }
  const std::string_view first = pairs.empty() ? std::string_view() : pairs[0].first;
  return tell({"multi_set", first, pairs.size()}, Command::kMultiSet, strings);
}

Result<void> StoreClient::wait(const std::vector<std::string>& keys, Duration timeout) {
  const Call call{"wait for", first_of(keys), keys.size()};
  const std::vector<std::string> full = full_keys(keys);
  const Result<void> sent = send(call, Command::kWait, views_of(full));
  if (!sent) return sent.error();
  return await_ready(call, timeout);
}

// Two round trips, as PyTorch has it. One would do with our server, but PyTorch's older one hangs
// up when a missing key is read.
Result<std::string> StoreClient::get(std::string_view key, Duration timeout) {
  const Call call{"get", key};
  const std::string full = full_key(key);
  const std::array<std::string_view, 1> strings{full};
  Result<void> done = send(call, Command::kWait, strings);
  if (done) done = await_ready(call, timeout);
  if (done) done = send(call, Command::kGet, strings);
  if (!done) return done.error();
  return answer(call, &ReplyReader::take_string);
}

Result<std::vector<std::string>> StoreClient::multi_get(const std::vector<std::string>& keys,
                                                        Duration timeout) {
  const Call call{"multi_get", first_of(keys), keys.size()};
  const std::vector<std::string> full = full_keys(keys);
  const std::vector<std::string_view> strings = views_of(full);
  Result<void> done = send(call, Command::kWait, strings);
  if (done) done = await_ready(call, timeout);
  if (done) done = send(call, Command::kMultiGet, strings);
  if (!done) return done.error();
  std::vector<std::string> values;
  while (values.size() < keys.size()) {
    Result<std::string> value = answer(call, &ReplyReader::take_string);
    if (!value) return value.error();
    values.push_back(std::move(*value));
  }
  return values;
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t delta) {
  const Call call{"add", key};
  const std::string full = full_key(key);
  const auto sent = send(call, Command::kAdd, std::array<std::string_view, 1>{full}, delta);
  if (!sent) return sent.error();
  return answer(call, &ReplyReader::take_i64);
}

Result<bool> StoreClient::check(const std::vector<std::string>& keys) {
  const Call call{"check", first_of(keys), keys.size()};
  const std::vector<std::string> full = full_keys(keys);
  const Result<void> sent = send(call, Command::kCheck, views_of(full));
  if (!sent) return sent.error();
  const Result<std::uint8_t> missing = answer(call, &ReplyReader::take_u8);
  if (!missing) return missing.error();
  return *missing == kReady;
}

Result<std::string> StoreClient::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired) {
  const Call call{"compare_set", key};
  const std::string full = full_key(key);
  const auto sent =
      send(call, Command::kCompareSet, std::array<std::string_view, 3>{full, expected, desired});
  if (!sent) return sent.error();
  return answer(call, &ReplyReader::take_string);
}

Result<bool> StoreClient::delete_key(std::string_view key) {
  const Call call{"delete", key};
  const std::string full = full_key(key);
  const auto sent = send(call, Command::kDeleteKey, std::array<std::string_view, 1>{full});
  if (!sent) return sent.error();
  const Result<std::int64_t> count = answer(call, &ReplyReader::take_i64);
  if (!count) return count.error();
  return *count > 0;
}

Result<std::int64_t> StoreClient::num_keys() {
  const Call call{"count keys", ""};
  const Result<void> sent = send(call, Command::kGetNumKeys, {});
  if (!sent) return sent.error();
  return answer(call, &ReplyReader::take_i64);
}

Result<std::vector<std::string>> StoreClient::list_keys() {
  const Call call{"list keys", ""};
  const Result<void> sent = send(call, Command::kListKeys, {});
  if (!sent) return sent.error();
  const Result<std::int64_t> count = answer(call, &ReplyReader::take_i64);
  if (!count) return count.error();
  std::vector<std::string> keys;
  for (std::int64_t i = 0; i < *count; ++i) {
    const Result<std::string> key = answer(call, &ReplyReader::take_string);
    if (!key) return key.error();
    if (key->starts_with(key_prefix_)) keys.push_back(key->substr(key_prefix_.size()));
  }
  return keys;
}

Result<void> StoreClient::queue_push(std::string_view key, std::string_view value) {
  const std::string full = full_key(key);
  return tell({"push to queue", key}, Command::kQueuePush,
              std::array<std::string_view, 2>{full, value});
}

Result<std::optional<std::string>> StoreClient::queue_pop(std::string_view key) {
  const Call call{"pop from queue", key};
  const std::string full = full_key(key);
  const auto sent = send(call, Command::kQueuePop, std::array<std::string_view, 1>{full});
  if (!sent) return sent.error();
  const Result<std::int64_t> length = answer(call, &ReplyReader::take_i64);
  if (!length) return length.error();
  if (*length <= 0) return std::optional<std::string>();
  Result<std::string> value = answer(call, &ReplyReader::take_string);
  if (!value) return value.error();
  return std::optional<std::string>(std::move(*value));
}

Result<std::string> StoreClient::queue_pop(std::string_view key, Duration timeout) {
  const Deadline deadline(timeout);
  for (;;) {
    const Result<void> there = wait({std::string(key)}, deadline.remaining());
    if (!there) return there.error();
    Result<std::optional<std::string>> value = queue_pop(key);
    if (!value) return value.error();
    if (*value) return std::move(**value);
    // Somebody else was quicker.
  }
}

Result<std::int64_t> StoreClient::queue_len(std::string_view key) {
  const Call call{"length of queue", key};
  const std::string full = full_key(key);
  const auto sent = send(call, Command::kQueueLen, std::array<std::string_view, 1>{full});
  if (!sent) return sent.error();
  return answer(call, &ReplyReader::take_i64);
}

Result<void> StoreClient::barrier(std::string_view key, std::int64_t world, Duration timeout) {
  const Call call{"barrier", key};
  const std::string full = full_key(key);
  const auto sent = send(call, Command::kBarrier, std::array<std::string_view, 1>{full}, world);
  if (!sent) return sent.error();
  return await_ready(call, timeout);
}

}  // namespace ddprun
