#include <netinet/in.h>
#include <netinet/tcp.h>

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <vector>

#include "base/assert.h"
#include "base/random_id.h"
#include "rendezvous/auth/async_munge.h"
#include "rendezvous/client/deliver.h"
#include "rendezvous/client/targets.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/icmp_error.h"
#include "rendezvous/net/name_service.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/transport/send_queue.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Addresses = std::vector<SocketAddress>;

namespace {

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

// While one service is silent, the others are asked again after this time.
constexpr Duration kAskAgain = std::chrono::milliseconds(250);

std::vector<Target> given_targets(const RemoteLinkOptions& options) {
  std::vector<Target> all{{.address = options.address, .name = options.address.host}};
  for (const HostPort& one : options.others) all.push_back({.address = one, .name = one.host});
  return all;
}

// RemoteLink: the Asio shell around AgentLink. Its pending operations keep it alive; `over_` ends
// them.
//
// A try of AgentLink asks all services at once, each by a Contact of its own. The first one that
// welcomes the agent is chosen, and the other contacts end. As long as one of them is silent, the
// services that have answered otherwise are asked again: one of them may lead soon.
class RemoteLink final : public ServiceLink, public std::enable_shared_from_this<RemoteLink> {
 public:
  RemoteLink(asio::io_context& io, RemoteLinkOptions options, ServiceLinkEvents events)
      : io_(io),
        options_(std::move(options)),
        events_(std::move(events)),
        link_(options_.link, Rng(random_seed()), BootClock::now()),
        names_(io, options_.look_up),
        targets_(given_targets(options_)),
        timer_(io),
        again_(io) {
    DDPRUN_ASSERT(options_.next_ports.size() == options_.link.next_services.size(),
                  "each place has a port");
    DDPRUN_ASSERT(options_.next_ports.empty() || options_.others.empty(),
                  "several places are of one service");
    if (options_.munge) munge_.emplace(io, options_.munge);
  }

  void start() override { perform(link_.start(BootClock::now())); }

  std::optional<HostPort> place() const override {
    if (link_.instance().empty()) return options_.address;
    HostPort found = targets_[welcomed_at_].address;
    if (place_ > 0) found.port = options_.next_ports[place_ - 1];
    return found;
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
    again_.cancel();
    names_.end();
    if (!chosen_ || !chosen_->transport()->is_open() || chosen_->queue->has_sent_all()) {
      close_all();
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
    again_.cancel();
    names_.end();
    if (farewell_) farewell_->cancel();
    when_sent_ = nullptr;
    close_all();
  }

 private:
  using How = Ending::How;

  // Contact: one connection to a target at a time. It is open while it has a queue.
  struct Contact {
    std::size_t target = 0;
    std::vector<tcp::endpoint> rest = {};   // to be tried if this one fails, the next one last
    How failure = How::kConnectionRefused;  // if all endpoints fail
    tcp::endpoint endpoint = {};            // of the connection
    std::shared_ptr<SendQueue> queue = nullptr;
    FrameReader frames = {};
    std::optional<AgentHandshake> handshake = {};  // with a key or munge

    const TransportPtr& transport() const { return queue->wire; }
  };
  using ContactPtr = std::shared_ptr<Contact>;

  void perform(LinkActions actions) {
    for (const LinkAction& action : actions) {
      std::visit([this](const auto& what) { act(what); }, action);
      if (over_) return;
    }
    arm();
  }

  // --- names ------------------------------------------------------------------------------------

  // Begins look-ups. A known address is tried at once. If the last try did not reach it, the name
  // service is asked at the same time. The host may have moved, and the name service may be slow.
  void act(const LinkLookUp&) {
    const bool is_known = std::ranges::any_of(targets_, &Target::has_address);
    awaits_address_ = !is_known;
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      if (!targets_[i].has_address() || !targets_[i].was_reached) ask_name_service(i);
    }
    if (is_known) perform(link_.looked_up(BootClock::now()));
  }

