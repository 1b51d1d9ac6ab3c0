#include "rendezvous/client/service_link.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <mutex>
#include <vector>

#include "base/assert.h"
#include "base/random_id.h"
#include "rendezvous/auth/async_munge.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/icmp_error.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/service/server.h"
#include "rendezvous/transport/transport.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Addresses = std::vector<SocketAddress>;

namespace {

// Hands on the messages that are for the agent.
void deliver(const ServiceMessage& message, const ServiceLinkEvents& events) {
  if (const auto* answer = std::get_if<Answer>(&message)) events.answer(*answer);
  if (const auto* signal = std::get_if<ForwardSignal>(&message)) events.forward_signal(*signal);
  if (const auto* tell = std::get_if<TellOutput>(&message)) events.tell_output(*tell);
  if (const auto directive = directive_of(message)) events.directive(*directive);
}

class LocalLink final : public ServiceLink {
 public:
  LocalLink(RendezvousServer& server, ServiceLinkEvents events)
      : server_(server), events_(std::move(events)) {}

  ~LocalLink() override {
    if (connection_) server_.detach(*connection_);
  }

  void start() override {
    connection_ = server_.attach([this](const ServiceMessage& message) { take(message); });
    server_.receive(*connection_, events_.hello(""));
  }

  void send(const AgentMessage& message) override {
    if (connection_) server_.receive(*connection_, message);
  }

  bool send_now(const AgentMessage& message) override {
    send(message);
    return connection_.has_value();
  }

  std::optional<std::uint16_t> port() const override { return std::nullopt; }
  std::string instance() const override { return instance_; }

  void leave(std::optional<Leave> leave, std::function<void()> then) override {
    if (connection_) {
      if (leave) server_.receive(*connection_, *leave);
      server_.detach(*connection_);
      connection_.reset();
    }
    then();
  }

 private:
  void take(const ServiceMessage& message) {
    if (const Welcome* welcome = std::get_if<Welcome>(&message)) instance_ = welcome->instance;
    if (const Refused* refused = std::get_if<Refused>(&message)) {
      return events_.refused({refused->reason});
    }
    deliver(message, events_);
  }

  RendezvousServer& server_;
  ServiceLinkEvents events_;
  std::optional<AgentConnectionId> connection_;
  std::string instance_;
};

// LookUpReceiver: where the look-up thread delivers its result. That thread may outlive the link
// and the io_context.
struct LookUpReceiver {
  std::mutex mutex;
  asio::io_context* io = nullptr;  // null: the link does not wait for a result any more
};

// Sets TCP_USER_TIMEOUT of the socket to a quarter of the patience.
//
// While a cable is cut, TCP retransmits after ever longer pauses. The cable may work again
// long before TCP notices. Therefore the connection ends when the other host has not
// acknowledged sent data for a quarter of the patience. AgentLink then makes a new connection,
// with many tries.
//
// A service that is only slow runs on a host whose kernel acknowledges, once the connection is
// accepted. Before the Welcome that may not be so. When thousands of agents connect at once,
// the accept queue is full, and the host acknowledges nothing.
void end_when_cut_off(int socket, Duration patience) {
  using std::chrono::milliseconds;
  const auto quarter = std::chrono::duration_cast<milliseconds>(patience / 4);
  const unsigned count = static_cast<unsigned>(std::clamp<milliseconds::rep>(
      quarter.count(), 100, std::chrono::milliseconds(std::chrono::minutes(1)).count()));
  setsockopt(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, &count, sizeof count);
}

// Within this time an idle service answers a heartbeat on the same host or over a good
// network.
constexpr Duration kAnswerTime = std::chrono::microseconds(500);

// RemoteLink: the Asio shell around AgentLink. Its pending operations keep it alive; `over_` ends
// them.
class RemoteLink final : public ServiceLink, public std::enable_shared_from_this<RemoteLink> {
 public:
  RemoteLink(asio::io_context& io, RemoteLinkOptions options, ServiceLinkEvents events)
      : io_(io),
        options_(std::move(options)),
        events_(std::move(events)),
        link_(options_.link, Rng(random_seed()), BootClock::now()),
        receiver_(std::make_shared<LookUpReceiver>()),
        timer_(io) {
    DDPRUN_ASSERT(options_.next_ports.size() == options_.link.next_services.size(),
                  "each place has a port");
    receiver_->io = &io;
    if (options_.munge) munge_.emplace(io, options_.munge);
  }

