// RawStoreClient: a client of a store on loopback that sends and receives raw bytes.
#pragma once

#include <cstring>
#include <string>
#include <string_view>

#include "tests/support/raw_tcp_client.h"
#include "tests/support/store_bytes.h"

namespace ddprun::testing_support {

// The constructor sends the handshake if the dialect has one.
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
