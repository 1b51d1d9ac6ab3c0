#include "rendezvous/persistence/etcd_client.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <boost/beast/http/write.hpp>
#include <sstream>
#include <utility>

#include "base/assert.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/transport/transport.h"

namespace ddprun {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

// Connection: to one member, for one request after another, or for a watch. It lives until end().
// It calls back at most once for each request, and never within ask().
class EtcdClient::Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(asio::io_context& io, const EtcdClientOptions& options, NameService& names,
             std::size_t member)
      : timer_(io),
        names_(names),
        transport_(std::make_shared<Transport>(tcp::socket(io))),
        tls_(options.tls),
        see_date_(options.see_date),
        kept_for_(options.kept_for),
        member_(member),
        address_(options.endpoints[member]) {}

  std::size_t member() const { return member_; }
  const TlsContextPtr& tls() const { return tls_; }
  bool is_over() const { return is_over_; }

  // Sends a request. REQUIRES: no other one is under way.
  void ask(const EtcdRequest& request, const std::string& token, Handler then) {
    begin(request, token, std::move(then));
    timer_.cancel();
    if (!is_reused_) return connect();
    // A later connection may need newer addresses.
    names_.find(address_, [](const auto&) {});
    send();
  }

  // Watches until end(). allowed: until the first line. REQUIRES: nothing was asked.
  void watch(const EtcdRequest& request, const std::string& token, Duration allowed,
             std::function<void(std::string_view line)> on_line, Handler ended) {
    on_line_ = std::move(on_line);
    begin(request, token, std::move(ended));
    timer_.expires_after(allowed);
    timer_.async_wait([self = shared_from_this(), allowed](error_code error) {
      if (!error && !self->is_over_) self->finish(self->silent_for(allowed));
    });
    connect();
  }

  // Ends it without a call back, and destroys the handlers.
  void end() {
    is_over_ = true;
    timer_.cancel();
    transport_->close();
    on_line_ = nullptr;
    then_ = nullptr;
  }

  // Returns whether a part of the newest request's answer has come.
  bool has_answer() const { return has_answer_; }
  // Returns whether the newest request was the first one of this connection.
  bool is_new() const { return !is_reused_; }
  Error silent_for(Duration allowed) const {
    return within_request(
        {.kind = ErrorKind::kTimeout, .cause = "no answer within " + to_text(allowed)});
  }

 private:
  bool is_watch() const { return on_line_ != nullptr; }

  void begin(const EtcdRequest& request, const std::string& token, Handler then) {
    then_ = std::move(then);
    path_ = request.path;
    is_reused_ = parser_.has_value();
    has_answer_ = false;
    is_written_ = false;
    parser_.emplace();
    parser_->body_limit(is_watch() ? boost::none : boost::optional<std::uint64_t>(kMaxBodyBytes));
    parser_->eager(true);
    http::request<http::string_body> head(http::verb::post, request.path, 11);
    head.set(http::field::host, to_text(address_));
    head.set(http::field::content_type, "application/json");
    if (!token.empty()) head.set(http::field::authorization, token);
    // Without it, a watch on a member without a leader is silent for ever.
    if (is_watch()) head.set("Grpc-Metadata-hasleader", "true");
    head.body() = request.body;
    head.prepare_payload();
    std::ostringstream text;
    text << head;
    request_ = std::move(text).str();
  }

  void connect() {
    names_.find(address_, [self = shared_from_this()](const auto& found) {
      if (self->is_over_) return;
      if (!found) return self->fail(ErrorKind::kConnection, found.error().cause);
      self->connect_to(*found);
    });
  }

