#include "rendezvous/protocol/core/same_failure.h"

#include <algorithm>
#include <cctype>
#include <string>

namespace ddprun {
namespace {

// Ends that are not reported in full have shorter texts.
constexpr std::size_t kComparedBytes = 150;

// Returns the text with '#' for each number, because ranks, addresses and times differ.
std::string words_of(const WorkerEnd& end) {
  const std::string& words =
      end.message.empty() && !end.stderr_tail.empty() ? end.stderr_tail.back() : end.message;
  std::string text;
  for (const char c : words.substr(0, kComparedBytes)) {
    const bool is_digit = std::isdigit(static_cast<unsigned char>(c)) != 0;
    if (!is_digit) text += c;
    if (is_digit && !text.ends_with('#')) text += '#';
  }
  return text;
}

bool is_failure_of_worker(const WorkerEnd& end) {
  return end.kind == EndKind::kExited || end.kind == EndKind::kSignaled;
}

}  // namespace

bool is_same_failure(const WorkerEnd& end, const WorkerEnd& first) {
  if (!is_failure_of_worker(end) || !is_failure_of_worker(first)) return false;
  if (end.blames >= 0 || first.blames >= 0) return false;
  const bool is_alike = end.kind == first.kind && end.code == first.code;
  if (!is_alike && !end.after_stop) return false;
  const std::string words = words_of(first);
  return !words.empty() && words_of(end) == words;
}

}  // namespace ddprun
