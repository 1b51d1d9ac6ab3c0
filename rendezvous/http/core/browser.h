// What a browser sends to the service, beyond the path: cookies, its origin, and the form with the
// read token. Pure functions; any thread.
#pragma once

#include <optional>
#include <string_view>

namespace ddprun {

inline constexpr std::string_view kReadCookie = "ddprun_read";

// Returns the value of that cookie in a Cookie field, of the first one if there are several;
// empty: there is none.
std::string_view cookie_value(std::string_view field, std::string_view name);

// Returns the token in the form "token=TOKEN". TOKEN is 64 lowercase hexadecimal digits. nullopt:
// it is another text.
std::optional<std::string_view> token_in_form(std::string_view form);

// Returns whether the Origin field names the place of the Host field. A browser sends Origin with
// each POST. So a page of another site is refused.
bool is_same_origin(std::string_view origin, std::string_view host, bool encrypted);

}  // namespace ddprun
