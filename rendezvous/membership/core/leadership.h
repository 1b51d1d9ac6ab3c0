// Leadership: decides which of several rendezvous services leads, by a key in etcd that belongs to
// a lease.
//
// Owner: the service's thread. Pure: the owner performs the returned actions in order, and reports
// what came of them. Times are of the owner's BootClock.
//
// The service whose put creates the leader key leads. The key's create revision is the term: a
// later leader has a larger one. etcd removes the key when its lease runs out, and each standby
// then tries to create it. The method is that of etcd's own election recipe, with two rules more:
//   - A leader counts its lease from the sending of the last request for it that etcd has
//     answered. A margin before the end it stops serving, whatever etcd does, because a challenger
//     may lead soon. It keeps its state, and serves again if etcd answers that the lease lives:
//     the term is still its own. It steps down when etcd answers that the lease is gone.
//   - Nothing that a leader decides counts before a write has compared the term
//     (rendezvous/persistence/core/fenced_writes.h). So the lease is for speed, and the comparison
//     is for safety.
//
// Every client of etcd can revoke a lease. A standby revokes the leader's if it has seen
// that the leader's process is gone. If it was wrong, the former leader answers agents until the
// end of its lease. A new leader therefore waits for that lease and a node's before it calls a
// silent node lost.
//
// States
//   kPausing      a request has failed; the next one follows at a known time
//   kGranting     a lease is asked for
//   kCampaigning  the key is being created
//   kReading      the key is this service's; it reads what earlier leaders have written
//   kLeading      it serves, or is suspended
//   kFollowing    the key is another service's
//   kOver         resigned
//
// Invariants: between Lead and StepDown the term does not change. Every state but kOver has a
// deadline: a watch that is silent for ever only costs time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/clock.h"
#include "rendezvous/net/core/backoff.h"

namespace ddprun {

// Numbers of etcd. 0: none.
using EtcdLease = std::int64_t;
using EtcdRevision = std::int64_t;

// Requests to etcd. The answer is reported with the number. A later request makes the answer of an
// earlier one worthless, except that each answered keep-alive counts.
struct GrantLease {
  std::uint64_t number;
  Duration lease;
};
struct KeepLease {
  std::uint64_t number;
  EtcdLease lease;
};
// Creates the leader key with this lease if it does not exist. The answer is the key as it is then.
struct CreateLeaderKey {
  std::uint64_t number;
  EtcdLease lease;
};
// Reads all that was written under the prefix, not from a member's own memory (linearizable).
struct ReadState {
  std::uint64_t number;
};
struct RevokeLease {  // has no answer that matters
  EtcdLease lease;
};
// Watches the leader key from this revision on. Replaces an earlier watch.
struct WatchLeaderKey {
  EtcdRevision from;
};
struct Lead {  // serve, from the state that was read
  EtcdRevision term;
};
struct Suspend {};  // stop serving, but keep connections and state
// Serve again, in the same term. It also comes without a Suspend if the lease had run out
// unnoticed.
struct Resume {};
struct StepDown {  // forget the state: another service leads, or will
  std::string why;
};
struct Follow {
  std::string leader;  // the value of the key: the leader's address
  EtcdRevision term;   // the leader's
};
using LeadershipAction =
    std::variant<GrantLease, KeepLease, CreateLeaderKey, ReadState, RevokeLease, WatchLeaderKey,
                 Lead, Suspend, Resume, StepDown, Follow>;
using LeadershipActions = std::vector<LeadershipAction>;

// The leader key as etcd has it.
struct LeaderKey {
  EtcdRevision created = 0;
  EtcdLease lease = 0;
  std::string value;
  EtcdRevision seen = 0;  // the revision of the answer
};

class Leadership {
 public:
  // etcd may grant more.
  static constexpr Duration kLease = std::chrono::seconds(2);
  // Clocks of two hosts run at rates that differ by less than this share of a lease.
  static constexpr int kMarginShare = 20;
  static constexpr Duration kKeepPause = kLease / 4;
  // The time of one request. After it, the owner gives the request up and asks the next member.
  static constexpr Duration kTryTime = std::chrono::milliseconds(400);
  // The same of ReadState, whose answer may be long.
  static constexpr Duration kReadTime = kLease;
  // A standby tries to create the key that often, although its watch says nothing.
  static constexpr Duration kCheckPause = kLease;

