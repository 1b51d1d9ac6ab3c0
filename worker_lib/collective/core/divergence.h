// Finds the ranks that hold other values than the rest, and which values: a vote over the hashes
// of all ranks.
//
// Pure functions; thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ddprun {

// NamedHash: one value that a rank holds.
struct NamedHash {
  std::string name;  // "parameter '0.weight'"; unique on a rank
  std::uint64_t hash = 0;
};

// HashTable: the values of a rank, in any order. nullopt: it takes no part in the vote.
using HashTable = std::optional<std::vector<NamedHash>>;

// Vote: ranks in ascending order.
struct Vote {
  // The ranks of the largest group; of equal groups, the one with the lowest rank.
  std::vector<int> usual;
  std::vector<int> others;  // all other ranks
};

// values: by rank, never empty.
Vote vote(std::span<const std::uint64_t> values);

// Difference: values in which the same ranks differ from the same others.
struct Difference {
  Vote ranks;
  std::vector<std::string> names;
};

// tables: by rank. Every name has its own vote, because one rank may differ in one value and
// another rank in another. A rank without the name differs from those that have it. Differences
// and names have the order in which the tables, taken by rank, first have them. Empty: all ranks
// hold the same.
std::vector<Difference> find_differences(std::span<const HashTable> tables);

// Returns the one rank that differs from a majority of the voters, in every difference; nullopt
// if there is no such rank.
std::optional<int> only_culprit(std::span<const Difference> differences);

}  // namespace ddprun
