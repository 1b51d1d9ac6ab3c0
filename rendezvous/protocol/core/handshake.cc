#include "rendezvous/protocol/core/handshake.h"

#include "base/assert.h"
#include "base/concat.h"

namespace ddprun {

// --- the service ---------------------------------------------------------------------------------

namespace {

constexpr const char* kNoKeyHere =
    "this service has no key, but this node has been given one: start the service with "
    "--rdzv-key-file, too, or this node without";
constexpr const char* kKeyWanted =
    "this service requires a key: give this node --rdzv-key-file or DDPRUN_RDZV_KEY";
constexpr const char* kMungeWanted =
    "this service authenticates agents by munge, but this node cannot use it (no munged, or "
    "--munge-socket "
    "none): start munged here, or give --rdzv-key-file to the service and to all nodes, or "
    "--munge-socket none to the service";

}  // namespace

ServiceHandshake::Step ServiceHandshake::receive(const AgentHandshakeMessage& message) {
  const Knock* knock = std::get_if<Knock>(&message);
  const Proof* proof = std::get_if<Proof>(&message);
  if (keys_.empty() && !munge_user_) return without_proof(message);
  switch (state_) {
    case kFresh:
      if (knock) return knocked(*knock);
      return refuse(keys_.empty() ? kMungeWanted : kKeyWanted);
    case kChallenged:
      if (proof) return prove(*proof);
      break;
    case kProven:
      if (!knock && !proof) return {};
      break;
    case kReading:
    case kMaking:
    case kOpened: break;
  }
  return refuse("a handshake is a knock and a proof, once");
}

ServiceHandshake::Step ServiceHandshake::without_proof(const AgentHandshakeMessage& message) {
  const Knock* knock = std::get_if<Knock>(&message);
  if (!knock && !std::holds_alternative<Proof>(message)) return {};
  if (knock && knock->protocol != kControlProtocol) {
    return refuse(other_protocol(knock->protocol, knock->version));
  }
  if (!knock || knock->method == ProofMethod::kKey) return refuse(kNoKeyHere);
  if (state_ == kOpened) return refuse("a handshake is a knock, once, where all is open");
  state_ = kOpened;
  return answer(Open());
}

ServiceHandshake::Step ServiceHandshake::knocked(const Knock& knock) {
  if (knock.protocol != kControlProtocol) {
    return refuse(other_protocol(knock.protocol, knock.version));
  }
  Challenge challenge{nonce_, std::nullopt};
  if (!keys_.empty()) {
    if (knock.method != ProofMethod::kKey) {
      return refuse(kKeyWanted);
    }
    const std::optional<Secret> key = keys_.key_of(knock.job);
    if (!key) return refuse("this service has no key for job '" + knock.job + "'");
    key_ = *key;
  } else {
    if (knock.method != ProofMethod::kMunge) {
      return refuse(kNoKeyHere);
    }
    challenge.user = munge_user_;
  }
  introduction_ = {.protocol = knock.protocol,
                   .version = knock.version,
                   .job = knock.job,
                   .agent_nonce = knock.nonce,
                   .service_nonce = nonce_,
                   .channel = std::move(introduction_.channel)};
  state_ = kChallenged;
  return answer(challenge);
}

ServiceHandshake::Step ServiceHandshake::prove(const Proof& proof) {
  if (keys_.empty()) {
    state_ = kReading;
    return {.what = Step::What::kAskMunge, .task = ReadCredential{proof.proof}};
  }
  if (!is_same_secret(proof.proof, proof_of(Side::kAgent, key_.view(), introduction_))) {
    return refuse_proof("the key of this node is not the key that this service has for job '" +
                        introduction_.job + "'");
  }
  state_ = kProven;
  return answer(Proven{proof_of(Side::kService, key_.view(), introduction_)});
}

ServiceHandshake::Step ServiceHandshake::answered(const MungeOutcome& outcome) {
  DDPRUN_ASSERT(state_ == kReading || state_ == kMaking, "munge was asked");
  if (!outcome) {
    const bool is_peers = state_ == kReading && outcome.error().kind == ErrorKind::kProtocol;
    if (is_peers) {
      return refuse_proof("munge rejects the credential of this node: " + outcome.error().cause);
    }
    return {.what = Step::What::kPutOff,
            .answer = Silence{"munge fails on the service's host: " + outcome.error().message()}};
  }
  if (state_ == kMaking) {
    state_ = kProven;
    return answer(Proven{outcome->text});
  }
  if (!is_same_secret(outcome->text, statement_of(Side::kAgent, introduction_))) {
    return refuse_proof("munge's credential was made for another connection");
  }
  agent_user_ = outcome->maker;
  state_ = kMaking;
  return {.what = Step::What::kAskMunge,
          .task = MakeCredential{statement_of(Side::kService, introduction_), outcome->maker}};
}

// --- the agent -----------------------------------------------------------------------------------

namespace {

Error bad(std::string cause, ErrorKind kind = ErrorKind::kProtocol) {
  return Error{
      .kind = kind, .doing = "authenticate with the rendezvous service", .cause = std::move(cause)};
}

constexpr const char* kNotProven = "it did not prove that it holds the key of this job";

}  // namespace

AgentHandshake::AgentHandshake(Secret key, Knock knock, std::string channel,
                               const MungeProof& munge)
    : key_(std::move(key)),
      munge_(munge),
      knock_(std::move(knock)),
      introduction_{.protocol = knock_.protocol,
                    .version = knock_.version,
                    .job = knock_.job,
                    .agent_nonce = knock_.nonce,
                    .service_nonce = {},
                    .channel = std::move(channel)} {
  knock_.method = key_.empty() ? ProofMethod::kMunge : ProofMethod::kKey;
}

Result<AgentHandshake::Step> AgentHandshake::receive(const ServiceHandshakeMessage& message) {
  if (const Refused* refused = std::get_if<Refused>(&message)) return Step(*refused);
  if (const Silence* silence = std::get_if<Silence>(&message)) return Step(*silence);
  const bool by_munge = knock_.method == ProofMethod::kMunge;
  if (const Challenge* challenge = std::get_if<Challenge>(&message);
      challenge && state_ == kKnocked) {
    return challenged(*challenge);
  }
  if (std::holds_alternative<Open>(message) && state_ == kKnocked && by_munge) {
    if (munge_.demands_proof) {
      return bad("it admits every node, but this node requires proof of its identity",
                 ErrorKind::kUnsupported);
    }
    state_ = kOver;
    return Step(Open());
  }
  if (const Proven* proven = std::get_if<Proven>(&message); proven && state_ == kAnswered) {
    return prove(proven->proof);
  }
  return bad(by_munge ? "it did not prove its identity by munge" : kNotProven);
}

Result<AgentHandshake::Step> AgentHandshake::challenged(const Challenge& challenge) {
  introduction_.service_nonce = challenge.nonce;
  if (knock_.method == ProofMethod::kKey) {
    state_ = kAnswered;
    return Step(Proof{proof_of(Side::kAgent, key_.view(), introduction_)});
  }
  if (!challenge.user) return bad("it does not say which user it runs as");
  service_user_ = *challenge.user;
  if (!is_believable(service_user_, munge_.own)) {
    return bad(concat("it runs as user ", service_user_, ", but this node's user ", munge_.own,
                      " trusts only itself, root and system accounts (below ", kFirstUserOfPeople,
                      "): run it as one of these, or give --rdzv-key-file to it and to all nodes"),
               ErrorKind::kUnsupported);
  }
  state_ = kMaking;
  return Step(MungeTask(MakeCredential{statement_of(Side::kAgent, introduction_), service_user_}));
}

Result<AgentHandshake::Step> AgentHandshake::prove(const std::string& proof) {
  if (knock_.method == ProofMethod::kMunge) {
    state_ = kReading;
    return Step(MungeTask(ReadCredential{proof}));
  }
  if (!is_same_secret(proof, proof_of(Side::kService, key_.view(), introduction_))) {
    return bad("it does not hold the key of this job");
  }
  state_ = kOver;
  return Step(Proven{proof});
}

Result<AgentHandshake::Step> AgentHandshake::answered(const MungeOutcome& outcome) {
  DDPRUN_ASSERT(state_ == kReading || state_ == kMaking, "munge was asked");
  if (!outcome) return outcome.error();
  if (state_ == kMaking) {
    state_ = kAnswered;
    return Step(Proof{outcome->text});
  }
  if (!is_same_secret(outcome->text, statement_of(Side::kService, introduction_))) {
    return bad("munge's credential was made for another connection");
  }
  if (outcome->maker != service_user_) {
    return bad(concat("it claims to run as user ", service_user_,
                      ", but according to munge as user ", outcome->maker));
  }
  state_ = kOver;
  return Step(Proven{outcome->text});
}

}  // namespace ddprun
