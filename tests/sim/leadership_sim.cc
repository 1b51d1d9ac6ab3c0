#include "tests/sim/leadership_sim.h"

#include <algorithm>
#include <memory>
#include <utility>

namespace ddprun::sim {

using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {
constexpr std::size_t kJobs = 3;
constexpr Duration kFaultTime = seconds(60);
// A lease that has just been renewed, an election's whole lease, and a few tries.
constexpr Duration kRecoveryTime = seconds(24);
constexpr const char* kLeaderKey = "leader";
constexpr const char* kChainKey = "chain";

std::string key_of(std::size_t job) { return "job/" + std::to_string(job); }
}  // namespace

LeadershipSim::LeadershipSim(std::uint64_t seed, Mutant mutant)
    : Simulation(seed), mutant_(mutant), faults_until_(now_ + kFaultTime) {
  if (seed % 10 == 0) faults_until_ = now_;
  hosts_.resize(2 + rng_.below(3));
  lease_time_ = rng_.chance(0.8) ? Leadership::kLease : seconds(2 + rng_.below(7));
  is_punctual_ = rng_.chance(0.5);
  for (Host& host : hosts_) {
    // The differences stay below what Leadership allows for.
    host.rate = 1 + (static_cast<double>(rng_.below(2001)) - 1000) / 1e5;
  }
}

LeadershipResult LeadershipSim::run() {
  for (std::size_t i = 0; i < hosts_.size(); ++i) {
    at(between(0, 200), [this, i] { start(i); });
  }
  at(between(0, 100), [this] { beat(); });
  at(milliseconds(50), [this] { expire(); });
  at(between(500, 3000), [this] { inject_fault(); });
  const TimePoint end = faults_until_ + kRecoveryTime;
  while (result_.violation.empty()) {
    const std::function<void()> run = next_event();
    if (now_ > end) break;
    run();
  }
  if (result_.violation.empty() && (!announced_at_ || *announced_at_ < end - seconds(1)))
    violate("no decision is told although all faults are over");
  if (result_.violation.empty() && faults_until_ < seconds(2) + TimePoint() && led_.size() != 1)
    violate("a term has ended without a fault");
  for (const Host& host : hosts_) {
    if (!host.service || !host.service->writes || host.service->waiting.empty()) continue;
    const Service& service = *host.service;
    if (service.leadership.serves(clock_of(host)) &&
        service.waiting[0].change <= service.writes->durable())
      violate("a durable decision is held back");
  }
  result_.terms = static_cast<int>(led_.size());
  result_.decisions = static_cast<int>(announced_.size());
  return std::move(result_);
}

// --- plumbing ---

// Runs what happens at a service, later if its process is stopped.
void LeadershipSim::on(std::size_t index, std::function<void(Service&)> what) {
  Host& host = hosts_[index];
  if (!host.service) return;
  if (now_ < host.stopped_until) {
    at(host.stopped_until - now_, [this, index, what = std::move(what), life = host.life] {
      if (hosts_[index].life == life) on(index, what);
    });
    return;
  }
  what(*host.service);
  if (host.service) arm(index);
}

void LeadershipSim::note(const std::string& line) {
  result_.trace += std::to_string(to_ms(now_.time_since_epoch())) + " ms  " + line + "\n";
}

void LeadershipSim::violate(const std::string& what) {
  if (!result_.violation.empty()) return;
  note("VIOLATION: " + what);
  result_.violation = what;
}

TimePoint LeadershipSim::clock_of(const Host& host) const {
  const auto real = static_cast<double>((now_.time_since_epoch() - host.stood_still).count());
  return TimePoint(Duration(static_cast<Duration::rep>(real * host.rate)));
}

// --- services ---

void LeadershipSim::start(std::size_t index) {
  Host& host = hosts_[index];
  if (host.service) return;
  note("service " + std::to_string(index) + " starts");
  host.service.emplace(Leadership(Rng(rng_.next()), clock_of(host)));
  on(index, [this, index](Service& service) {
    take(index, service.leadership.start(clock_of(hosts_[index])));
  });
}

// Ends the service's process, and starts it again later.
void LeadershipSim::take_away(std::size_t index) {
  Host& host = hosts_[index];
  host.service.reset();
  ++host.life;
  host.stopped_until = now_;
  at(between(100, 5000), [this, index] { start(index); });
}

void LeadershipSim::resign(std::size_t index) {
  Host& host = hosts_[index];
  if (!host.service || now_ < host.stopped_until) return;
  note("service " + std::to_string(index) + " resigns");
  saw(LeadershipFault::kResign);
  take(index, host.service->leadership.resign(clock_of(host)));
  take_away(index);
}

void LeadershipSim::kill(std::size_t index) {
  Host& host = hosts_[index];
  if (!host.service) return;
  note("service " + std::to_string(index) + " is killed");
  saw(LeadershipFault::kKill);
  const bool led = host.service->leadership.term() != 0;
  take_away(index);
  if (!led || rng_.chance(0.3)) return;
  for (std::size_t other = 0; other < hosts_.size(); ++other) {
    at(between(0, 3), [this, other] {
      on(other, [this, other](Service& service) {
        saw(LeadershipFault::kSeenGone);
        take(other, service.leadership.leader_process_gone(clock_of(hosts_[other])));
      });
    });
  }
}

void LeadershipSim::stop(std::size_t index) {
  Host& host = hosts_[index];
  if (!host.service || now_ < host.stopped_until) return;
  const Duration time = between(100, 8000);
  note("service " + std::to_string(index) + " is stopped for " + to_text(time));
  saw(LeadershipFault::kStop);
  host.stopped_until = now_ + time;
  if (mutant_ == Mutant::kWrongClock) host.stood_still += time;
}

void LeadershipSim::arm(std::size_t index) {
  Host& host = hosts_[index];
  Service& service = *host.service;
  const std::optional<TimePoint> due = service.leadership.deadline();
  if (!due || (service.armed && *service.armed <= *due)) return;
  service.armed = *due;
  const auto local = static_cast<double>((*due - clock_of(host)).count());
  const Duration delay(std::max<Duration::rep>(0, static_cast<Duration::rep>(local / host.rate)) +
                       1000);
  at(delay, [this, index, life = host.life] {
    if (hosts_[index].life != life) return;
    on(index, [this, index](Service& armed) {
      armed.armed.reset();
      take(index, armed.leadership.tick(clock_of(hosts_[index])));
    });
  });
}

// Sends a request to etcd. `perform` runs there, and returns what its answer does at the service.
// `unanswered` runs there when the time of a try is over without an answer.
void LeadershipSim::ask(std::size_t index, std::function<std::function<void(Service&)>()> perform,
                        std::function<void(Service&)> unanswered) {
  const bool faults = has_faults();
  const bool is_late = faults && rng_.chance(0.01);
  const bool is_lost = faults && rng_.chance(0.01);
  const int times = faults && rng_.chance(0.01) ? 2 : 1;
  if (is_late) saw(LeadershipFault::kLateRequest);
  if (is_lost) saw(LeadershipFault::kLostRequest);
  if (times == 2) saw(LeadershipFault::kRepeatedRequest);
  const auto answered = std::make_shared<bool>(false);
  const int life = hosts_[index].life;
  for (int i = 0; i < times; ++i) {
    at(is_late || i > 0 ? between(400, 4000) : between(0, 3), [=, this] {
      if (is_lost || hosts_[index].cut_up || now_ < no_leader_until_) return;
      std::function<void(Service&)> answer = perform();
      if (hosts_[index].cut_down) return;
      if (has_faults() && rng_.chance(0.01)) return saw(LeadershipFault::kLostAnswer);
      at(between(0, 3), [=, this] {
        if (hosts_[index].life != life) return;
        on(index, [answer, answered](Service& service) {
          if (std::exchange(*answered, true)) return;
          answer(service);
        });
      });
    });
  }
  if (!unanswered) return;
  at(Leadership::kTryTime, [=, this] {
    if (hosts_[index].life != life) return;
    on(index, [unanswered, answered](Service& service) {
      if (!std::exchange(*answered, true)) unanswered(service);
    });
  });
}

void LeadershipSim::take(std::size_t index, LeadershipActions actions) {
  const std::string name = "service " + std::to_string(index);
  for (LeadershipAction& action : actions) {
    Service& service = *hosts_[index].service;
    if (const auto* grant = std::get_if<GrantLease>(&action)) {
      ask(index, [=, this, asked = *grant]() -> std::function<void(Service&)> {
        const EtcdLease lease = next_lease_++;
        leases_[lease] = now_ + lease_time_;
        return [=, this](Service& to) {
          take(index,
               to.leadership.granted(asked.number, lease, lease_time_, clock_of(hosts_[index])));
        };
      });
    } else if (const auto* keep = std::get_if<KeepLease>(&action)) {
      ask(index, [=, this, asked = *keep]() -> std::function<void(Service&)> {
        const auto at = leases_.find(asked.lease);
        const bool lives = at != leases_.end();
        if (lives) at->second = now_ + lease_time_;
        return [=, this](Service& to) {
          take(index, to.leadership.kept(asked.number, lives, clock_of(hosts_[index])));
        };
      });
    } else if (const auto* create = std::get_if<CreateLeaderKey>(&action)) {
      ask(index, [=, this, asked = *create]() -> std::function<void(Service&)> {
        const bool lives = leases_.contains(asked.lease);
        if (lives && !keys_.contains(kLeaderKey)) put(kLeaderKey, name, asked.lease);
        const LeaderKey key = leader_key();
        return [=, this](Service& to) {
          const TimePoint clock = clock_of(hosts_[index]);
          take(index, lives ? to.leadership.campaigned(asked.number, key, clock)
                            : to.leadership.failed(asked.number, clock));
        };
      });
    } else if (const auto* read = std::get_if<ReadState>(&action)) {
      ask(index, [=, this, asked = *read]() -> std::function<void(Service&)> {
        JournalImage image;
        for (const auto& [key, kept] : keys_) {
          if (mutant_ == Mutant::kPartlyRead && key == key_of(kJobs - 1)) continue;
          image[key] = kept.value;
        }
        const auto chain = keys_.find(kChainKey);
        const EtcdRevision modified = chain == keys_.end() ? 0 : chain->second.modified;
        return [=, this](Service& to) {
          to.read = image;
          to.chain_read = modified;
          take(index, to.leadership.state_read(asked.number, clock_of(hosts_[index])));
        };
      });
    } else if (const auto* revoke = std::get_if<RevokeLease>(&action)) {
      // A lease that is revoked by another service than its owner's.
      const LeaderKey key = leader_key();
      if (key.lease == revoke->lease && key.value != name) taken_for_gone_.insert(key.created);
      ask(index, [this, lease = revoke->lease]() -> std::function<void(Service&)> {
        end_lease(lease);
        return [](Service&) {};
      });
    } else if (const auto* watch = std::get_if<WatchLeaderKey>(&action)) {
      service.watches = watch->from;
    } else if (const auto* lead = std::get_if<Lead>(&action)) {
      note(name + " leads in term " + std::to_string(lead->term));
      if (!led_.empty() && led_.rbegin()->first >= lead->term)
        violate("a term begins that is not larger than the last");
      led_[lead->term] = now_;
      service.writes.emplace(lead->term, service.chain_read);
      service.jobs.assign(kJobs, {});
      service.waiting.clear();
      for (std::size_t job = 0; job < kJobs; ++job) {
        const std::string& value = service.read[key_of(job)];
        if (value.empty()) continue;
        const std::size_t space = value.find(' ');
        service.jobs[job] = {std::stoi(value.substr(0, space)), value.substr(space + 1)};
      }
    } else if (std::holds_alternative<Suspend>(action)) {
      note(name + " is suspended");
      saw(LeadershipFault::kSuspended);
    } else if (std::holds_alternative<Resume>(action)) {
      note(name + " goes on");
      saw(LeadershipFault::kResumed);
      tell(index);
    } else if (const auto* down = std::get_if<StepDown>(&action)) {
      note(name + " steps down: " + down->why);
      service.writes.reset();
      service.waiting.clear();
    }
  }
}

// Sends what waits for etcd.
void LeadershipSim::write(std::size_t index) {
  Service& service = *hosts_[index].service;
  if (!service.writes) return;
  const std::optional<FencedWrite> next = service.writes->next();
  if (!next) return;
  const EtcdRevision term = next->term;
  const auto is_current = [term](const Service& is) {
    return is.writes && is.leadership.term() == term;
  };
  ask(
      index,
      [=, this, asked = *next]() -> std::function<void(Service&)> {
        const auto [done, state] = perform(asked);
        return [=, this, done = done, found = state](Service& to) {
          if (!is_current(to)) return;
          if (done) {
            to.writes->written(found.chain_modified);
          } else {
            to.writes->refused(found);
          }
          if (to.writes->is_lost()) {
            saw(LeadershipFault::kFenced);
            return take(index, to.leadership.fenced(clock_of(hosts_[index])));
          }
          tell(index);
          write(index);
        };
      },
      [=, this](Service& to) {
        if (!is_current(to)) return;
        to.writes->unknown();
        write(index);
      });
}

// Tells the decisions that are durable now. An agent refuses what is of an older term.
void LeadershipSim::tell(std::size_t index) {
  Service& service = *hosts_[index].service;
  if (!service.leadership.serves(clock_of(hosts_[index]))) return;
  while (!service.waiting.empty() && service.waiting[0].change <= service.writes->durable()) {
    const Decision told = service.waiting[0];
    service.waiting.erase(service.waiting.begin());
    EtcdRevision& in = announced_in_[told.job];
    if (service.leadership.term() < in) continue;
    const auto [at, is_new] =
        announced_.try_emplace({told.job, told.state.decisions}, told.state.by);
    if (!is_new) violate("a decision is told twice: " + at->second + ", then " + told.state.by);
    int& last = last_announced_[told.job];
    if (told.state.decisions <= last) violate("a decision was undone after it was told");
    last = told.state.decisions;
    if (in != 0 && in != service.leadership.term()) saw(LeadershipFault::kTermsOfSeveral);
    in = service.leadership.term();
    announced_at_ = now_;
  }
}

void LeadershipSim::decide(std::size_t index) {
  Service& service = *hosts_[index].service;
  const std::size_t job = rng_.below(kJobs);
  Job& state = service.jobs[job];
  state.decisions += 1;
  state.by = std::to_string(index) + "@" + std::to_string(to_ms(now_.time_since_epoch())) + "." +
             std::to_string(next_order_);
  const std::uint64_t change = ++service.changes;
  service.waiting.push_back({change, job, state});
  const Result<void> kept =
      service.writes->keep(change, {key_of(job), std::to_string(state.decisions) + " " + state.by});
  if (!kept) violate(kept.error().message());
  write(index);
}

// Sends heartbeats to all services. Whichever serves answers, and decides something now and then.
void LeadershipSim::beat() {
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    on(index, [this, index](Service& service) {
      if (!service.leadership.serves(clock_of(hosts_[index])) || !service.writes) return;
      const EtcdRevision term = service.leadership.term();
      const auto later = led_.upper_bound(term);
      if (later != led_.end()) {
        const Duration spare = taken_for_gone_.contains(term) ? lease_time_ : Duration(0);
        if (now_ > later->second + spare)
          violate("term " + std::to_string(term) + " serves while term " +
                  std::to_string(later->first) + " does");
      }
      if (rng_.chance(0.3)) decide(index);
    });
  }
  at(between(10, 40), [this] { beat(); });
}