  void ask_name_service(std::size_t index) {
    if (std::exchange(targets_[index].is_asking, true)) return;
    const HostPort address = targets_[index].address;
    names_.ask(address, [this, index, address](Result<Addresses> found) {
      if (index >= targets_.size() || targets_[index].address != address) return;
      const auto alive = shared_from_this();
      answered(index, std::move(found));
    });
  }

  void answered(std::size_t index, Result<Addresses> addresses) {
    Target& target = targets_[index];
    target.is_asking = false;
    if (over_) return;
    if (addresses && options_.found && link_.instance().empty()) {
      options_.found(*addresses);
      if (over_) return;
    }
    if (addresses) {
      target.endpoints.clear();
      for (const SocketAddress& one : *addresses) target.endpoints.push_back(endpoint_of(one));
    }
    if (awaits_address_) {
      if (!addresses && std::ranges::any_of(targets_, &Target::is_asking)) return;
      awaits_address_ = false;
      if (!addresses) return broken(addresses.error().message());
      return perform(link_.looked_up(BootClock::now()));
    }
    if (is_trying() && !is_tried(index)) begin_contact(index);
  }

  // Asks the service at this address, too, that the standby `from` has named. Only a service that
  // proves its identity may be a lie. This process does not lie to itself.
  void learn(const std::string& leader, std::size_t from) {
    const bool must_prove = !options_.key.empty() || options_.tls || options_.demands_proof;
    const bool is_believed = options_.is_own ? from == 0 : must_prove;
    const Result<HostPort> address = parse_host_port(leader);
    if (!is_believed || !address || address->host.empty()) return;
    if (options_.is_own) forget_all_but(*address);
    if (targets_.add({.address = *address, .name = address->host})) {
      ask_name_service(targets_.size() - 1);
    }
  }

  // Forgets former leaders: another program may have their ports. The first target is this process.
  void forget_all_but(const HostPort& leader) {
    if (targets_.size() == 1 || targets_[1].address == leader) return;
    for (const ContactPtr& one : std::vector(contacts_)) {
      if (one->target > 0) close(one);
    }
    targets_.keep_first();
    welcomed_at_ = 0;
  }

  // --- a try ------------------------------------------------------------------------------------

  bool is_trying() const { return !contacts_.empty() && !chosen_; }
  bool is_tried(std::size_t target) const {
    return std::ranges::any_of(contacts_, [&](const auto& one) { return one->target == target; });
  }
  static bool is_open(const ContactPtr& contact) { return contact->queue != nullptr; }

  void act(const LinkConnect& connect) {
    close_all();
    if (std::exchange(has_tried_, true)) renew_tls();
    place_ = connect.place;
    // Several services with a common state may have one name.
    if (link_.term() != 0 && options_.others.empty()) targets_.spread();
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      targets_[i].was_reached = false;
      targets_[i].ending.reset();
      if (targets_[i].has_address()) begin_contact(i);
    }
  }

  void begin_contact(std::size_t index) {
    const Target& target = targets_[index];
    auto contact = std::make_shared<Contact>();
    contact->target = index;
    contact->rest.assign(target.endpoints.rbegin(), target.endpoints.rend());
    if (place_ > 0) {
      for (tcp::endpoint& one : contact->rest) one.port(options_.next_ports[place_ - 1]);
    }
    contacts_.push_back(contact);
    connect_next(contact);
  }

