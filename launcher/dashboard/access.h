// DashboardAccess: who may use the page of `ddprun dashboard`. The address that it prints has a
// token, which works once. A browser gets a cookie for it, with which it may read the page and
// press its buttons. Other users of the host have neither.
//
// Pure. One owner thread.
#pragma once

#include <string>
#include <string_view>

#include "rendezvous/http/exchange.h"

namespace ddprun {

// Returns whether a Host field names this host by a loopback name. A browser that was led here by
// another name of the network (DNS rebinding) sends that name.
bool is_local_page_host(std::string_view host);

class DashboardAccess {
 public:
  // token, session: random, 64 lowercase hexadecimal digits each. name: random and short. It tells
  // the cookies of several dashboards of one host apart.
  DashboardAccess(std::string token, std::string session, const std::string& name);

  // Returns whether the request may read and act.
  bool may_use(const HttpRequest& request) const;
  // Takes the form with the token. The token works once.
  HttpPage take_token(const HttpRequest& request);

 private:
  const std::string token_;
  const std::string session_;
  const std::string cookie_name_;
  bool is_used_ = false;
};

}  // namespace ddprun
