#include "rendezvous/http/core/browser.h"

#include <algorithm>

namespace ddprun {

std::string_view cookie_value(std::string_view field, std::string_view name) {
  while (!field.empty()) {
    const std::string_view cookie = field.substr(0, field.find("; "));
    if (cookie.starts_with(name) && cookie.substr(name.size()).starts_with('=')) {
      return cookie.substr(name.size() + 1);
    }
    field.remove_prefix(std::min(field.size(), cookie.size() + 2));
  }
  return {};
}

std::optional<std::string_view> token_in_form(std::string_view form) {
  constexpr std::string_view kBegin = "token=";
  constexpr std::size_t kTokenDigits = 64;
  if (!form.starts_with(kBegin)) return std::nullopt;
  const std::string_view token = form.substr(kBegin.size());
  const bool is_hex = token.find_first_not_of("0123456789abcdef") == token.npos;
  if (!is_hex || token.size() != kTokenDigits) return std::nullopt;
  return token;
}

bool is_same_origin(std::string_view origin, std::string_view host, bool encrypted) {
  const std::string_view scheme = encrypted ? "https://" : "http://";
  return !host.empty() && origin.starts_with(scheme) && origin.substr(scheme.size()) == host;
}

}  // namespace ddprun
