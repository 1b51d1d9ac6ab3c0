#include "rendezvous/service/etcd_role.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <utility>

#include "base/concat.h"
#include "base/random_id.h"
#include "base/terminal_text.h"
#include "rendezvous/persistence/state_codec.h"

namespace ddprun {

namespace {

EtcdStateOptions prepared(EtcdStateOptions options, EtcdCounters& counters, NameService& names) {
  options.client.names = &names;
  options.client.measure = [&counters](Duration took, bool is_answered) {
    counters.took.note(took);
    if (!is_answered) ++counters.errors;
  };
  return options;
}

}  // namespace

ServiceOptions options_of_term(ServiceOptions before, const ServiceState& past) {
  before.earlier_run_lasts = Leadership::kLease;
  if (!past.service_id.empty()) {
    before.earlier_agents_until.reset();
  } else {  // nothing is known of others
    before.service_id = random_hex(8);
    if (before.earlier_agents_until)
      before.earlier_agents_until = BootClock::now() + before.times.patience();
  }
  return before;
}

EtcdRole::EtcdRole(boost::asio::io_context& io, Logger& log, EtcdStateOptions options,
                   EtcdRoleEvents events, std::optional<Duration> looks_on)
    : io_(io),
      log_(log),
      address_(options.address),
      events_(std::move(events)),
      names_(io),
      options_(prepared(std::move(options), counters_, names_)),
      rng_(random_seed()),
      looker_(io, options_.client),
      is_private_(looks_on.has_value()),
      looks_on_(looks_on),
      again_(io) {
  if (!looks_on_) stand();
}

void EtcdRole::stand() {
  looks_on_.reset();
  if (state_ || is_over_) return;
  again_.cancel();
  state_.emplace(io_, options_, Rng(rng_.next()), events_of_state());
}

void EtcdRole::look() {
  if (!looks_on_ || is_looking_ || is_over_) return;
  is_looking_ = true;
  looker_.call(read_leader_key(options_.prefix), Leadership::kTryTime,
               [this](const Result<std::string>& body) {
                 is_looking_ = false;
                 looked(body ? decode_leader_key_if_any(*body) : Result<LeaderKey>(body.error()));
               });
}

// Stands if it has found no leader twice. If many find none at once, a few stand before the others
// look again.
void EtcdRole::looked(const Result<LeaderKey>& key) {
  if (!looks_on_ || is_over_) return;
  if (!key) return note_trouble(key.error());
  const bool found_nobody = key->created == 0;
  if (!found_nobody && !parse_leader(key->value)) return;
  note_trouble(std::nullopt);
  leader_ = key->value;
  followed_ = key->created;
  if (std::exchange(found_nobody_, found_nobody) && found_nobody) return stand();
  if (!found_nobody) return events_.has_answer();
  is_looking_ = true;
  const auto most = static_cast<std::uint64_t>(std::max<Duration>(*looks_on_, Duration(1)).count());
  again_.expires_after(Duration(static_cast<std::int64_t>(rng_.below(most))));
  again_.async_wait([this](boost::system::error_code error) {
    if (error) return;
    is_looking_ = false;
    look();
  });
}

void EtcdRole::resign(std::function<void()> then) {
  is_over_ = true;
  again_.cancel();
  if (state_) return state_->resign(std::move(then));
  boost::asio::post(io_, std::move(then));
}

void EtcdRole::set_tls(TlsContextPtr tls) {
  options_.client.tls = tls;
  looker_.set_tls(tls);
  if (state_) state_->set_tls(std::move(tls));
}

void EtcdRole::note_trouble(const std::optional<Error>& why) {
  const bool is_new = why && !trouble_;
  trouble_.reset();
  if (why) trouble_ = why->message();
  if (is_new) trouble_log_.error(*trouble_);
  if (why && is_private_) events_.has_answer();
}

EtcdStateEvents EtcdRole::events_of_state() {
  EtcdStateEvents all;
  all.store = events_.store;
  all.leads = [this](EtcdRevision term, const JournalImage& image) { take_over(term, image); };
  all.suspended = [this] {
    log_.warning(
        "etcd does not answer in time: agents get no answer until it does, or another service "
        "leads");
  };
  all.resumed = [this] {
    announce(concat("goes on in term ", term_));
    events_.resumed();
  };
  all.stepped_down = [this](const std::string& why) {
    term_ = 0;
    log_.warning("does not lead any more: " + why);
    events_.stepped_down(why);
  };
  all.follows = [this](const std::string& leader, EtcdRevision term) { follow(leader, term); };
  all.trouble = [this](const std::optional<Error>& why) { note_trouble(why); };
  return all;
}

// An agent with a service of its own reports what matters to its user.
void EtcdRole::announce(const std::string& text) {
  is_private_ ? log_.debug(text) : log_.info(text);
}

void EtcdRole::take_over(EtcdRevision term, const JournalImage& image) {
  watch_.reset();
  leader_.clear();
  const Result<ServiceState> past = decode_state(image);
  if (!past) {
    // Another version may be able to. If this service campaigned again, it would be in its way.
    unable_ = Error(past.error()).within("take over the state in etcd").message();
    log_.error(*unable_ + ". This service does not stand for leader any more");
    return state_->resign([] {});
  }
  term_ = term;
  if (first_term_ == 0) first_term_ = term;
  announce(concat("leads in term ", term, ", continuing with ", past->jobs.size(), " jobs"));
  events_.leads(*past);
}

// Returns the address in the leader key. Without one, another program uses the key.
std::optional<HostPort> EtcdRole::parse_leader(const std::string& leader) {
  const Result<HostPort> address = parse_host_port(leader);
  if (address && !address->host.empty() && address->port != 0) return *address;
  note_trouble(
      Error{.kind = ErrorKind::kProtocol,
            .doing = "etcd",
            .cause = concat("the leader key ", options_.prefix, "/leader has no address: '",
                            terminal_line(leader), "'. Another program uses this prefix")});
  return std::nullopt;
}

void EtcdRole::follow(const std::string& leader, EtcdRevision term) {
  watch_.reset();
  leader_.clear();
  if (first_term_ == 0) first_term_ = term;
  if (leader == address_) {
    // An earlier run of this service, which has not given its lease back. It led before this
    // process saw any leader.
    if (term == first_term_) return state_->leader_process_gone();
    return log_.error(concat("another service leads with the address of this one, ", address_,
                             ": give each service its own ",
                             is_private_ ? "--local-addr" : "--advertise"));
  }
  const std::optional<HostPort> address = parse_leader(leader);
  if (!address) return;
  leader_ = leader;
  followed_ = term;
  announce("stands by: " + leader + " leads");
  watch_.emplace(io_, *address, [this] {
    leader_.clear();
    announce("the leader's process is gone");
    state_->leader_process_gone();
  });
  events_.has_answer();
}

Silence EtcdRole::standby_answer() const {
  if (leader_.empty()) {
    // One of the nodes leads soon. That is not worth a line.
    const std::string why =
        is_private_ ? "" : "this service stands by, and no service is known to lead";
    return {trouble_.value_or(why)};
  }
  return {"this service stands by: " + leader_ + " leads", leader_};
}

EtcdCounters EtcdRole::counters() const {
  EtcdCounters now = counters_;
  now.leads = serves();
  now.term = term_;
  return now;
}

std::optional<std::string> EtcdRole::why_not_ready() const {
  if (unable_) return unable_;
  if (leads() && !serves()) return "etcd does not answer in time";
  if (!leads() && leader_.empty()) return trouble_.value_or("no service is known to lead");
  return std::nullopt;
}

}  // namespace ddprun
