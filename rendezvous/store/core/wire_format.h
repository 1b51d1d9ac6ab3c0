// Encodes and decodes requests and replies of the c10d TCPStore protocol, for server and client.
//
// docs/reference/wire_protocol.md ("The store") is its specification. kCommandRules and the tables
// of opcodes below repeat it in code, and a test compares the two. Integers are little-endian. A
// string is a u64 length and its bytes. A list is a u64 count and its strings. No field gives the
// length of a whole request, so it is found by reading field after field.
//
// RequestParser takes the bytes of a connection in pieces of any size and returns complete
// requests. It checks each size as soon as it is announced, before it allocates memory.
// ReplyReader is the client's counterpart. Both are value types; each has one owner thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/enum_names.h"
#include "rendezvous/net/core/byte_buffer.h"

namespace ddprun {

// The commands of the protocol. Their numbers depend on the dialect.
enum class Command : std::uint8_t {
  kValidate,
  kSet,
  kCompareSet,
  kGet,
  kAdd,
  kCheck,
  kWait,
  kGetNumKeys,
  kDeleteKey,
  kAppend,
  kMultiGet,
  kMultiSet,
  kCancelWait,
  kPing,
  kQueuePush,
  kQueuePop,
  kQueueLen,
  kListKeys,
  kBarrier,
  kWatchKey,
  kFetch,
  kTryFetch,
};

// The fields that follow the opcode.
enum class Field : std::uint8_t {
  kNone,
  kKey,    // a string, bounded by RequestLimits::key_bytes
  kValue,  // a string, bounded by RequestLimits::value_bytes
  kInt64,
  kUint32,
  kKeys,   // a list of keys
  kPairs,  // a u64 count, then that many pairs of a key and a value
};

struct CommandRule {
  Command command;
  std::string_view name;
  std::array<Field, 3> fields;
};

// Indexed by Command. A command has the same fields in every dialect that has it.
inline constexpr std::array<CommandRule, 22> kCommandRules{{
    {Command::kValidate, "VALIDATE", {Field::kUint32}},
    {Command::kSet, "SET", {Field::kKey, Field::kValue}},
    {Command::kCompareSet, "COMPARE_SET", {Field::kKey, Field::kValue, Field::kValue}},
    {Command::kGet, "GET", {Field::kKey}},
    {Command::kAdd, "ADD", {Field::kKey, Field::kInt64}},
    {Command::kCheck, "CHECK", {Field::kKeys}},
    {Command::kWait, "WAIT", {Field::kKeys}},
    {Command::kGetNumKeys, "GETNUMKEYS", {}},
    {Command::kDeleteKey, "DELETE_KEY", {Field::kKey}},
    {Command::kAppend, "APPEND", {Field::kKey, Field::kValue}},
    {Command::kMultiGet, "MULTI_GET", {Field::kKeys}},
    {Command::kMultiSet, "MULTI_SET", {Field::kPairs}},
    {Command::kCancelWait, "CANCEL_WAIT", {}},
    {Command::kPing, "PING", {Field::kUint32}},
    {Command::kQueuePush, "QUEUE_PUSH", {Field::kKey, Field::kValue}},
    {Command::kQueuePop, "QUEUE_POP", {Field::kKey}},
    {Command::kQueueLen, "QUEUE_LEN", {Field::kKey}},
    {Command::kListKeys, "LIST_KEYS", {}},
    {Command::kBarrier, "BARRIER", {Field::kKey, Field::kInt64}},
    {Command::kWatchKey, "WATCH_KEY", {Field::kKey}},
    {Command::kFetch, "FETCH", {Field::kKey}},
    {Command::kTryFetch, "TRY_FETCH", {Field::kKeys}},
}};

constexpr const CommandRule& rule_of(Command command) {
  return kCommandRules[static_cast<std::size_t>(command)];
}

// Dialect: how a connection numbers its commands. Its first bytes show whether it is modern or
// legacy. The two legacy dialects begin with the same requests and differ from opcode 7 on.
enum class Dialect : std::uint8_t {
  kL1,      // PyTorch up to 2.0
  kL2,      // PyTorch 2.1
  kModern,  // PyTorch 2.2 and newer; begins with the handshake
};

// The two dialects that the first bytes do not distinguish.
inline constexpr EnumNames<Dialect, 2> kLegacyDialectWords{
    {{Dialect::kL1, "l1"}, {Dialect::kL2, "l2"}}};

// Indexed by opcode. PyTorch has only appended commands to kModern, so one table serves all
// versions. BARRIER is newer than 2.11.
inline constexpr std::array kOpcodesL1{
    Command::kSet,  Command::kCompareSet, Command::kGet,      Command::kAdd,       Command::kCheck,
    Command::kWait, Command::kGetNumKeys, Command::kWatchKey, Command::kDeleteKey,
};
inline constexpr std::array kOpcodesL2{
    Command::kSet,    Command::kCompareSet, Command::kGet,        Command::kAdd,
    Command::kCheck,  Command::kWait,       Command::kGetNumKeys, Command::kDeleteKey,
    Command::kAppend, Command::kMultiGet,   Command::kMultiSet,   Command::kCancelWait,
};
inline constexpr std::array kOpcodesModern{
    Command::kValidate,   Command::kSet,      Command::kCompareSet, Command::kGet,
    Command::kAdd,        Command::kCheck,    Command::kWait,       Command::kGetNumKeys,
    Command::kDeleteKey,  Command::kAppend,   Command::kMultiGet,   Command::kMultiSet,
    Command::kCancelWait, Command::kPing,     Command::kQueuePush,  Command::kQueuePop,
    Command::kQueueLen,   Command::kListKeys, Command::kBarrier,
};

// Our own commands in the modern dialect. They are numbered from kFirstOwnOpcode on, far above
// PyTorch's next opcodes. Only a server that has sent its identity supports them.
inline constexpr std::uint8_t kFirstOwnOpcode = 128;
inline constexpr std::array kOwnOpcodes{Command::kFetch, Command::kTryFetch};

// Return nullopt if the dialect does not have that opcode, or that command.
std::optional<Command> command_of(Dialect dialect, std::uint8_t opcode);
std::optional<std::uint8_t> opcode_of(Dialect dialect, Command command);

// The number after VALIDATE, which begins every connection of the modern dialect.
inline constexpr std::uint32_t kHandshakeMagic = 0x3C85F7CE;

// The key by which a client asks for the identity of a store: a COMPARE_SET of it with
// kNoIdentity as expected and desired value. Our store answers with its identity and changes
// nothing. Every PyTorch server answers with the expected value and changes nothing, because the
// key is missing. None of PyTorch's clients can create it: they put "/" in front of every key
// except "init/".
inline constexpr std::string_view kIdentityKey = "ddprun:1";
inline constexpr std::string_view kNoIdentity = "?";
// The length of an identity, which is hexadecimal digits, random for each store.
inline constexpr std::size_t kIdentityBytes = 32;

// Fetched: the first byte of an answer to FETCH and TRY_FETCH.
enum class Fetched : std::uint8_t {
  kHere = 0,     // the values follow
  kMissing = 1,  // TRY_FETCH: not all keys exist
  kTooLong = 2,  // FETCH: the value is longer than a reply may be
};
constexpr std::uint8_t to_u8(Fetched fetched) { return static_cast<std::uint8_t>(fetched); }

// Answers to WAIT, CHECK and BARRIER.
inline constexpr std::uint8_t kAnswerReady = 0;
inline constexpr std::uint8_t kAnswerNotReady = 1;
// The answer to CANCEL_WAIT.
inline constexpr std::uint8_t kAnswerCancelled = 1;
// The answer to WATCH_KEY.
inline constexpr std::uint8_t kAnswerWatching = 3;

// Returns true if a connection that begins with these bytes is legacy: it does not begin with
// the handshake. nullopt: there are too few bytes to decide.
std::optional<bool> begins_as_legacy(std::string_view first_bytes);

// Refusal: why a server closes a connection that it could continue to read.
struct Refusal {
  enum Kind : std::uint8_t {
    kBadRequest,    // not this protocol, or not possible for the store
    kRequestLimit,  // a limit of RequestLimits
    kReplyLimit,    // the reply would be too long
    kHeldLimit,     // the store is full
    kTooManyConnections,
    kOutOfMemory,
    kNotAllowed,  // an address or user that may not connect
  };
  static constexpr std::size_t kKinds = kNotAllowed + 1;
  // The names in metrics.
  static constexpr EnumNames<Kind, kKinds> kWords{{{kBadRequest, "bad_request"},
                                                   {kRequestLimit, "request_limit"},
                                                   {kReplyLimit, "reply_limit"},
                                                   {kHeldLimit, "held_limit"},
                                                   {kTooManyConnections, "too_many_connections"},
                                                   {kOutOfMemory, "out_of_memory"},
                                                   {kNotAllowed, "not_allowed"}}};