  void connect_to(const std::vector<SocketAddress>& addresses) {
    for (const SocketAddress& one : addresses) endpoints_.push_back(endpoint_of(one));
    asio::async_connect(transport_->socket(), endpoints_,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (self->is_over_) return;
                          if (error) return self->fail(ErrorKind::kConnection, error.message());
                          self->open();
                        });
  }

  void open() {
    error_code ignored;
    transport_->socket().set_option(tcp::no_delay(true), ignored);
    if (!tls_) return send_first();
    transport_->start_tls(TlsChannel::agent(tls_, address_.host));
    transport_->open([self = shared_from_this()](const Result<void>& opened) {
      if (self->is_over_) return;
      if (!opened) return self->fail(opened.error().kind, opened.error().message());
      self->send_first();
    });
  }

  void send_first() {
    send();
    read();
  }

  void send() {
    transport_->write({asio::buffer(request_)},
                      [self = shared_from_this()](const Result<void>& written) {
                        if (self->is_over_) return;
                        if (!written) {
                          return self->fail(written.error().kind, written.error().message());
                        }
                        self->is_written_ = true;
                        if (self->parser_->is_done()) self->answer();
                      });
  }

  void read() {
    transport_->read([self = shared_from_this()](const Result<std::string_view>& bytes) {
      if (self->is_over_) return;
      // Nothing was asked. The member closes the connection, or does not speak HTTP.
      if (!self->then_) return self->end();
      if (!bytes) return self->fail(bytes.error().kind, bytes.error().message());
      self->take(*bytes);
    });
  }

  void take(std::string_view bytes) {
    has_answer_ = true;
    rest_ += bytes;
    while (!rest_.empty() && !parser_->is_done()) {
      error_code error;
      const std::size_t used = parser_->put(asio::buffer(rest_), error);
      rest_.erase(0, used);
      // The parser wants the beginning of a header or chunk again, together with its end.
      if (error == http::error::need_more) break;
      if (error) return fail(ErrorKind::kProtocol, error.message());
    }
    const bool is_ok = parser_->is_header_done() && parser_->get().result() == http::status::ok;
    if (is_watch() && is_ok) return take_lines();
    if (!parser_->is_done()) return read();
    // A server may refuse a request that it has not read to its end.
    if (is_written_ || !is_ok) answer();
  }

  void take_lines() {
    std::string& body = parser_->get().body();
    const auto tell = on_line_;  // end(), which a line may lead to, destroys the other one
    std::size_t end = 0;
    while ((end = body.find('\n')) != body.npos) {
      timer_.cancel();
      const std::string line = body.substr(0, end);
      body.erase(0, end + 1);
      tell(line);
      if (is_over_) return;
    }
    if (body.size() > kMaxLineBytes) return fail(ErrorKind::kProtocol, "a line has no end");
    if (parser_->is_done()) return fail(ErrorKind::kConnection, "the watch has ended");
    read();
  }

  void answer() {
    const auto response = parser_->release();
    if (see_date_) see_date_(std::string_view(response[http::field::date]));
    const bool can_be_kept = is_written_ && response.keep_alive() && rest_.empty();
    if (is_watch() || !can_be_kept) return finish(result_of(response));
    timer_.expires_after(kept_for_);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && !self->then_) self->end();
    });
    const Handler handler = std::exchange(then_, nullptr);
    read();
    handler(result_of(response));
  }

  Result<std::string> result_of(const http::response<http::string_body>& response) const {
    if (response.result() == http::status::ok) return response.body();
    // Other servers, and an etcd without this version of the API, answer 404, too.
    const std::string status = std::to_string(response.result_int());
    std::string text = etcd_error_text(response.body());
    if (!text.starts_with(status)) text.insert(0, text.empty() ? status : status + " ");
    if (response.result() == http::status::not_found && text.find("etcdserver:") == text.npos) {
      text += " (expected etcd 3.4 or newer)";
    }
    const bool has_no_lease = text.find("requested lease not found") != text.npos;
    return within_request({.kind = has_no_lease ? ErrorKind::kNotFound : ErrorKind::kStopped,
                           .cause = std::move(text)});
  }

  Error within_request(Error error) const {
    error.doing = "ask etcd at " + to_text(address_) + " for " + path_;
    return error;
  }

  void fail(ErrorKind kind, std::string cause) {
    finish(within_request({.kind = kind, .cause = std::move(cause)}));
  }

  void finish(const Result<std::string>& result) {
    const Handler handler = std::move(then_);
    end();
    if (handler) handler(result);
  }

  static constexpr std::size_t kMaxLineBytes = 1 << 20;

  asio::steady_timer timer_;  // of a watch's first line, or until the end without a request
  NameService& names_;
  std::vector<tcp::endpoint> endpoints_;
  TransportPtr transport_;
  TlsContextPtr tls_;
  std::function<void(std::string_view date)> see_date_;
  Duration kept_for_;
  std::size_t member_;
  HostPort address_;
  std::function<void(std::string_view line)> on_line_;  // empty: no watch
  Handler then_;                                        // empty: nothing is asked
  std::string path_;
  std::string request_;
  std::string rest_;
  std::optional<http::response_parser<http::string_body>> parser_;  // of the newest answer
  bool is_reused_ = false;
  bool has_answer_ = false;
  bool is_written_ = false;
  bool is_over_ = false;
};