  // Tries the endpoints one after another. One that another contact has is passed over: of two
  // Hellos of an agent, a service keeps only the later connection. A contact for which none is left
  // ends without an ending.
  void connect_next(ContactPtr contact) {
    std::erase_if(contact->rest, [&](const tcp::endpoint& one) {
      return std::ranges::any_of(contacts_, [&](const ContactPtr& other) {
        return other != contact && is_open(other) && other->endpoint == one;
      });
    });
    if (contact->rest.empty()) return close(contact);
    const tcp::endpoint endpoint = contact->endpoint = contact->rest.back();
    contact->rest.pop_back();
    if (contact->queue) contact->transport()->close();
    contact->queue = std::make_shared<SendQueue>(std::make_shared<Transport>(tcp::socket(io_)));
    contact->queue->on_sent = [this, contact](const Result<std::size_t>& sent) {
      on_sent(contact, sent);
    };
    contact->frames = FrameReader();
    contact->handshake.reset();
    tcp::socket& socket = contact->transport()->socket();
    error_code ignored;  // async_connect() reports the error, too
    socket.open(endpoint.protocol(), ignored);
    keep_icmp_errors(socket.native_handle());
    socket.async_connect(
        endpoint, [self = shared_from_this(), contact, queue = contact->queue](error_code failed) {
          if (self->over_ || contact->queue != queue) return;
          const int fd = queue->wire->socket().native_handle();
          if (!failed) return self->connected(contact);
          const bool is_refused = failed == asio::error::connection_refused && !has_icmp_error(fd);
          if (!is_refused) contact->failure = How::kBroken;
          if (!contact->rest.empty()) return self->connect_next(contact);
          self->ended(contact, {contact->failure, failed.message()});
        });
  }

  void connected(ContactPtr contact) {
    const int socket = contact->transport()->socket().native_handle();
    ignore_icmp_errors(socket);
    disable_nagle(socket);
    targets_[contact->target].was_reached = true;
    perform(link_.connected(BootClock::now()));
    if (!over_ && is_open(contact)) greet(contact);
  }

  // Every contact greets as soon as it is connected.
  void act(const LinkHello&) {}

  // Starts TLS where it is configured. TLS, the handshake and the Welcome share one deadline.
  void greet(ContactPtr contact) {
    if (!options_.tls) return introduce(contact);
    contact->transport()->start_tls(
        TlsChannel::agent(options_.tls, targets_[contact->target].name));
    contact->transport()->open(
        [self = shared_from_this(), contact, queue = contact->queue](const Result<void>& opened) {
          if (self->over_ || contact->queue != queue) return;
          if (!opened) return self->failed(contact, opened.error());
          self->introduce(contact);
        });
  }

  void introduce(ContactPtr contact) {
    if (options_.key.empty() && !munge_) {
      say_hello(contact);
    } else {
      begin_handshake(contact);
    }
    if (!over_ && is_open(contact)) read(contact);
  }

  void begin_handshake(ContactPtr contact) {
    const Hello hello = present(contact);
    // A process in the place of a service that has proved its identity must prove its own, too. So
    // must a process at a port where the job's service may be.
    MungeProof by_munge{.demands_proof =
                            options_.demands_proof || service_has_proved_ || link_.is_seeking()};
    if (munge_) by_munge.own = munge_->munge().user();
    contact->handshake.emplace(
        options_.key,
        Knock{.version = hello.version, .job = hello.job.id, .nonce = random_hex(kNonceBytes)},
        contact->transport()->binding(), by_munge);
    transmit(contact, AgentHandshakeMessage(contact->handshake->knock()));
  }

  void say_hello(ContactPtr contact) { transmit(contact, AgentMessage(present(contact))); }

  Hello present(const ContactPtr& contact) {
    const int socket = contact->transport()->socket().native_handle();
    Hello hello = events_.hello(local_address_of(socket).host());
    hello.instance = link_.instance();
    // A leader repeats the assignment, but the agent keeps the first copy of it.
    if (hello.assignment) hello.assignment->term = link_.term();
    return hello;
  }

  void take_handshake(ContactPtr contact, std::string_view frame) {
    const Result<ServiceHandshakeMessage> message = decode<ServiceHandshakeMessage>(frame);
    if (!message) return ended(contact, {How::kGarbled, message.error().message()});
    perform(link_.heard(BootClock::now()));
    carry_out(contact, contact->handshake->receive(*message));
  }

