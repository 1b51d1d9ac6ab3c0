#include "rendezvous/store/core/wire_format.h"

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "base/assert.h"
#include "base/concat.h"

namespace ddprun {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the protocol's integers are copied as they lie in memory");

constexpr bool rules_are_by_command() {
  for (std::size_t i = 0; i < kCommandRules.size(); ++i) {
    if (static_cast<std::size_t>(kCommandRules[i].command) != i) return false;
  }
  return true;
}
static_assert(rules_are_by_command(), "rule_of() finds a command's rule by its value");

// The least room that a read gets, even if fewer bytes are known to be missing.
constexpr std::size_t kReadBytes = 1024;
// The room that a read gets if much is announced, but little has come.
constexpr std::size_t kTrustedBytes = 4096;

constexpr std::uint8_t kValidateOpcode = 0;

// The most that is read at a time. It is scanned at once, and no other client is served
// meanwhile.
constexpr std::size_t kMostReadBytes = 256 * 1024;

// Room for this many strings is kept for the next request.
constexpr std::size_t kKeptStrings = 1024;

constexpr std::size_t kHandshakeBytes = 1 + sizeof(kHandshakeMagic);

template <class Integer>
Integer load(std::string_view bytes, std::size_t offset) {
  Integer value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <class Integer>
void store(std::string& out, Integer value) {
  char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  out.append(bytes, sizeof bytes);
}

// Returns how much room to offer if `announced` bytes are expected and `have` have come.
std::size_t room_to_offer(std::size_t announced, std::size_t have) {
  const std::size_t missing = announced > have ? announced - have : 0;
  return std::clamp(missing, kReadBytes, std::max(kTrustedBytes, have));
}

constexpr std::span<const Command> opcodes_of(Dialect dialect) {
  if (dialect == Dialect::kModern) return kOpcodesModern;
  if (dialect == Dialect::kL2) return kOpcodesL2;
  return kOpcodesL1;
}

// Returns the index of the command; nullopt: it is not in the table.
constexpr std::optional<std::uint8_t> place_of(Command command, std::span<const Command> opcodes) {
  const auto place = std::ranges::find(opcodes, command);
  if (place == opcodes.end()) return std::nullopt;
  return static_cast<std::uint8_t>(place - opcodes.begin());
}

std::string hex(std::uint64_t value, int digits) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%0*llx", digits, static_cast<unsigned long long>(value));
  return text;
}

std::string too_long(std::string_view what, std::uint64_t got, std::size_t allowed) {
  return concat(what, " of ", got, " bytes (at most ", allowed, ")");
}

std::string too_many_keys(std::uint64_t got, std::size_t allowed) {
  return concat(got, " keys (at most ", allowed, ")");
}

}  // namespace

std::optional<Command> command_of(Dialect dialect, std::uint8_t opcode) {
  const std::span<const Command> opcodes = opcodes_of(dialect);
  if (opcode < opcodes.size()) return opcodes[opcode];
  const bool is_own = dialect == Dialect::kModern && opcode >= kFirstOwnOpcode &&
                      opcode - kFirstOwnOpcode < std::ssize(kOwnOpcodes);
  return is_own ? std::optional(kOwnOpcodes[opcode - kFirstOwnOpcode]) : std::nullopt;
}

std::optional<std::uint8_t> opcode_of(Dialect dialect, Command command) {
  if (const auto place = place_of(command, opcodes_of(dialect))) return place;
  const auto own = dialect == Dialect::kModern ? place_of(command, kOwnOpcodes) : std::nullopt;
  if (!own) return std::nullopt;
  return static_cast<std::uint8_t>(kFirstOwnOpcode + *own);
}

std::optional<bool> begins_as_legacy(std::string_view first_bytes) {
  if (first_bytes.empty()) return std::nullopt;
  if (static_cast<std::uint8_t>(first_bytes[0]) != kValidateOpcode) return true;
  if (first_bytes.size() < kHandshakeBytes) return std::nullopt;
  return load<std::uint32_t>(first_bytes, 1) != kHandshakeMagic;
}

std::span<char> RequestParser::space() {
  const std::span<char> space = buffer_.space(room_to_offer(announced_, buffer_.size()));
  return space.first(std::min(space.size(), kMostReadBytes));
}

const Request* RequestParser::next() {
  if (complete_) {
    buffer_.consume(scanned_);
    complete_ = false;
    scanned_ = announced_ = 0;
    rule_ = nullptr;
    request_.strings.clear();
    if (request_.strings.capacity() > kKeptStrings) request_.strings.shrink_to_fit();
  }
  if (refusal_) return nullptr;
  if (!dialect_ && !find_dialect()) return nullptr;
  if (!scan_request()) return nullptr;

  request_.command = rule_->command;
  complete_ = true;
  return &request_;
}

