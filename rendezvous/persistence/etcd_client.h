// EtcdClient: calls etcd's HTTP/JSON gateway. Every request has a short time: a request in flight
// when etcd's leader dies is never answered.
//
//   - A request goes to one member. If it is silent for a quarter of the request's time, a
//     repeatable request goes to the next member, too, and so on. The first answer counts.
//   - After a failure or such a silence, later requests go to the next member.
//   - One connection to each member is kept for the next request. If the member has closed it
//     before any byte of an answer, a repeatable request is repeated once, on a new connection.
//
// Owner and threads: RendezvousServer's thread, that of the io_context. It makes all calls and gets
// all callbacks, never within the call that they belong to. After the destructor, none is called.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/auth/tls_context.h"
#include "rendezvous/net/name_service.h"
#include "rendezvous/persistence/etcd_codec.h"

namespace ddprun {

struct EtcdClientOptions {
  std::vector<HostPort> endpoints;  // at least one
  TlsContextPtr tls;                // null: http
  std::string user = {};            // empty: etcd needs no user
  Secret password = {};
  // Called after each call, and not for watches: how long it took, and whether etcd has answered.
  // May be empty.
  std::function<void(Duration took, bool is_answered)> measure = nullptr;
  // Called with the time of each answer, as the member's clock has it ("Sat, 28 Nov 2026 07:57:26
  // GMT"). May be empty.
  std::function<void(std::string_view date)> see_date = nullptr;
  // A connection without a request is closed after this time.
  Duration kept_for = std::chrono::seconds(5);
  // Where several clients find the addresses of the members. Outlives them. Null: of this client.
  NameService* names = nullptr;
  // Returns a context made from files that may have been renewed; null: they have an error. Called
  // after failed calls with TLS, at most once in kRenewPause. May be empty.
  std::function<TlsContextPtr()> renew_tls = nullptr;
};

class EtcdClient {
 public:
  // A longer answer is refused.
  static constexpr std::size_t kMaxBodyBytes = std::size_t{64} << 20;
  // etcd computes a slow hash of the password.
  static constexpr Duration kLoginTime = std::chrono::seconds(2);
  static constexpr Duration kRenewPause = std::chrono::seconds(1);

  EtcdClient(boost::asio::io_context& io, EtcdClientOptions options);
  ~EtcdClient();

  // Receives the body of an answer with status 200. kNotFound: etcd does not know the lease.
  // Every other error leaves open whether the request was performed: kTimeout, kConnection,
  // kProtocol, and kStopped if etcd refuses, with its own text.
  using Handler = std::function<void(const Result<std::string>& body)>;
  void call(const EtcdRequest& request, Duration allowed, Handler then);

  // Watches until it ends, or another watch() or the destructor ends it. allowed: until the first
  // line. on_line: a line of the answer. ended: why no more lines come.
  void watch(const EtcdRequest& request, Duration allowed,
             std::function<void(std::string_view line)> on_line,
             std::function<void(const Error& why)> ended);

  // Proves the user again before the next call. Calls that etcd refuses do this by themselves.
  void log_in_again() { token_.clear(); }
  // Makes later calls and watches use this context.
  void set_tls(TlsContextPtr tls);

 private:
  class Connection;
  class Call;
  struct Unsent {
    EtcdRequest request;
    Duration allowed;
    Handler then;
  };

  void send(const EtcdRequest& request, Duration allowed, Handler then);
  void log_in();

  std::shared_ptr<Connection> new_connection(std::size_t member);
  // Returns the connection that is kept, or a new one.
  std::shared_ptr<Connection> connection_to(std::size_t member);
  // Keeps a connection whose request is answered.
  void keep(const std::shared_ptr<Connection>& connection);
  void drop_kept();
  // Draws conclusions for later requests.
  void failed(std::size_t member, const Error& why);
  // Makes the next request go to the member after this one.
  void leave(std::size_t member);

  boost::asio::io_context& io_;
  EtcdClientOptions options_;
  std::optional<NameService> own_names_;
  NameService& names_;
  TimePoint renewed_at_{};  // TLS
  std::size_t member_ = 0;
  std::string token_;           // proves the user at every member that has not restarted since
  std::vector<Unsent> unsent_;  // wait for a token
  std::vector<std::shared_ptr<Call>> calls_;
  std::vector<std::shared_ptr<Connection>> kept_;  // of each member; null: none
  std::shared_ptr<Connection> watch_;
};

// Makes one call, and waits for its answer. For programs without an event loop.
Result<std::string> call_etcd(EtcdClientOptions options, const EtcdRequest& request,
                              Duration allowed);

}  // namespace ddprun