// --- etcd ---

LeaderKey LeadershipSim::leader_key() const {
  const auto at = keys_.find(kLeaderKey);
  if (at == keys_.end()) return LeaderKey{0, 0, "", revision_};
  return {at->second.created, at->second.lease, at->second.value, revision_};
}

void LeadershipSim::put(const std::string& key, const std::string& value, EtcdLease lease) {
  Key& kept = keys_[key];
  if (kept.created == 0) kept.created = revision_ + 1;
  kept.modified = ++revision_;
  kept.value = value;
  kept.lease = lease;
}

std::pair<bool, FenceState> LeadershipSim::perform(const FencedWrite& write) {
  const auto chain = keys_.find(kChainKey);
  FenceState found{leader_key().created, 0, ""};
  if (chain != keys_.end()) {
    found.chain_modified = chain->second.modified;
    found.chain_value = chain->second.value;
  }
  const bool is_fenced = mutant_ != Mutant::kNoFence && found.leader_created != write.term;
  const bool is_old = mutant_ != Mutant::kNoChain && found.chain_modified != write.last;
  if (is_fenced || is_old) return {false, found};
  if (write.term != found.leader_created) violate("a former term writes");
  // All puts of a transaction have one revision.
  const EtcdRevision revision = revision_ + 1;
  for (const JournalEntry& entry : write.entries) {
    revision_ = revision - 1;
    put(entry.key, entry.value, 0);
  }
  revision_ = revision - 1;
  put(kChainKey, write.chain_value, 0);
  found.chain_modified = revision;
  return {true, found};
}

