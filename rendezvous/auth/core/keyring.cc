#include "rendezvous/auth/core/keyring.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/concat.h"

namespace ddprun {
namespace {

std::vector<std::string_view> words_of(std::string_view line) {
  constexpr std::string_view kSpace = " \t\r\v\f";
  std::vector<std::string_view> words;
  while (true) {
    const std::size_t begin = line.find_first_not_of(kSpace);
    if (begin == line.npos) return words;
    line.remove_prefix(begin);
    words.push_back(line.substr(0, line.find_first_of(kSpace)));
    line.remove_prefix(words.back().size());
  }
}

}  // namespace

// Parses without copying a key out of the text's secret memory.
Result<Keyring> Keyring::parse(const Secret& text) {
  Keyring keyring;
  int number = 0;
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(concat("line ", number, ": ", what));
  };
  for (std::string_view rest = text.view(); !rest.empty();) {
    ++number;
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty() || words.front().starts_with('#')) continue;
    if (words.size() > 2) return wrong("expected KEY or JOB KEY");
    const std::string_view key = words.back();
    if (key.size() < kMinKeyBytes) {
      return wrong(concat("a key needs at least ", kMinKeyBytes, " characters"));
    }
    if (words.size() == 2) {
      const std::string job(words.front());
      if (!keyring.by_job_.emplace(job, text.part(key)).second) {
        return wrong("job '" + job + "' already has a key");
      }
    } else if (std::exchange(keyring.for_all_, text.part(key))) {
      return wrong("a second key for all jobs; write JOB KEY for the key of one job");
    }
  }
  if (keyring.empty()) {
    return invalid_argument(
        concat("no key found (expected a line of ", kMinKeyBytes, " characters or more)"));
  }
  return keyring;
}

std::optional<Secret> Keyring::key_of(const std::string& job) const {
  const auto own = by_job_.find(job);
  return own == by_job_.end() ? for_all_ : own->second;
}

}  // namespace ddprun
