// The forms of the page, as every server of the page takes them: the exchange of a token for a
// cookie, the buttons of a job, and what a browser may do. Pure functions and values; one thread
// at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/http/core/browser.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/protocol/core/user_request.h"

namespace ddprun {

inline constexpr std::string_view kTokenPath = HttpExchange::kPostPaths[0];
inline constexpr std::string_view kOrderPath = HttpExchange::kPostPaths[1];
inline constexpr std::string_view kRightsPath = "/rights";
inline constexpr std::chrono::seconds kCookieLasts = std::chrono::hours(12);

// Returns why this is not a form that this service's own page has posted; nullopt: it is one.
std::optional<HttpPage> refuse_form(const HttpRequest& request);

// Returns the answer to a right token. A script cannot read the cookie, and no other site can make
// a browser send it.
HttpPage cookie_page(const std::string& name, const std::string& value, bool encrypted);

inline constexpr std::string_view kOrderFormIs =
    "the form is order=stop|restart|stacks&job=ID&generation=N, and for stacks &rank=N";
inline constexpr std::string_view kTooManyOrders =
    "too many requests at a time: try again in a moment";
// Returns why an order is refused that was given for a page of an older state: a restart, if
// another generation runs now. nullopt: it is not refused. generation: nullopt: it is not known.
std::optional<HttpPage> refuse_late(const PageOrder& order, std::optional<std::int64_t> generation);

// PageRights: what the sender of a request may do.
struct PageRights {
  bool reads = false;
  bool acts = false;         // may press buttons
  bool takes_token = false;  // a write token would be accepted
  bool is_dashboard = false;
  std::string why_no_output = {};  // of a rank; empty: they may read it
};
// Returns the answer to kRightsPath.
HttpPage rights_page(const PageRights& rights);

// PageReply: makes the answer to a button of what the service or an agent answers.
class PageReply {
 public:
  // Limit of the page. The rest is left out, and a line says so.
  static constexpr std::size_t kMaxBytes = 1 << 20;

  // Takes an Answer. Returns the page if this is the last one that is needed: one line for people,
  // or lines of JSON as agents write them. Do not call it again then.
  std::optional<HttpPage> take(const Answer& answer);

 private:
  void notice(const std::string& text);

  std::string lines_;
  bool has_begun_ = false;  // an Answer came that was not the last one
};

}  // namespace ddprun
