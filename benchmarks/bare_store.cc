// The floor of store_rate.py: a server that answers a client's get and add with the bytes that a
// store would send, without looking up the key.
//
//   bare_store        prints where it listens, and runs until it is killed
#include <unistd.h>

#include <cstdio>
#include <string>

#include "benchmarks/many_clients.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun::benchmarks {
namespace {

// Returns the answer to one request. A request comes in one piece, because the client waits for
// each answer. The exception is the handshake, which comes together with the PING after it.
BareAnswer answer(std::string_view bytes) {
  static const std::string sum = std::string(1, '\1') + std::string(7, '\0');
  static const std::string value =
      std::string(1, '\x10') + std::string(7, '\0') + "0123456789abcdef";
  static const std::string here(1, '\0');
  constexpr std::size_t kHandshakeBytes = 1 + sizeof(std::uint32_t);
  if (static_cast<Command>(bytes[0]) == Command::kValidate) bytes.remove_prefix(kHandshakeBytes);
  if (bytes.empty()) return {};
  switch (static_cast<Command>(bytes[0])) {
    case Command::kPing: return {.text = bytes.substr(1)};
    case Command::kAdd: return {.text = sum};
    case Command::kWait: return {.text = here};
    case Command::kGet: return {.text = value};
    default: return {};
  }
}

}  // namespace
}  // namespace ddprun::benchmarks

int main() {
  const ddprun::benchmarks::BareServer server(ddprun::benchmarks::answer);
  std::printf("bare_store: listening on 127.0.0.1:%u\n", server.port);
  std::fflush(stdout);
  for (;;) ::pause();
}
