#include "rendezvous/core/handshake.h"

namespace ddprun {

ServiceHandshake::Step ServiceHandshake::receive(const AgentHandshakeMessage& message) {
  const Knock* knock = std::get_if<Knock>(&message);
  const Proof* proof = std::get_if<Proof>(&message);
  if (keys_.empty()) {
    if (!knock && !proof) return {};
    return refuse(
        "this service has no key, but this node has been given one: start the service with "
        "--rdzv-key-file, too, or this node without");
  }
  switch (state_) {
    case State::kFresh:
      if (knock) return knocked(*knock);
      return refuse(
          "this service admits nobody without a key: give this node --rdzv-key-file or "
          "DDPRUN_RDZV_KEY");
    case State::kChallenged:
      if (!proof) break;
      if (!is_same_secret(proof->proof, proof_of(Side::kAgent, key_, introduction_))) {
        return refuse("the key of this node is not the key that this service has for job '" +
                      introduction_.job + "'");
      }
      state_ = State::kProven;
      return {Step::What::kAnswer, Proven{proof_of(Side::kService, key_, introduction_)}};
    case State::kProven:
      if (knock || proof) break;
      return {};
  }
  return refuse("a handshake is a knock and a proof, once");
}

ServiceHandshake::Step ServiceHandshake::knocked(const Knock& knock) {
  if (knock.protocol != kControlProtocol) {
    return refuse(other_protocol(knock.protocol, knock.version));
  }
  const std::optional<std::string> key = keys_.key_of(knock.job);
  if (!key) return refuse("this service has no key for job '" + knock.job + "'");
  key_ = *key;
  introduction_ = {.protocol = knock.protocol,
                   .version = knock.version,
                   .job = knock.job,
                   .agent_nonce = knock.nonce,
                   .service_nonce = nonce_,
                   .channel = std::move(introduction_.channel)};
  state_ = State::kChallenged;
  return {Step::What::kAnswer, Challenge{nonce_}};
}

AgentHandshake::AgentHandshake(std::string key, Knock knock, std::string channel)
    : key_(std::move(key)),
      knock_(std::move(knock)),
      introduction_{.protocol = knock_.protocol,
                    .version = knock_.version,
                    .job = knock_.job,
                    .agent_nonce = knock_.nonce,
                    .service_nonce = {},
                    .channel = std::move(channel)} {}

Result<std::variant<Proof, Proven, Refused>> AgentHandshake::receive(
    const ServiceHandshakeMessage& message) {
  using Step = std::variant<Proof, Proven, Refused>;
  const auto bad = [](std::string cause) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "prove the key to the rendezvous service",
                 .cause = std::move(cause)};
  };
  if (const Refused* refused = std::get_if<Refused>(&message)) return Step(*refused);
  if (const Challenge* challenge = std::get_if<Challenge>(&message);
      challenge && state_ == State::kKnocked) {
    introduction_.service_nonce = challenge->nonce;
    state_ = State::kAnswered;
    return Step(Proof{proof_of(Side::kAgent, key_, introduction_)});
  }
  if (const Proven* proven = std::get_if<Proven>(&message); proven && state_ == State::kAnswered) {
    if (!is_same_secret(proven->proof, proof_of(Side::kService, key_, introduction_))) {
      return bad("it does not hold the key of this job");
    }
    state_ = State::kOver;
    return Step(*proven);
  }
  return bad("it did not prove that it holds the key of this job");
}

}  // namespace ddprun
