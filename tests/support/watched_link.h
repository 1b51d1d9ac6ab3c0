// WatchedLink: an agent's link to a service, and the results that it has reported.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "rendezvous/client/service_link.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"

namespace ddprun::testing_support {

class WatchedLink {
 public:
  // Makes agent "a" of this job follow the service.
  void follow(RemoteLinkOptions options, const std::string& job = kDefaultJobId) {
    link_ = make_remote_link(
        io, std::move(options),
        {.hello =
             [this, job](const std::string& address) {
               Hello hello = hello_of(job, "a");
               hello.assignment = assignment;
               hello.node.address = address;
               return hello;
             },
         .directive =
             [this](const Directive& directive) {
               if (const Wait* wait = std::get_if<Wait>(&directive)) {
                 waits_for = wait->reason;
               } else {
                 ++directives;
               }
             },
         .lost = [this](const ServiceLost& lost) { trouble = lost.reason; },
         .refused = [this](const ServiceRefused& refused) { trouble = refused.reason; }});
    link_->start();
  }
  void go() { link_.reset(); }

  template <class Condition>
  bool run_until(Condition&& condition) {
    return eventually_on(io, condition);
  }
  // Waits until the service sends a new directive other than Wait. Returns false if the time is
  // over.
  bool is_directed() {
    directives = 0;
    return run_until([this] { return directives > 0; });
  }
  // Waits until the link is lost or refused; `trouble` then has the reason. Returns false if the
  // time is over.
  bool gets_into_trouble() {
    return run_until([this] { return !trouble.empty(); });
  }

  boost::asio::io_context io{1};
  std::optional<Assignment> assignment;  // of the agent's Hello
  int directives = 0;                    // without Wait
  std::string waits_for;                 // the reason of the last Wait
  std::string trouble;

 private:
  std::shared_ptr<ServiceLink> link_;
};

}  // namespace ddprun::testing_support
