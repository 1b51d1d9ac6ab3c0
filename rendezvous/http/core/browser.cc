#include "rendezvous/http/core/browser.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "base/parse_number.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {
namespace {

// Returns the text that a browser has encoded in this way; nullopt: no browser encodes so.
std::optional<std::string> decoded(std::string_view text) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789*-._";
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (kPlain.find(text[i]) != kPlain.npos) {
      plain += text[i];
    } else if (text[i] == '+') {
      plain += ' ';
    } else {
      if (text[i] != '%' || text.size() - i < 3) return std::nullopt;
      const std::size_t high = kDigits.find(text[i + 1]);
      const std::size_t low = kDigits.find(text[i + 2]);
      if (high == kDigits.npos || low == kDigits.npos) return std::nullopt;
      plain += static_cast<char>(16 * high + low);
      i += 2;
    }
  }
  return plain;
}

}  // namespace

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

std::optional<std::vector<std::string>> form_values(std::string_view form,
                                                    std::initializer_list<std::string_view> names) {
  std::vector<std::string> values;
  for (const std::string_view name : names) {
    const bool is_first = values.empty();
    if (!is_first && !form.starts_with('&')) return std::nullopt;
    if (!is_first) form.remove_prefix(1);
    if (!form.starts_with(name) || !form.substr(name.size()).starts_with('=')) return std::nullopt;
    form.remove_prefix(name.size() + 1);
    const std::string_view value = form.substr(0, form.find('&'));
    std::optional<std::string> plain = decoded(value);
    if (!plain) return std::nullopt;
    values.push_back(std::move(*plain));
    form.remove_prefix(value.size());
  }
  if (!form.empty()) return std::nullopt;
  return values;
}

std::optional<PageOrder> order_in_form(std::string_view form) {
  using What = UserRequest::What;
  auto values = form_values(form, {"order", "job", "generation"});
  const bool has_rank = !values;
  if (has_rank) values = form_values(form, {"order", "job", "generation", "rank"});
  if (!values) return std::nullopt;
  const std::optional<What> what = parse_enum(kUserRequestWords, (*values)[0]);
  const bool is_order = what == What::kStop || what == What::kRestart || what == What::kStacks;
  const std::string& job = (*values)[1];
  const auto generation = parse_number<std::int64_t>((*values)[2]);
  if (!is_order || job.empty() || !why_no_name(job).empty() || !generation) return std::nullopt;
  PageOrder order{.what = *what, .job = job, .generation = *generation};
  if (!has_rank) return order;
  const auto rank = parse_number<int>((*values)[3]);
  if (what != What::kStacks || !rank || *rank < 0) return std::nullopt;
  order.rank = Rank(*rank);
  return order;
}

std::optional<Rank> rank_in_path(std::string_view path, std::string_view begin) {
  if (!path.starts_with(begin)) return std::nullopt;
  const auto rank = parse_number<int>(path.substr(begin.size()));
  return rank && *rank >= 0 ? std::optional(Rank(*rank)) : std::nullopt;
}

bool is_name_of_no_other_site(std::string_view host, std::string_view own_name) {
  if (host.starts_with('[')) return true;
  const std::string_view name = host.substr(0, host.find(':'));
  const bool is_address = name.find_first_not_of("0123456789.") == name.npos;
  // Browsers send a name in lower case.
  const auto is_same = [](unsigned char a, unsigned char b) {
    return std::tolower(a) == std::tolower(b);
  };
  const bool is_own = std::ranges::equal(name, own_name, is_same);
  return !name.empty() && (is_address || name.find('.') == name.npos || is_own);
}

bool is_same_origin(std::string_view origin, std::string_view host, bool encrypted) {
  const std::string_view scheme = encrypted ? "https://" : "http://";
  return !host.empty() && origin.starts_with(scheme) && origin.substr(scheme.size()) == host;
}

}  // namespace ddprun
