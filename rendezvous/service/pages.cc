#include "rendezvous/service/pages.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "rendezvous/auth/core/proof.h"
#include "rendezvous/http/core/browser.h"
#include "rendezvous/http/core/event_feed.h"
#include "rendezvous/http/page_files.h"

namespace ddprun {
namespace {

constexpr std::int64_t kCookieSeconds = 12 * 3600;

// Returns the name of the cookie. A browser sends the cookies of a host to all of its ports, so two
// services with different keys have different names.
std::string cookie_name(std::string_view key) {
  constexpr std::size_t kDigits = 8;
  const std::string never = read_cookie_of(key, 0);  // "0-HMAC", which opens nothing
  return std::string(kReadCookie) + "_" + never.substr(2, kDigits);
}

std::int64_t calendar_seconds() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration_cast<std::chrono::seconds>(now).count();
}

HttpPage ready_page(const ServiceView& service) {
  if (service.is_draining) return text_page("the service is stopping", 503);
  if (const auto& why = service.jobs.why_closed()) return text_page(*why, 503);
  if (service.ends_soon) return text_page("this service ends with its job", 503);
  if (!service.role) return text_page("ok");
  if (const auto why = service.role->why_not_ready()) return text_page(*why, 503);
  return text_page(service.role->leads() ? "ok" : "standby");
}

HttpPage leader_page(const ServiceView& service) {
  if (service.is_draining) return text_page("the service is stopping", 503);
  if (!service.role || service.role->serves()) return text_page("leader");
  return text_page(service.role->leads() ? "etcd does not answer in time" : "standby", 503);
}

// Returns whether the request may read protected pages. With keys it needs the token that is
// derived from the key for every job, or the cookie that a browser got for it.
bool may_read(const HttpRequest& request, const Keyring& keys) {
  if (keys.empty()) return true;
  if (!keys.for_every_job()) return false;
  const std::string_view key = keys.for_every_job()->view();
  constexpr std::string_view kScheme = "Bearer ";
  if (request.authorization.starts_with(kScheme)) {
    return is_same_secret(request.authorization.substr(kScheme.size()), read_token_of(key));
  }
  const std::string_view cookie = cookie_value(request.cookie, cookie_name(key));
  return is_read_cookie(cookie, key, calendar_seconds());
}

// Exchanges the token in the form of the page for a cookie that scripts cannot read.
HttpPage page_of_token(const HttpRequest& request, const Keyring& keys) {
  if (!request.is_post) return text_page("this page takes only a POST", 405);
  if (!is_same_origin(request.origin, request.host, request.encrypted)) {
    return text_page("the form is not from this service's page", 403);
  }
  const std::optional<std::string_view> token = token_in_form(request.body);
  if (!token) return text_page("a token has 64 digits: --print-read-token shows it", 400);
  if (!keys.for_every_job() ||
      !is_same_secret(*token, read_token_of(keys.for_every_job()->view()))) {
    return text_page("this is not the token of this service", 403);
  }
  HttpPage page = text_page("ok");
  const std::string_view key = keys.for_every_job()->view();
  page.cookie = cookie_name(key) + "=" + read_cookie_of(key, calendar_seconds() + kCookieSeconds) +
                "; Path=/; Max-Age=" + std::to_string(kCookieSeconds) +
                "; HttpOnly; SameSite=Strict" + (request.encrypted ? "; Secure" : "");
  return page;
}

// Returns where the leader has the page that only it can show.
HttpPage page_of_leader(std::string_view path, const ServiceView& service) {
  service.role->look();  // one that looks on may know a former leader
  const std::string leader = service.role->leader();
  if (leader.empty()) return text_page("no service is known to lead", 503);
  HttpPage page = text_page("the leader has this page: " + leader, 307);
  page.location =
      std::string(service.has_tls ? "https://" : "http://") + leader + std::string(path);
  return page;
}

template <class Make>
HttpPage cached(PageCache& cache, Make&& make) {
  const TimePoint begun = BootClock::now();
  if (const HttpPage* page = cache.find(begun)) return *page;
  HttpPage page = make();
  cache.keep(page, begun, BootClock::now());
  return page;
}

}  // namespace

Moment this_moment() {
  return {.boot = BootClock::now(), .calendar = std::chrono::system_clock::now()};
}

std::optional<HttpPage> ServicePages::page(const HttpRequest& request, const ServiceView& service) {
  const std::string_view path = request.path;
  if (path == "/healthz") return text_page("ok");
  if (path == "/readyz") return ready_page(service);
  if (path == "/leader") return leader_page(service);
  if (service.has_tls && !request.encrypted) {
    return text_page("without TLS only /healthz, /readyz and /leader are served: use https://",
                     403);
  }
  // The page itself shows nothing of a job, so a browser may load it without the token.
  if (const PageFile* file = find_page_file(path)) {
    if (path == "/" && service.role && !service.role->leads()) return page_of_leader(path, service);
    return HttpPage{.type = std::string(file->type), .body = body_of(std::string(file->text))};
  }
  if (path == HttpExchange::kPostPath) return page_of_token(request, service.keys);
  if (!may_read(request, service.keys)) {
    return text_page(
        "this page requires the token of --print-read-token: Authorization: Bearer "
        "TOKEN",
        401);
  }
  if (path == "/metrics") {
    return cached(metrics_, [&] {
      std::string text = metrics_page(service.jobs, service.figures(), BootClock::now());
      return HttpPage{.type = "text/plain; version=0.0.4; charset=utf-8",
                      .body = body_of(std::move(text))};
    });
  }
  if (path == "/status.json") {
    if (service.role && !service.role->leads()) return page_of_leader(path, service);
    service.note_watcher();
    return cached(status_, [&] {
      return HttpPage{.type = "application/json",
                      .body = body_of(status_page(service.jobs, this_moment()))};
    });
  }
  if (path == "/events") {
    if (service.role && !service.role->leads()) return page_of_leader(path, service);
    return HttpPage{.type = "text/event-stream", .is_stream = true};
  }
  return std::nullopt;
}

HttpBody ServicePages::edition(const JobTable& jobs) {
  return body_of(event_text(status_page(jobs, this_moment())));
}

}  // namespace ddprun
