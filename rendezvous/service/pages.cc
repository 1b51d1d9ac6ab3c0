#include "rendezvous/service/pages.h"

#include <utility>

#include "rendezvous/auth/core/proof.h"

namespace ddprun {
namespace {

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
// derived from the key for every job.
bool may_read(std::string_view authorization, const Keyring& keys) {
  if (keys.empty()) return true;
  constexpr std::string_view kScheme = "Bearer ";
  if (!keys.for_every_job() || !authorization.starts_with(kScheme)) return false;
  return is_same_secret(authorization.substr(kScheme.size()),
                        read_token_of(keys.for_every_job()->view()));
}

// Returns where the leader has the page that only it can show.
HttpPage page_of_leader(std::string_view path, const ServiceView& service) {
  const std::string& leader = service.role->leader();
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
  if (!may_read(request.authorization, service.keys)) {
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
    return cached(status_, [&] {
      return HttpPage{.type = "application/json",
                      .body = body_of(status_page(service.jobs, this_moment()))};
    });
  }
  return std::nullopt;
}

}  // namespace ddprun
