// StoreClient: a connection to a generation's store, speaking the c10d TCPStore protocol (dialect
// M, PyTorch 2.2 and newer; docs/wire_protocol.md). It works against our store and against
// PyTorch's. The handshake finds out which; with ours a get is one round trip, gets can be
// pipelined, and a connection that breaks can be replaced.
//
// For worker_lib and tests. Plain sockets, no event loop and no thread of its own: a call blocks
// its caller until the answer is there or its deadline has passed. One thread at a time may use a
// client; make a second client for a second thread, as a blocked wait holds the connection.
//
// Like PyTorch's client it puts "/" (and the prefix, if one is given) in front of every key, so
// that C++ and Python workers of one job see the same keys.
//
// Errors name the key, the peer, the time waited and allowed. The client stays usable after
// kInvalidArgument (nothing was sent: a key or value is too long), after kResource (a value that the
// store may not send) and after the kTimeout of a wait: get, multi_get, wait, queue_pop and barrier.
// After any other error it is finished, and every call says so again; but for this:
//
// When the connection to a store of ours breaks, the client connects anew, within the deadline of
// the call. It repeats the call, once, if that can do nothing twice: get, multi_get, wait, check,
// num_keys, list_keys, queue_len. Other calls connect only before they send; one that was sent ends
// with an error that says that it may or may not have been done, and the next call connects. It is
// finished when nobody listens there any more or another store does, and when a request without an
// answer (set, multi_set, append, queue_push) may have been lost, because no answer has come since.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/result.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun {

struct StoreClientOptions {
  HostPort address;    // name or numeric address; no reverse look-up is ever made
  std::string prefix;  // "group/0" makes keys "/group/0/<key>"
  Duration connect_timeout =
      std::chrono::seconds(300);                 // resolving, connecting with retries, handshake
  Duration timeout = std::chrono::seconds(300);  // of a single request's answer
  bool tries_once = false;                       // connecting: a store that is not up is not there
};

class StoreClient;

// A value that was asked for with get_async(). One thread with its client, which outlives it.
class PendingGet {
 public:
  PendingGet(PendingGet&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)), number_(other.number_) {}
  PendingGet& operator=(PendingGet&& other) noexcept;
  // Nobody wants the value any more.
  ~PendingGet();

  // What get() would return, once; blocks until the deadline that was given to get_async().
  Result<std::string> take() &&;

 private:
  friend class StoreClient;
  PendingGet(StoreClient* client, std::uint64_t number) : client_(client), number_(number) {}

  StoreClient* client_;
  std::uint64_t number_;
};

