// Fuzzes the first steps at the service's port: the detection of the client's kind, and HTTP as
// HttpExchange reads it. The input is the bytes of one connection.
//
//   scripts/build fuzz http_fuzz
//   build/fuzz/bin/http_fuzz -max_total_time=60 tests/fuzz/corpus/http
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "base/assert.h"
#include "rendezvous/http/exchange.h"
#include "rendezvous/net/core/first_bytes.h"

namespace ddprun {
namespace {

constexpr std::size_t kRequests = 5;
// The number of bytes that Transport reads at a time.
constexpr std::size_t kPieceBytes = 4096;

std::optional<HttpPage> page(const HttpRequest& request) {
  const std::string_view path = request.path;
  DDPRUN_ASSERT(path.find('?') == path.npos, "a query is no part of the path");
  if (path == "/metrics") return HttpPage{.body = body_of("ddprun_jobs 0\n")};
  DDPRUN_ASSERT(request.is_post ? HttpExchange::takes_post(path) : request.body.empty(),
                "few paths take a body");
  if (HttpExchange::takes_post(path))
    return HttpPage{.body = body_of(std::string(request.body) + "\n")};
  if (path == "/readyz") return HttpPage{.body = body_of("not yet\n"), .status = 503};
  return std::nullopt;
}

// Returns the client's kind by the fewest bytes that tell it, at most two. Checks that more bytes
// do not change it.
std::optional<ClientKind> identify(std::string_view bytes) {
  for (std::size_t size = 0; size <= bytes.size(); ++size) {
    const std::optional<ClientKind> kind = client_kind_of(bytes.substr(0, size));
    if (!kind) continue;
    DDPRUN_ASSERT(size <= 2, "two bytes tell");
    DDPRUN_ASSERT(client_kind_of(bytes) == kind, "more bytes change nothing");
    return kind;
  }
  DDPRUN_ASSERT(bytes.size() < 2, "two bytes tell");
  return std::nullopt;
}

// Returns all answers of a connection.
std::string converse(std::string_view bytes, std::size_t piece_bytes) {
  static const std::set<int> kStatuses{200, 400, 404, 405, 413, 431, 503};
  HttpExchange exchange(page, kRequests);
  std::string answers;
  std::size_t answered = 0;
  bool over = false;
  while (!bytes.empty() && !over) {
    const std::string_view piece = bytes.substr(0, piece_bytes);
    bytes.remove_prefix(piece.size());
    exchange.append(piece);
    while (const std::optional<HttpAnswer> answer = exchange.next()) {
      DDPRUN_ASSERT(!over, "nothing comes after the last answer");
      DDPRUN_ASSERT(kStatuses.contains(answer->status), "a status of ours");
      DDPRUN_ASSERT(answer->head.starts_with("HTTP/1.1 "), "an answer is HTTP");
      answers += answer->head + (answer->body ? *answer->body : "");
      over = answer->last;
      ++answered;
    }
    DDPRUN_ASSERT(exchange.capacity() <= 4 * (HttpExchange::kMaxHeaderBytes +
                                              HttpExchange::kMaxBodyBytes + piece.size()),
                  "memory is bounded");
  }
  DDPRUN_ASSERT(answered <= kRequests, "requests are bounded");
  if (!over && exchange.has_begun()) answers += exchange.refuse(408, "late").head;
  return answers;
}

}  // namespace
}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  identify(bytes);
  const std::string whole = converse(bytes, size + 1);
  for (const std::size_t piece_bytes : {std::size_t{1}, std::size_t{7}, kPieceBytes}) {
    DDPRUN_ASSERT(converse(bytes, piece_bytes) == whole, "the pieces do not matter");
  }
  return 0;
}
