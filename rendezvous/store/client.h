// StoreClient: a connection to a generation's store. It speaks the c10d TCPStore protocol (dialect
// M, PyTorch 2.2 and newer; docs/reference/wire_protocol.md) and works with our store and with
// PyTorch's. The handshake finds out which one it is. With ours, a get is one round trip, gets can
// be pipelined, and a broken connection can be replaced.
//
// For worker_lib and tests. It uses plain sockets, and has no event loop and no thread of its
// own. A call blocks until the answer is there or its deadline has passed. One thread at a time
// may use a client. A second thread needs a second client, because a blocked wait holds the
// connection.
//
// Like PyTorch's client, it puts "/" (and the prefix, if one is given) in front of every key. So
// C++ and Python workers of one job see the same keys.
//
// Errors name the key, the peer, and the time waited and allowed. The client stays usable after
// these errors:
// - kInvalidArgument: a key or value is too long; nothing was sent.
// - kResource: the value is longer than the store may send.
// - kTimeout of a call that waits: get and multi_get.
//
// After any other error the client is finished, and every later call returns that error again.
// There is one exception.
//
// If the connection to a store of ours breaks, the client connects again, within the deadline of
// the call. It then repeats the call once, if a repetition is harmless: get, multi_get, check,
// num_keys, list_keys. Other calls reconnect only before they send. If such a call was sent, its
// error says that it may or may not have been done, and the next call reconnects.
//
// The client is finished if no process listens there any more, or if another store does. It is
// also finished if a set, which has no answer, may be lost, because no answer has come since.
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
  HostPort address;    // name or numeric address; there is never a reverse lookup
  std::string prefix;  // "group/0" makes keys "/group/0/<key>"
  // Covers name resolution, connecting with retries, and the handshake.
  Duration connect_timeout = std::chrono::seconds(300);
  Duration timeout = std::chrono::seconds(300);  // for the answer to a single request
  bool tries_once = false;  // connect only once, so that a store that is not up yet is an error
};

class StoreClient;

// PendingGet: a value that was requested by get_async(). It belongs to its client's thread, and
// the client must outlive it.
class PendingGet {
 public:
  PendingGet(PendingGet&& other) noexcept
      : client_(std::exchange(other.client_, nullptr)), number_(other.number_) {}
  PendingGet& operator=(PendingGet&& other) noexcept;
  // Drops the value.
  ~PendingGet();

  // Returns what get() would return. May be called once. Blocks until the deadline given to
  // get_async().
  Result<std::string> take() &&;

 private:
  friend class StoreClient;
  PendingGet(StoreClient* client, std::uint64_t number) : client_(client), number_(number) {}

  StoreClient* client_;
  std::uint64_t number_;
};

