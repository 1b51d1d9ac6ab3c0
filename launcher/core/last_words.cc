#include "launcher/core/last_words.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <set>
#include <string_view>

#include "base/parse_number.h"

namespace ddprun {
namespace {

// Words of ddprun's own library (worker_lib/cpu), and those that others use.
constexpr std::array kFates = std::to_array<std::string_view>(
    {"closed", "has closed", "has left", "is gone", "died", "has died", "is dead",
     "is out of reach", "disconnected", "has failed", "failed to pass monitoredbarrier"});

// The ranks that a line of small letters names in front of a fate: "rank 3 closed its connection", "peer 3 is gone".
void find_blamed(std::string_view line, std::set<int>& ranks) {
  for (const std::string_view word : {"rank ", "peer "}) {
    for (std::size_t at = line.find(word); at != std::string_view::npos;
         at = line.find(word, at + word.size())) {
      const std::string_view behind = line.substr(at + word.size());
      const auto is_digit = [](unsigned char c) { return std::isdigit(c) != 0; };
      const auto end = std::find_if_not(behind.begin(), behind.end(), is_digit);
      const auto digits = static_cast<std::size_t>(end - behind.begin());
      const std::optional<int> rank = parse_number<int>(behind.substr(0, digits));
      if (!rank) continue;
      if (line.substr(0, at).ends_with("connection closed by ") && word == "rank ") {
        ranks.insert(*rank);
        continue;
      }
      std::string_view fate = behind.substr(digits);
      if (fate.starts_with(':')) fate.remove_prefix(1);
      if (!fate.starts_with(' ')) continue;
      fate.remove_prefix(1);
      if (std::any_of(kFates.begin(), kFates.end(),
                      [&](std::string_view known) { return fate.starts_with(known); })) {
        ranks.insert(*rank);
      }
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
    constexpr std::size_t kLast = 3;  // earlier lines may speak of what was survived
    const std::size_t from = stderr_tail.size() - std::min(kLast, stderr_tail.size());
    for (std::size_t i = from; i < stderr_tail.size(); ++i) {
      find_blamed(in_small_letters(stderr_tail[i]), ranks);
    }
  }
  return ranks.size() == 1 ? std::optional(Rank(*ranks.begin())) : std::nullopt;
}

}  // namespace ddprun