// Call: one request, at one member or more, until the first answer or the end of its time.
class EtcdClient::Call : public std::enable_shared_from_this<Call> {
 public:
  Call(EtcdClient& client, EtcdRequest request, Duration allowed, Handler then)
      : client_(client),
        timer_(client.io_),
        request_(std::move(request)),
        allowed_(allowed),
        then_(std::move(then)) {}

  void start() {
    ask(client_.connection_to(client_.member_));
    wait();
  }

  // Ends it without a call back, and destroys the handlers.
  void end() {
    then_ = nullptr;
    timer_.cancel();
    for (const auto& one : asked_) one->end();
    asked_.clear();
  }

 private:
  void wait() {
    ++waits_;
    timer_.expires_after(allowed_ / kWaits);
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (!error && self->then_) self->silent();
    });
  }

  void silent() {
    if (waits_ == kWaits) {
      const Error error = asked_.front()->silent_for(allowed_);
      client_.failed(asked_.back()->member(), error);
      return finish(error);
    }
    const bool comes = std::ranges::any_of(asked_, &Connection::has_answer);
    if (request_.is_repeatable && !comes) {
      client_.leave(asked_.back()->member());
      // A member is asked again only if it was asked on a kept connection, which may be dead.
      const bool is_asked = std::ranges::any_of(asked_, [&](const auto& one) {
        return one->is_new() && one->member() == client_.member_;
      });
      if (!is_asked) ask(client_.connection_to(client_.member_));
    }
    wait();
  }

  void ask(std::shared_ptr<Connection> connection) {
    asked_.push_back(connection);
    connection->ask(request_, client_.token_,
                    [self = shared_from_this(), raw = connection.get()](const auto& body) {
                      self->answered(raw, body);
                    });
  }

  void answered(const Connection* from, const Result<std::string>& body) {
    const auto at = std::ranges::find(asked_, from, &std::shared_ptr<Connection>::get);
    const std::shared_ptr<Connection> connection = *at;
    asked_.erase(at);
    client_.keep(connection);
    if (is_answer(body)) {
      client_.member_ = connection->member();
      return finish(body);
    }
    const bool is_lost = body.error().kind == ErrorKind::kConnection;
    if (is_lost && !connection->is_new() && !connection->has_answer() && request_.is_repeatable) {
      return ask(client_.new_connection(connection->member()));
    }
    client_.failed(connection->member(), body.error());
    // If etcd has not answered, another member may.
    if (asked_.empty() || body.error().kind == ErrorKind::kStopped) finish(body);
  }

  static bool is_answer(const Result<std::string>& body) {
    return body || body.error().kind == ErrorKind::kNotFound;
  }

  void finish(const Result<std::string>& body) {
    const auto self = shared_from_this();
    const Handler then = std::move(then_);
    end();
    std::erase(client_.calls_, self);
    if (client_.options_.measure) {
      client_.options_.measure(BootClock::now() - begun_, is_answer(body));
    }
    then(body);
  }

  // A silent request is repeated after this part of its time.
  static constexpr int kWaits = 4;

  EtcdClient& client_;
  asio::steady_timer timer_;
  EtcdRequest request_;
  Duration allowed_;
  Handler then_;  // empty: it is over
  const TimePoint begun_ = BootClock::now();
  int waits_ = 0;
  std::vector<std::shared_ptr<Connection>> asked_;  // without an answer, oldest first; at least one
};

EtcdClient::EtcdClient(asio::io_context& io, EtcdClientOptions options)
    : io_(io),
      options_(std::move(options)),
      names_(options_.names ? *options_.names : own_names_.emplace(io)) {
  DDPRUN_ASSERT(!options_.endpoints.empty(), "etcd is somewhere");
  kept_.resize(options_.endpoints.size());
  // A member may be needed for the first time while the name service does not answer.
  for (const HostPort& one : options_.endpoints) names_.find(one, [](const auto&) {});
}

