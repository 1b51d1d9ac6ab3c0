// Control messages as bytes: a frame is kControlMagic, a little-endian u32 length, and that many
// bytes of JSON with a "type". docs/wire_protocol.md describes each message; unknown fields are
// ignored, so that a later version may add some. Pure functions and a value-like reader; one owner
// thread.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "base/result.h"
#include "rendezvous/net/core/byte_buffer.h"
#include "rendezvous/net/core/first_bytes.h"
#include "rendezvous/protocol/core/control_message.h"
#include "rendezvous/protocol/core/handshake.h"

namespace ddprun {

inline constexpr std::size_t kControlHeaderBytes = kControlMagic.size() + sizeof(std::uint32_t);
inline constexpr std::size_t kMaxControlFrameBytes = 1 << 20;

// One frame, ready to be sent. kProtocol: it would be longer than kMaxControlFrameBytes.
Result<std::string> encode(const AgentMessage& message);
Result<std::string> encode(const ServiceMessage& message);
// REQUIRES: not NoHandshake.
Result<std::string> encode(const AgentHandshakeMessage& message);
Result<std::string> encode(const ServiceHandshakeMessage& message);

// The JSON of one frame. kProtocol says which field is missing, of another type or out of bounds
// (rendezvous/protocol/core/control_message.h): what is handed on can be relied on by those behind.
// kUnsupported: it has a type that this version does not know, and is to be passed over where the
// other side has said who it is. Of a Hello of another protocol only the versions are read.
Result<AgentMessage> decode_agent_message(std::string_view json);
Result<ServiceMessage> decode_service_message(std::string_view json);
// The same for messages of a handshake; NoHandshake for every other type, known or not.
Result<AgentHandshakeMessage> decode_agent_handshake(std::string_view json);
Result<ServiceHandshakeMessage> decode_service_handshake(std::string_view json);

// Cuts a byte stream into frames. Bytes are appended in pieces of any size; a wrong magic or a
// length above the limit is a kProtocol error, noticed as soon as the header is there.
class FrameReader {
 public:
  // For frames that have not begun to be read; kMaxControlFrameBytes at first.
  void set_limit(std::size_t bytes) { limit_ = bytes; }

  void append(std::string_view bytes) { buffer_.append(bytes); }

  // The JSON of the next complete frame, valid until the next call; nullopt: more bytes are needed.
  Result<std::optional<std::string_view>> next();

 private:
  ByteBuffer buffer_;
  std::size_t limit_ = kMaxControlFrameBytes;
  std::size_t handed_out_ = 0;  // bytes of the frame that was handed out last
};

}  // namespace ddprun
