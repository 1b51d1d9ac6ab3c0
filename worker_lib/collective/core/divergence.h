// Which ranks hold something else than the others, and in what: the vote over the hashes of all ranks.
//
// Pure functions; any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddprun {

// One thing that a rank holds.
struct NamedHash {
  std::string name;  // "parameter '0.weight'"; each once on a rank
  std::uint64_t hash = 0;
};

// What a rank holds, in any order. Empty: it does not take part, as what it holds is of no account.
using HashTable = std::optional<std::vector<NamedHash>>;

// Ranks in ascending order.
struct Vote {
  std::vector<int> usual;   // have what most have; of equally many, those with the lowest rank
  std::vector<int> others;  // have something else
};

// values: by rank. Never empty.
Vote vote(std::span<const std::uint64_t> values);

// Things in which the same ranks differ from the same others.
struct Difference {
  Vote ranks;
  std::vector<std::string> names;
};

// By rank. Every name has a vote of its own, for one rank may differ in one thing and another rank in
// another; a rank that has not the name differs from those that have it. Differences and names stand in
// the order in which the tables, taken by rank, first have them. Empty: all hold the same.
std::vector<Difference> find_differences(std::span<const HashTable> tables);

// The one rank that differs from a majority of those that take part, in everything in which they differ.
std::optional<int> only_culprit(std::span<const Difference> differences);

}  // namespace ddprun