EtcdClient::~EtcdClient() {
  for (const auto& call : calls_) call->end();
  drop_kept();
  if (watch_) watch_->end();
}

void EtcdClient::call(const EtcdRequest& request, Duration allowed, Handler then) {
  // Leases are outside etcd's users. A keep-alive must not wait for a login.
  const bool needs_user = !options_.user.empty() && !request.path.starts_with("/v3/lease/");
  if (!needs_user || !token_.empty()) return send(request, allowed, std::move(then));
  unsent_.push_back({request, allowed, std::move(then)});
  if (unsent_.size() == 1) log_in();
}

void EtcdClient::log_in() {
  send(authenticate(options_.user, options_.password), kLoginTime,
       [this](const Result<std::string>& body) {
         const Result<std::string> token =
             body ? decode_token(*body) : Result<std::string>(body.error());
         if (token) token_ = *token;
         for (Unsent& call : std::exchange(unsent_, {})) {
           token ? send(call.request, call.allowed, std::move(call.then)) : call.then(token);
         }
       });
}

void EtcdClient::send(const EtcdRequest& request, Duration allowed, Handler then) {
  calls_.push_back(std::make_shared<Call>(*this, request, allowed, std::move(then)));
  calls_.back()->start();
}

void EtcdClient::watch(const EtcdRequest& request, Duration allowed,
                       std::function<void(std::string_view line)> on_line,
                       std::function<void(const Error& why)> ended) {
  if (watch_) watch_->end();
  watch_ = new_connection(member_);
  watch_->watch(
      request, token_, allowed, std::move(on_line),
      [this, member = member_, ended = std::move(ended)](const Result<std::string>& body) {
        watch_.reset();
        leave(member);
        ended(body.error());
      });
}

std::shared_ptr<EtcdClient::Connection> EtcdClient::new_connection(std::size_t member) {
  return std::make_shared<Connection>(io_, options_, names_, member);
}

std::shared_ptr<EtcdClient::Connection> EtcdClient::connection_to(std::size_t member) {
  const std::shared_ptr<Connection> kept = std::exchange(kept_[member], nullptr);
  return kept && !kept->is_over() ? kept : new_connection(member);
}

void EtcdClient::keep(const std::shared_ptr<Connection>& connection) {
  if (connection->is_over()) return;
  std::shared_ptr<Connection>& kept = kept_[connection->member()];
  // A request that ran at the same time has left one, or the context was renewed meanwhile.
  if ((kept && !kept->is_over()) || connection->tls() != options_.tls) return connection->end();
  kept = connection;
}

void EtcdClient::drop_kept() {
  for (std::shared_ptr<Connection>& kept : kept_) {
    if (kept) kept->end();
    kept.reset();
  }
}

void EtcdClient::set_tls(TlsContextPtr tls) {
  options_.tls = std::move(tls);
  drop_kept();
}

void EtcdClient::failed(std::size_t member, const Error& why) {
  leave(member);
  // The token may be of another member's past, or too old.
  if (why.kind == ErrorKind::kStopped) log_in_again();
  const TimePoint now = BootClock::now();
  if (!options_.tls || !options_.renew_tls || now < renewed_at_ + kRenewPause) return;
  renewed_at_ = now;
  if (TlsContextPtr renewed = options_.renew_tls()) set_tls(std::move(renewed));
}

void EtcdClient::leave(std::size_t member) {
  if (member == member_) member_ = (member_ + 1) % options_.endpoints.size();
}

Result<std::string> call_etcd(EtcdClientOptions options, const EtcdRequest& request,
                              Duration allowed) {
  asio::io_context io{1};
  EtcdClient client(io, std::move(options));
  Result<std::string> body = Error{.kind = ErrorKind::kTimeout, .cause = "no answer"};
  client.call(request, allowed, [&](const Result<std::string>& answer) {
    body = answer;
    io.stop();
  });
  io.run_for(2 * allowed);
  return body;
}

}  // namespace ddprun