class StoreClient {
 public:
  // Connects and does the handshake. The store may not be up yet, so a failed attempt is repeated
  // with growing pauses until connect_timeout. With options.tries_once it is not repeated.
  // kConnection: the cause is that of the last attempt.
  static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);

  // Stores or overwrites. In this protocol a set has no answer. Success only means that the request
  // was sent.
  Result<void> set(std::string_view key, std::string_view value);
  // Returns the value. Waits until the key exists.
  Result<std::string> get(std::string_view key, Duration timeout);
  // Requests the value without waiting; it is taken later. The timeout begins now. With our
  // store, many such requests can be in flight. They are sent when some KiB have gathered, by
  // flush(), by the next other call, or when a value is taken.
  //
  // If the key was missing when its request arrived, it is requested again when its value is
  // taken, which then waits. For PyTorch's store, every key is requested only then.
  PendingGet get_async(std::string_view key, Duration timeout);
  // Sends the requests of get_async() that have not been sent yet.
  void flush();
  // Returns the values in the order of the keys. Waits until all keys exist.
  Result<std::vector<std::string>> multi_get(const std::vector<std::string>& keys,
                                             Duration timeout);
  // Adds to a decimal counter (missing = 0) and returns the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta);
  // Returns true if every key exists now.
  Result<bool> check(const std::vector<std::string>& keys);
  // Returns true if the key existed.
  Result<bool> delete_key(std::string_view key);
  // Returns the number of keys in the whole store, with any prefix. It includes the key by which
  // PyTorch's clients are counted ("init/").
  Result<std::int64_t> num_keys();
  // Returns the keys under this client's prefix, without the prefix. The server must support
  // LIST_KEYS: ours, or PyTorch 2.10 and newer. Other servers close the connection.
  Result<std::vector<std::string>> list_keys();

  // Returns this host's numeric address on the route to the store, at which other ranks can
  // reach this process.
  const std::string& local_address() const { return local_address_; }

  // Returns true if the store is one of ours, according to the handshake.
  bool is_ours() const { return identity_.has_value(); }

 private:
  // Describes a call for its errors.
  struct Call {
    const char* verb;
    std::string_view key;  // the first one, as the caller wrote it
    std::size_t keys = 1;
  };

  using Strings = std::vector<std::string>;
  // The state of one get_async().
  struct Slot {
    enum State : std::uint8_t {
      kToAsk,  // must be requested when its value is taken
      kSent,   // sent or queued, and not answered yet
      kHere,
    };
    std::string key;
    Deadline deadline;
    State state = kToAsk;
    bool is_released = false;  // its PendingGet was destroyed
    std::string value;
  };
  friend class PendingGet;

  StoreClient(StoreClientOptions options, BlockingSocket socket);

  static Result<std::unique_ptr<StoreClient>> try_connect(const StoreClientOptions& options,
                                                          const Deadline& deadline);
  Result<void> shake_hands(const Deadline& deadline);

  // Connects again if the connection is broken.
  Result<void> be_connected(const Call& call, const Deadline& deadline);
  // Takes over the connection of a new client, if it is to the same store.
  Result<void> go_on_with(const Call& call, StoreClient& next);
  // Complete the error. break_off() marks the connection as broken or the client as finished,
  // depending on the error and on what was sent. finish() marks the client as finished.
  Error break_off(const Call& call, Error&& error);
  Error finish(const Call& call, Error&& error);
  // Forgets sent requests, because no answer to them will come.
  void forget_sent();
  // Performs a call that may be repeated.
  template <class T, class Ask>
  Result<T> repeatedly(const Call& call, const Deadline& deadline, Ask ask);
  // Performs a call that must not be repeated.
  template <class T, class Ask>
  Result<T> once(const Call& call, Ask ask);
  // Does the same for a call that has one key and is answered by a number.
  Result<std::int64_t> ask_once(const Call& call, Command command, std::int64_t number = 0);

  // Sends a request, after the queued ones.
  Result<void> send(const Call& call, Command command, std::span<const std::string_view> strings,
                    std::int64_t number = 0);
  Result<void> send_queued(Duration timeout);
  // Sends a request and returns the first field of its answer.
  template <class T>
  Result<T> ask(const Call& call, Command command, std::span<const std::string_view> strings,
                std::int64_t number, std::optional<T> (ReplyReader::*take)());
  // Returns the next field of the answer, read by one of ReplyReader's take functions.
  template <class T>
  Result<T> answer(const Call& call, std::optional<T> (ReplyReader::*take)());
  template <class T>
  Result<T> answer_within(const Deadline& deadline, std::optional<T> (ReplyReader::*take)());
  // Does the same, but returns nullopt if the field has not come yet.
  template <class T>
  std::optional<T> answer_at_hand(std::optional<T> (ReplyReader::*take)());
  // Waits for bytes.
  Result<void> receive(const Deadline& deadline);
  // Returns the answer to a WAIT or FETCH that was sent. `rest` makes the result from the first
  // byte of the answer and the bytes that follow.
  template <class T, class Rest>
  Result<T> deferred_answer(const Call& call, const Deadline& deadline, Rest rest);
  Result<Strings> take_strings(const Call& call, std::size_t count);

  Result<void> ask_to_wait(const Call& call, std::span<const std::string_view> full,
                           const Deadline& deadline);
  Result<std::string> get_within(std::string_view key, const Deadline& deadline);
  Result<std::string> fetch(const Call& call, std::string_view full, const Deadline& deadline);
  Result<std::string> wait_and_get(const Call& call, std::string_view full,
                                   const Deadline& deadline);
  // Returns nullopt if a key is missing.
  Result<std::optional<Strings>> try_fetch(const Call& call,
                                           std::span<const std::string_view> full);

  // Assigns the answers that have come to their slots.
  Result<void> sort_answers();
  // Moves next_answer_ to the next slot that expects an answer.
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
  std::optional<std::string> identity_;  // set if the store is one of ours
  std::string queued_;                   // requests that have not been sent
  ReplyReader replies_;
  std::optional<Error> broken_;    // error of the connection; a call may replace it
  std::optional<Error> finished_;  // error that has finished the client
  // The last request without an answer, until another request is answered.
  std::string unconfirmed_;

  // Slots are numbered from first_slot_ on.
  std::deque<Slot> slots_;
  std::uint64_t first_slot_ = 0;
  std::uint64_t next_answer_ = 0;  // the slot that the next answer is for
  bool value_follows_ = false;     // the first byte of its answer has been read
};

}  // namespace ddprun
