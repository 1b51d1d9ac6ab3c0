#include "rendezvous/http/page_forms.h"

#include <utility>

#include "base/concat.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {

std::optional<HttpPage> refuse_form(const HttpRequest& request) {
  if (!request.is_post) return text_page("this page takes only a POST", 405);
  if (!is_same_origin(request.origin, request.host, request.encrypted)) {
    return text_page("the form is not from this service's page", 403);
  }
  return std::nullopt;
}

HttpPage cookie_page(const std::string& name, const std::string& value, bool encrypted) {
  HttpPage page = text_page("ok");
  page.cookie = concat(name, "=", value, "; Path=/; Max-Age=", kCookieLasts.count(),
                       "; HttpOnly; SameSite=Strict", encrypted ? "; Secure" : "");
  return page;
}

std::optional<HttpPage> refuse_late(const PageOrder& order,
                                    std::optional<std::int64_t> generation) {
  if (order.what != UserRequest::What::kRestart || !generation) return std::nullopt;
  if (*generation == order.generation) return std::nullopt;
  return text_page(concat("the job is at generation ", *generation, ", and the page showed ",
                          order.generation, ": nothing was done"),
                   409);
}

HttpPage rights_page(const PageRights& rights) {
  const nlohmann::json json{{"reads", rights.reads},
                            {"acts", rights.acts},
                            {"takes_token", rights.takes_token},
                            {"is_dashboard", rights.is_dashboard},
                            {"why_no_output", rights.why_no_output}};
  return {.type = "application/json", .body = body_of(text_of(json))};
}

void PageReply::notice(const std::string& text) {
  if (!text.empty()) lines_ += text_of(nlohmann::json{{"notice", text}}) + "\n";
}

std::optional<HttpPage> PageReply::take(const Answer& answer) {
  if (!answer.more && !has_begun_ && answer.page.empty()) {
    return text_page(answer.text, answer.done ? 200 : 409);
  }
  if (answer.more) has_begun_ = true;
  const bool fits = lines_.size() + answer.page.size() <= kMaxBytes;
  if (fits) lines_ += answer.page;
  notice(answer.text);
  if (!fits) notice(concat("what is longer than ", kMaxBytes, " bytes is left out"));
  if (fits && answer.more && lines_.size() <= kMaxBytes) return std::nullopt;
  return HttpPage{.type = "application/x-ndjson", .body = body_of(std::move(lines_))};
}

}  // namespace ddprun
