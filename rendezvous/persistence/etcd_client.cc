#include "rendezvous/persistence/etcd_client.h"

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

// Exchange: one request and its answer, on a connection of its own. It lives until end(), and calls
// back at most once after the lines of a watch.
class EtcdClient::Exchange : public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(asio::io_context& io, const EtcdClientOptions& options, NameService& names,
           HostPort member, const EtcdRequest& request, const std::string& token, bool is_watch)
      : timer_(io),
        names_(names),
        transport_(std::make_shared<Transport>(tcp::socket(io))),
        tls_(options.tls),
        see_date_(options.see_date),
        member_(std::move(member)),
        path_(request.path),
        is_watch_(is_watch) {
    parser_.body_limit(is_watch ? boost::none : boost::optional<std::uint64_t>(kMaxBodyBytes));
    parser_.eager(true);
    http::request<http::string_body> head(http::verb::post, request.path, 11);
    head.set(http::field::host, to_text(member_));
    head.set(http::field::content_type, "application/json");
    head.set(http::field::connection, is_watch ? "keep-alive" : "close");
    if (!token.empty()) head.set(http::field::authorization, token);
    // Without it, a watch on a member without a leader is silent for ever.
    if (is_watch) head.set("Grpc-Metadata-hasleader", "true");
    head.body() = request.body;
    head.prepare_payload();
    std::ostringstream text;
    text << head;
    request_ = std::move(text).str();
  }

  std::function<void(std::string_view line)> on_line;
  Handler then;

  // allowed: for the whole exchange; of a watch, until its first line.
  void start(Duration allowed) {
    timer_.expires_after(allowed);
    timer_.async_wait([self = shared_from_this(), allowed](error_code error) {
      if (error) return;
      self->finish(
          Error{.kind = ErrorKind::kTimeout, .cause = "no answer within " + to_text(allowed)});
    });
    names_.find(member_, [self = shared_from_this()](const auto& found) {
      if (self->is_over_) return;
      if (!found) return self->fail(ErrorKind::kConnection, found.error().cause);
      self->connect(*found);
    });
  }

  // Ends it without a call back, and destroys the handlers.
  void end() {
    is_over_ = true;
    timer_.cancel();
    transport_->close();
    on_line = nullptr;
    then = nullptr;
  }
  bool is_over() const { return is_over_; }

 private:
  void connect(const std::vector<SocketAddress>& addresses) {
    for (const SocketAddress& one : addresses) endpoints_.push_back(endpoint_of(one));
    asio::async_connect(transport_->socket(), endpoints_,
                        [self = shared_from_this()](error_code error, const tcp::endpoint&) {
                          if (self->is_over_) return;
                          if (error) return self->fail(ErrorKind::kConnection, error.message());
                          self->open();
                        });
  }

  void open() {
    if (!tls_) return send();
    transport_->start_tls(TlsChannel::agent(tls_, member_.host));
    transport_->open([self = shared_from_this()](const Result<void>& opened) {
      if (self->is_over_) return;
      if (!opened) return self->fail(opened.error().kind, opened.error().message());
      self->send();
    });
  }

  void send() {
    transport_->write({asio::buffer(request_)},
                      [self = shared_from_this()](const Result<void>& written) {
                        if (self->is_over_ || written) return;
                        self->fail(written.error().kind, written.error().message());
                      });
    read();
  }

  void read() {
    transport_->read([self = shared_from_this()](const Result<std::string_view>& bytes) {
      if (self->is_over_) return;
      if (!bytes) return self->fail(bytes.error().kind, bytes.error().message());
      self->take(*bytes);
    });
  }

  void take(std::string_view bytes) {
    rest_ += bytes;
    while (!rest_.empty() && !parser_.is_done()) {
      error_code error;
      const std::size_t used = parser_.put(asio::buffer(rest_), error);
      rest_.erase(0, used);
      // The parser wants the beginning of a header or chunk again, together with its end.
      if (error == http::error::need_more) break;
      if (error) return fail(ErrorKind::kProtocol, error.message());
    }
    const bool is_ok = parser_.is_header_done() && parser_.get().result() == http::status::ok;
    if (is_watch_ && is_ok) return take_lines();
    if (!parser_.is_done()) return read();
    answer();
  }

  void take_lines() {
    std::string& body = parser_.get().body();
    const auto tell = on_line;  // end(), which a line may lead to, destroys the other one
    std::size_t end = 0;
    while ((end = body.find('\n')) != body.npos) {
      timer_.cancel();
      const std::string line = body.substr(0, end);
      body.erase(0, end + 1);
      tell(line);
      if (is_over_) return;
    }
    if (body.size() > kMaxLineBytes) return fail(ErrorKind::kProtocol, "a line has no end");
    if (parser_.is_done()) return fail(ErrorKind::kConnection, "the watch has ended");
    read();
  }

  void answer() {
    const auto& response = parser_.get();
    if (see_date_) see_date_(std::string_view(response[http::field::date]));
    if (response.result() == http::status::ok) return finish(std::move(parser_.get().body()));
    // Other servers, and an etcd without this version of the API, answer 404, too.
    const std::string status = std::to_string(response.result_int());
    std::string text = etcd_error_text(response.body());
    if (!text.starts_with(status)) text.insert(0, text.empty() ? status : status + " ");
    if (response.result() == http::status::not_found && text.find("etcdserver:") == text.npos) {
      text += " (expected etcd 3.4 or newer)";
    }
    const bool has_no_lease = text.find("requested lease not found") != text.npos;
    fail(has_no_lease ? ErrorKind::kNotFound : ErrorKind::kStopped, std::move(text));
  }

  void fail(ErrorKind kind, std::string cause) {
    finish(Error{.kind = kind, .cause = std::move(cause)});
  }

  void finish(Result<std::string> result) {
    if (is_over_) return;
    if (!result) {
      Error error = result.error();
      error.doing = "ask etcd at " + to_text(member_) + " for " + path_;
      result = std::move(error);
    }
    const Handler handler = std::move(then);
    end();
    if (handler) handler(result);
  }

  static constexpr std::size_t kMaxLineBytes = 1 << 20;

  asio::steady_timer timer_;
  NameService& names_;
  std::vector<tcp::endpoint> endpoints_;
  TransportPtr transport_;
  TlsContextPtr tls_;
  std::function<void(std::string_view date)> see_date_;
  HostPort member_;
  std::string path_;
  bool is_watch_;
  std::string request_;
  std::string rest_;
  http::response_parser<http::string_body> parser_;
  bool is_over_ = false;
};