  Leadership(Rng rng, TimePoint now);

  // Begins to find or become the leader. Call it once, before all other functions.
  LeadershipActions start(TimePoint now);
  // Reports the answer to GrantLease. granted: the time that etcd gives, at least what was asked.
  LeadershipActions granted(std::uint64_t number, EtcdLease lease, Duration granted, TimePoint now);
  // Reports the answer to KeepLease. lives: false if etcd does not have the lease any more.
  LeadershipActions kept(std::uint64_t number, bool lives, TimePoint now);
  // Reports the answer to CreateLeaderKey.
  LeadershipActions campaigned(std::uint64_t number, const LeaderKey& key, TimePoint now);
  // Reports that the answer to ReadState is complete and is with the owner.
  LeadershipActions state_read(std::uint64_t number, TimePoint now);
  // Reports that a request has failed, or that its outcome is not known.
  LeadershipActions failed(std::uint64_t number, TimePoint now);
  // Reports that the leader key of the newest WatchLeaderKey was deleted: its lease has run out or
  // was revoked.
  LeadershipActions leader_key_gone(TimePoint now);
  // Reports that the leader's host refuses connections to its port after the connection to it was
  // broken: its process is gone.
  LeadershipActions leader_process_gone(TimePoint now);
  // Reports that a write was refused because the leader key is another one.
  LeadershipActions fenced(TimePoint now);
  // Ends in good order: a standby can lead at once.
  LeadershipActions resign(TimePoint now);
  // Handles the passing of time. Call it at deadline(); other times do no harm.
  LeadershipActions tick(TimePoint now);

  // Returns whether this service may answer agents now. A process that was stopped asks before it
  // handles anything, because its timers are late.
  bool serves(TimePoint now) const {
    return state_ == kLeading && !is_suspended_ && now < serves_until_;
  }
  // Returns the term while this service leads; 0: it does not.
  EtcdRevision term() const { return state_ == kLeading ? term_ : 0; }
  // Returns when tick() has something to do; nullopt: never again.
  std::optional<TimePoint> deadline() const;

 private:
  enum class State { kPausing, kGranting, kCampaigning, kReading, kLeading, kFollowing, kOver };
  using enum State;
  struct Request {
    std::uint64_t number = 0;
    TimePoint sent;
  };

  template <class Action>
  Request ask(Action action);
  LeadershipActions take() { return std::exchange(out_, {}); }
  void campaign();
  void create_key();
  void read_state();
  void pause();
  Duration try_time() const { return state_ == kReading ? kReadTime : kTryTime; }
  void keep_alive();
  void drop_lease();
  void revoke_leaders_lease();
  void step_down(std::string why);
  bool has_lease() const { return lease_ != 0; }
  // Returns the time after the sending of a request for the lease in which this service may serve.
  Duration allowed() const { return granted_ - granted_ / kMarginShare; }

  TimePoint now_;          // of the event that is being handled
  LeadershipActions out_;  // what it has led to so far; empty between events
  Backoff backoff_;
  State state_ = kPausing;
  TimePoint until_;  // kPausing: the next try. kFollowing: the next check
  std::uint64_t next_number_ = 1;
  Request request_;  // the one that the state waits for
  EtcdLease lease_ = 0;
  EtcdLease dropped_ = 0;  // the last one that was revoked; the request may be lost
  Duration granted_{};
  TimePoint serves_until_;
  std::vector<Request> keeps_;  // keep-alives without an answer, oldest first
  TimePoint next_keep_;
  EtcdRevision term_ = 0;
  bool is_suspended_ = false;
  LeaderKey leader_;           // the one that is followed; also while its key is checked
  bool process_gone_ = false;  // leader_'s lease is to be revoked when the check is over
};

}  // namespace ddprun
