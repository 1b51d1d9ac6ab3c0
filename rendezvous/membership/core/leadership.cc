#include "rendezvous/membership/core/leadership.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {

namespace {
// Keep-alives that may wait for their answers. Older ones would prove nothing any more.
constexpr std::size_t kKeepsKept = 16;
}  // namespace

Leadership::Leadership(Rng rng, TimePoint now)
    : now_(now),
      backoff_(rng, {.first = std::chrono::milliseconds(20), .longest = kTryTime}),
      until_(now) {}

template <class Action>
Leadership::Request Leadership::ask(Action action) {
  action.number = next_number_++;
  const Request request{action.number, now_};
  out_.push_back(std::move(action));
  return request;
}

LeadershipActions Leadership::start(TimePoint now) {
  now_ = now;
  campaign();
  return take();
}

// Asks for a lease of its own for each campaign. A standby holds none: a late put of an earlier
// campaign then finds its lease revoked.
void Leadership::campaign() {
  drop_lease();
  state_ = kGranting;
  request_ = ask(GrantLease{0, kLease});
}

void Leadership::create_key() {
  state_ = kCampaigning;
  request_ = ask(CreateLeaderKey{0, lease_});
}

void Leadership::read_state() {
  state_ = kReading;
  request_ = ask(ReadState{0});
}

void Leadership::pause() {
  drop_lease();
  state_ = kPausing;
  request_ = {};
  until_ = now_ + backoff_.next();
}

void Leadership::drop_lease() {
  if (has_lease()) out_.push_back(RevokeLease{dropped_ = lease_});
  lease_ = 0;
  keeps_.clear();
}

void Leadership::step_down(std::string why) {
  const bool led = state_ == kLeading;
  term_ = 0;
  is_suspended_ = false;
  pause();
  if (led) out_.push_back(StepDown{std::move(why)});
}

LeadershipActions Leadership::granted(std::uint64_t number, EtcdLease lease, Duration granted,
                                      TimePoint now) {
  now_ = now;
  if (number != request_.number || state_ != kGranting) {
    // It came too late to be used. Unless it is revoked, it lasts until it runs out.
    if (lease != lease_) out_.push_back(RevokeLease{lease});
    return take();
  }
  lease_ = lease;
  granted_ = granted;
  serves_until_ = request_.sent + allowed();
  next_keep_ = now_ + kKeepPause;
  create_key();
  return take();
}

LeadershipActions Leadership::kept(std::uint64_t number, bool lives, TimePoint now) {
  now_ = now;
  const auto at = std::ranges::find(keeps_, number, &Request::number);
  if (at == keeps_.end()) return take();  // of an earlier lease, or out of date
  if (!lives) {
    lease_ = 0;  // there is nothing to revoke
    keeps_.clear();
    step_down("etcd does not have its lease any more");
    return take();
  }
  // Whatever was held back since then is due, even if no timer has noticed it.
  const bool has_lapsed = state_ == kLeading && (is_suspended_ || now_ >= serves_until_);
  // A later keep-alive may have been answered before this one.
  serves_until_ = std::max(serves_until_, at->sent + allowed());
  keeps_.erase(keeps_.begin(), at + 1);
  if (has_lapsed && now_ < serves_until_) {
    is_suspended_ = false;
    out_.push_back(Resume{});
  }
  return take();
}

LeadershipActions Leadership::campaigned(std::uint64_t number, const LeaderKey& key,
                                         TimePoint now) {
  now_ = now;
  if (number != request_.number || state_ != kCampaigning) return take();
  backoff_.reset();
  if (key.lease == lease_) {
    term_ = key.created;
    out_.push_back(WatchLeaderKey{key.seen + 1});
    read_state();
    return take();
  }
  if (key.lease == dropped_) {
    // The answer to an earlier campaign was lost, and so was the request to revoke its lease.
    out_.push_back(RevokeLease{dropped_});
    pause();
    return take();
  }
  drop_lease();
  state_ = kFollowing;
  request_ = {};
  until_ = now_ + kCheckPause;
  const bool is_new = key.created != leader_.created;
  leader_ = key;
  if (is_new) process_gone_ = false;
  if (is_new) out_.push_back(Follow{key.value, key.created});
  out_.push_back(WatchLeaderKey{key.seen + 1});
  if (process_gone_) revoke_leaders_lease();
  return take();
}