void LeadershipSim::end_lease(EtcdLease lease) {
  leases_.erase(lease);
  const auto at = keys_.find(kLeaderKey);
  if (at == keys_.end() || at->second.lease != lease) return;
  keys_.erase(at);
  const EtcdRevision deleted = ++revision_;
  for (std::size_t index = 0; index < hosts_.size(); ++index) {
    const Host& host = hosts_[index];
    if (host.cut_down || (has_faults() && rng_.chance(0.1))) {
      saw(LeadershipFault::kSilentWatch);
      continue;
    }
    report_deletion(index, deleted);
  }
}

void LeadershipSim::report_deletion(std::size_t index, EtcdRevision deleted) {
  at(between(1, 4), [this, index, deleted, life = hosts_[index].life] {
    if (hosts_[index].life != life) return;
    on(index, [this, index, deleted](Service& service) {
      if (!service.watches || *service.watches > deleted) return;
      take(index, service.leadership.leader_key_gone(clock_of(hosts_[index])));
    });
  });
}

// Ends the leases whose time is over, as late as etcd does.
void LeadershipSim::expire() {
  if (now_ >= no_leader_until_) {
    for (const auto& [lease, until] : std::map(leases_)) {
      if (now_ >= until + (is_punctual_ ? Duration(0) : milliseconds(100))) end_lease(lease);
    }
  }
  at(is_punctual_ ? milliseconds(1) : between(50, 400), [this] { expire(); });
}

