// Fuzzes the store's parser and state. The input is the bytes of one connection, of any dialect.
//
//   scripts/build fuzz wire_format_fuzz
//   build/fuzz/bin/wire_format_fuzz -max_total_time=60 tests/fuzz/corpus/wire_format
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "rendezvous/store/core/kv_state.h"
#include "rendezvous/store/core/wire_format.h"

namespace ddprun {
namespace {

// Small limits, so that inputs of a few bytes reach all of them.
constexpr RequestLimits kLimits{
    .key_bytes = 16, .value_bytes = 64, .keys = 8, .request_bytes = 256};
constexpr KvLimits kKvLimits{.reply_bytes = 512, .held_bytes = 2048};

struct Outcome {
  std::string encoded;  // the requests, encoded again
  std::string error;

  bool operator==(const Outcome&) const = default;
};

Outcome parse(std::string_view bytes, std::size_t piece_bytes, Dialect legacy) {
  Outcome outcome;
  RequestParser parser(kLimits, legacy);
  std::size_t fed = 0;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, piece_bytes);
    bytes.remove_prefix(piece.size());
    parser.feed(piece);
    while (const Request* request = parser.next()) {
      if (outcome.encoded.empty() && parser.dialect() == Dialect::kModern) {
        put_handshake(outcome.encoded);
      }
      put_request(outcome.encoded, request->command, request->strings, request->number,
                  *parser.dialect());
    }
    fed += piece.size();
    DDPRUN_ASSERT(parser.capacity() <= 4096 + 4 * fed,
                  "memory grows with the bytes that have come");
  }
  if (parser.refusal()) outcome.error = parser.refusal()->reason;
  return outcome;
}

// Gives the requests to several connections in turn, so that they wake each other.
void serve(std::string_view bytes, Dialect legacy) {
  constexpr std::uint64_t kConnections = 4;
  RequestParser parser(kLimits, legacy);
  parser.feed(bytes);
  KvState state(kKvLimits);
  Replies replies;
  std::uint64_t turn = 0;
  while (const Request* request = parser.next()) {
    const StoreConnectionId from(turn++ % kConnections);
    if (parser.gives_up_wait()) state.give_up_wait(from);
    KvState::Progress progress;
    while (!progress.done()) {
      if (!state.handle(from, *request, progress, replies)) continue;
      state.give_up_wait(from);
      break;
    }
    while (state.has_work()) state.work(replies);
    DDPRUN_ASSERT(state.held_bytes() <= kKvLimits.held_bytes, "no more is held than is allowed");
    for (std::size_t i = 0; i < replies.pieces(); ++i) {
      DDPRUN_ASSERT(!replies.piece(i).bytes.empty(), "a reply has bytes");
      DDPRUN_ASSERT(replies.piece(i).to.value < kConnections, "a reply goes to a connection");
    }
    replies.clear();
  }
  for (std::uint64_t id = 0; id < kConnections; ++id) state.give_up_wait(StoreConnectionId(id));
  DDPRUN_ASSERT(state.parked_count() == 0, "no request is parked when all are gone");
}

}  // namespace
}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  for (const Dialect legacy : {Dialect::kL1, Dialect::kL2}) {
    const Outcome whole = parse(bytes, size + 1, legacy);
    for (const std::size_t piece_bytes : {std::size_t{1}, std::size_t{3}, std::size_t{64}}) {
      DDPRUN_ASSERT(parse(bytes, piece_bytes, legacy) == whole, "the pieces do not matter");
    }
    DDPRUN_ASSERT(bytes.starts_with(whole.encoded), "what was understood is what was sent");
    serve(bytes, legacy);
  }
  return 0;
}
