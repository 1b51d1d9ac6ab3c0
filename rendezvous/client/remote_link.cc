#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <vector>

#include "base/assert.h"
#include "base/random_id.h"
#include "rendezvous/auth/async_munge.h"
#include "rendezvous/client/contact.h"
#include "rendezvous/client/deliver.h"
#include "rendezvous/client/targets.h"
#include "rendezvous/net/name_service.h"
#include "rendezvous/net/tcp_acceptor.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;
using Addresses = std::vector<SocketAddress>;

namespace {

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
class RemoteLink final : public ServiceLink,
                         public ContactOwner,
                         public std::enable_shared_from_this<RemoteLink> {
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
    if (chosen_) return chosen_->leave(std::move(then));
    close_all();
    then();
  }

  void abandon() {
    over_ = true;
    timer_.cancel();
    again_.cancel();
    names_.end();
    close_all();
  }

 private:
  using How = Ending::How;

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
      if (one->target() > 0) close(*one);
    }
    targets_.keep_first();
    welcomed_at_ = 0;
  }

  // --- a try ------------------------------------------------------------------------------------

  bool is_trying() const { return !contacts_.empty() && !chosen_; }
  bool is_tried(std::size_t target) const {
    return std::ranges::any_of(contacts_, [&](const auto& one) { return one->target() == target; });
  }

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
    std::vector<tcp::endpoint> endpoints = target.endpoints;
    if (place_ > 0) {
      for (tcp::endpoint& one : endpoints) one.port(options_.next_ports[place_ - 1]);
    }
    const auto contact =
        std::make_shared<Contact>(io_, shared_from_this(), index, std::move(endpoints),
                                  ContactSecurity{.key = options_.key,
                                                  .munge = munge_ ? &*munge_ : nullptr,
                                                  .tls = options_.tls,
                                                  .name = target.name});
    contacts_.push_back(contact);
    contact->connect_next();
  }

  bool is_taken(const tcp::endpoint& endpoint) const override {
    return std::ranges::any_of(contacts_, [&](const ContactPtr& one) {
      return one->is_open() && one->endpoint() == endpoint;
    });
  }

  void connected(Contact& contact) override {
    targets_[contact.target()].was_reached = true;
    perform(link_.connected(BootClock::now()));
  }

  // Every contact says Hello as soon as it is connected.
  void act(const LinkHello&) {}

  Hello hello(const std::string& local_address) override {
    Hello hello = events_.hello(local_address);
    hello.instance = link_.instance();
    // A leader repeats the assignment, but the agent keeps the first copy of it.
    if (hello.assignment) hello.assignment->term = link_.term();
    return hello;
  }

  // A process in the place of a service that has proved its identity must prove its own, too. So
  // must a process at a port where the job's service may be.
  bool demands_proof() const override {
    return options_.demands_proof || service_has_proved_ || link_.is_seeking();
  }

  void heard() override { perform(link_.heard(BootClock::now())); }

  void proved() override { service_has_proved_ = true; }

  // Handles an unproven refusal. A process that took the place of a lost service could send this.
  // It must not end a job, and it does not end a search either.
  void refused_unproven(Contact& contact, const std::string& reason) override {
    if (!link_.instance().empty())
      return ended(contact, Ending{How::kBroken, "refused: " + reason});
    refuse(contact, Refused{reason});
  }

  void renew_tls() {
    const TlsFiles& files = options_.tls_files;
    if (!options_.tls || (files.cert.empty() && !files.has_authority())) return;
    Result<FoundTls> found = TlsContext::for_agent(files);
    if (found) options_.tls = std::move(found->context);
  }

  void received(Contact& contact, const ServiceMessage& message) override {
    if (&contact == chosen_.get()) return take(message);
    if (const Refused* refused = std::get_if<Refused>(&message)) return refuse(contact, *refused);
    if (const Silence* silence = std::get_if<Silence>(&message)) return put_off(contact, *silence);
    if (const Welcome* welcome = std::get_if<Welcome>(&message)) {
      if (link_.is_of_older_term(message))
        return ended(contact, Ending{How::kBroken, "it does not lead any more"});
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
    if (!silence || over_) return;
    learn(silence->leader, welcomed_at_);
    if (chosen_ && targets_.size() > 1) ended(*chosen_, Ending{How::kBroken, silence->reason});
  }

  void choose(Contact& contact, const Welcome& welcome) {
    for (const ContactPtr& one : std::vector(contacts_)) {
      if (one.get() != &contact) close(*one);
    }
    chosen_ = contact.shared_from_this();
    welcomed_at_ = contact.target();
    contact.end_when_cut_off(welcome.agent_patience);
  }

  // Handles a refusal. The leader's is final. One without a term ends the join only if no other
  // service may welcome this node. An agent that elects its service may ask at a former address,
  // where another job's service leads.
  void refuse(Contact& contact, const Refused& refused) {
    const bool is_ours = !options_.is_own || refused.is_of_job;
    const bool is_leaders = is_ours && refused.term > 0 && refused.term >= link_.term();
    if (targets_.size() == 1 || is_leaders)
      return perform(link_.received(refused, BootClock::now()));
    ended(contact, Ending{How::kRefused, refused.reason});
  }

  // Handles a service that will be silent. Another one may lead, or this one later.
  void put_off(Contact& contact, const Silence& silence) {
    learn(silence.leader, contact.target());
    const bool is_only_one = targets_.size() == 1 && !contact.next();
    if (silence.leader.empty() || is_only_one) {
      perform(link_.received(silence, BootClock::now()));
    }
    if (over_ || !contact.is_open() || is_only_one) return;
    if (contact.next()) return contact.connect_next();
    ended(contact, Ending{How::kBroken, silence.reason});
  }

  void ended(Contact& contact, std::optional<Ending> ending) override {
    const bool was_chosen = &contact == chosen_.get();
    close(contact);
    if (!ending) return;
    if (was_chosen) return report(*ending);
    targets_[contact.target()].ending = std::move(ending);
    ask_by_another_name(contact.endpoint());
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
      const std::optional<tcp::endpoint> next = one->next();
      if (one == chosen_ || !next) continue;
      std::vector<tcp::endpoint>& all = targets_[one->target()].endpoints;
      std::rotate(all.begin(), std::ranges::find(all, *next), all.end());
    }
    close_all();
  }
  void act(LinkTransmit what) {
    Heartbeat* const beat = std::get_if<Heartbeat>(&what.message);
    if (beat && what.with_ranks && events_.ranks) beat->ranks = events_.ranks();
    if (chosen_) chosen_->send(what.message);
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

  void broken(const std::string& why) {
    close_all();
    perform(link_.disconnected(why, BootClock::now()));
  }

  void close(Contact& contact) {
    contact.close();
    std::erase_if(contacts_, [&](const ContactPtr& one) { return one.get() == &contact; });
    if (chosen_.get() == &contact) chosen_.reset();
  }

  void close_all() {
    for (const ContactPtr& one : std::vector(contacts_)) close(*one);
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
};

}  // namespace

// The last owner's pointer ends the pending operations. These keep the object itself alive.
std::shared_ptr<ServiceLink> make_remote_link(asio::io_context& io, RemoteLinkOptions options,
                                              ServiceLinkEvents events) {
  const auto link = std::make_shared<RemoteLink>(io, std::move(options), std::move(events));
  return {link.get(), [link](ServiceLink*) { link->abandon(); }};
}

}  // namespace ddprun