  void start() override { perform(link_.start(BootClock::now())); }

  std::optional<std::uint16_t> port() const override {
    return link_.instance().empty() ? options_.address.port : port_at(link_.place());
  }
  std::string instance() const override { return link_.instance(); }

  void send(const AgentMessage& message) override { perform(link_.send(message)); }

  bool send_now(const AgentMessage& message) override {
    if (!link_.is_up()) return false;
    perform(link_.send(message));
    return true;
  }

  void leave(std::optional<Leave> leave, std::function<void()> then) override {
    if (leave) perform(link_.leave(*leave));
    over_ = true;
    timer_.cancel();
    nobody_waits();
    if (!transport_ || !transport_->is_open() || (sending_.empty() && unsent_.empty())) {
      close();
      return then();
    }
    // A message leaves a host that works within this second. A dead host is not waited for.
    farewell_ = std::make_shared<asio::steady_timer>(io_, std::chrono::seconds(1));
    when_sent_ = std::move(then);
    farewell_->async_wait([self = shared_from_this()](error_code) { self->farewell_said(); });
  }

  void abandon() {
    over_ = true;
    timer_.cancel();
    nobody_waits();
    if (farewell_) farewell_->cancel();
    when_sent_ = nullptr;
    close();
  }

 private:
  void perform(LinkActions actions) {
    for (const LinkAction& action : actions) {
      std::visit([this](const auto& what) { act(what); }, action);
      if (over_) return;
    }
    arm();
  }

  std::uint16_t port_at(std::size_t place) const {
    return place == 0 ? options_.address.port : options_.next_ports[place - 1];
  }

  // Begins a look-up. A known address is tried at once. If the last try failed, the name
  // service is asked at the same time: the host may have moved, and the name service may be
  // slow.
  void act(const LinkLookUp&) {
    const bool known = !endpoints_.empty();
    awaits_address_ = !known;
    if (!known || !reached_) ask_name_service();
    if (known) perform(link_.looked_up(BootClock::now()));
  }
  void act(const LinkConnect& connect) {
    close();
    if (std::exchange(has_tried_, true)) renew_tls();
    transport_ = std::make_shared<Transport>(tcp::socket(io_));
    reached_ = false;
    std::vector<tcp::endpoint> endpoints(endpoints_.rbegin(), endpoints_.rend());
    for (tcp::endpoint& one : endpoints) one.port(port_at(connect.place));
    connect_to(std::move(endpoints), LinkFailure::kRefused);
  }
  void act(const LinkClose&) { close(); }
  // Starts TLS where it is configured. TLS, the handshake and the Welcome share one deadline.
  void act(const LinkHello&) {
    if (!options_.tls) return introduce();
    transport_->start_tls(TlsChannel::agent(options_.tls, options_.address.host));
    transport_->open([self = shared_from_this(), wire = transport_](const Result<void>& opened) {
      if (self->over_ || self->transport_ != wire) return;
      if (!opened) return self->failed(opened.error());
      self->introduce();
    });
  }
  void act(const LinkTransmit& what) {
    transmit(what.message);
    if (!std::holds_alternative<Heartbeat>(what.message)) return;
    beat_sent_ = BootClock::now();
    if (answers_soon_) stay_awake(beat_sent_ + kAnswerTime);
  }
  void act(const LinkDeliver& what) { deliver(what.message, events_); }
  void act(const LinkPortRefuses& refuses) {
    if (!options_.port_refuses) return;
    asio::post(io_, [self = shared_from_this(), so_far = refuses.so_far] {
      if (!self->over_) self->options_.port_refuses(so_far);
    });
  }
  void act(const ServiceLost& lost) { events_.lost(lost); }
  void act(const ServiceRefused& refused) { events_.refused(refused); }

