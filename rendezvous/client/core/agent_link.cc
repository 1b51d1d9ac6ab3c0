#include "rendezvous/client/core/agent_link.h"

#include <algorithm>
#include <utility>

#include "base/concat.h"

namespace ddprun {

AgentLink::AgentLink(AgentLinkOptions options, Rng rng, TimePoint now)
    : options_(std::move(options)),
      backoff_(rng, options_.backoff),
      retry_at_(now),
      join_until_(now + options_.join_timeout) {}

LinkActions AgentLink::start(TimePoint now) { return tick(now); }

LinkActions AgentLink::looked_up(TimePoint now) {
  if (state_ != kLookingUp) return {};
  now_ = now;
  return begin_try();
}

Duration AgentLink::try_time() const {
  return is_seeking() ? std::min(options_.connect_timeout, kSeekTime) : options_.connect_timeout;
}

LinkActions AgentLink::begin_try() {
  state_ = kConnecting;
  // While the lease is held, time is short: a short try may find a repaired cable.
  try_allowed_ = welcome_ ? std::min(try_time(), welcome_->agent_patience / 8) : try_time();
  try_until_ = now_ + try_allowed_;
  return {LinkConnect{place_}};
}

LinkActions AgentLink::connected(TimePoint now) {
  if (state_ != kConnecting) return {};
  refused_since_.reset();
  state_ = kGreeting;
  unsaid_.reset();
  hello_sent_ = now;
  was_heard_ = said_so_ = false;
  try_allowed_ = try_time();
  try_until_ = now + try_allowed_;
  return {LinkHello{}};
}

LinkActions AgentLink::heard(TimePoint now) {
  if (state_ != kGreeting || !is_seeking() || std::exchange(was_heard_, true)) return {};
  try_allowed_ = options_.connect_timeout;
  try_until_ = now + try_allowed_;
  return {};
}

// Closes the connection, because the peer is not the job's service.
LinkActions AgentLink::pass_over(const std::string& why, TimePoint now) {
  out_.push_back(LinkClose{});
  return disconnected(why, now);
}

LinkActions AgentLink::disconnected(const std::string& why, TimePoint now, LinkFailure failure) {
  now_ = now;
  if (state_ == kOver) return {};
  // A service that cannot serve says why, and then closes the connection.
  last_trouble_ = said_so_ && state_ == kGreeting ? silence_reason_ : why;
  Try how = state_ == kGreeting ? Try::kEndedEarly : Try::kOther;
  if (failure == LinkFailure::kRefused) how = Try::kRefused;
  if (failure == LinkFailure::kPutOff) how = Try::kPutOff;
  try_failed(how);
  if (state_ != kOver) check_patience();
  return std::exchange(out_, {});
}

LinkActions AgentLink::garbled(const std::string& why, TimePoint now) {
  if (has_spoken_ || state_ == kOver) return disconnected(why, now);
  if (is_seeking()) return disconnected("not a rendezvous service (" + why + ")", now);
  not_a_service(why);
  return std::exchange(out_, {});
}

LinkActions AgentLink::distrusted(const std::string& why, TimePoint now) {
  if (!instance_.empty() || state_ == kOver) return disconnected(why, now);
  if (is_seeking()) return disconnected("this node does not trust it: " + why, now);
  state_ = kOver;
  return {LinkClose{}, ServiceRefused{"this node does not trust " + service() + ": " + why}};
}

LinkActions AgentLink::without_tls(const std::string& why, TimePoint now) {
  if (has_spoken_ || state_ == kOver) return disconnected(why, now);
  if (is_seeking()) return disconnected("no TLS connection: " + why, now);
  give_up("no TLS connection with " + options_.service + ": " + why, ExitCode::kRefused);
  return std::exchange(out_, {});
}

LinkActions AgentLink::received(const ServiceMessage& message, TimePoint now) {
  if (state_ == kOver) return {};
  if (const Refused* refused = std::get_if<Refused>(&message)) {
    if (is_seeking() && !refused->is_of_job) {
      return pass_over("it refused this node: " + refused->reason, now);
    }
    state_ = kOver;
    return {LinkClose{}, ServiceRefused{service() + " refused this node: " + refused->reason}};
  }
  if (is_of_older_term(message)) {
    if (!std::holds_alternative<Welcome>(message)) return {};
    return pass_over("it does not lead any more", now);
  }
  if (is_seeking()) {
    const Welcome* welcome = std::get_if<Welcome>(&message);
    const Silence* silence = std::get_if<Silence>(&message);
    if (silence) return pass_over("it will be silent for a while: " + silence->reason, now);
    if (!welcome) return pass_over("it did not welcome this node first", now);
    if (!welcome->own) return pass_over("it is not only for this job", now);
  }
  has_spoken_ = true;
  term_ = term_of(message).value_or(term_);
  if (const Silence* silence = std::get_if<Silence>(&message)) {
    silence_reason_ = silence->reason;
    said_so_ = !silence_reason_.empty();
    if (!said_so_) return {};
    return {LinkDeliver{Wait{service() + " will be silent for a while: " + silence->reason}}};
  }
  if (const Welcome* welcome = std::get_if<Welcome>(&message)) {
    state_ = kUp;
    silence_reason_.clear();
    welcome_ = *welcome;
    // With a term, the service does not end with the agent that runs it.
    embedded_on_ = welcome->embedded && term_ == 0 ? welcome->host : "";
    instance_ = welcome->instance;
    confirmed_ = hello_sent_;
    beats_.clear();
    is_watched_ = false;
    backoff_.reset();
    // The Hello that was answered may be much younger than hello_sent_, if several services were
    // asked. A heartbeat at once gets the lease its full time.
    next_beat_ = term_ > 0 ? now : now + welcome->heartbeat_interval;
    if (!unsaid_) return {};
    return {LinkTransmit{*std::exchange(unsaid_, std::nullopt)}};
  }
  if (const HeartbeatAck* ack = std::get_if<HeartbeatAck>(&message)) {
    while (!beats_.empty() && beats_.front().number <= ack->number) {
      confirmed_ = std::max(confirmed_, beats_.front().sent);
      beats_.pop_front();
    }
    if (state_ == kUp) next_beat_ = now + beat_pause(*ack);
    if (ack->is_watched) {
      ranks_every_ = std::clamp(ack->ranks_every, kRanksEvery, kRanksLeast);
      // The first ranks go at once.
      next_beat_ = is_watched_ ? std::min(next_beat_, now + ranks_every_) : now;
    }
    is_watched_ = ack->is_watched;
    return {};
  }
  return {LinkDeliver{message}};
}

// Returns the pause that the service asks for, limited to within half an interval of the
// interval. A longer pause would use up the patience.
Duration AgentLink::beat_pause(const HeartbeatAck& ack) const {
  const Duration interval = welcome_->heartbeat_interval;
  if (ack.next == Duration(0)) return interval;
  return std::clamp(ack.next, interval / 2, interval + interval / 2);
}

LinkActions AgentLink::send(const AgentMessage& message) {
  if (state_ == kUp) return {LinkTransmit{message}};
  if (state_ == kGreeting) unsaid_ = message;
  return {};
}

LinkActions AgentLink::leave(const Leave& leave) {
  if (std::exchange(state_, kOver) != kUp) return {};
  return {LinkTransmit{leave}};
}

LinkActions AgentLink::tick(TimePoint now) {
  now_ = now;
  if (state_ == kOver) return {};
  check_patience();
  switch (state_) {
    case kPausing:
      if (now < retry_at_) break;
      state_ = kLookingUp;
      out_.push_back(LinkLookUp{});
      break;
    case kLookingUp: break;
    case kConnecting:
    case kGreeting:
      if (now < try_until_) break;
      last_trouble_ = state_ == kConnecting ? "no connection within " : "no welcome within ";
      last_trouble_ += to_text(try_allowed_);
      out_.push_back(LinkClose{});
      try_failed(state_ == kGreeting ? Try::kSilent : Try::kOther);
      break;
    case kUp:
      if (silent_at() && now >= *silent_at()) {
        out_.push_back(LinkClose{});
        last_trouble_ = concat("no answer within ", now - beats_.front().sent);
        try_failed(Try::kSilent);
        break;
      }
      if (now < next_beat_) break;
      beats_.push_back({next_number_, now});
      out_.push_back(LinkTransmit{Heartbeat{next_number_++}, begins_ranks()});
      next_beat_ = now + welcome_->heartbeat_interval;
      break;
    case kOver: break;
  }
  return std::exchange(out_, {});
}

// Returns whether the heartbeat that is sent now should have the ranks. Heartbeats do not come at
// exact times, so a tenth less than the pause is enough.
bool AgentLink::begins_ranks() {
  const bool is_early = ranks_sent_ && now_ < *ranks_sent_ + ranks_every_ / 10 * 9;
  if (!is_watched_ || is_early) return false;
  ranks_sent_ = now_;
  return true;
}

std::optional<TimePoint> AgentLink::deadline() const {
  TimePoint due = TimePoint::max();
  switch (state_) {
    case kOver: return std::nullopt;
    case kPausing: due = retry_at_; break;
    case kLookingUp: break;
    case kConnecting:
    case kGreeting: due = try_until_; break;
    case kUp: due = std::min(next_beat_, silent_at().value_or(TimePoint::max())); break;
  }
  const TimePoint patience_ends = welcome_ ? confirmed_ + welcome_->agent_patience : join_until_;
  return std::min(due, patience_ends);
}

// Returns when the leader counts as silent, so that another one may lead.
std::optional<TimePoint> AgentLink::silent_at() const {
  if (term_ == 0 || !welcome_ || beats_.empty()) return std::nullopt;
  return beats_.front().sent + welcome_->agent_patience / 4;
}

void AgentLink::pause() {
  state_ = kPausing;
  const Duration backoff = backoff_.next();
  // While the lease runs out, the tries come often, because a service may be reachable only
  // briefly.
  retry_at_ = now_ + (welcome_ ? std::min(backoff, welcome_->agent_patience / 16) : backoff);
  if (refused_since_ && !embedded_on_.empty()) {
    retry_at_ = std::min(retry_at_, std::max(now_, *refused_since_ + kRefusedFor));
  }
  beats_.clear();
}

void AgentLink::try_failed(Try how) {
  const bool was_tried = state_ != kLookingUp;
  if (is_seeking() && was_tried && how != Try::kRefused) found_ = here() + ": " + last_trouble_;
  if (is_another_program(how)) return not_a_service(last_trouble_);
  if (is_host_without_service(how)) {
    return give_up(concat(service(), " is gone: it has not answered for ", now_ - confirmed_,
                          ", and connections are refused", where_it_ran()),
                   ExitCode::kServiceLost);
  }
  if (how == Try::kRefused && options_.must_answer && !has_spoken_) {
    if (!refused_since_) refused_since_ = now_;
    out_.push_back(LinkPortRefuses{now_ - *refused_since_});
  }
  const bool is_unanswered = instance_.empty() && !has_spoken_;
  if (is_unanswered && !has_warned_ && now_ >= join_until_ - options_.join_timeout + kQuietTime) {
    has_warned_ = true;
    out_.push_back(LinkDeliver{
        Wait{"no rendezvous service answers at " + everywhere() + " yet: " + trouble()}});
  }
  if (is_seeking() && was_tried && now_ < join_until_) {
    place_ = (place_ + 1) % (1 + options_.next_services.size());
    if (place_ != 0) {
      std::ranges::move(begin_try(), std::back_inserter(out_));
      return;
    }
  }
  pause();
}

// A peer that has spoken the protocol once is a service, however long it is silent now.
bool AgentLink::is_another_program(Try how) {
  if (!options_.must_answer || has_spoken_) return false;
  if (how == Try::kRefused || how == Try::kOther) put_off_since_.reset();
  if (how == Try::kOther) return false;
  if (how == Try::kPutOff && !put_off_since_) put_off_since_ = now_;
  const bool is_put_off = how == Try::kPutOff && now_ - *put_off_since_ < kPutOffFor;
  if (how == Try::kRefused || is_put_off) {
    deaf_tries_ = 0;
    deaf_since_.reset();
    return false;
  }
  if (!deaf_since_) deaf_since_ = now_;
  if (++deaf_tries_ < kMaxDeafTries) return false;
  return how == Try::kSilent || now_ - *deaf_since_ >= kEndedEarly;
}

bool AgentLink::is_host_without_service(Try how) {
  if (how != Try::kRefused) refused_since_.reset();
  if (how != Try::kRefused || embedded_on_.empty()) return false;
  // Nothing has answered since confirmed_. The first refusal may come when the lease is
  // already a heartbeat old.
  if (!refused_since_) refused_since_ = welcome_ ? confirmed_ : now_;
  return now_ >= *refused_since_ + kRefusedFor;
}

void AgentLink::not_a_service(const std::string& why) {
  give_up(options_.service + " is taken by a program that is not a rendezvous service (" + why +
              "): choose another port",
          ExitCode::kAddress);
}

void AgentLink::give_up(std::string reason, ExitCode code) {
  state_ = kOver;
  out_.push_back(LinkClose{});
  out_.push_back(ServiceLost{std::move(reason), true, code});
}

void AgentLink::check_patience() {
  if (!welcome_) {
    if (now_ >= join_until_) give_up_at_deadline();
    return;
  }
  if (now_ < confirmed_ + welcome_->agent_patience) return;
  const std::string reason =
      concat(service(), " has not answered for ", now_ - confirmed_, what_it_said());
  welcome_.reset();
  join_until_ = std::max(now_, confirmed_ + options_.join_timeout);
  if (state_ == kUp) {
    out_.push_back(LinkClose{});
    last_trouble_ = "no answer";
    pause();
  }
  out_.push_back(ServiceLost{
      reason + "; ending this node's workers, because the others may go on without them", false,
      ExitCode::kServiceLost});
}

void AgentLink::give_up_at_deadline() {
  if (state_ == kLookingUp) last_trouble_ = "the name service did not answer";
  const std::string tail =
      " (--rdzv-conf=join_timeout): " + trouble() + what_it_said() + where_it_ran();
  if (instance_.empty()) {
    return give_up(concat("no rendezvous service answered at ", everywhere(), " within ",
                          options_.join_timeout, tail),
                   ExitCode::kJoinTimeout);
  }
  give_up(concat(service(), " has not answered for ", now_ - confirmed_, tail),
          ExitCode::kServiceLost);
}

const std::string& AgentLink::here() const {
  return place_ == 0 ? options_.service : options_.next_services[place_ - 1];
}

std::string AgentLink::everywhere() const {
  const std::vector<std::string>& next = options_.next_services;
  return next.empty() ? options_.service : options_.service + " to " + next.back();
}

std::string AgentLink::what_it_said() const {
  if (silence_reason_.empty() || silence_reason_ == last_trouble_) return "";
  return " (its last message: " + silence_reason_ + ")";
}

std::string AgentLink::where_it_ran() const {
  if (embedded_on_.empty()) return "";
  return "; it ran inside the agent on " + embedded_on_ + ", so the job ends with that node";
}

}  // namespace ddprun
