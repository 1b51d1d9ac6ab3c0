#include "rendezvous/service/etcd_role.h"

#include <utility>

#include "base/concat.h"
#include "base/random_id.h"
#include "base/terminal_text.h"
#include "rendezvous/persistence/state_codec.h"

namespace ddprun {

namespace {

EtcdStateOptions measured(EtcdStateOptions options, EtcdCounters& counters) {
  options.client.measure = [&counters](Duration took, bool is_answered) {
    counters.took.note(took);
    if (!is_answered) ++counters.errors;
  };
  return options;
}

}  // namespace

EtcdRole::EtcdRole(boost::asio::io_context& io, Logger& log, EtcdStateOptions options,
                   EtcdRoleEvents events)
    : io_(io),
      log_(log),
      address_(options.address),
      on_leads_(std::move(events.leads)),
      state_(io, measured(std::move(options), counters_), Rng(random_seed()),
             events_of_state(std::move(events))) {}

EtcdStateEvents EtcdRole::events_of_state(EtcdRoleEvents events) {
  EtcdStateEvents all;
  all.store = std::move(events.store);
  all.leads = [this](EtcdRevision term, const JournalImage& image) { take_over(term, image); };
  all.suspended = [this] {
    log_.warning(
        "etcd does not answer in time: agents get no answer until it does, or another service "
        "leads");
  };
  all.resumed = [this, resumed = std::move(events.resumed)] {
    log_.info(concat("goes on in term ", term_));
    resumed();
  };
  all.stepped_down = [this, stepped_down = std::move(events.stepped_down)](const std::string& why) {
    term_ = 0;
    log_.warning("does not lead any more: " + why);
    stepped_down(why);
  };
  all.follows = [this](const std::string& leader, EtcdRevision term) { follow(leader, term); };
  all.trouble = [this](const std::optional<Error>& why) {
    trouble_.reset();
    if (!why) return;
    trouble_ = why->message();
    trouble_log_.error(*trouble_);
  };
  return all;
}

void EtcdRole::take_over(EtcdRevision term, const JournalImage& image) {
  watch_.reset();
  leader_.clear();
  const Result<ServiceState> past = decode_state(image);
  if (!past) {
    // Another version may be able to. If this service campaigned again, it would be in its way.
    unable_ = Error(past.error()).within("take over the state in etcd").message();
    log_.error(*unable_ + ". This service does not stand for leader any more");
    return state_.resign([] {});
  }
  term_ = term;
  if (first_term_ == 0) first_term_ = term;
  log_.info(concat("leads in term ", term, ", continuing with ", past->jobs.size(), " jobs"));
  on_leads_(*past);
}

void EtcdRole::follow(const std::string& leader, EtcdRevision term) {
  watch_.reset();
  leader_.clear();
  if (first_term_ == 0) first_term_ = term;
  if (leader == address_) {
    // An earlier run of this service, which has not given its lease back. It led before this
    // process saw any leader.
    if (term == first_term_) return state_.leader_process_gone();
    return log_.error("another service leads with the address of this one, " + address_ +
                      ": give each service its own --advertise");
  }
  const Result<HostPort> address = parse_host_port(leader);
  if (!address) return log_.error("etcd: the leader key has no address: " + terminal_line(leader));
  leader_ = leader;
  log_.info("stands by: " + leader + " leads");
  watch_.emplace(io_, *address, [this] {
    leader_.clear();
    log_.info("the leader's process is gone");
    state_.leader_process_gone();
  });
}

Silence EtcdRole::standby_answer() const {
  if (leader_.empty()) return {"this service stands by, and no service is known to lead"};
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
