// ServiceHandshake, AgentHandshake: an agent and the rendezvous service prove their identities to
// each other, before they exchange any other message. They use the key of the job. Without a key
// they use munge, which certifies the user of the peer. With neither there is no handshake, and
// the agent begins with its Hello.
//
//   agent                                          service
//   Knock: method, protocol, version, job, nonce
//                                                  Challenge: nonce; with munge: its user
//   Proof; with a key its Hello may follow at once
//                                                  Proven
//   with munge: its Hello
//
// A proof with a key is an HMAC. A proof by munge is a credential that only the peer's user can
// decode. The agent proves first, so that an unknown client gets no data on which it could test
// guesses of the key. A proof covers all fields exchanged so far (rendezvous/auth/core/proof.h).
// The handshake authenticates the peers; it does not encrypt or sign later messages.
//
// A service that has keys requires a key. A service that has only munge requires munge. A
// service that has neither answers a Knock by munge with Open. The agent then goes on with its
// Hello, unless it demands proof.
//
// Both classes are pure state machines, one per connection. Messages go in; messages come out,
// and tasks for munge. munge is slow: the outcome of a task comes back by answered(), and until
// then the peer must send nothing. Each object has one owner thread.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/enum_names.h"
#include "base/result.h"
#include "base/secret.h"
#include "rendezvous/auth/core/credential.h"
#include "rendezvous/auth/core/keyring.h"
#include "rendezvous/auth/core/proof.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// Until a proof has been accepted, a frame has at most this many bytes.
inline constexpr std::size_t kMaxHandshakeBytes = 4096;

// On all Linux distributions, user ids of system accounts are below this one by convention.
// Those of people are from it on.
inline constexpr UserId kFirstUserOfPeople{1000};

enum class ProofMethod { kKey, kMunge };
inline constexpr EnumNames<ProofMethod, 2> kProofMethodWords{
    {{ProofMethod::kKey, "key"}, {ProofMethod::kMunge, "munge"}}};

struct Knock {
  ProofMethod method = ProofMethod::kKey;
  int protocol = kControlProtocol;
  std::string version;  // of ddprun, for people
  std::string job;
  std::string nonce;
};
struct Proof {
  std::string proof;
};
struct NoHandshake {};  // any other message; its contents were not read
using AgentHandshakeMessage = std::variant<NoHandshake, Knock, Proof>;

struct Challenge {
  std::string nonce;
  std::optional<UserId> user;  // as which the service runs, if the method is munge
};
struct Proven {
  std::string proof;
};
struct Open {};  // this service requires no proof
using ServiceHandshakeMessage =
    std::variant<NoHandshake, Refused, Silence, Challenge, Proven, Open>;

// ServiceHandshake: the service's side.
class ServiceHandshake {
 public:
  // keys: empty if the service has none. nonce: random, for this connection only. munge_user:
  // the user of the service, if it has munge. Without keys, agents then prove their user.
  ServiceHandshake(const Keyring& keys, std::string nonce,
                   std::optional<UserId> munge_user = std::nullopt)
      : keys_(keys), nonce_(std::move(nonce)), munge_user_(munge_user) {}

  // What to do after a message of the agent. REQUIRES: no earlier step was kRefuse or kPutOff.
  struct Step {
    enum class What {
      kAnswer,    // send `answer`
      kRefuse,    // send `answer`, then close: the peer failed
      kPutOff,    // send `answer`, then close: the peer did nothing wrong and may retry
      kAskMunge,  // have munge do `task`, and pass the outcome to answered()
      kPass,      // the message is not part of the handshake and is accepted
    };
    What what = What::kPass;
    ServiceHandshakeMessage answer = {};
    MungeTask task = {};
    bool is_wrong_proof = false;  // kRefuse: the peer does not hold what it must prove for job()
  };
  Step receive(const AgentHandshakeMessage& message);
  // Returns what to do after munge has done the task. REQUIRES: the last step was kAskMunge.
  Step answered(const MungeOutcome& outcome);

