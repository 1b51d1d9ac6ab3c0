#include "rendezvous/client/service_call.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <thread>
#include <utility>
#include <vector>

#include "base/deadline.h"
#include "base/joined.h"
#include "base/random_id.h"
#include "base/version.h"
#include "rendezvous/auth/async_munge.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/transport/send_queue.h"

namespace ddprun {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

// If there is another service to ask, one may not be silent for longer.
constexpr Duration kOthersMayAnswer = std::chrono::seconds(2);
// A service that cannot be asked may still be named as the leader.
constexpr Duration kLookPause = std::chrono::milliseconds(100);
constexpr std::size_t kMostPlaces = 32;  // that are asked, with those that standbys have named

// Call: one request. Its io_context runs while something is pending; over() ends it.
class Call {
 public:
  // is_last: no other service may be asked, so this one has all the time.
  Call(const ServiceCall& call, const UserRequest& request, bool is_last)
      : call_(call),
        request_(request),
        deadline_(is_last && !call.find_leader ? call.to_answer
                                               : std::min(call.to_answer, kOthersMayAnswer)),
        asked_until_(call.to_answer),
        timer_(io_),
        transport_(std::make_shared<Transport>(tcp::socket(io_))),
        queue_(std::make_shared<SendQueue>(transport_)) {
    queue_->on_sent = [this](const Result<std::size_t>& sent) {
      if (!sent) fail(sent.error().kind, sent.error().message());
    };
    if (call.munge) munge_.emplace(io_, call.munge);
  }

  Result<ServiceReply> run() {
    const Result<std::vector<SocketAddress>> addresses =
        resolve(call_.address, deadline_.remaining());
    if (!addresses) return Error(addresses.error()).within(doing());
    std::vector<tcp::endpoint> endpoints;
    for (const SocketAddress& address : *addresses) endpoints.push_back(endpoint_of(address));
    arm(deadline_.remaining(), "no answer");
    asio::async_connect(transport_->socket(), endpoints,
                        [this](error_code failed, const tcp::endpoint&) {
                          if (failed) return fail(ErrorKind::kConnection, failed.message());
                          if (request_.follow)
                            enable_keepalive(transport_->socket().native_handle());
                          greet();
                        });
    io_.run();
    transport_->close();
    // Pending handlers do not use this object after the io_context has stopped.
    if (error_ && reply_.answer.more) {
      error_->doing = "read output through the rendezvous service at " + to_text(call_.address);
      reply_.broke_off = std::move(error_);
    } else if (error_) {
      error_->doing = doing();
      return *error_;
    }
    reply_.address = call_.address;
    return reply_;
  }

  // Returns whether another service may be asked after an error.
  bool was_put_off() const { return is_put_off_; }
  bool may_ask_another() const { return !has_asked_ || is_put_off_; }
  // Returns the leader that a standby has named; empty: none.
  const std::string& leader() const { return leader_; }

 private:
  std::string doing() const { return "ask the rendezvous service at " + to_text(call_.address); }

  void arm(Duration allowed, const std::string& otherwise) {
    timer_.expires_after(allowed);
    timer_.async_wait([this, otherwise, allowed](error_code error) {
      if (!error) fail(ErrorKind::kTimeout, otherwise + " within " + to_text(allowed));
    });
  }

  void fail(ErrorKind kind, std::string cause) {
    if (!error_ && !is_over_) error_ = Error{.kind = kind, .cause = std::move(cause)};
    over();
  }

  void put_off(const Silence& silence) {
    is_put_off_ = true;
    leader_ = silence.leader;
    fail(ErrorKind::kStopped, silence.reason);
  }

  void over() {
    is_over_ = true;
    io_.stop();
  }

  void greet() {
    if (!call_.tls) return introduce();
    transport_->start_tls(TlsChannel::agent(call_.tls, call_.address.host));
    transport_->open([this](const Result<void>& opened) {
      if (!opened) return fail(opened.error().kind, opened.error().message());
      introduce();
    });
  }

  void introduce() {
    if (call_.key.empty() && !call_.munge) {
      send_request();
    } else {
      MungeProof by_munge{.demands_proof = call_.demands_proof};
      if (call_.munge) by_munge.own = call_.munge->user();
      handshake_.emplace(
          call_.key,
          Knock{.version = kVersion, .job = request_.job, .nonce = random_hex(kNonceBytes)},
          transport_->binding(), by_munge);
      transmit(AgentHandshakeMessage(handshake_->knock()));
    }
    read();
  }

  void read() {
    transport_->read([this](const Result<std::string_view>& bytes) {
      if (is_over_) return;
      if (!bytes && reply_.answer.more) {
        return fail(bytes.error().kind, "it closed the connection before the end of the output");
      }
      if (!bytes) {
        return fail(bytes.error().kind,
                    bytes.error().message() + ": an older version, or not a rendezvous service?");
      }
      frames_.append(*bytes);
      while (!is_over_) {
        const auto frame = frames_.next();
        if (!frame) return fail(ErrorKind::kProtocol, frame.error().message());
        if (!*frame) return read();
        take(**frame);
      }
    });
  }

