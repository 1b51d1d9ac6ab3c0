#include "launcher/dashboard/access.h"

#include <optional>
#include <utility>

#include "rendezvous/auth/core/proof.h"
#include "rendezvous/http/core/browser.h"
#include "rendezvous/http/page_forms.h"

namespace ddprun {

bool is_local_page_host(std::string_view host) {
  const std::size_t port = host.rfind(':');
  if (port == host.npos || port + 1 == host.size()) return false;
  if (host.find_first_not_of("0123456789", port + 1) != host.npos) return false;
  const std::string_view name = host.substr(0, port);
  return name == "127.0.0.1" || name == "localhost" || name == "[::1]";
}

DashboardAccess::DashboardAccess(std::string token, std::string session, const std::string& name)
    : token_(std::move(token)),
      session_(std::move(session)),
      cookie_name_(std::string(kWriteCookie) + "_" + name) {}

bool DashboardAccess::may_use(const HttpRequest& request) const {
  return is_local_page_host(request.host) &&
         is_same_secret(cookie_value(request.cookie, cookie_name_), session_);
}

HttpPage DashboardAccess::take_token(const HttpRequest& request) {
  if (std::optional<HttpPage> refused = refuse_form(request)) return *refused;
  if (!is_local_page_host(request.host)) return text_page("this page has only local names", 403);
  const std::optional<std::string_view> token = token_in_form(request.body);
  if (!token) return text_page("a token has 64 digits", 400);
  if (!is_same_secret(*token, token_)) return text_page("this is not the token", 403);
  if (std::exchange(is_used_, true)) {
    return text_page("this address was used already: start ddprun dashboard again", 403);
  }
  return cookie_page(cookie_name_, session_, request.encrypted);
}

}  // namespace ddprun
