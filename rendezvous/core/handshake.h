// The handshake by which an agent and the rendezvous service prove to each other that they hold the
// job's key, before either says more. Without a key there is none: the agent begins with its Hello.
//
//   agent                                   service
//   Knock: protocol, version, job, nonce
//                                           Challenge: nonce
//   Proof; its Hello may follow at once
//                                           Proven; then what answers the Hello
//
// The agent proves first, so that a stranger who knocks gets nothing that a guess of the key could
// be tried on. What is proved is bound to all that was said (rendezvous/core/proof.h). The
// handshake says who speaks; it does not hide or seal what follows.
//
// Pure machines, one of each per connection: messages in, messages out. One owner thread each.
#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/result.h"
#include "rendezvous/core/control_message.h"
#include "rendezvous/core/keyring.h"
#include "rendezvous/core/proof.h"

namespace ddprun {

// Until a proof has been accepted, a frame has at most this many bytes.
inline constexpr std::size_t kMaxHandshakeBytes = 4096;

struct Knock {
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
};
struct Proven {
  std::string proof;
};
using ServiceHandshakeMessage = std::variant<NoHandshake, Refused, Challenge, Proven>;

class ServiceHandshake {
 public:
  // keys: empty for a service without any. nonce: random, of this connection alone.
  ServiceHandshake(const Keyring& keys, std::string nonce)
      : keys_(keys), nonce_(std::move(nonce)) {}

  // What to do with the next message of the agent. REQUIRES: nobody was refused.
  struct Step {
    enum class What {
      kAnswer,  // send `answer`
      kRefuse,  // send `answer`, and close: a failure of the peer
      kPass,    // the message is no part of the handshake and is welcome
    };
    What what = What::kPass;
    ServiceHandshakeMessage answer;
  };
  Step receive(const AgentHandshakeMessage& message);

  // What the connection goes through is called so at both ends, and what is proved is bound to it
  // (Introduction::channel). REQUIRES: nothing was received yet.
  void bind_to(std::string channel) { introduction_.channel = std::move(channel); }

  // Nothing but handshake messages is welcome yet.
  bool is_closed() const { return !keys_.empty() && state_ != State::kProven; }
  // Whether an agent of that job may speak here.
  bool may_join(const std::string& job) const {
    return state_ != State::kProven || job == introduction_.job;
  }

 private:
  enum class State { kFresh, kChallenged, kProven };
  static Step refuse(std::string reason) {
    return {Step::What::kRefuse, Refused{std::move(reason)}};
  }
  Step knocked(const Knock& knock);

  Keyring keys_;
  std::string nonce_;
  State state_ = State::kFresh;
  std::string key_;
  Introduction introduction_;
};

class AgentHandshake {
 public:
  // key: of the job. nonce: random, of this connection alone. channel: of Introduction.
  AgentHandshake(std::string key, Knock knock, std::string channel = {});

  const Knock& knock() const { return knock_; }

  // What to do with the next message of the service, until is_over(). kProtocol: it did not prove
  // that it holds the key, or says what it must not say now; nothing of it is to be believed.
  // A Refused comes back as it is, and proves nothing: anybody could say it.
  Result<std::variant<Proof, Proven, Refused>> receive(const ServiceHandshakeMessage& message);
  bool is_over() const { return state_ == State::kOver; }

 private:
  enum class State { kKnocked, kAnswered, kOver };

  std::string key_;
  Knock knock_;
  Introduction introduction_;
  State state_ = State::kKnocked;
};

}  // namespace ddprun
