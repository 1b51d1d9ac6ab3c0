// Control frames for tests that act as an agent: the frames that they send to a service and the
// frames that they receive.
//
// Client is RawTcpClient or RawTlsClient. Each function that waits has the timeout of
// Client::receive().
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/random_id.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun::testing_support {

// Returns a frame with this text, whether or not it is valid JSON. So a test can send frames
// that no encoder would write.
inline std::string frame_of(std::string_view json) {
  std::string frame(kControlMagic);
  put_u32(frame, static_cast<std::uint32_t>(json.size()));
  return frame.append(json);
}

template <class Client>
void say(Client& client, const AgentMessage& message) {
  client.send(*encode(message));
}
template <class Client>
void say(Client& client, const AgentHandshakeMessage& message) {
  client.send(*encode(message));
}

// Returns the JSON of the next frame; empty if the connection ends first.
template <class Client>
std::string next_frame(Client& client) {
  const std::string header = client.receive(kControlHeaderBytes);
  if (header.size() < kControlHeaderBytes) return "";
  return client.receive(get_u32(std::string_view(header).substr(kControlMagic.size())));
}

// Returns the next message of the service. Returns a Refused if no message can be read.
template <class Client>
ServiceMessage next_message(Client& client) {
  const auto message = decode<ServiceMessage>(next_frame(client));
  if (!message) return Refused{message.error().message()};
  return *message;
}

// Returns the next message of this type and drops those before it. nullopt: the connection ends
// first, or the service refuses.
template <class T, class Client>
std::optional<T> await(Client& client) {
  while (true) {
    const ServiceMessage message = next_message(client);
    if (const T* wanted = std::get_if<T>(&message)) return *wanted;
    if (std::holds_alternative<Refused>(message)) return std::nullopt;
  }
}

// Returns the service's next handshake message. NoHandshake: there is none, or the message is
// another one.
template <class Client>
ServiceHandshakeMessage next_handshake(Client& client) {
  const auto message = decode<ServiceHandshakeMessage>(next_frame(client));
  if (!message) return NoHandshake();
  return *message;
}

// Sends a knock and proves that this client has the key. Returns the service's answer to the
// proof. channel: the channel binding of the TLS connection; empty without TLS.
template <class Client>
ServiceHandshakeMessage prove(Client& client, const std::string& key, const std::string& job,
                              const std::string& channel = "") {
  AgentHandshake agent(key, {.version = "v", .job = job, .nonce = random_hex(kNonceBytes)},
                       channel);
  say(client, agent.knock());
  const auto proof = agent.receive(next_handshake(client));
  if (!proof || !std::holds_alternative<Proof>(*proof)) return NoHandshake();
  say(client, std::get<Proof>(*proof));
  return next_handshake(client);
}

inline std::string reason_of(const ServiceHandshakeMessage& message) {
  const Refused* refused = std::get_if<Refused>(&message);
  return refused ? refused->reason : "not refused";
}

}  // namespace ddprun::testing_support
