// ServicePages: the HTTP pages of a rendezvous service (docs/how-to/monitoring.md), and who may
// read them and press their buttons. This is checked before each answer.
//
//   read   anyone, if the service has no keys. Else the read token of the key for every job, or a
//          browser's cookie for it or for the write token
//   output (what workers write, and their last calls) who may act. A service without keys shows
//          them as it answers `ddprun logs` and `flight`: to anyone, unless it has munge. Without
//          TLS the browser must name this host in a way that no other site can
//          (is_name_of_no_other_site())
//   act    (stop, restart, stacks) a browser's cookie for the write token of the key for every
//          job, over TLS; not for a job that has a key of its own. Without a key for every job, or
//          without TLS, no one
//
// The page of `ddprun dashboard` has rules of its own (launcher/dashboard/access.h).
//
// Owner: RendezvousServer, on its one thread.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/http/core/metrics_page.h"
#include "rendezvous/http/entry.h"
#include "rendezvous/http/page_cache.h"
#include "rendezvous/http/status_page.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/service/etcd_role.h"

namespace ddprun {

class StoreServer;

// Returns the present moment.
Moment this_moment();

// ServiceView: what the pages show of a service.
struct ServiceView {
  const JobTable& jobs;
  ServiceCounters counters;
  const StoreServer* store = nullptr;  // of this process; null: there is none
  const Keyring& keys;
  EtcdRole* role = nullptr;  // null: the state is not in etcd
  bool has_tls = false;
  bool has_munge = false;
  bool is_draining = false;
  bool ends_soon = false;              // it ends with its job
  std::function<void()> note_watcher;  // call it when a person looks at all jobs
  // Asks for something of a job, and calls the function once with the page that answers it.
  std::function<void(const UserRequest&, const HttpFinish&)> ask;
  // Returns the output of a rank of a job for one browser. by: who asks, for people.
  std::function<std::shared_ptr<HttpFeed>(const std::string& job, Rank rank, const std::string& by)>
      follow;
};

class ServicePages {
 public:
  // view: returns what the pages show at this moment.
  explicit ServicePages(std::function<ServiceView()> view);

  // Takes over a connection: see HttpEntry.
  void adopt(const TransportPtr& wire, std::string_view first_bytes) {
    http_->adopt(wire, first_bytes);
  }
  // Reports that the open pages would show something else now.
  void changed() { http_->changed(); }
  // Shows the open pages the state of now, because the service may end.
  void show_last() { http_->show_last(); }
  // Closes the open pages. They connect again, and are checked again.
  void close_readers() { http_->close_readers(); }
  // Closes all connections. `view` is not called any more. No other function may follow.
  void close() { http_.reset(); }

  // Returns the answer to a command that asks for the status page.
  static Answer answer(const ServiceOutput::Page& asked, const JobTable& jobs);

 private:
  // Returns the page of that path; nullopt: there is none.
  std::optional<HttpPage> page(const HttpRequest& request, const ServiceView& service);

  PageCache metrics_;
  PageCache status_;
  std::optional<HttpEntry> http_;
};

}  // namespace ddprun
