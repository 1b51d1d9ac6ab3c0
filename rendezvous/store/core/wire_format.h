// The c10d TCPStore protocol as bytes: requests and replies, for server and client alike.
//
// docs/wire_protocol.md ("The store") is the page; kCommandRules and the tables of opcodes below are
// the same in code, and a test ties the two. Integers are little-endian; a string is a u64 length
// and its bytes; a list is a u64 count and its strings. Nothing announces the length of a whole
// request, so it is found by reading field after field.
//
// RequestParser takes a connection's bytes in pieces of any size and gives complete requests; sizes
// are checked where they are announced, before any memory is taken for them. ReplyReader is the
// client's half. Both are value machines, one owner thread each.
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

// The commands of the protocol, whatever number a dialect gives them.
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

// What follows the opcode.
enum class Field : std::uint8_t {
  kNone,
  kKey,    // a string, bounded by RequestLimits::key_bytes
  kValue,  // a string, bounded by RequestLimits::value_bytes
  kInt64,
  kUint32,
  kKeys,   // a list of keys
  kPairs,  // a u64 count, then as many times a key and a value
};

struct CommandRule {
  Command command;
  std::string_view name;
  std::array<Field, 3> fields;
};

// By Command. A command has the same fields in every dialect that has it.
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

// How a connection numbers its commands: known from its first bytes, up to one question. The legacy
// dialects begin with a request, and both with the same ones; they differ from opcode 7 on.
enum class Dialect : std::uint8_t {
  kL1,      // PyTorch up to 2.0
  kL2,      // PyTorch 2.1
  kModern,  // PyTorch 2.2 and newer; opens with the handshake
};

// The two that a connection's first bytes do not tell apart.
inline constexpr EnumNames<Dialect, 2> kLegacyDialectWords{
    {{Dialect::kL1, "l1"}, {Dialect::kL2, "l2"}}};

// The opcode is the index. PyTorch only ever added at the end of kModern's, so one table serves all
// of them; BARRIER is newer than 2.11.
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

// Ours, in the modern dialect, numbered from kFirstOwnOpcode on: far from where PyTorch's next ones
// will be. Only a server that has told its identity knows them.
inline constexpr std::uint8_t kFirstOwnOpcode = 128;
inline constexpr std::array kOwnOpcodes{Command::kFetch, Command::kTryFetch};

// nullopt: the dialect has no such opcode, or command.
std::optional<Command> command_of(Dialect dialect, std::uint8_t opcode);
std::optional<std::uint8_t> opcode_of(Dialect dialect, Command command);

// The number that follows VALIDATE, which opens every connection of the modern dialect.
inline constexpr std::uint32_t kHandshakeMagic = 0x3C85F7CE;

// How a client asks which store it has reached: a COMPARE_SET of this key that expects, and desires,
// kNoIdentity. Ours answers its identity and changes nothing. Every PyTorch server answers the
// expectation and changes nothing, because the key is missing: none of their clients can make one
// without "/", but for "init/".
inline constexpr std::string_view kIdentityKey = "ddprun:1";
inline constexpr std::string_view kNoIdentity = "?";
// An identity is so many hex digits, random for each store.
inline constexpr std::size_t kIdentityBytes = 32;

// What FETCH and TRY_FETCH answer first.
enum class Fetched : std::uint8_t {
  kHere = 0,     // the values follow
  kMissing = 1,  // TRY_FETCH: not all keys exist
  kTooLong = 2,  // FETCH: the value is longer than a reply may be
};
constexpr std::uint8_t to_u8(Fetched fetched) { return static_cast<std::uint8_t>(fetched); }

// What WAIT, CHECK and BARRIER answer.
inline constexpr std::uint8_t kAnswerReady = 0;
inline constexpr std::uint8_t kAnswerNotReady = 1;
// What CANCEL_WAIT answers.
inline constexpr std::uint8_t kAnswerCancelled = 1;
// What WATCH_KEY answers.
inline constexpr std::uint8_t kAnswerWatching = 3;

// Whether a connection that begins with these bytes is legacy: it does not begin with the handshake.
// nullopt: too few bytes to tell.
std::optional<bool> begins_as_legacy(std::string_view first_bytes);

// Why a server closes a connection that it could go on reading.
struct Refusal {
  enum Kind : std::uint8_t {
    kBadRequest,    // not the protocol, or what the store cannot do
    kRequestLimit,  // a bound of RequestLimits
    kReplyLimit,    // the reply would be too long
    kHeldLimit,     // the store is full
    kTooManyConnections,
    kOutOfMemory,
    kNotAllowed,  // an address that may not connect
  };
  static constexpr std::size_t kKinds = kNotAllowed + 1;
  // As they are called in figures.
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

// All bounds are inclusive. Key, value and keys are those of PyTorch's own server; the bound on a
// whole request is ours: without one, a single MULTI_SET could ask for a terabyte.
struct RequestLimits {
  std::size_t key_bytes = 8 * 1024;
  std::size_t value_bytes = 8 * 1024 * 1024;
  std::size_t keys = 131072;  // in one request
  std::size_t request_bytes = 64 * 1024 * 1024;
};

// One complete request. The views point into the parser and are valid until its next call.
struct Request {
  Command command = Command::kPing;
  std::vector<std::string_view> strings;  // keys and values in the order of the wire
  std::int64_t number = 0;                // of the ADD, BARRIER or PING

