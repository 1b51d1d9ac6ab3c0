// Encodes and decodes control messages. A frame is kControlMagic, a little-endian u32 length, and
// that many bytes of JSON with a "type". docs/reference/wire_protocol.md describes each message.
// Unknown fields are ignored, so that a later version may add some.
//
// Holds pure functions and FrameReader, which has one owner thread.
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

// Message: AgentMessage, ServiceMessage, AgentHandshakeMessage or ServiceHandshakeMessage.

// Returns one frame, ready to be sent. kProtocol: the JSON would be longer than
// kMaxControlFrameBytes. REQUIRES: the message is not NoHandshake.
template <class Message>
Result<std::string> encode(const Message& message);

// Decodes the JSON of one frame.
// - kProtocol: a field is missing, has another type or is out of bounds; the error names the
//   field. The bounds are in rendezvous/protocol/core/control_message.h. Users of a decoded
//   message may rely on them.
// - kUnsupported: this version does not know the type. The caller ignores such a message if the
//   peer has identified itself.
//
// A Hello of another protocol gives only protocol and version; the rest is not read. Among
// handshake messages, NoHandshake stands for every other type, known or not.
template <class Message>
Result<Message> decode(std::string_view json);

// FrameReader: cuts a byte stream into frames. Bytes are appended in pieces of any size. A wrong
// magic or a length above the limit is a kProtocol error, which is returned as soon as the
// header is there.
class FrameReader {
 public:
  // Sets the limit for the JSON of frames that next() has not yet returned. It is
  // kMaxControlFrameBytes at first.
  void set_limit(std::size_t bytes) { limit_ = bytes; }

  void append(std::string_view bytes) { buffer_.append(bytes); }

  // Returns the JSON of the next complete frame, valid until the next call. nullopt: more bytes
  // are needed.
  Result<std::optional<std::string_view>> next();

 private:
  ByteBuffer buffer_;
  std::size_t limit_ = kMaxControlFrameBytes;
  std::size_t handed_out_ = 0;  // bytes of the frame that next() returned last
};

}  // namespace ddprun