  // Keeps the event loop busy until the answer to a heartbeat comes, or until `until`.
  // Sleeping after a heartbeat would need a second wakeup for the answer. Where the last
  // answer came soon, the loop polls instead and serves all other events.
  void stay_awake(TimePoint until) {
    if (over_ || !link_.awaits_ack() || BootClock::now() >= until) return;
    sched_yield();  // lets a service run that was woken on this processor
    asio::post(io_, [self = shared_from_this(), until] { self->stay_awake(until); });
  }

  void introduce() {
    if (options_.key.empty() && !munge_) {
      say_hello();
    } else {
      begin_handshake();
    }
    if (!over_ && transport_) read(transport_);
  }

  void begin_handshake() {
    const Hello hello = present();
    // A process in the place of a service that has proved its identity must prove its own, too. So
    // must whoever has a port where the job's service may be.
    MungeProof by_munge{.demands_proof =
                            options_.demands_proof || service_has_proved_ || link_.is_seeking()};
    if (munge_) by_munge.own = munge_->munge().user();
    handshake_.emplace(
        options_.key,
        Knock{.version = hello.version, .job = hello.job.id, .nonce = random_hex(kNonceBytes)},
        transport_->binding(), by_munge);
    transmit(AgentHandshakeMessage(handshake_->knock()));
  }

  void say_hello() { transmit(AgentMessage(present())); }

  Hello present() {
    Hello hello = events_.hello(local_address_of(transport_->socket().native_handle()).host());
    hello.instance = link_.instance();
    return hello;
  }

  void take_handshake(std::string_view frame) {
    const Result<ServiceHandshakeMessage> message = decode<ServiceHandshakeMessage>(frame);
    if (!message) return garbled(message.error().message());
    perform(link_.heard(BootClock::now()));
    carry_out(handshake_->receive(*message));
  }

  void carry_out(const Result<AgentHandshake::Step>& step) {
    if (!step) return distrust(step.error());
    if (const MungeTask* task = std::get_if<MungeTask>(&*step)) return ask_munge(*task);
    if (const Refused* refused = std::get_if<Refused>(&*step)) {
      // A process that took the place of a lost service could send this. It must not end a
      // job. It proves nothing, so it does not end a search either.
      if (!link_.instance().empty()) return broken("refused: " + refused->reason);
      return perform(link_.received(Refused{refused->reason}, BootClock::now()));
    }
    if (const Silence* silence = std::get_if<Silence>(&*step)) {
      return perform(link_.received(*silence, BootClock::now()));
    }
    if (const Proof* proof = std::get_if<Proof>(&*step)) transmit(AgentHandshakeMessage(*proof));
    if (std::holds_alternative<Proven>(*step)) service_has_proved_ = true;
    if (handshake_->is_time_for_hello()) say_hello();
  }

  void distrust(const Error& why) {
    if (why.kind == ErrorKind::kProtocol) return garbled(why.message());
    if (why.kind != ErrorKind::kUnsupported) return broken(why.message());
    close();
    perform(link_.distrusted(why.cause, BootClock::now()));
  }

  void ask_munge(const MungeTask& task) {
    munge_->ask(task, [this, asking = std::weak_ptr(transport_)](const MungeOutcome& outcome) {
      const TransportPtr wire = asking.lock();
      if (over_ || !wire || transport_ != wire) return;
      carry_out(handshake_->answered(outcome));
    });
  }