class StoreClient {
 public:
  // Connects and shakes hands; a refused connection is tried again with growing pauses (the store
  // may not be up yet) until connect_timeout, unless only one try is wanted. kConnection: the last
  // try's cause.
  static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);

  // Stores or overwrites. As set, multi_set, append and queue_push have no answer in this protocol,
  // success says that the request was sent.
  Result<void> set(std::string_view key, std::string_view value);
  // Stores all pairs at once, in their order.
  Result<void> multi_set(const std::vector<std::pair<std::string, std::string>>& pairs);
  // The value, waiting for the key to exist.
  Result<std::string> get(std::string_view key, Duration timeout);
  // The same without waiting: the value is taken later. The timeout begins now. With our store the
  // requests of many such calls are on their way at once; they leave when some KiB of them have
  // gathered, with flush(), with the next other call, or when a value is taken. A key that was missing
  // when its request arrived is asked for again when its value is taken, and then waited for; so is
  // every key of another server.
  PendingGet get_async(std::string_view key, Duration timeout);
  // Sends the requests of get_async() that have not left yet.
  void flush();
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

  // Whether the store is one of ours, as the handshake has found out.
  bool is_ours() const { return identity_.has_value(); }

 private:
  // What a call does, for its errors.
  struct Call {
    const char* verb;
    std::string_view key;  // the first one, as the caller wrote it
    std::size_t keys = 1;
  };

  using Strings = std::vector<std::string>;
  // A get_async().
  struct Slot {
    enum State : std::uint8_t {
      kToAsk,  // when its value is taken
      kSent,   // or queued; not answered yet
      kHere,
    };
    std::string key;
    Deadline deadline;
    State state = kToAsk;
    bool is_released = false;  // its PendingGet is gone
    std::string value;
  };
  friend class PendingGet;

  StoreClient(StoreClientOptions options, BlockingSocket socket);

  static Result<std::unique_ptr<StoreClient>> try_connect(const StoreClientOptions& options,
                                                          const Deadline& deadline);
  Result<void> shake_hands(const Deadline& deadline);

  // Connects again if the connection is broken.
  Result<void> be_connected(const Call& call, const Deadline& deadline);
  // Takes over the connection of a client that has just been made, if it is to the same store.
  Result<void> go_on_with(const Call& call, StoreClient& next);
  // Both complete the error. After break_off() the connection is broken, or the client finished, as
  // the error and what was sent demand; after finish() the client is finished.
  Error break_off(const Call& call, Error&& error);
  Error finish(const Call& call, Error&& error);
  // No answer will come to what was sent.
  void forget_sent();
  // Performs a call that may be repeated.
  template <class T, class Ask>
  Result<T> repeatedly(const Call& call, const Deadline& deadline, Ask ask);
  // Performs a call that must not be repeated.
  template <class T, class Ask>
  Result<T> once(const Call& call, Ask ask);

  // Sends a request, after those that are queued.
  Result<void> send(const Call& call, Command command, std::span<const std::string_view> strings,
                    std::int64_t number = 0);
  Result<void> send_queued(Duration timeout);
  // Performs a call that has no answer.
  Result<void> tell(const Call& call, Command command, std::span<const std::string_view> strings);
  // Sends a request and takes the first field of its answer.
  template <class T>
  Result<T> ask(const Call& call, Command command, std::span<const std::string_view> strings,
                std::int64_t number, std::optional<T> (ReplyReader::*take)());
  // The next field of the answer, as one of ReplyReader's take functions reads it.
  template <class T>
  Result<T> answer(const Call& call, std::optional<T> (ReplyReader::*take)());
  template <class T>
  Result<T> answer_within(const Deadline& deadline, std::optional<T> (ReplyReader::*take)());
  // The same, if it has come.
  template <class T>
  std::optional<T> answer_at_hand(std::optional<T> (ReplyReader::*take)());
  // Waits for bytes.
  Result<void> receive(const Deadline& deadline);
  // The answer of a WAIT, FETCH or BARRIER that was sent; `rest` makes the result of its first byte
  // and what follows.
  template <class T, class Rest>
  Result<T> deferred_answer(const Call& call, const Deadline& deadline, Rest rest);
  Result<void> await_ready(const Call& call, const Deadline& deadline);
  Result<Strings> take_strings(const Call& call, std::size_t count);

  Result<void> ask_to_wait(const Call& call, std::span<const std::string_view> full,
                           const Deadline& deadline);
  Result<std::string> get_within(std::string_view key, const Deadline& deadline);
  Result<std::string> fetch(const Call& call, std::string_view full, const Deadline& deadline);
  Result<std::string> wait_and_get(const Call& call, std::string_view full,
                                   const Deadline& deadline);
  // Nothing when a key is missing.
  Result<std::optional<Strings>> try_fetch(const Call& call,
                                           std::span<const std::string_view> full);

  // Gives the answers that have come to the slots they are for.
  Result<void> sort_answers();
  // Moves next_answer_ to the next slot that is to be answered.
  void skip_answered();
  bool all_answered() const;
  Result<std::string> take(std::uint64_t number);
  void release(std::uint64_t number);

  std::string named(const Call& call) const;
  std::string doing(const Call& call) const;
  std::string full_key(std::string_view key) const;
  Strings full_keys(const Strings& keys) const;

  StoreClientOptions options_;
  BlockingSocket socket_;
  std::string local_address_;
  std::string key_prefix_;
  std::optional<std::string> identity_;  // of a store of ours
  std::string queued_;                   // requests that have not left
  ReplyReader replies_;
  std::optional<Error> broken_;    // the connection; a call may replace it
  std::optional<Error> finished_;  // the client
  std::string unconfirmed_;        // the last request without an answer, until another is answered

  // By number: first_slot_ and those that follow.
  std::deque<Slot> slots_;
  std::uint64_t first_slot_ = 0;
  std::uint64_t next_answer_ = 0;  // the slot for which the next answer is
  bool value_follows_ = false;     // its first byte has been read
};

}  // namespace ddprun