  Kind kind = kBadRequest;
  std::string reason;
};

// Limits, inclusive. Those of key, value and keys are those of PyTorch's own server. The limit
// of a whole request is ours: without it, one MULTI_SET could request a terabyte.
struct RequestLimits {
  std::size_t key_bytes = 8 * 1024;
  std::size_t value_bytes = 8 * 1024 * 1024;
  std::size_t keys = 131072;  // in one request
  std::size_t request_bytes = 64 * 1024 * 1024;
};

// Request: one complete request. The views point into the parser and are valid until its next
// call.
struct Request {
  Command command = Command::kPing;
  std::vector<std::string_view> strings;  // keys and values in the order of the wire
  std::int64_t number = 0;                // of an ADD, BARRIER or PING

  // Returns the first string, for commands that have one.
  std::string_view key() const { return strings[0]; }
  // Returns the string after the key.
  std::string_view value() const { return strings[1]; }
};

class RequestParser {
 public:
  // legacy: kL1 or kL2, the dialect of a connection without a handshake. A connection that is
  // read as L1 changes to L2 at the first opcode that L1 does not have. Until then, a delete of
  // L2 is read as WATCH_KEY and an append as a delete, because they cannot be distinguished.
  explicit RequestParser(const RequestLimits& limits = {}, Dialect legacy = Dialect::kL1)
      : limits_(limits), legacy_(legacy) {}

