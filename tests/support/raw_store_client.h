// The store's protocol by hand: requests and replies as bytes, and a client that sends and compares
// them.
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/core/wire_format.h"
#include "tests/support/raw_tcp_client.h"

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

// A client that has shaken hands, where its dialect has that.
class RawStoreClient : public RawTcpClient {
 public:
  template <class Store>
  explicit RawStoreClient(Store& store, Dialect dialect = Dialect::kModern)
      : RawTcpClient(store.port()), dialect_(dialect) {
    if (dialect == Dialect::kModern) send(handshake());
  }

  std::string ask(const std::string& bytes, std::size_t reply_bytes) {
    send(bytes);
    return receive(reply_bytes);
  }
  std::int64_t add(std::string_view key, std::int64_t delta) {
    std::int64_t sum = 0;
    const std::string reply = ask(request(Command::kAdd, {key}, delta, dialect_), 8);
    EXPECT_EQ(reply.size(), 8u) << "no answer to ADD";
    if (reply.size() == 8) std::memcpy(&sum, reply.data(), 8);
    return sum;
  }

 private:
  Dialect dialect_;
};

}  // namespace ddprun::testing_support