void LeadershipSim::elect() {
  const Duration time = between(900, 2800);
  note("etcd has an election for " + to_text(time));
  saw(LeadershipFault::kElection);
  no_leader_until_ = now_ + time;
  for (auto& [lease, until] : leases_) until = no_leader_until_ + lease_time_;
}

void LeadershipSim::inject_fault() {
  if (!has_faults()) return;
  const std::size_t index = rng_.below(hosts_.size());
  Host& host = hosts_[index];
  switch (rng_.below(7)) {
    case 0: kill(index); break;
    case 5: resign(index); break;
    case 1: stop(index); break;
    case 2:
    case 3: {
      const bool both = rng_.chance(0.5);
      const bool up = rng_.chance(0.5);
      saw(both ? LeadershipFault::kCut : LeadershipFault::kOneWayCut);
      host.cut_up = both || up;
      host.cut_down = both || !up;
      note("service " + std::to_string(index) + " is cut off from etcd" +
           (both          ? ""
            : host.cut_up ? ", upward"
                          : ", downward"));
      at(between(100, 8000), [this, index] {
        hosts_[index].cut_up = hosts_[index].cut_down = false;
        note("service " + std::to_string(index) + " reaches etcd again");
      });
      break;
    }
    case 4: elect(); break;
    default:
      saw(LeadershipFault::kFalselySeenGone);
      note("service " + std::to_string(index) + " takes the leader for gone");
      on(index, [this, index](Service& service) {
        take(index, service.leadership.leader_process_gone(clock_of(hosts_[index])));
      });
  }
  at(between(100, 6000), [this] { inject_fault(); });
}

}  // namespace ddprun::sim