  void carry_out(ContactPtr contact, const Result<AgentHandshake::Step>& step) {
    if (!step) return distrust(contact, step.error());
    if (const MungeTask* task = std::get_if<MungeTask>(&*step)) return ask_munge(contact, *task);
    if (const Refused* refused = std::get_if<Refused>(&*step)) {
      // A process that took the place of a lost service could send this. It must not end a
      // job. It proves nothing, so it does not end a search either.
      if (!link_.instance().empty())
        return ended(contact, {How::kBroken, "refused: " + refused->reason});
      return refuse(contact, Refused{refused->reason});
    }
    if (const Silence* silence = std::get_if<Silence>(&*step)) return put_off(contact, *silence);
    if (const Proof* proof = std::get_if<Proof>(&*step)) {
      transmit(contact, AgentHandshakeMessage(*proof));
    }
    if (std::holds_alternative<Proven>(*step)) service_has_proved_ = true;
    if (is_open(contact) && contact->handshake->is_time_for_hello()) say_hello(contact);
  }

  void distrust(ContactPtr contact, const Error& why) {
    if (why.kind == ErrorKind::kProtocol) return ended(contact, {How::kGarbled, why.message()});
    if (why.kind == ErrorKind::kUnsupported) return ended(contact, {How::kDistrusted, why.cause});
    ended(contact, {How::kBroken, why.message()});
  }

  void ask_munge(ContactPtr contact, const MungeTask& task) {
    munge_->ask(
        task, [this, contact, asking = std::weak_ptr(contact->queue)](const MungeOutcome& outcome) {
          const auto queue = asking.lock();
          if (over_ || !queue || contact->queue != queue) return;
          carry_out(contact, contact->handshake->answered(outcome));
        });
  }

  void renew_tls() {
    const TlsFiles& files = options_.tls_files;
    if (!options_.tls || (files.cert.empty() && !files.has_authority())) return;
    Result<FoundTls> found = TlsContext::for_agent(files);
    if (found) options_.tls = std::move(found->context);
  }

  void read(ContactPtr contact) {
    contact->transport()->read([self = shared_from_this(), contact,
                                queue = contact->queue](const Result<std::string_view>& bytes) {
      if (self->over_ || contact->queue != queue) return;
      if (!bytes) return self->failed(contact, bytes.error());
      contact->frames.append(*bytes);
      self->take_frames(contact);
    });
  }

  void take_frames(ContactPtr contact) {
    const auto queue = contact->queue;
    while (!over_ && contact->queue == queue) {
      const auto frame = contact->frames.next();
      if (!frame) return ended(contact, {How::kGarbled, frame.error().message()});
      if (!*frame) return read(contact);
      if (contact->handshake && !contact->handshake->is_over()) {
        take_handshake(contact, **frame);
        continue;
      }
      const Result<ServiceMessage> message = decode<ServiceMessage>(**frame);
      if (!message) {
        // A service of a later version may send messages that this agent does not know.
        if (message.error().kind == ErrorKind::kUnsupported) continue;
        return ended(contact, {How::kGarbled, message.error().message()});
      }
      if (contact == chosen_) {
        take(*message);
      } else {
        take_before_welcome(contact, *message);
      }
    }
  }

  void take_before_welcome(ContactPtr contact, const ServiceMessage& message) {
    if (const Refused* refused = std::get_if<Refused>(&message)) return refuse(contact, *refused);
    if (const Silence* silence = std::get_if<Silence>(&message)) return put_off(contact, *silence);
    if (const Welcome* welcome = std::get_if<Welcome>(&message)) {
      if (link_.is_of_older_term(message))
        return ended(contact, {How::kBroken, "it does not lead any more"});
      choose(contact, *welcome);
    } else if (targets_.size() > 1) {
      return;
    }
    perform(link_.received(message, BootClock::now()));
  }

