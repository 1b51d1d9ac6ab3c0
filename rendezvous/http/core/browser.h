// What a browser sends to the service, beyond the path: cookies, its origin, and the forms of the
// page. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

inline constexpr std::string_view kReadCookie = "ddprun_read";
inline constexpr std::string_view kWriteCookie = "ddprun_write";

// Returns the value of that cookie in a Cookie field, of the first one if there are several;
// empty: there is none.
std::string_view cookie_value(std::string_view field, std::string_view name);

// Returns the token in the form "token=TOKEN". TOKEN is 64 lowercase hexadecimal digits. nullopt:
// it is another text.
std::optional<std::string_view> token_in_form(std::string_view form);

// Returns the decoded values of a form that has exactly these fields, in this order, as a browser
// encodes it (application/x-www-form-urlencoded). nullopt: it is another text.
std::optional<std::vector<std::string>> form_values(std::string_view form,
                                                    std::initializer_list<std::string_view> names);

// PageOrder: what a button of a job's page asks for.
struct PageOrder {
  UserRequest::What what = UserRequest::What::kStop;  // kStop, kRestart or kStacks
  std::string job;
  std::int64_t generation = -1;   // that the page showed
  std::optional<Rank> rank = {};  // kStacks: only of this one

  friend bool operator==(const PageOrder&, const PageOrder&) = default;
};
// Returns the order in the form "order=stop|restart|stacks&job=ID&generation=N". That of stacks may
// end with "&rank=N". nullopt: it is another text.
std::optional<PageOrder> order_in_form(std::string_view form);

// Returns the rank in a path such as /output/3; nullopt: the path does not begin so.
std::optional<Rank> rank_in_path(std::string_view path, std::string_view begin);

// Returns whether no other site can have the name in this Host field: it is an address, own_name
// (lower and upper case are the same), or has no dot. Another site can make its own name lead to
// this service (DNS rebinding). A browser then lets that site read what it is sent.
bool is_name_of_no_other_site(std::string_view host, std::string_view own_name);

// Returns whether the Origin field names the place of the Host field. A browser sends Origin with
// each POST. So a page of another site is refused.
bool is_same_origin(std::string_view origin, std::string_view host, bool encrypted);

}  // namespace ddprun
