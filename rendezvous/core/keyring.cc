#include "rendezvous/core/keyring.h"

#include <sstream>
#include <vector>

namespace ddprun {

Result<Keyring> Keyring::parse(std::string_view text) {
  Keyring keyring;
  std::istringstream lines{std::string(text)};
  int number = 0;
  const auto wrong = [&](const std::string& what) {
    return invalid_argument("line " + std::to_string(number) + ": " + what);
  };
  for (std::string line; std::getline(lines, line);) {
    ++number;
    std::istringstream stream(line);
    std::vector<std::string> words;
    for (std::string word; stream >> word;) words.push_back(word);
    if (words.empty() || words.front().starts_with('#')) continue;
    if (words.size() > 2) return wrong("it is neither KEY nor JOB KEY");
    const std::string& key = words.back();
    if (key.size() < kMinKeyBytes) {
      return wrong("a key has " + std::to_string(kMinKeyBytes) + " characters or more");
    }
    if (words.size() == 2) {
      if (!keyring.by_job_.emplace(words.front(), key).second) {
        return wrong("job '" + words.front() + "' has a key already");
      }
    } else if (std::exchange(keyring.for_all_, key)) {
      return wrong("there is a key for every job already; JOB KEY is one for a single job");
    }
  }
  if (keyring.empty()) {
    return invalid_argument("there is no key in it: a line of " + std::to_string(kMinKeyBytes) +
                            " characters or more");
  }
  return keyring;
}

std::optional<std::string> Keyring::key_of(const std::string& job) const {
  const auto own = by_job_.find(job);
  return own == by_job_.end() ? for_all_ : own->second;
}

}  // namespace ddprun