  void take(const ServiceMessage& message) {
    if (std::holds_alternative<HeartbeatAck>(message)) {
      answers_soon_ = BootClock::now() - beat_sent_ <= 2 * kAnswerTime;
    }
    perform(link_.received(message, BootClock::now()));
    const Silence* silence = std::get_if<Silence>(&message);
    if (!silence) return;
    learn(silence->leader, welcomed_at_);
    if (chosen_ && targets_.size() > 1) ended(chosen_, {How::kBroken, silence->reason});
  }

  void choose(ContactPtr contact, const Welcome& welcome) {
    const std::vector<ContactPtr> others = contacts_;
    for (const ContactPtr& one : others) {
      if (one != contact) close(one);
    }
    chosen_ = contact;
    welcomed_at_ = contact->target;
    end_when_cut_off(contact->transport()->socket().native_handle(), welcome.agent_patience);
  }

  // Handles a refusal. The leader's is final. One without a term ends the join only if no other
  // service may welcome this node. An agent that elects its service may ask at a former address,
  // where another job's service leads.
  void refuse(ContactPtr contact, const Refused& refused) {
    const bool is_ours = !options_.is_own || refused.is_of_job;
    const bool is_leaders = is_ours && refused.term > 0 && refused.term >= link_.term();
    if (targets_.size() == 1 || is_leaders)
      return perform(link_.received(refused, BootClock::now()));
    ended(contact, {How::kRefused, refused.reason});
  }

  // Handles a service that will be silent. Another one may lead, or this one later.
  void put_off(ContactPtr contact, const Silence& silence) {
    learn(silence.leader, contact->target);
    const bool is_only_one = targets_.size() == 1 && contact->rest.empty();
    if (silence.leader.empty() || is_only_one) {
      perform(link_.received(silence, BootClock::now()));
    }
    if (over_ || !is_open(contact) || is_only_one) return;
    if (!contact->rest.empty()) return connect_next(contact);
    ended(contact, {How::kBroken, silence.reason});
  }

  // Handles a failed TLS connection. Unless the service says that it is overloaded, a TLS
  // failure is not retried, because the next try would fail, too.
  void failed(ContactPtr contact, const Error& error) {
    How how = How::kBroken;
    if (error.kind == ErrorKind::kResource) how = How::kPutOff;
    if (error.kind == ErrorKind::kProtocol) how = How::kNoTls;
    ended(contact, {how, error.message()});
  }

  void ended(ContactPtr contact, Ending ending) {
    const bool was_chosen = contact == chosen_;
    close(contact);
    if (was_chosen) return report(ending);
    targets_[contact->target].ending = std::move(ending);
    ask_by_another_name(contact->endpoint);
    if (is_trying()) return ask_again_later();
    report(targets_.summary());
  }

  // Asks a service again if a target with the same address was passed over. Its certificate may
  // have that target's name.
  void ask_by_another_name(const tcp::endpoint& endpoint) {
    for (std::size_t i = 0; i < targets_.size(); ++i) {
      const bool is_same = std::ranges::count(targets_[i].endpoints, endpoint) > 0;
      if (is_same && !targets_[i].ending && !is_tried(i)) begin_contact(i);
    }
  }

  // Asks those again that have answered, as long as others are silent.
  void ask_again_later() {
    if (again_.expiry() > asio::steady_timer::clock_type::now()) return;
    again_.expires_after(kAskAgain);
    again_.async_wait([self = shared_from_this()](error_code error) {
      if (error || self->over_ || !self->is_trying()) return;
      for (std::size_t i = 0; i < self->targets_.size(); ++i) {
        if (self->is_tried(i)) continue;
        if (self->targets_[i].has_address()) {
          self->begin_contact(i);
        } else {
          self->ask_name_service(i);
        }
      }
    });
  }

  void report(const Ending& ending) {
    const TimePoint now = BootClock::now();
    switch (ending.how) {
      case How::kBroken: return perform(link_.disconnected(ending.why, now));
      case How::kPutOff: return perform(link_.disconnected(ending.why, now, LinkFailure::kPutOff));
      case How::kConnectionRefused:
        return perform(link_.disconnected(ending.why, now, LinkFailure::kRefused));
      case How::kGarbled: return perform(link_.garbled(ending.why, now));
      case How::kDistrusted: return perform(link_.distrusted(ending.why, now));
      case How::kNoTls: return perform(link_.without_tls(ending.why, now));
      case How::kRefused: return perform(link_.received(Refused{ending.why}, now));
    }
  }