EtcdClient::EtcdClient(asio::io_context& io, EtcdClientOptions options)
    : io_(io),
      options_(std::move(options)),
      names_(options_.names ? *options_.names : own_names_.emplace(io)) {
  DDPRUN_ASSERT(!options_.endpoints.empty(), "etcd is somewhere");
  // A member may be needed for the first time while the name service does not answer.
  for (const HostPort& one : options_.endpoints) names_.find(one, [](const auto&) {});
}

EtcdClient::~EtcdClient() {
  for (const auto& call : calls_) call->end();
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
         for (Call& call : std::exchange(unsent_, {})) {
           token ? send(call.request, call.allowed, std::move(call.then)) : call.then(token);
         }
       });
}

void EtcdClient::send(const EtcdRequest& request, Duration allowed, Handler then) {
  const std::size_t member = member_;
  const auto exchange = std::make_shared<Exchange>(
      io_, options_, names_, options_.endpoints[member], request, token_, false);
  calls_.push_back(exchange);
  exchange->then = [this, member, raw = exchange.get(), begun = BootClock::now(),
                    then = std::move(then)](const Result<std::string>& body) {
    std::erase_if(calls_, [raw](const auto& call) { return call.get() == raw; });
    const bool is_answered = body || body.error().kind == ErrorKind::kNotFound;
    if (!is_answered) {
      leave(member);
      renew_tls();
    }
    // The token may be of another member's past, or too old.
    if (!body && body.error().kind == ErrorKind::kStopped) log_in_again();
    if (options_.measure) options_.measure(BootClock::now() - begun, is_answered);
    then(body);
  };
  exchange->start(allowed);
}

void EtcdClient::watch(const EtcdRequest& request, Duration allowed,
                       std::function<void(std::string_view line)> on_line,
                       std::function<void(const Error& why)> ended) {
  if (watch_) watch_->end();
  const std::size_t member = member_;
  watch_ = std::make_shared<Exchange>(io_, options_, names_, options_.endpoints[member], request,
                                      token_, true);
  watch_->on_line = std::move(on_line);
  watch_->then = [this, member, ended = std::move(ended)](const Result<std::string>& body) {
    watch_.reset();
    leave(member);
    ended(body.error());
  };
  watch_->start(allowed);
}

void EtcdClient::leave(std::size_t member) {
  if (member == member_) member_ = (member_ + 1) % options_.endpoints.size();
}

void EtcdClient::renew_tls() {
  const TimePoint now = BootClock::now();
  if (!options_.tls || !options_.renew_tls || now < renewed_at_ + kRenewPause) return;
  renewed_at_ = now;
  if (TlsContextPtr renewed = options_.renew_tls()) options_.tls = std::move(renewed);
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
