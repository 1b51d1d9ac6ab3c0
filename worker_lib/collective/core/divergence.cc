#include "worker_lib/collective/core/divergence.h"

#include <algorithm>
#include <map>

namespace ddprun {
namespace {

// Ballot: the value of a rank under a name; nullopt: the rank does not have the name.
struct Ballot {
  int rank = 0;
  std::optional<std::uint64_t> value;
};

// ballots: by rank in ascending order.
Vote count(std::span<const Ballot> ballots) {
  std::map<std::optional<std::uint64_t>, std::vector<int>> by_value;
  for (const Ballot& one : ballots) by_value[one.value].push_back(one.rank);
  Vote result;
  for (const auto& [value, ranks] : by_value)
    if (ranks.size() > result.usual.size() ||
        (ranks.size() == result.usual.size() && ranks.front() < result.usual.front()))
      result.usual = ranks;
  for (const Ballot& one : ballots)
    if (!std::ranges::binary_search(result.usual, one.rank)) result.others.push_back(one.rank);
  return result;
}

}  // namespace

Vote vote(std::span<const std::uint64_t> values) {
  std::vector<Ballot> ballots;
  for (const std::uint64_t value : values)
    ballots.push_back({static_cast<int>(ballots.size()), value});
  return count(ballots);
}

std::vector<Difference> find_differences(std::span<const HashTable> tables) {
  std::vector<std::string> names;
  std::vector<Ballot> empty_ballots;
  std::map<std::string, std::vector<Ballot>> ballots;
  for (std::size_t rank = 0; rank < tables.size(); ++rank)
    if (tables[rank]) empty_ballots.push_back({static_cast<int>(rank), std::nullopt});
  std::size_t position = 0;
  for (const HashTable& table : tables) {
    if (!table) continue;
    for (const NamedHash& one : *table) {
      const auto [found, is_new] = ballots.try_emplace(one.name, empty_ballots);
      if (is_new) names.push_back(one.name);
      found->second[position].value = one.hash;
    }
    ++position;
  }
  std::vector<Difference> result;
  for (const std::string& name : names) {
    Vote ranks = count(ballots.at(name));
    if (ranks.others.empty()) continue;
    const auto same = std::ranges::find_if(result, [&](const Difference& other) {
      return other.ranks.usual == ranks.usual && other.ranks.others == ranks.others;
    });
    if (same == result.end())
      result.push_back({std::move(ranks), {name}});
    else
      same->names.push_back(name);
  }
  return result;
}

std::optional<int> only_culprit(std::span<const Difference> differences) {
  std::optional<int> culprit;
  for (const Difference& one : differences) {
    const Vote& ranks = one.ranks;
    if (ranks.others.size() != 1 || ranks.usual.size() < 2) return std::nullopt;
    if (culprit && *culprit != ranks.others.front()) return std::nullopt;
    culprit = ranks.others.front();
  }
  return culprit;
}

}  // namespace ddprun