  // The first string field, for commands that have one.
  std::string_view key() const { return strings[0]; }
  // The string after the key.
  std::string_view value() const { return strings[1]; }
};

class RequestParser {
 public:
  // legacy: how a connection without a handshake is read: kL1 or kL2. One that is read as L1 turns
  // to L2 with the first opcode that L1 does not have; until then a delete of L2 is taken for a
  // WATCH_KEY, and an append for a delete, because nothing tells them apart.
  explicit RequestParser(const RequestLimits& limits = {}, Dialect legacy = Dialect::kL1)
      : limits_(limits), legacy_(legacy) {}

  // Where the next bytes of the connection go; commit() says how many came. The room offered grows
  // with what has arrived, never with what a length field promised. REQUIRES: next() returned null.
  std::span<char> space();
  void commit(std::size_t count) { buffer_.commit(count); }
  // The same for bytes that are elsewhere.
  void feed(std::string_view bytes) { buffer_.append(bytes); }

  // The next complete request, or null when more bytes are needed or the connection is bad. The
  // handshake is consumed here, and never returned.
  const Request* next();

  // Why nothing of this connection can be read any more; null while all is well. Requests before
  // the bad one have been returned.
  const std::optional<Refusal>& refusal() const { return refusal_; }

  // How the connection is read; nullopt as long as too little has come to know.
  std::optional<Dialect> dialect() const { return dialect_; }

  // Whether the client has given up the WAIT it sent before the bytes that are here. Clients of L1
  // have no CANCEL_WAIT: when their time is up they just send the next request, and would take the
  // late answer of the WAIT for the beginning of its reply. True from the first byte of a request
  // until the call of next() after it.
  bool gives_up_wait() const { return dialect_ == Dialect::kL1 && !buffer_.empty(); }

  // Memory held for bytes that have come.
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
  std::optional<Dialect> dialect_;  // once it is known

  // The request being read: everything before scanned_ has been understood.
  std::size_t scanned_ = 0;
  std::size_t announced_ = 0;  // bytes of this request that are known to be needed
  const CommandRule* rule_ = nullptr;
  std::size_t field_ = 0;
  bool in_list_ = false;
  std::uint64_t list_left_ = 0;
  bool complete_ = false;
  Request request_;             // its strings as far as they are whole
  const char* base_ = nullptr;  // where the buffer was when they were last looked at
};

// --- writing: each appends to `out` ---

void put_u8(std::string& out, std::uint8_t value);
void put_u32(std::string& out, std::uint32_t value);
void put_i64(std::string& out, std::int64_t value);
void put_u64(std::string& out, std::uint64_t value);
void put_string(std::string& out, std::string_view bytes);

// What put_u32 has put. REQUIRES: four bytes at least.
std::uint32_t get_u32(std::string_view bytes);

// VALIDATE, which a client sends first and once.
void put_handshake(std::string& out);

// A whole request; strings and number as in Request. REQUIRES: as many strings as the command's
// rule asks for (an even number for kPairs); the dialect has the command.
void put_request(std::string& out, Command command, std::span<const std::string_view> strings,
                 std::int64_t number = 0, Dialect dialect = Dialect::kModern);

// What a server with these limits would refuse about the request; empty when nothing.
std::string refusal_of(Command command, std::span<const std::string_view> strings,
                       const RequestLimits& limits);

// --- reading replies ---

// Replies come as bytes without a kind; the caller knows from its request which fields follow. Each
// take returns nullopt until its field is there as a whole.
class ReplyReader {
 public:
  // A longer string than this is taken for nonsense.
  static constexpr std::uint64_t kMaxStringBytes = std::uint64_t{1} << 30;

  std::span<char> space();
  void commit(std::size_t count) { buffer_.commit(count); }
  void feed(std::string_view bytes) { buffer_.append(bytes); }

  std::optional<std::uint8_t> take_u8();
  std::optional<std::int64_t> take_i64();
  std::optional<std::string> take_string();

  // True when a length cannot be meant: then nothing that follows can be trusted.
  bool failed() const { return failed_; }
  // True when no byte is left over.
  bool empty() const { return buffer_.empty(); }

 private:
  template <class Integer>
  std::optional<Integer> take();

  ByteBuffer buffer_;
  std::size_t announced_ = 0;
  bool failed_ = false;
};

}  // namespace ddprun
