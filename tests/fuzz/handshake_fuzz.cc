// Fuzzes both sides of the handshake. The input has one JSON message of an unauthenticated peer per
// line.
// Each line goes to a service and to an agent. A fuzzer cannot guess a proof, so words stand for
// the proofs:
//
//   $AGENT    what an agent with the key would prove here
//   $SERVICE  what a service with the key would prove here
//   $OTHER    what an agent with the key has proved on another connection
//   $BACK     what the agent itself has just proved
//   $NONCE    the service's nonce
//
//   scripts/build fuzz handshake_fuzz
//   build/fuzz/bin/handshake_fuzz -max_total_time=60 tests/fuzz/corpus/handshake
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/protocol/core/handshake.h"
#include "tests/fuzz/fuzz_lines.h"

namespace ddprun {
namespace {

constexpr std::string_view kKeys = "its-job the-key-of-its-own-job\nthe-key-of-all-other-jobs\n";
constexpr std::string_view kServiceNonce = "0123456789abcdef";

std::string body_of(const Result<std::string>& frame) {
  DDPRUN_ASSERT(frame, "what is said can be written");
  DDPRUN_ASSERT(frame->size() <= kMaxControlFrameBytes, "and is short");
  return frame->substr(kControlHeaderBytes);
}

// CheckedService: the service's side. It checks what must hold, using only the messages and the
// keys.
class CheckedService {
 public:
  explicit CheckedService(const Keyring& keys)
      : keys_(keys), handshake_(keys, std::string(kServiceNonce)) {}

  void receive(const AgentHandshakeMessage& message) {
    if (refused_) return;
    const ServiceHandshake::Step step = handshake_.receive(message);
    if (const Proof* proof = std::get_if<Proof>(&message); proof && challenged_ && !proven_) {
      proven_ = proof->proof == proof_here();
    }
    DDPRUN_ASSERT(handshake_.is_closed() == (!keys_.empty() && !proven_),
                  "no peer is let in without the key");
    if (step.what == ServiceHandshake::Step::What::kPass) {
      DDPRUN_ASSERT(!handshake_.is_closed(), "nothing passes by who is not let in");
      DDPRUN_ASSERT(std::holds_alternative<NoHandshake>(message), "a handshake is answered");
      return;
    }
    const std::string body = body_of(encode(step.answer));
    const Result<ServiceHandshakeMessage> read = decode<ServiceHandshakeMessage>(body);
    DDPRUN_ASSERT(read && read->index() == step.answer.index(), "the answer can be read");
    refused_ = step.what == ServiceHandshake::Step::What::kRefuse;
    DDPRUN_ASSERT(refused_ == std::holds_alternative<Refused>(step.answer), "a refusal says so");
    if (std::holds_alternative<Challenge>(step.answer)) {
      DDPRUN_ASSERT(!challenged_ && !keys_.empty(), "who knocks is asked once");
      challenged_ = std::get<Knock>(message);
      DDPRUN_ASSERT(challenged_->protocol == kControlProtocol, "and speaks this protocol");
    }
    if (const Proven* proven = std::get_if<Proven>(&step.answer)) {
      DDPRUN_ASSERT(proven_, "it proves its key only to a peer that has proved its own");
      DDPRUN_ASSERT(proven->proof != proof_here(), "the sides prove different things");
      DDPRUN_ASSERT(handshake_.may_join(challenged_->job), "its job is open to it");
      DDPRUN_ASSERT(!handshake_.may_join(challenged_->job + "2"), "and no other");
    }
  }

  // Returns the proof that the agent that knocked would send here; empty before a challenge.
  std::string proof_here() const { return challenged_ ? proof_with(kServiceNonce) : ""; }
  std::string proof_elsewhere() const { return challenged_ ? proof_with("another") : ""; }

 private:
  std::string proof_with(std::string_view nonce) const {
    const std::optional<Secret> key = keys_.key_of(challenged_->job);
    DDPRUN_ASSERT(key, "no job without a key is asked");
    return proof_of(Side::kAgent, key->view(),
                    {.protocol = challenged_->protocol,
                     .version = challenged_->version,
                     .job = challenged_->job,
                     .agent_nonce = challenged_->nonce,
                     .service_nonce = std::string(nonce)});
  }

  Keyring keys_;
  ServiceHandshake handshake_;
  std::optional<Knock> challenged_;
  bool proven_ = false;
  bool refused_ = false;
};

// CheckedAgent: the agent's side, checked in the same way.
class CheckedAgent {
 public:
  CheckedAgent() : handshake_(kKey, {.version = "1", .job = "its-job", .nonce = "agent's"}) {
    body_of(encode(AgentHandshakeMessage(handshake_.knock())));
  }

  void receive(const ServiceHandshakeMessage& message) {
    if (over_) return;
    const auto step = handshake_.receive(message);
    const Proven* proven = std::get_if<Proven>(&message);
    const bool holds_key = proven && nonce_ && proven->proof == service_proof();
    DDPRUN_ASSERT(handshake_.is_over() == holds_key, "no peer is believed without the key");
    over_ = !step || handshake_.is_over() || std::holds_alternative<Refused>(*step);
    if (!step) {
      DDPRUN_ASSERT(step.error().kind == ErrorKind::kProtocol, "the service is to blame");
      DDPRUN_ASSERT(!step.error().cause.empty(), "the agent says why");
    } else if (const Proof* proof = std::get_if<Proof>(&*step)) {
      DDPRUN_ASSERT(!nonce_, "it proves its key once");
      nonce_ = std::get<Challenge>(message).nonce;
      proof_ = proof->proof;
      DDPRUN_ASSERT(decode<AgentHandshakeMessage>(body_of(encode(AgentHandshakeMessage(*proof)))),
                    "its proof can be read");
    }
  }

  // Returns the proof that the agent has sent; empty before.
  const std::string& proof() const { return proof_; }
  // Returns the proof that a service with its key would send; empty before a challenge.
  std::string service_proof() const {
    if (!nonce_) return "";
    const Knock& knock = handshake_.knock();
    return proof_of(Side::kService, kKey,
                    {.protocol = knock.protocol,
                     .version = knock.version,
                     .job = knock.job,
                     .agent_nonce = knock.nonce,
                     .service_nonce = *nonce_});
  }

 private:
  static constexpr const char* kKey = "the-key-of-its-own-job";

  AgentHandshake handshake_;
  std::optional<std::string> nonce_;
  std::string proof_;
  bool over_ = false;
};

void put_in(std::string& text, std::string_view word, std::string_view meaning) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at)) {
    text.replace(at, word.size(), meaning);
    at += meaning.size();
  }
}

void tell(std::string_view story, const Keyring& keys) {
  CheckedService service(keys);
  CheckedAgent agent;
  while (!story.empty()) {
    std::string line(take_line(story));
    put_in(line, "$AGENT", service.proof_here());
    put_in(line, "$SERVICE", agent.service_proof());
    put_in(line, "$OTHER", service.proof_elsewhere());
    put_in(line, "$BACK", agent.proof());
    put_in(line, "$NONCE", kServiceNonce);
    if (const auto message = decode<AgentHandshakeMessage>(line)) service.receive(*message);
    if (const auto message = decode<ServiceHandshakeMessage>(line)) agent.receive(*message);
  }
}

}  // namespace
}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view story(reinterpret_cast<const char*>(data), size);
  tell(story, *Keyring::parse(Secret(kKeys)));
  tell(story, Keyring());
  return 0;
}
