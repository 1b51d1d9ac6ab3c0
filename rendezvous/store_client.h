// StoreClient: one connection to a generation's store, speaking the c10d TCPStore protocol (dialect
// M, PyTorch 2.2 and newer; docs/wire_protocol.md). It works against our store and against
// PyTorch's.
//
// For worker_lib and tests. Plain sockets, no event loop and no thread of its own: a call blocks
// its caller until the answer is there or its deadline has passed. One thread at a time may use a
// client; make a second client for a second thread, as a blocked wait holds the connection.
//
// Like PyTorch's client it puts "/" (and the prefix, if one is given) in front of every key, so
// that C++ and Python workers of one job see the same keys.
//
// Errors name the key, the peer, the time waited and allowed. The client stays usable after
// kInvalidArgument (nothing was sent: a key or value is too long) and after the kTimeout of a wait:
// get, multi_get, wait, queue_pop and barrier. After any other error it is finished, and every call
// says so again.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "rendezvous/blocking_socket.h"
#include "rendezvous/core/wire_format.h"

namespace ddprun {

struct StoreClientOptions {
  std::string host;  // name or numeric address; no reverse look-up is ever made
  std::uint16_t port = 0;
  std::string prefix;  // "group/0" makes keys "/group/0/<key>"
  Duration connect_timeout =
      std::chrono::seconds(300);                 // resolving, connecting with retries, handshake
  Duration timeout = std::chrono::seconds(300);  // of a single request's answer
};

class StoreClient {
 public:
  // Connects and shakes hands; a refused connection is tried again with growing pauses (the store
  // may not be up yet) until connect_timeout. kConnection: the last try's cause.
  static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);

  // Stores or overwrites. As set, multi_set, append and queue_push have no answer in this protocol,
  // success says that the request was sent.
  Result<void> set(std::string_view key, std::string_view value);
  // Stores all pairs at once, in their order.
  Result<void> multi_set(const std::vector<std::pair<std::string, std::string>>& pairs);
  // The value, waiting for the key to exist.
  Result<std::string> get(std::string_view key, Duration timeout);
  // The values in the order of the keys, waiting for all of them to exist.
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Duration timeout);
  // Adds to a decimal counter (missing = 0) and returns the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Waits until every key exists (or is a queue that holds something).
  Result<void> wait(const std::vector<std::string>& keys, Duration timeout);
  // Whether every key exists now.
  Result<bool> check(const std::vector<std::string>& keys);
  // Replaces `expected` by `desired`; returns what the key holds afterwards (for a missing key and
  // a non-empty expectation: `expected`, as PyTorch's server does).
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired);
  // True if the key existed.
  Result<bool> delete_key(std::string_view key);
  // Appends to the value, or makes it.
  Result<void> append(std::string_view key, std::string_view value);
  // Keys of the whole store, whatever their prefix, and whatever PyTorch's clients count there.
  Result<std::int64_t> num_keys();
  // The keys under this client's prefix, without it. The server must know LIST_KEYS: ours, or
  // PyTorch 2.10 and newer; others hang up.
  Result<std::vector<std::string>> list_keys();

  // Queues, first in first out, apart from the values of the same name. The server must know them:
  // ours, or PyTorch's libuv server of 2.8 and newer; others hang up.
  Result<void> queue_push(std::string_view key, std::string_view value);
  // Takes the oldest value, if there is one.
  Result<std::optional<std::string>> queue_pop(std::string_view key);
  // Takes the oldest value, waiting for one.
  Result<std::string> queue_pop(std::string_view key, Duration timeout);
  Result<std::int64_t> queue_len(std::string_view key);

  // Waits until `world` callers have arrived at the key, this one included. A key serves once: it
  // counts on, and stays open. The server must know BARRIER: ours, or a PyTorch newer than 2.11.
  Result<void> barrier(std::string_view key, std::int64_t world, Duration timeout);

  // Numeric address of this host on the way to the store: what other ranks can reach us at.
  const std::string& local_address() const { return local_address_; }
  const StoreClientOptions& options() const { return options_; }

 private:
  // What a call does, for its errors.
  struct Call {
    const char* verb;
    std::string_view key;  // the first one, as the caller wrote it
    std::size_t keys = 1;
  };

  StoreClient(StoreClientOptions options, BlockingSocket socket);

  static Result<std::unique_ptr<StoreClient>> try_connect(const StoreClientOptions& options,
                                                          const Deadline& deadline);
  Result<void> shake_hands(const Deadline& deadline);

  Result<void> send(const Call& call, Command command, std::span<const std::string_view> strings,
                    std::int64_t number = 0);
  // send() for requests without an answer, which would not notice that nobody listens any more.
  Result<void> tell(const Call& call, Command command, std::span<const std::string_view> strings);
  // The next field of the answer, as one of ReplyReader's take functions reads it.
  template <class T>
  Result<T> answer(const Call& call, std::optional<T> (ReplyReader::*take)());
  template <class T>
  Result<T> answer_within(const Deadline& deadline, std::optional<T> (ReplyReader::*take)());
  // The answer of a WAIT or BARRIER that was sent.
  Result<void> await_ready(const Call& call, Duration timeout);
  Result<void> cancel_wait(const Call& call, Error&& timeout);
  // Completes the error; the client is finished.
  Error finish(const Call& call, Error&& error);

  std::string doing(const Call& call) const;
  std::string full_key(std::string_view key) const;
  std::vector<std::string> full_keys(const std::vector<std::string>& keys) const;

  StoreClientOptions options_;
  BlockingSocket socket_;
  std::string local_address_;
  std::string key_prefix_;
  std::string request_;
  ReplyReader replies_;
  std::optional<Error> finished_;
};

}  // namespace ddprun