// Detects the dialect. The first byte of the handshake means SET in the legacy dialects. If the
// next bytes are not the magic and would be a key length above the limit, a wrong magic is the
// likelier cause. It can be refused without more bytes.
bool RequestParser::find_dialect() {
  const std::string_view bytes = buffer_.bytes();
  const std::optional<bool> legacy = begins_as_legacy(bytes);
  if (!legacy) return false;
  if (!*legacy) {
    buffer_.consume(kHandshakeBytes);
    dialect_ = Dialect::kModern;
    return true;
  }
  const auto first = static_cast<std::uint8_t>(bytes[0]);
  if (first == kValidateOpcode && load<std::uint32_t>(bytes, 1) > limits_.key_bytes) {
    return refuse(Refusal::kBadRequest, "the handshake has " +
                                            hex(load<std::uint32_t>(bytes, 1), 8) + ", not " +
                                            hex(kHandshakeMagic, 8));
  }
  if (first >= kOpcodesL2.size()) {
    return refuse(Refusal::kBadRequest,
                  "the first byte is " + hex(first, 2) + ", which no TCPStore client sends first");
  }
  dialect_ = legacy_;
  return true;
}

// Returns false if bytes are missing or the request is bad. The next call continues from there:
// no byte of a request is read twice, except the length of an incomplete string.
bool RequestParser::scan_request() {
  follow_buffer();
  if (!rule_ && !scan_opcode()) return false;
  while (field_ < rule_->fields.size() && rule_->fields[field_] != Field::kNone) {
    if (!scan_field(rule_->fields[field_])) return false;
    ++field_;
  }
  return true;
}

// Adjusts the views of the found strings, because a growing buffer moves.
void RequestParser::follow_buffer() {
  const char* base = buffer_.bytes().data();
  if (base == base_) return;
  for (std::string_view& text : request_.strings)
    text = {base + (text.data() - base_), text.size()};
  base_ = base;
}

bool RequestParser::scan_opcode() {
  std::uint8_t opcode = 0;
  if (!scan_integer(opcode)) return false;
  if (dialect_ == Dialect::kL1 && opcode >= kOpcodesL1.size()) dialect_ = Dialect::kL2;
  const std::optional<Command> command = command_of(*dialect_, opcode);
  if (!command) return refuse(Refusal::kBadRequest, concat("opcode ", opcode, " is not known"));
  if (*command == Command::kValidate) return refuse(Refusal::kBadRequest, "a second handshake");
  rule_ = &rule_of(*command);
  field_ = 0;
  in_list_ = false;
  return true;
}

bool RequestParser::scan_field(Field field) {
  using enum Field;
  std::uint32_t word = 0;
  switch (field) {
    case kNone: return true;
    case kKey:
    case kValue: return scan_string(field);
    case kInt64: return scan_integer(request_.number);
    case kUint32:
      if (!scan_integer(word)) return false;
      request_.number = word;
      return true;
    case kKeys:
    case kPairs: return scan_list(field);
  }
  return false;
}

template <class Integer>
bool RequestParser::scan_integer(Integer& value) {
  if (!has(sizeof value)) return false;
  value = load<Integer>(buffer_.bytes(), scanned_);
  scanned_ += sizeof value;
  return true;
}

bool RequestParser::scan_string(Field kind) {
  std::uint64_t size = 0;
  if (!has(sizeof size)) return false;
  size = load<std::uint64_t>(buffer_.bytes(), scanned_);
  const bool is_key = kind == Field::kKey;
  const std::size_t allowed = is_key ? limits_.key_bytes : limits_.value_bytes;
  if (size > allowed)
    return refuse(Refusal::kRequestLimit, too_long(is_key ? "key" : "value", size, allowed));

  const std::size_t begin = scanned_ + sizeof size;
  announced_ = begin + size;
  if (announced_ > limits_.request_bytes) {
    return refuse(Refusal::kRequestLimit, too_long("request", announced_, limits_.request_bytes));
  }
  if (buffer_.size() < announced_) return false;
  request_.strings.push_back(buffer_.bytes().substr(begin, size));
  scanned_ = announced_;
  return true;
}

bool RequestParser::scan_list(Field kind) {
  if (!in_list_) {
    if (!scan_integer(list_left_)) return false;
    if (list_left_ > limits_.keys) {
      return refuse(Refusal::kRequestLimit, too_many_keys(list_left_, limits_.keys));
    }
    if (kind == Field::kPairs) list_left_ *= 2;
    in_list_ = true;
  }
  for (; list_left_ > 0; --list_left_) {
    const bool is_value = kind == Field::kPairs && list_left_ % 2 == 1;
    if (!scan_string(is_value ? Field::kValue : Field::kKey)) return false;
  }
  in_list_ = false;
  return true;
}

