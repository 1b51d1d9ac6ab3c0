// Control frames by hand: what a test's own agent says to a service, and hears. Client is a
// RawTcpClient or a RawTlsClient; whatever waits here ends as its receive() does.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/random_id.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun::testing_support {

// Whatever it says: also what no encoder would write.
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

// The JSON of the next frame; empty where the connection has ended instead.
template <class Client>
std::string next_frame(Client& client) {
  const std::string header = client.receive(kControlHeaderBytes);
  if (header.size() < kControlHeaderBytes) return "";
  return client.receive(get_u32(std::string_view(header).substr(kControlMagic.size())));
}

// The next message of the service; a Refused where there is none that could be read.
template <class Client>
ServiceMessage next_message(Client& client) {
  const auto message = decode_service_message(next_frame(client));
  if (!message) return Refused{message.error().message()};
  return *message;
}

// The next one of this type; nullopt where the service ends the connection before it.
template <class T, class Client>
std::optional<T> await(Client& client) {
  while (true) {
    const ServiceMessage message = next_message(client);
    if (const T* wanted = std::get_if<T>(&message)) return *wanted;
    if (std::holds_alternative<Refused>(message)) return std::nullopt;
  }
}

// The service's next part of a handshake; NoHandshake where it says something else, or nothing.
template <class Client>
ServiceHandshakeMessage next_handshake(Client& client) {
  const auto message = decode_service_handshake(next_frame(client));
  if (!message) return NoHandshake();
  return *message;
}

// Knocks with the key and proves it; what the service says to the proof. channel: the TLS connection's
// binding; empty without TLS.
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
