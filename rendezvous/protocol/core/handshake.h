// The handshake by which an agent and the rendezvous service prove to each other who they are,
// before either says more: with the job's key, or else by munge, which says what user speaks.
// Without either there is none: the agent begins with its Hello.
//
//   agent                                          service
//   Knock: method, protocol, version, job, nonce
//                                                  Challenge: nonce; with munge: its user
//   Proof; with a key its Hello may follow at once
//                                                  Proven
//   with munge: its Hello
//
// A proof with a key is an HMAC, one by munge a credential that only the other side's user can have
// read. The agent proves first, so that a stranger who knocks gets nothing that a guess of the key
// could be tried on. What is proved is bound to all that was said (rendezvous/auth/core/proof.h). The
// handshake says who speaks; it does not hide or seal what follows.
//
// A service that has keys wants them; one that has none but munge wants that; one that has neither
// answers a Knock by munge with Open, and the agent goes on with its Hello, unless it demands proof.
//
// Pure machines, one of each per connection: messages in, messages out, and tasks for munge, which
// takes its time: their outcome comes back by answered(), and until then the other side has nothing
// to say. One owner thread each.
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

// The users of services, by custom of all Linux distributions, are below it, those of people above.
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
struct NoHandshake {};  // any other message: what is in it has not been looked at
using AgentHandshakeMessage = std::variant<NoHandshake, Knock, Proof>;

struct Challenge {
  std::string nonce;
  std::optional<UserId> user;  // that the service runs as, where the method is munge
};
struct Proven {
  std::string proof;
};
struct Open {};  // nothing is to be proved here
using ServiceHandshakeMessage =
    std::variant<NoHandshake, Refused, Silence, Challenge, Proven, Open>;

class ServiceHandshake {
 public:
  // keys: empty for a service without any. nonce: random, of this connection alone. munge_user: the
  // service's own, where it has munge; without keys, agents prove their user then.
  ServiceHandshake(const Keyring& keys, std::string nonce,
                   std::optional<UserId> munge_user = std::nullopt)
      : keys_(keys), nonce_(std::move(nonce)), munge_user_(munge_user) {}

  // What to do with the next message of the agent. REQUIRES: nobody was refused or put off.
  struct Step {
    enum class What {
      kAnswer,    // send `answer`
      kRefuse,    // send `answer`, and close: a failure of the peer
      kPutOff,    // send `answer`, and close: no fault of the peer, who may try again
      kAskMunge,  // have `task` done, and tell its outcome to answered()
      kPass,      // the message is no part of the handshake and is welcome
    };
    What what = What::kPass;
    ServiceHandshakeMessage answer = {};
    MungeTask task = {};
    bool is_wrong_proof = false;  // of kRefuse: the peer has not what it must prove for job()
  };
  Step receive(const AgentHandshakeMessage& message);
  // REQUIRES: the last step was kAskMunge.
  Step answered(const MungeOutcome& outcome);

  // What the connection goes through is called so at both ends, and what is proved is bound to it
  // (Introduction::channel). REQUIRES: nothing was received yet.
  void bind_to(std::string channel) { introduction_.channel = std::move(channel); }

  // That the peer has knocked for; empty: it has not yet.
  const std::string& job() const { return introduction_.job; }
  // Nothing but handshake messages is welcome yet.
  bool is_closed() const { return (!keys_.empty() || munge_user_) && state_ != State::kProven; }
  // Whether an agent of that job may speak here.
  bool may_join(const std::string& job) const {
    return state_ != State::kProven || job == introduction_.job;
  }
  // Of the agent, where munge has said so.
  std::optional<UserId> proven_user() const {
    return state_ == State::kProven ? agent_user_ : std::nullopt;
  }

 private:
  enum class State { kFresh, kChallenged, kReading, kMaking, kProven, kOpened };
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
  State state_ = State::kFresh;
  Secret key_;
  Introduction introduction_;
  std::optional<UserId> agent_user_;
};

// Whether an agent of user `own` believes that a service of user `service` is nobody's trap: its
// own, root's, or that of a system account.
constexpr bool is_believable(UserId service, UserId own) {
  return service == own || service < kFirstUserOfPeople;
}

class AgentHandshake {
 public:
  // key: of the job. nonce: random, of this connection alone. channel: of Introduction.
  AgentHandshake(Secret key, Knock knock, std::string channel = {});
  // By munge, where there is no key.
  struct ByMunge {
    UserId own;                  // the agent's user
    bool demands_proof = false;  // an open service is not good enough
  };
  AgentHandshake(const ByMunge& munge, Knock knock, std::string channel = {});

  const Knock& knock() const { return knock_; }

  // What to do next, until is_over(): send the Proof, have munge do the task and tell answered(),
  // or nothing, for a Proven and an Open. A Refused or a Silence comes back as it is, and proves
  // nothing: anybody could say it.
  // kProtocol: the service did not prove what it must, or says what it must not say now; nothing of
  // it is to be believed. kUnsupported: it is not one for this node. Else: munge is in trouble here.
  using Step = std::variant<Proof, Proven, Open, Refused, Silence, MungeTask>;
  Result<Step> receive(const ServiceHandshakeMessage& message);
  // REQUIRES: the last step was a MungeTask.
  Result<Step> answered(const MungeOutcome& outcome);

  bool is_over() const { return state_ == State::kOver; }
  // To be asked after each Proof, Proven and Open: the Hello is to follow now.
  bool is_time_for_hello() const {
    return state_ == (knock_.method == ProofMethod::kKey ? State::kAnswered : State::kOver);
  }

 private:
  enum class State { kKnocked, kMaking, kAnswered, kReading, kOver };
  Result<Step> challenged(const Challenge& challenge);
  Result<Step> prove(const std::string& proof);

  Secret key_;
  ByMunge munge_;
  Knock knock_;
  Introduction introduction_;
  UserId service_user_;  // that it says it runs as
  State state_ = State::kKnocked;
};

}  // namespace ddprun