bool RequestParser::refuse(Refusal::Kind kind, std::string reason) {
  if (rule_) reason = concat(rule_->name, ": ", std::move(reason));
  refusal_ = {kind, std::move(reason)};
  return false;
}

void put_u8(std::string& out, std::uint8_t value) { out.push_back(static_cast<char>(value)); }
void put_u32(std::string& out, std::uint32_t value) { store(out, value); }
std::uint32_t get_u32(std::string_view bytes) { return load<std::uint32_t>(bytes, 0); }
void put_i64(std::string& out, std::int64_t value) { store(out, value); }
void put_u64(std::string& out, std::uint64_t value) { store(out, value); }

void put_string(std::string& out, std::string_view bytes) {
  put_u64(out, bytes.size());
  out.append(bytes);
}

void put_handshake(std::string& out) {
  put_request(out, Command::kValidate, {}, std::int64_t{kHandshakeMagic});
}

void put_request(std::string& out, Command command, std::span<const std::string_view> strings,
                 std::int64_t number, Dialect dialect) {
  using enum Field;
  const CommandRule& rule = rule_of(command);
  const std::optional<std::uint8_t> opcode = opcode_of(dialect, command);
  DDPRUN_ASSERT(opcode, "the dialect has the command");
  put_u8(out, *opcode);
  std::size_t used = 0;
  for (const Field field : rule.fields) {
    switch (field) {
      case kNone: break;
      case kKey:
      case kValue:
        DDPRUN_ASSERT(used < strings.size(), "a request has every string its rule asks for");
        put_string(out, strings[used++]);
        break;
      case kInt64: put_i64(out, number); break;
      case kUint32: put_u32(out, static_cast<std::uint32_t>(number)); break;
      case kKeys:
      case kPairs:
        DDPRUN_ASSERT(field == kKeys || strings.size() % 2 == 0, "each key has its value");
        put_u64(out, field == kPairs ? strings.size() / 2 : strings.size());
        for (; used < strings.size(); ++used) put_string(out, strings[used]);
        break;
    }
  }
  DDPRUN_ASSERT(used == strings.size(), "a request has no string that its rule does not ask for");
}

std::string refusal_of(Command command, std::span<const std::string_view> strings,
                       const RequestLimits& limits) {
  const Field first = rule_of(command).fields[0];
  const std::size_t per_key = first == Field::kPairs ? 2 : 1;
  const bool is_list = first == Field::kKeys || first == Field::kPairs;
  if (is_list && strings.size() / per_key > limits.keys) {
    return too_many_keys(strings.size() / per_key, limits.keys);
  }
  std::size_t total = 1;
  for (std::size_t i = 0; i < strings.size(); ++i) {
    const bool is_key = i == 0 || (is_list && i % per_key == 0);
    const std::size_t allowed = is_key ? limits.key_bytes : limits.value_bytes;
    if (strings[i].size() > allowed) {
      return too_long(is_key ? "key" : "value", strings[i].size(), allowed);
    }
    total += sizeof(std::uint64_t) + strings[i].size();
  }
  if (total > limits.request_bytes) return too_long("request", total, limits.request_bytes);
  return {};
}

std::span<char> ReplyReader::space() {
  return buffer_.space(room_to_offer(announced_, buffer_.size()));
}

template <class Integer>
std::optional<Integer> ReplyReader::take() {
  if (buffer_.size() < sizeof(Integer)) return std::nullopt;
  const Integer value = load<Integer>(buffer_.bytes(), 0);
  buffer_.consume(sizeof value);
  return value;
}

std::optional<std::uint8_t> ReplyReader::take_u8() { return take<std::uint8_t>(); }
std::optional<std::int64_t> ReplyReader::take_i64() { return take<std::int64_t>(); }

std::optional<std::string> ReplyReader::take_string() {
  if (buffer_.size() < sizeof(std::uint64_t)) return std::nullopt;
  const auto size = load<std::uint64_t>(buffer_.bytes(), 0);
  if (size > kMaxStringBytes) {
    failed_ = true;
    return std::nullopt;
  }
  announced_ = sizeof size + size;
  if (buffer_.size() < announced_) return std::nullopt;
  std::string value(buffer_.bytes().substr(sizeof size, size));
  buffer_.consume(announced_);
  announced_ = 0;
  return value;
}

}  // namespace ddprun
