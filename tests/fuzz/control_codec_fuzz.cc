// Fuzzes the frames of the control protocol and every decoder of its messages. The input is
// taken as the bytes of one connection, and also as the JSON of one frame. So the fuzzer reaches
// the decoders without a correct frame length.
//
//   scripts/build fuzz control_codec_fuzz
//   build/fuzz/bin/control_codec_fuzz -max_total_time=60 tests/fuzz/corpus/control_codec
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "rendezvous/protocol/control_codec.h"

namespace ddprun {
namespace {

// The cause of an error must fit one line of a log, whatever the peer sent.
constexpr std::size_t kMaxCauseBytes = 256;
// The bytes that a message may gain when it is encoded again: optional fields that were missing.
constexpr std::size_t kOptionalBytes = 2048;

void check_refusal(const Error& error) {
  DDPRUN_ASSERT(error.kind == ErrorKind::kProtocol || error.kind == ErrorKind::kUnsupported,
                "the peer is to blame");
  DDPRUN_ASSERT(!error.cause.empty(), "a refusal says why");
  DDPRUN_ASSERT(error.cause.size() <= kMaxCauseBytes, "in few words");
  DDPRUN_ASSERT(std::none_of(error.cause.begin(), error.cause.end(),
                             [](unsigned char c) { return c < ' ' || c == 0x7f; }),
                "and in one line");
}

// Compares messages by their encodings, because not all message types can be compared directly.
template <class Message>
void check_message(std::string_view json, Result<Message> (*decode)(std::string_view)) {
  const Result<Message> message = decode(json);
  if (!message) return check_refusal(message.error());
  if constexpr (std::is_same_v<std::variant_alternative_t<0, Message>, NoHandshake>) {
    if (message->index() == 0) return;
  }
  const Result<std::string> frame = encode(*message);
  if (!frame) {
    DDPRUN_ASSERT(json.size() + kOptionalBytes > kMaxControlFrameBytes, "it is not that long");
    return;
  }
  DDPRUN_ASSERT(frame->size() <= json.size() + kOptionalBytes, "little is added");
  FrameReader frames;
  frames.append(*frame);
  const auto body = frames.next();
  DDPRUN_ASSERT(body && *body, "a frame of ours is a frame");
  const Result<Message> again = decode(**body);
  DDPRUN_ASSERT(again && again->index() == message->index(), "what is written can be read");
  DDPRUN_ASSERT(*encode(*again) == *frame, "and says the same");
}

void check_messages(std::string_view json) {
  check_message(json, decode<AgentMessage>);
  check_message(json, decode<ServiceMessage>);
  check_message(json, decode<AgentHandshakeMessage>);
  check_message(json, decode<ServiceHandshakeMessage>);
}

struct Reading {
  std::vector<std::string> frames;
  std::string error;

  bool operator==(const Reading&) const = default;
};

Reading read(std::string_view bytes, std::size_t piece_bytes, std::size_t limit) {
  Reading reading;
  FrameReader frames;
  frames.set_limit(limit);
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, piece_bytes);
    bytes.remove_prefix(piece.size());
    frames.append(piece);
    while (true) {
      const auto frame = frames.next();
      if (!frame) {
        check_refusal(frame.error());
        reading.error = frame.error().cause;
        return reading;
      }
      if (!*frame) break;
      DDPRUN_ASSERT((*frame)->size() <= limit, "no frame is longer than it may be");
      reading.frames.emplace_back(**frame);
    }
  }
  return reading;
}

}  // namespace
}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  check_messages(bytes);
  for (const std::size_t limit : {kMaxHandshakeBytes, kMaxControlFrameBytes}) {
    const Reading whole = read(bytes, size + 1, limit);
    for (const std::size_t piece_bytes : {std::size_t{1}, std::size_t{7}}) {
      DDPRUN_ASSERT(read(bytes, piece_bytes, limit) == whole, "the pieces do not matter");
    }
    if (limit != kMaxControlFrameBytes) continue;
    for (const std::string& frame : whole.frames) check_messages(frame);
  }
  return 0;
}
