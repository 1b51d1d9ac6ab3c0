#include "launcher/supervisor/core/failure_attribution.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "base/parse_number.h"

namespace ddprun {
namespace {

// Phrases after a rank that say that it is gone: those of ddprun's own library
// (worker_lib/cpu_group), and usual ones of other libraries.
constexpr std::array kFates = std::to_array<std::string_view>(
    {"closed", "has closed", "has left", "is gone", "died", "has died", "is dead",
     "is out of reach", "disconnected", "has failed", "failed to pass monitoredbarrier"});

// Phrases before a rank: "connection closed by rank 3". The last one is from PyTorch's
// monitored barrier.
constexpr std::array kDeeds = std::to_array<std::string_view>(
    {"closed by ", "reset by ", "received errors while waiting for send/recv from "});

bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) != 0; }

// Finds the ranks in a text with such a phrase: "rank 3 closed its connection", "Peer 3:
// closed".
void find_blamed(std::string_view text, std::set<int>& ranks) {
  std::string line(text);
  for (char& c : line) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  for (const std::string_view word : {"rank ", "peer "}) {
    for (std::size_t at = line.find(word); at != std::string::npos;
         at = line.find(word, at + word.size())) {
      if (at > 0 && is_letter(line[at - 1])) continue;
      const std::string_view before = std::string_view(line).substr(0, at);
      std::string_view behind = std::string_view(line).substr(at + word.size());
      const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
      const auto end = std::ranges::find_if_not(behind, is_digit);
      const auto digits = static_cast<std::size_t>(end - behind.begin());
      const std::optional<int> rank = parse_number<int>(behind.substr(0, digits));
      if (!rank) continue;
      behind.remove_prefix(digits);
      if (behind.starts_with(':')) behind.remove_prefix(1);
      const bool is_fate =
          behind.starts_with(' ') && std::ranges::any_of(kFates, [&](std::string_view known) {
            return behind.substr(1).starts_with(known);
          });
      const bool is_deed = std::ranges::any_of(
          kDeeds, [&](std::string_view known) { return before.ends_with(known); });
      if (is_fate || is_deed) ranks.insert(*rank);
    }
  }
}

std::string in_small_letters(std::string text) {
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return text;
}

}  // namespace

std::optional<Rank> blamed_rank(const std::string& message,
                                const std::vector<std::string>& stderr_tail) {
  std::set<int> ranks;
  find_blamed(in_small_letters(message), ranks);
  if (ranks.empty()) {
    constexpr std::size_t kLast = 3;  // earlier lines may describe errors that the worker survived
    const std::size_t from = stderr_tail.size() - std::min(kLast, stderr_tail.size());
    for (std::size_t i = from; i < stderr_tail.size(); ++i) {
      find_blamed(in_small_letters(stderr_tail[i]), ranks);
    }
  }
  return ranks.size() == 1 ? std::optional(Rank(*ranks.begin())) : std::nullopt;
}

}  // namespace ddprun
