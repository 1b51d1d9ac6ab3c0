#include "rendezvous/net/core/first_bytes.h"

#include <gtest/gtest.h>

#include <string>

#include "rendezvous/store/core/wire_format.h"

namespace ddprun {
namespace {

TEST(FirstBytes, TellAgentsHttpAndTheStoresClientsApart) {
  EXPECT_EQ(client_kind_of("DDPR\x10"), ClientKind::kAgent);
  for (const char* method : {"GET /", "HEAD /", "DELETE /", "POST", "PRI * HTTP/2.0", "get /"}) {
    EXPECT_EQ(client_kind_of(method), ClientKind::kHttp) << method;
  }
  std::string handshake;
  put_handshake(handshake);
  EXPECT_EQ(client_kind_of(handshake), ClientKind::kStoreClient);
  EXPECT_EQ(client_kind_of("\x16\x03\x01"), ClientKind::kTls);
}

// An agent's magic may arrive byte by byte, and so may DELETE.
TEST(FirstBytes, OneByteOfTheMagicDoesNotTellYet) {
  EXPECT_EQ(client_kind_of(""), std::nullopt);
  EXPECT_EQ(client_kind_of("D"), std::nullopt);
  EXPECT_EQ(client_kind_of("DD"), ClientKind::kAgent);
  EXPECT_EQ(client_kind_of("DE"), ClientKind::kHttp);
  EXPECT_EQ(client_kind_of(std::string_view("D\0", 2)), ClientKind::kHttp);
}

TEST(FirstBytes, TlsIsAHandshakeRecordOfSomeVersion) {
  EXPECT_EQ(client_kind_of("\x16"), std::nullopt);
  EXPECT_EQ(client_kind_of("\x16\x03"), ClientKind::kTls);
  EXPECT_EQ(client_kind_of("\x16\x04"), ClientKind::kStoreClient) << "who refuses it";
  EXPECT_EQ(client_kind_of("\x15\x03"), ClientKind::kStoreClient) << "an alert opens nothing";
}

TEST(FirstBytes, NoOpcodeOfTheStoreIsALetter) {
  for (const Dialect dialect : {Dialect::kL1, Dialect::kL2, Dialect::kModern}) {
    for (int opcode = 0; opcode < 256; ++opcode) {
      if (!command_of(dialect, static_cast<std::uint8_t>(opcode))) continue;
      const char first = static_cast<char>(opcode);
      EXPECT_NE(first, '\x16') << "with which TLS begins";
      EXPECT_EQ(client_kind_of({&first, 1}), ClientKind::kStoreClient) << opcode;
    }
  }
}

}  // namespace
}  // namespace ddprun