  // Asks the name service on a thread of its own. Asio's resolver is not used. Its single
  // thread serves look-ups one after another, and each fork of a worker would wait for it.
  void ask_name_service() {
    if (asking_) return;
    asking_ = true;
    options_.look_up(options_.address,
                     [receiver = receiver_, weak = weak_from_this()](Result<Addresses> addresses) {
                       const std::lock_guard lock(receiver->mutex);
                       if (!receiver->io) return;
                       asio::post(*receiver->io, [weak, found = std::move(addresses)]() mutable {
                         if (const auto self = weak.lock()) self->answered(std::move(found));
                       });
                     });
  }

  void answered(Result<Addresses> addresses) {
    asking_ = false;
    if (over_) return;
    if (addresses && options_.found && link_.instance().empty()) {
      options_.found(*addresses);
      if (over_) return;
    }
    if (addresses) {
      endpoints_.clear();
      for (const SocketAddress& address : *addresses) endpoints_.push_back(endpoint_of(address));
    }
    if (!std::exchange(awaits_address_, false)) return;
    if (!addresses) return broken(addresses.error().message());
    perform(link_.looked_up(BootClock::now()));
  }

  void nobody_waits() {
    const std::lock_guard lock(receiver_->mutex);
    receiver_->io = nullptr;
  }

  // Tries the endpoints one after another, beginning with the last. The result is kRefused
  // only if every endpoint refused.
  void connect_to(std::vector<tcp::endpoint> endpoints, LinkFailure so_far) {
    const tcp::endpoint endpoint = endpoints.back();
    endpoints.pop_back();
    tcp::socket& socket = transport_->socket();
    error_code ignored;  // async_connect() reports the error, too
    socket.close(ignored);
    socket.open(endpoint.protocol(), ignored);
    keep_icmp_errors(socket.native_handle());
    socket.async_connect(endpoint, [self = shared_from_this(), wire = transport_, so_far,
                                    rest = std::move(endpoints)](error_code failed) {
      if (self->over_ || self->transport_ != wire) return;
      const int fd = wire->socket().native_handle();
      if (!failed) return self->connected(fd);
      const bool is_refused = failed == asio::error::connection_refused && !has_icmp_error(fd);
      const LinkFailure how = is_refused ? so_far : LinkFailure::kOther;
      if (!rest.empty()) return self->connect_to(rest, how);
      self->broken(failed.message(), how);
    });
  }

  void connected(int socket) {
    ignore_icmp_errors(socket);
    reached_ = true;
    disable_nagle(socket);
    frames_ = FrameReader();
    handshake_.reset();
    perform(link_.connected(BootClock::now()));
  }

  void renew_tls() {
    const TlsFiles& files = options_.tls_files;
    if (!options_.tls || (files.cert.empty() && !files.has_authority())) return;
    Result<FoundTls> found = TlsContext::for_agent(files);
    if (found) options_.tls = std::move(found->context);
  }

  void read(const TransportPtr& wire) {
    wire->read([self = shared_from_this(), wire](const Result<std::string_view>& bytes) {
      if (self->over_ || self->transport_ != wire) return;
      if (!bytes) return self->failed(bytes.error());
      self->frames_.append(*bytes);
      self->take_frames(wire);
    });
  }

  void take_frames(const TransportPtr& wire) {
    while (!over_ && transport_ == wire) {
      const auto frame = frames_.next();
      if (!frame) return garbled(frame.error().message());
      if (!*frame) return read(wire);
      if (handshake_ && !handshake_->is_over()) {
        take_handshake(**frame);
        continue;
      }
      const Result<ServiceMessage> message = decode<ServiceMessage>(**frame);
      if (!message) {
        // A service of a later version may send messages that this agent does not know.
        if (message.error().kind == ErrorKind::kUnsupported) continue;
        return garbled(message.error().message());
      }
      if (const Welcome* welcome = std::get_if<Welcome>(&*message)) {
        end_when_cut_off(wire->socket().native_handle(), welcome->agent_patience);
      }
      if (std::holds_alternative<HeartbeatAck>(*message)) {
        answers_soon_ = BootClock::now() - beat_sent_ <= 2 * kAnswerTime;
      }
      perform(link_.received(*message, BootClock::now()));
    }
  }

