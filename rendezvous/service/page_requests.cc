#include "rendezvous/service/page_requests.h"

#include <algorithm>
#include <boost/asio/steady_timer.hpp>
#include <string>
#include <utility>

#include "rendezvous/http/page_forms.h"

namespace ddprun {

struct PageRequests::Request {
  Request(boost::asio::io_context& io, bool look, HttpFinish to)
      : is_look(look), finish(std::move(to)), patience(io) {}

  bool is_look;
  HttpFinish finish;
  boost::asio::steady_timer patience;
  PageReply reply;
};

PageRequests::PageRequests(boost::asio::io_context& io, PageRequestsEvents events)
    : io_(io), events_(std::move(events)) {}
PageRequests::~PageRequests() = default;

bool PageRequests::begin(AgentConnectionId id, bool is_look, const HttpFinish& finish) {
  const auto looks =
      std::ranges::count_if(open_, [](const auto& one) { return one.second->is_look; });
  if (open_.size() >= kMost || (is_look && static_cast<std::size_t>(looks) >= kMostLooks)) {
    finish(text_page(std::string(kTooManyOrders), 503));
    return false;
  }
  const auto request = std::make_shared<Request>(io_, is_look, finish);
  open_[id] = request;
  request->patience.expires_after(kPatience);
  request->patience.async_wait([this, id, weak = std::weak_ptr(request)](
                                   const boost::system::error_code& error) {
    if (error || weak.expired()) return;
    end(id,
        text_page("no answer within " + to_text(kPatience) + ": it may still be carried out", 504));
  });
  return true;
}

void PageRequests::take(AgentConnectionId id, const ServiceMessage& message) {
  const Answer* const answer = std::get_if<Answer>(&message);
  if (!answer) return end(id, text_page("the service has no answer now", 503));
  if (const auto page = open_.at(id)->reply.take(*answer)) return end(id, *page);
  events_.wants_more(id);
}

void PageRequests::end_all(const HttpPage& page) {
  while (!open_.empty()) end(open_.begin()->first, page);
}

void PageRequests::close() { open_.clear(); }

void PageRequests::end(AgentConnectionId id, const HttpPage& page) {
  const auto found = open_.extract(id);
  if (!found) return;
  const std::shared_ptr<Request>& request = found.mapped();
  events_.ended(id);
  request->finish(page);
}

}  // namespace ddprun
