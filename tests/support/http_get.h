// http_get(): sends a GET to a server on loopback and returns the answer, for tests of its
// pages.
#pragma once

#include <cstdint>
#include <string>

#include "tests/support/raw_tcp_client.h"

namespace ddprun::testing_support {

struct HttpReply {
  int status = 0;  // 0: no answer
  std::string head;
  std::string body;
};

// Sends the GET on a connection that is used for nothing else: a RawTcpClient or a RawTlsClient.
// authorization: the value of the Authorization field; empty: no such field.
template <class Client>
HttpReply http_get(Client& client, const std::string& path, const std::string& authorization = "") {
  constexpr std::size_t kMore = 16 << 20;
  const std::string field = authorization.empty() ? "" : "Authorization: " + authorization + "\r\n";
  client.send("GET " + path + " HTTP/1.1\r\nHost: test\r\n" + field + "Connection: close\r\n\r\n");
  const std::string bytes = client.receive(kMore);
  const std::size_t end = bytes.find("\r\n\r\n");
  if (!bytes.starts_with("HTTP/1.1 ") || end == std::string::npos) return {};
  return {.status = std::stoi(bytes.substr(9)),
          .head = bytes.substr(0, end),
          .body = bytes.substr(end + 4)};
}

inline HttpReply http_get(std::uint16_t port, const std::string& path,
                          const std::string& authorization = "") {
  RawTcpClient client(port);
  return http_get(client, path, authorization);
}

}  // namespace ddprun::testing_support