  template <class Message>
  void transmit(const Message& message) {
    const Result<std::string> bytes = encode(message);
    if (!bytes) return broken(bytes.error().message());
    unsent_ += *bytes;
    flush();
  }

  void flush() {
    if (!sending_.empty() || !transport_) return;
    if (unsent_.empty()) {
      if (when_sent_) farewell_said();
      return;
    }
    sending_.swap(unsent_);
    transport_->write({asio::buffer(sending_)},
                      [self = shared_from_this(), wire = transport_](const Result<void>& written) {
                        if (self->transport_ != wire) return;
                        self->sending_.clear();
                        if (written) return self->flush();
                        if (self->over_) return self->farewell_said();
                        self->broken(written.error().message());
                      });
  }

  void farewell_said() {
    if (farewell_) farewell_->cancel();
    close();
    if (when_sent_) std::exchange(when_sent_, nullptr)();
  }

  // Handles a failed TLS connection. Unless the service says that it is overloaded, a TLS
  // failure is not retried, because the next try would fail, too.
  void failed(const Error& error) {
    if (error.kind == ErrorKind::kResource) return broken(error.message(), LinkFailure::kPutOff);
    if (error.kind != ErrorKind::kProtocol) return broken(error.message());
    close();
    perform(link_.without_tls(error.message(), BootClock::now()));
  }

  void broken(const std::string& why, LinkFailure failure = LinkFailure::kOther) {
    close();
    perform(link_.disconnected(why, BootClock::now(), failure));
  }

  void garbled(const std::string& why) {
    close();
    perform(link_.garbled(why, BootClock::now()));
  }

  void close() {
    if (!transport_) return;
    transport_->close();
    transport_.reset();
    unsent_.clear();
    sending_ = std::string();
  }

  void arm() {
    const std::optional<TimePoint> due = link_.deadline();
    if (!due) return;
    timer_.expires_after(std::max(Duration(0), *due - BootClock::now()));
    timer_.async_wait([self = shared_from_this()](error_code error) {
      if (error || self->over_) return;
      self->perform(self->link_.tick(BootClock::now()));
    });
  }

  asio::io_context& io_;
  RemoteLinkOptions options_;
  ServiceLinkEvents events_;
  AgentLink link_;
  std::shared_ptr<LookUpReceiver> receiver_;
  std::vector<tcp::endpoint> endpoints_;  // of the last successful look-up
  bool asking_ = false;                   // a name look-up is running
  bool awaits_address_ = false;           // the link cannot continue without its result
  bool reached_ = false;                  // the last try got a connection
  bool has_tried_ = false;                // to connect
  TimePoint beat_sent_{};                 // the last heartbeat
  bool answers_soon_ = true;              // the last answer came within 2 * kAnswerTime
  asio::steady_timer timer_;
  TransportPtr transport_;
  FrameReader frames_;
  std::optional<AgentHandshake> handshake_;  // of this connection, with a key or munge
  std::optional<AsyncMunge> munge_;
  bool service_has_proved_ = false;  // its identity, on this connection or an earlier one
  std::string unsent_;
  std::string sending_;
  bool over_ = false;
  std::shared_ptr<asio::steady_timer> farewell_;
  std::function<void()> when_sent_;
};

}  // namespace

std::shared_ptr<ServiceLink> make_local_link(RendezvousServer& server, ServiceLinkEvents events) {
  return std::make_shared<LocalLink>(server, std::move(events));
}

// The last owner's pointer ends the pending operations. These keep the object itself alive.
std::shared_ptr<ServiceLink> make_remote_link(asio::io_context& io, RemoteLinkOptions options,
                                              ServiceLinkEvents events) {
  const auto link = std::make_shared<RemoteLink>(io, std::move(options), std::move(events));
  return {link.get(), [link](ServiceLink*) { link->abandon(); }};
}

}  // namespace ddprun