  // Returns the memory for the next bytes of the connection; commit() tells how many came. Its
  // size grows with the received bytes, never with an announced length. REQUIRES: next()
  // returned null.
  std::span<char> space();
  void commit(std::size_t count) { buffer_.commit(count); }
  // Takes bytes from another buffer instead.
  void feed(std::string_view bytes) { buffer_.append(bytes); }

  // Returns the next complete request; null: more bytes are needed, or the connection is bad. It
  // consumes the handshake and never returns it.
  const Request* next();

  // Returns why this connection cannot be read any more; nullopt: there is no error. The
  // requests before the bad one have been returned.
  const std::optional<Refusal>& refusal() const { return refusal_; }

  // Returns the dialect of the connection; nullopt: too few bytes have come to know.
  std::optional<Dialect> dialect() const { return dialect_; }

  // Returns true if the client has cancelled the WAIT that it sent before the bytes in the
  // buffer. Clients of L1 have no CANCEL_WAIT. After a timeout they send the next request, and
  // would take the late answer to the WAIT for the beginning of its reply. True from the first
  // byte of a request until the call of next() after it.
  bool gives_up_wait() const { return dialect_ == Dialect::kL1 && !buffer_.empty(); }

  // Returns the size of the memory for received bytes.
  std::size_t capacity() const { return buffer_.capacity(); }

 private:
  bool has(std::size_t more) const { return buffer_.size() - scanned_ >= more; }
  template <class Integer>
  bool scan_integer(Integer& value);
  bool find_dialect();
  void follow_buffer();
  bool scan_opcode();
  bool scan_request();
  bool scan_field(Field field);
  bool scan_string(Field kind);
  bool scan_list(Field kind);
  bool refuse(Refusal::Kind kind, std::string reason);

  RequestLimits limits_;
  Dialect legacy_;
  ByteBuffer buffer_;  // begins with the request that is being read
  std::optional<Refusal> refusal_;
  std::optional<Dialect> dialect_;  // set once it is known

  // The request that is being read. Everything before scanned_ has been parsed.
  std::size_t scanned_ = 0;
  std::size_t announced_ = 0;  // bytes of this request that are known to be needed
  const CommandRule* rule_ = nullptr;
  std::size_t field_ = 0;
  bool in_list_ = false;
  std::uint64_t list_left_ = 0;
  bool complete_ = false;
  Request request_;             // its complete strings
  const char* base_ = nullptr;  // where the buffer was when they were last updated
};

// --- writing: each appends to `out` ---

void put_u8(std::string& out, std::uint8_t value);
void put_u32(std::string& out, std::uint32_t value);
void put_i64(std::string& out, std::int64_t value);
void put_u64(std::string& out, std::uint64_t value);
void put_string(std::string& out, std::string_view bytes);

// Returns the value that put_u32 wrote. REQUIRES: there are at least four bytes.
std::uint32_t get_u32(std::string_view bytes);

// Writes VALIDATE, which a client sends once, first.
void put_handshake(std::string& out);

// Writes a whole request; strings and number are as in Request. REQUIRES: the command's rule has
// this many strings (an even number for kPairs); the dialect has the command.
void put_request(std::string& out, Command command, std::span<const std::string_view> strings,
                 std::int64_t number = 0, Dialect dialect = Dialect::kModern);

// Returns why a server with these limits would refuse the request; empty: it would not.
std::string refusal_of(Command command, std::span<const std::string_view> strings,
                       const RequestLimits& limits);

// --- reading replies ---

// ReplyReader: reads the fields of replies. Replies do not contain their type; the caller knows
// from its request which fields follow. Each take function returns nullopt until its field is
// complete.
class ReplyReader {
 public:
  // A longer string is treated as an error.
  static constexpr std::uint64_t kMaxStringBytes = std::uint64_t{1} << 30;

  std::span<char> space();
  void commit(std::size_t count) { buffer_.commit(count); }
  void feed(std::string_view bytes) { buffer_.append(bytes); }

  std::optional<std::uint8_t> take_u8();
  std::optional<std::int64_t> take_i64();
  std::optional<std::string> take_string();

  // Returns true after an impossible length. No later byte can be trusted then.
  bool failed() const { return failed_; }
  // Returns true if no byte is left.
  bool empty() const { return buffer_.empty(); }

 private:
  template <class Integer>
  std::optional<Integer> take();

  ByteBuffer buffer_;
  std::size_t announced_ = 0;
  bool failed_ = false;
};

}  // namespace ddprun