LeadershipActions Leadership::state_read(std::uint64_t number, TimePoint now) {
  now_ = now;
  if (number != request_.number || state_ != kReading) return take();
  backoff_.reset();
  // Another service may have led since: then this term is over.
  if (now_ >= serves_until_) {
    pause();
    return take();
  }
  state_ = kLeading;
  request_ = {};
  leader_ = {};
  is_suspended_ = false;
  out_.push_back(Lead{term_});
  return take();
}

LeadershipActions Leadership::failed(std::uint64_t number, TimePoint now) {
  now_ = now;
  // A keep-alive without an answer is not known to have failed. The next one follows in time.
  if (number != request_.number || number == 0) return take();
  pause();
  return take();
}

LeadershipActions Leadership::leader_key_gone(TimePoint now) {
  now_ = now;
  if (state_ == kFollowing) campaign();
  if (state_ == kReading || state_ == kLeading) step_down("its leader key is gone");
  return take();
}

LeadershipActions Leadership::leader_process_gone(TimePoint now) {
  now_ = now;
  if (leader_.created == 0) return take();  // none is followed, or its lease was revoked
  process_gone_ = true;
  if (state_ == kFollowing) revoke_leaders_lease();
  return take();
}

// The deletion of the key is reported by the watch, or found by the next check. If the check finds
// the same key, the request was lost or the leader lives: it is followed as a new one.
void Leadership::revoke_leaders_lease() {
  process_gone_ = false;
  out_.push_back(RevokeLease{leader_.lease});
  leader_.created = 0;
  until_ = std::min(until_, now_ + kTryTime);
}

LeadershipActions Leadership::fenced(TimePoint now) {
  now_ = now;
  if (state_ == kLeading) step_down("another service leads");
  return take();
}

LeadershipActions Leadership::resign(TimePoint now) {
  now_ = now;
  drop_lease();
  state_ = kOver;
  term_ = 0;
  return take();
}

void Leadership::keep_alive() {
  if (!has_lease() || now_ < next_keep_) return;
  if (keeps_.size() == kKeepsKept) keeps_.erase(keeps_.begin());
  keeps_.push_back(ask(KeepLease{0, lease_}));
  // A keep-alive without an answer is followed sooner than one that is answered.
  next_keep_ = now_ + (keeps_.size() > 1 ? kKeepPause / 2 : kKeepPause);
}

LeadershipActions Leadership::tick(TimePoint now) {
  now_ = now;
  if (state_ == kOver) return take();
  keep_alive();
  if (state_ == kLeading && !is_suspended_ && now_ >= serves_until_) {
    is_suspended_ = true;
    out_.push_back(Suspend{});
  }
  if (request_.number != 0 && now_ >= request_.sent + try_time()) {
    pause();
  } else if ((state_ == kPausing || state_ == kFollowing) && now_ >= until_) {
    campaign();
  }
  return take();
}

std::optional<TimePoint> Leadership::deadline() const {
  if (state_ == kOver) return std::nullopt;
  TimePoint due = TimePoint::max();
  if (has_lease()) due = next_keep_;
  if (state_ == kLeading && !is_suspended_) due = std::min(due, serves_until_);
  if (request_.number != 0) due = std::min(due, request_.sent + try_time());
  if (state_ == kPausing || state_ == kFollowing) due = std::min(due, until_);
  DDPRUN_ASSERT(due != TimePoint::max(), "every state has a deadline");
  return due;
}

}  // namespace ddprun
