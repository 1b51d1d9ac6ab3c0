#include "rendezvous/auth/core/keyring.h"

#include <string_view>
#include <vector>

#include "base/concat.h"
#include "base/split.h"

namespace ddprun {
namespace {

// Returns the words of a line, without the space around them.
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

// Copies no key out of the text's secret memory: lines and words are views of it.
Result<Keyring> Keyring::parse(const Secret& text) {
  Keyring keyring;
  int number = 0;
  const auto wrong = [&](const std::string& what) {
    return invalid_argument(concat("line ", number, ": ", what));
  };
  for (const std::string_view line : split(text.view(), '\n')) {
    ++number;
    const std::vector<std::string_view> words = words_of(line);
    if (words.empty() || words.front().starts_with('#')) continue;
    if (words.size() > 2) return wrong("expected KEY or JOB KEY");
    const std::string_view key = words.back();
    if (key.size() < kMinKeyBytes) {
      return wrong(concat("a key needs at least ", kMinKeyBytes, " characters"));
    }
    if (words.size() == 1) {
      if (keyring.for_all_) {
        return wrong("a second key for all jobs; write JOB KEY for the key of one job");
      }
      keyring.for_all_ = text.part(key);
      continue;
    }
    const std::string job(words.front());
    if (!keyring.by_job_.emplace(job, text.part(key)).second) {
      return wrong("job '" + job + "' already has a key");
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
