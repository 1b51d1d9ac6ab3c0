#include "rendezvous/service/pages.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "base/concat.h"
#include "rendezvous/auth/core/proof.h"
#include "rendezvous/http/core/browser.h"
#include "rendezvous/http/core/event_feed.h"
#include "rendezvous/http/page_files.h"
#include "rendezvous/http/page_forms.h"
#include "rendezvous/http/process_figures.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/store/server.h"

namespace ddprun {
namespace {

// Returns the name of the cookie. A browser sends the cookies of a host to all of its ports, so two
// services with different keys have different names.
std::string cookie_name(std::string_view kind, std::string_view key) {
  constexpr std::size_t kDigits = 8;
  const std::string never = read_cookie_of(key, 0);  // "0-HMAC", which opens nothing
  return concat(kind, "_", never.substr(2, kDigits));
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

Figures figures_of(const ServiceView& service, const HttpCounters& http) {
  Figures figures{.service = service.counters,
                  .http = http,
                  .store = std::nullopt,
                  .process = process_figures(),
                  .state_writable = !service.jobs.why_closed().has_value()};
  if (service.store) figures.store = service.store->counters();
  if (service.role) figures.etcd = service.role->counters();
  return figures;
}

// Returns whether the request may press buttons: it needs the cookie that a browser got for the
// write token. Without a key for every job there is no such token.
bool may_act(const HttpRequest& request, const Keyring& keys) {
  if (!request.encrypted || !keys.for_every_job()) return false;
  const std::string_view key = keys.for_every_job()->view();
  const std::string_view cookie = cookie_value(request.cookie, cookie_name(kWriteCookie, key));
  return is_write_cookie(cookie, key, calendar_seconds());
}

// Returns whether the key for every job is that of this one. REQUIRES: there is one.
bool has_common_key(const Keyring& keys, const std::string& job) {
  const std::optional<Secret> key = keys.key_of(job);
  return key && key->view() == keys.for_every_job()->view();
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
  const std::string_view cookie = cookie_value(request.cookie, cookie_name(kReadCookie, key));
  return is_read_cookie(cookie, key, calendar_seconds()) || may_act(request, keys);
}

// Returns where the leader has the page that only it can show.
HttpPage page_of_leader(const HttpRequest& request, const ServiceView& service) {
  service.role->look();  // one that looks on may know a former leader
  const std::string leader = service.role->leader();
  if (leader.empty()) return text_page("no service is known to lead", 503);
  HttpPage page = text_page("the leader has this page: " + leader, 307);
  page.location = concat(service.has_tls ? "https://" : "http://", leader, request.path,
                         request.query.empty() ? "" : "?", request.query);
  return page;
}

// Returns why the sender may not read what workers write, for people; empty: they may.
std::string why_no_output(const HttpRequest& request, const ServiceView& service) {
  if (!service.keys.empty()) {
    if (may_act(request, service.keys)) return {};
    return "it needs the write token of --print-write-token, over TLS";
  }
  if (service.has_munge) return "a browser has no credential of munge";
  if (request.encrypted || is_name_of_no_other_site(request.host, host_name())) return {};
  return concat("open this page by the numeric address of the service: ", request.host,
                " may be the name of another site");
}

// Returns the page that answers this request of a browser.
HttpPage page_of_answer(UserRequest asked, const ServiceView& service) {
  return {.later = [ask = service.ask, asked = std::move(asked)](const HttpFinish& finish) {
    ask(asked, finish);
  }};
}

// Returns what a rank writes, live (kLogs), or its last calls (kFlight).
HttpPage page_of_rank(const HttpRequest& request, UserRequest::What what, Rank rank,
                      const ServiceView& service) {
  if (service.role && !service.role->leads()) return page_of_leader(request, service);
  if (service.is_draining) return text_page("the service is stopping", 503);
  const bool is_own =
      request.origin.empty() || is_same_origin(request.origin, request.host, request.encrypted);
  if (!is_own) return text_page("only this service's page may read this", 403);
  if (const std::string why = why_no_output(request, service); !why.empty()) {
    return text_page(concat("output and calls of workers: ", why), 403);
  }
  const auto query = form_values(request.query, {"job"});
  const std::string job = query ? query->front() : "";
  if (job.empty() || !why_no_name(job).empty()) {
    return text_page(concat("the form is ", request.path, "?job=ID"), 400);
  }
  if (!service.keys.empty() && !has_common_key(service.keys, job)) {
    return text_page("this job has a key of its own: use the commands of ddprun with it", 403);
  }
  UserRequest asked{
      .what = what, .number = 1, .job = job, .by = "a page on " + request.peer, .rank = rank};
  if (what == UserRequest::What::kFlight) return page_of_answer(std::move(asked), service);
  return {
      .type = "text/event-stream", .is_stream = true, .feed = service.follow(job, rank, asked.by)};
}

// Exchanges the token in the form of the page for a cookie that scripts cannot read.
HttpPage page_of_token(const HttpRequest& request, const Keyring& keys) {
  if (std::optional<HttpPage> refused = refuse_form(request)) return *refused;
  const std::optional<std::string_view> token = token_in_form(request.body);
  if (!token) return text_page("a token has 64 digits: --print-read-token shows it", 400);
  const std::string_view key = keys.for_every_job() ? keys.for_every_job()->view() : "";
  const std::int64_t until = calendar_seconds() + kCookieLasts.count();
  if (!key.empty() && is_same_secret(*token, read_token_of(key))) {
    return cookie_page(cookie_name(kReadCookie, key), read_cookie_of(key, until),
                       request.encrypted);
  }
  if (key.empty() || !is_same_secret(*token, write_token_of(key))) {
    return text_page("this is not the token of this service", 403);
  }
  if (!request.encrypted) {
    return text_page("a write token is accepted only over TLS: use https://", 403);
  }
  return cookie_page(cookie_name(kWriteCookie, key), write_cookie_of(key, until), true);
}

// Takes an order of a button of the page.
HttpPage page_of_order(const HttpRequest& request, const ServiceView& service) {
  if (std::optional<HttpPage> refused = refuse_form(request)) return *refused;
  if (!may_act(request, service.keys)) {
    return text_page("buttons need the write token of --print-write-token, over TLS", 403);
  }
  if (service.role && !service.role->leads()) {
    return text_page("this service does not lead: load the page again", 503);
  }
  const std::optional<PageOrder> order = order_in_form(request.body);
  if (!order) return text_page(std::string(kOrderFormIs), 400);
  if (!has_common_key(service.keys, order->job)) {
    return text_page("this job has a key of its own: use the commands of ddprun with it", 403);
  }
  if (const Membership* const job = service.jobs.find(order->job)) {
    if (auto late = refuse_late(*order, job->generation().value)) return *late;
  }
  UserRequest asked{.what = order->what,
                    .number = 1,
                    .job = order->job,
                    .by = "a page on " + request.peer,
                    .rank = order->rank};
  return page_of_answer(std::move(asked), service);
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

ServicePages::ServicePages(std::function<ServiceView()> view)
    : http_(
          std::in_place, [this, view](const HttpRequest& request) { return page(request, view()); },
          HttpLimits{},
          [view] {
            const ServiceView service = view();
            service.note_watcher();
            return body_of(event_text(status_page(service.jobs, this_moment())));
          }) {}

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
    if (path == "/" && service.role && !service.role->leads()) {
      return page_of_leader(request, service);
    }
    return HttpPage{.type = std::string(file->type), .body = body_of(std::string(file->text))};
  }
  if (path == kTokenPath) return page_of_token(request, service.keys);
  if (path == kOrderPath) return page_of_order(request, service);
  if (path == kRightsPath) {
    return rights_page({.reads = may_read(request, service.keys),
                        .acts = may_act(request, service.keys),
                        .takes_token = request.encrypted && service.keys.for_every_job(),
                        .why_no_output = why_no_output(request, service)});
  }
  if (!may_read(request, service.keys)) {
    return text_page(
        "this page requires the token of --print-read-token: Authorization: Bearer "
        "TOKEN",
        401);
  }
  if (path == "/metrics") {
    return cached(metrics_, [&] {
      std::string text =
          metrics_page(service.jobs, figures_of(service, http_->counters()), BootClock::now());
      return HttpPage{.type = "text/plain; version=0.0.4; charset=utf-8",
                      .body = body_of(std::move(text))};
    });
  }
  if (path == "/status.json") {
    if (service.role && !service.role->leads()) return page_of_leader(request, service);
    service.note_watcher();
    return cached(status_, [&] {
      return HttpPage{.type = "application/json",
                      .body = body_of(status_page(service.jobs, this_moment()))};
    });
  }
  if (path == "/events") {
    if (service.role && !service.role->leads()) return page_of_leader(request, service);
    return HttpPage{.type = "text/event-stream", .is_stream = true};
  }
  if (const std::optional<Rank> rank = rank_in_path(path, "/output/")) {
    return page_of_rank(request, UserRequest::What::kLogs, *rank, service);
  }
  if (const std::optional<Rank> rank = rank_in_path(path, "/flight/")) {
    return page_of_rank(request, UserRequest::What::kFlight, *rank, service);
  }
  return std::nullopt;
}

Answer ServicePages::answer(const ServiceOutput::Page& asked, const JobTable& jobs) {
  Answer answer{.number = asked.number, .done = true};
  answer.page = status_page(jobs, this_moment(), {.only = asked.job, .max_bytes = kMaxPageBytes});
  return answer;
}

}  // namespace ddprun
