#include "rendezvous/net/core/first_bytes.h"

namespace ddprun {
namespace {

bool is_letter(char byte) { return (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z'); }

}  // namespace

std::optional<ClientKind> client_kind_of(std::string_view first_bytes) {
  if (first_bytes.empty()) return std::nullopt;
  if (first_bytes[0] == kControlMagic[0]) {
    if (first_bytes.size() < 2) return std::nullopt;  // DELETE begins with the same byte
    if (first_bytes[1] == kControlMagic[1]) return ClientKind::kAgent;
  }
  if (first_bytes[0] == '\x16') {
    if (first_bytes.size() < 2) return std::nullopt;
    if (first_bytes[1] == '\x03') return ClientKind::kTls;
  }
  return is_letter(first_bytes[0]) ? ClientKind::kHttp : ClientKind::kStoreClient;
}

}  // namespace ddprun