  // Binds the proofs to the channel that the connection uses; both ends have the same name for
  // it (Introduction::channel). REQUIRES: nothing was received yet.
  void bind_to(std::string channel) { introduction_.channel = std::move(channel); }

  // Returns the job of the peer's Knock; empty before the Knock.
  const std::string& job() const { return introduction_.job; }
  // Returns true while only handshake messages are accepted.
  bool is_closed() const { return (!keys_.empty() || munge_user_) && state_ != kProven; }
  // Returns true if an agent of that job may use this connection.
  bool may_join(const std::string& job) const {
    return state_ != kProven || job == introduction_.job;
  }
  // Returns the agent's user, if munge has proved it.
  std::optional<UserId> proven_user() const {
    return state_ == kProven ? agent_user_ : std::nullopt;
  }

 private:
  enum class State { kFresh, kChallenged, kReading, kMaking, kProven, kOpened };
  using enum State;
  static Step refuse(std::string reason) {
    return {.what = Step::What::kRefuse, .answer = Refused{std::move(reason)}};
  }
  static Step answer(ServiceHandshakeMessage message) {
    return {.what = Step::What::kAnswer, .answer = std::move(message)};
  }
  static Step refuse_proof(std::string reason) {
    Step step = refuse(std::move(reason));
    step.is_wrong_proof = true;
    return step;
  }
  Step without_proof(const AgentHandshakeMessage& message);
  Step knocked(const Knock& knock);
  Step prove(const Proof& proof);

  Keyring keys_;
  std::string nonce_;
  std::optional<UserId> munge_user_;
  State state_ = kFresh;
  Secret key_;
  Introduction introduction_;
  std::optional<UserId> agent_user_;
};

// Returns true if an agent of user `own` trusts a service of user `service`: the same user, root
// or a system account. Any other user might run the service as a trap.
constexpr bool is_believable(UserId service, UserId own) {
  return service == own || service < kFirstUserOfPeople;
}

// MungeProof: how an agent without a key proves its identity.
struct MungeProof {
  UserId own = {};             // the agent's user
  bool demands_proof = false;  // an open service is refused
};

// AgentHandshake: the agent's side.
class AgentHandshake {
 public:
  // key: of the job; empty: by munge. knock.nonce: random, for this connection only. channel: of
  // Introduction.
  AgentHandshake(Secret key, Knock knock, std::string channel = {}, const MungeProof& munge = {});

  const Knock& knock() const { return knock_; }

  // Returns what to do next, until is_over():
  // - Proof: send it.
  // - MungeTask: have munge do the task and pass the outcome to answered().
  // - Proven, Open: do nothing.
  // - Refused, Silence: the service's message as it came. It proves nothing, because any peer
  //   can send it.
  //
  // Errors:
  // - kProtocol: the service did not prove what it must, or sent a message that is wrong now.
  //   Nothing it sent may be trusted.
  // - kUnsupported: this node cannot use the service.
  // - Others: munge failed on this node.
  using Step = std::variant<Proof, Proven, Open, Refused, Silence, MungeTask>;
  Result<Step> receive(const ServiceHandshakeMessage& message);
  // Returns what to do after munge has done the task. REQUIRES: the last step was a MungeTask.
  Result<Step> answered(const MungeOutcome& outcome);

  bool is_over() const { return state_ == kOver; }
  // Returns true if the Hello must follow now. Call it after each Proof, Proven and Open.
  bool is_time_for_hello() const {
    return state_ == (knock_.method == ProofMethod::kKey ? kAnswered : kOver);
  }

 private:
  enum class State { kKnocked, kMaking, kAnswered, kReading, kOver };
  using enum State;
  Result<Step> challenged(const Challenge& challenge);
  Result<Step> prove(const std::string& proof);

  Secret key_;
  MungeProof munge_;
  Knock knock_;
  Introduction introduction_;
  UserId service_user_;  // as which the service claims to run
  State state_ = kKnocked;
};

}  // namespace ddprun