  void take(std::string_view frame) {
    if (handshake_ && !handshake_->is_over()) {
      const Result<ServiceHandshakeMessage> message = decode<ServiceHandshakeMessage>(frame);
      if (!message) return fail(ErrorKind::kProtocol, message.error().message());
      return carry_out(handshake_->receive(*message));
    }
    const Result<ServiceMessage> message = decode<ServiceMessage>(frame);
    if (!message) return fail(ErrorKind::kProtocol, message.error().message());
    if (const Refused* refused = std::get_if<Refused>(&*message)) {
      return fail(ErrorKind::kStopped, refused->reason);
    }
    if (const Silence* silence = std::get_if<Silence>(&*message)) {
      return put_off(*silence);
    }
    if (const Answer* answer = std::get_if<Answer>(&*message)) {
      reply_.answer = *answer;
      if (answer->more) {
        if (call_.on_output && !call_.on_output(*answer)) return over();
        if (request_.follow) return static_cast<void>(timer_.cancel());
        return arm(call_.to_more, "no more output");
      }
      const bool waits = request_.what == UserRequest::What::kStop && answer->done && call_.to_end;
      if (!waits) return over();
      arm(*call_.to_end, "it answered: " + answer->text + "; but the job did not end");
    } else if (const End* end = std::get_if<End>(&*message)) {
      reply_.verdict = end->verdict;
      over();
    }
  }

  void carry_out(const Result<AgentHandshake::Step>& step) {
    if (!step) return fail(step.error().kind, step.error().message());
    if (const MungeTask* task = std::get_if<MungeTask>(&*step)) {
      return munge_->ask(*task, [this](const MungeOutcome& outcome) {
        if (!is_over_) carry_out(handshake_->answered(outcome));
      });
    }
    if (const Refused* refused = std::get_if<Refused>(&*step)) {
      return fail(ErrorKind::kStopped, refused->reason);
    }
    if (const Silence* silence = std::get_if<Silence>(&*step)) {
      return put_off(*silence);
    }
    if (const Proof* proof = std::get_if<Proof>(&*step)) transmit(AgentHandshakeMessage(*proof));
    if (handshake_->is_time_for_hello()) send_request();
  }

  void send_request() {
    has_asked_ = request_.what != UserRequest::What::kStatus;  // it changes nothing
    // It is not asked for elsewhere any more. The answer may wait until a change is durable.
    if (has_asked_) arm(asked_until_.remaining(), "no answer");
    transmit(AgentMessage(request_));
  }

  template <class Message>
  void transmit(const Message& message) {
    const Result<std::string> bytes = encode(message);
    if (!bytes) return fail(bytes.error().kind, bytes.error().message());
    queue_->add(*bytes);
    queue_->flush();
  }

  const ServiceCall& call_;
  const UserRequest& request_;
  const Deadline deadline_;
  const Deadline asked_until_;  // instead, once the service was asked
  asio::io_context io_{1};
  asio::steady_timer timer_;
  TransportPtr transport_;
  std::shared_ptr<SendQueue> queue_;
  std::optional<AsyncMunge> munge_;
  std::optional<AgentHandshake> handshake_;
  FrameReader frames_;
  ServiceReply reply_;
  std::optional<Error> error_;
  bool is_over_ = false;
  bool has_asked_ = false;   // for something that must not be asked for twice
  bool is_put_off_ = false;  // by the service
  std::string leader_;
};

// Returns true if the request changes nothing of the job's state.
bool only_reads(const UserRequest& request) {
  return request.what == UserRequest::What::kStatus || is_answered_by_nodes(request.what);
}

// Returns the error of a standby whose leader may not be asked.
Error with_advice(Error error) {
  error.cause += " (give --rdzv-endpoint that address, or those of all services)";
  return error;
}

}  // namespace

Result<ServiceReply> call_service(const ServiceCall& call, const UserRequest& request) {
  std::vector<HostPort> places{call.address};
  places.insert(places.end(), call.others.begin(), call.others.end());
  const bool is_one = places.size() == 1;
  std::vector<std::string> troubles;
  const Deadline deadline(call.to_answer);
  for (std::size_t i = 0;; ++i) {
    ServiceCall next = call;
    next.address = places[i];
    const bool is_last = i + 1 == places.size();
    Call asked(next, request, is_last);
    Result<ServiceReply> reply = asked.run();
    if (reply) return reply;
    troubles.push_back(to_text(places[i]) + ": " + reply.error().cause);
    const Result<HostPort> leader = parse_host_port(asked.leader());
    // A standby may lie about the leader. A request that changes something goes, as an agent does,
    // only to an address that was given or where identity must be proved. One that only reads goes
    // to any leader: a service that lies about the leader could also lie about the job.
    const bool may_follow =
        !call.key.empty() || call.tls || call.demands_proof || only_reads(request);
    const bool is_new = leader && std::ranges::count(places, *leader) == 0;
    if (is_new && may_follow && places.size() < kMostPlaces && !deadline.passed()) {
      places.push_back(*leader);
      continue;
    }
    const ErrorKind kind = reply.error().kind;
    const bool may_have_moved =
        asked.was_put_off() || kind == ErrorKind::kConnection || kind == ErrorKind::kTimeout;
    if (call.find_leader && may_have_moved && asked.may_ask_another() && !deadline.passed()) {
      std::this_thread::sleep_for(kLookPause);
      Result<HostPort> found = call.find_leader();
      if (!found) return std::move(found).error();
      places.push_back(std::move(*found));
      troubles.clear();
    } else if (is_last || !asked.may_ask_another()) {
      if (is_one && is_new) return with_advice(reply.error());
      if (is_one) return reply;
      return Error{.kind = reply.error().kind,
                   .doing = "ask the rendezvous services",
                   .cause = joined(troubles, "; ")};
    }
  }
}

}  // namespace ddprun