  // --- the connection ---------------------------------------------------------------------------

  // Closes everything. An address that was silent is the last one to be tried next time.
  void act(const LinkClose&) {
    for (const ContactPtr& one : contacts_) {
      if (one == chosen_ || one->rest.empty()) continue;
      std::vector<tcp::endpoint>& all = targets_[one->target].endpoints;
      std::rotate(all.begin(), std::ranges::find(all, one->rest.back()), all.end());
    }
    close_all();
  }
  void act(LinkTransmit what) {
    Heartbeat* const beat = std::get_if<Heartbeat>(&what.message);
    if (beat && what.with_ranks && events_.ranks) beat->ranks = events_.ranks();
    transmit(chosen_, what.message);
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
  // answer came soon, the loop polls instead and serves all other events. It does not yield the
  // processor: where other programs compute, each yield would forfeit a time slice.
  void stay_awake(TimePoint until) {
    if (over_ || !link_.awaits_ack() || BootClock::now() >= until) return;
    asio::post(io_, [self = shared_from_this(), until] { self->stay_awake(until); });
  }

  template <class Message>
  void transmit(ContactPtr contact, const Message& message) {
    if (!contact || !is_open(contact)) return;
    const Result<std::string> bytes = encode(message);
    if (!bytes) return ended(contact, {How::kBroken, bytes.error().message()});
    contact->queue->add(*bytes);
    contact->queue->flush();
  }

  void on_sent(ContactPtr contact, const Result<std::size_t>& sent) {
    if (over_ && (!sent || contact == chosen_)) return farewell_said();
    if (!sent) ended(contact, {How::kBroken, sent.error().message()});
  }

  void farewell_said() {
    if (farewell_) farewell_->cancel();
    close_all();
    if (when_sent_) std::exchange(when_sent_, nullptr)();
  }

  void broken(const std::string& why) {
    close_all();
    perform(link_.disconnected(why, BootClock::now()));
  }

  void close(ContactPtr contact) {
    if (contact->queue) contact->transport()->close();
    contact->queue.reset();
    std::erase(contacts_, contact);
    if (chosen_ == contact) chosen_.reset();
  }

  void close_all() {
    while (!contacts_.empty()) close(contacts_.back());
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
  NameService names_;
  Targets targets_;              // the given ones, then those that were learned
  std::size_t place_ = 0;        // LinkConnect::place of the last try
  std::size_t welcomed_at_ = 0;  // the target of the last Welcome
  bool awaits_address_ = false;  // the link cannot continue without a look-up's result
  bool has_tried_ = false;       // to connect
  TimePoint beat_sent_{};        // the last heartbeat
  bool answers_soon_ = true;     // the last answer came within 2 * kAnswerTime
  asio::steady_timer timer_;
  asio::steady_timer again_;
  std::vector<ContactPtr> contacts_;  // the open ones
  ContactPtr chosen_;                 // the one that was welcomed; null: none
  std::optional<AsyncMunge> munge_;
  bool service_has_proved_ = false;  // its identity, on this connection or an earlier one
  bool over_ = false;
  std::shared_ptr<asio::steady_timer> farewell_;
  std::function<void()> when_sent_;
};

}  // namespace

// The last owner's pointer ends the pending operations. These keep the object itself alive.
std::shared_ptr<ServiceLink> make_remote_link(asio::io_context& io, RemoteLinkOptions options,
                                              ServiceLinkEvents events) {
  const auto link = std::make_shared<RemoteLink>(io, std::move(options), std::move(events));
  return {link.get(), [link](ServiceLink*) { link->abandon(); }};
}

}  // namespace ddprun
