// Builds requests and replies of the store's protocol as bytes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/store/core/wire_format.h"

namespace ddprun::testing_support {

inline std::string handshake() {
  std::string bytes;
  put_handshake(bytes);
  return bytes;
}

inline std::string request(Command command, std::vector<std::string_view> strings = {},
                           std::int64_t number = 0, Dialect dialect = Dialect::kModern) {
  std::string bytes;
  put_request(bytes, command, strings, number, dialect);
  return bytes;
}

inline std::string u8(std::uint8_t value) { return std::string(1, static_cast<char>(value)); }

inline std::string u64(std::uint64_t value) {
  std::string bytes;
  put_u64(bytes, value);
  return bytes;
}

inline std::string i64(std::int64_t value) {
  std::string bytes;
  put_i64(bytes, value);
  return bytes;
}

inline std::string string_reply(std::string_view value) {
  std::string bytes;
  put_string(bytes, value);
  return bytes;
}

}  // namespace ddprun::testing_support
