// Distinct types for numbers that must not be mixed up. Value types; any thread.
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace ddprun {

template <class Tag, class Number>
struct Id {
  Number value = 0;

  constexpr Id() = default;
  constexpr explicit Id(Number number) : value(number) {}
  friend constexpr auto operator<=>(Id, Id) = default;
};

using Rank = Id<struct RankTag, int>;            // of a worker in the world: 0..world_size-1
using LocalRank = Id<struct LocalRankTag, int>;  // of a worker on its node
using NodeRank = Id<struct NodeRankTag, int>;    // of a node in the generation
using Generation = Id<struct GenerationTag, std::int64_t>;  // one forming of the world, from 0
using UserId = Id<struct UserTag, std::uint32_t>;           // as the kernel numbers users; 0: root

template <class Tag, class Number>
std::string to_text(Id<Tag, Number> id) {
  return std::to_string(id.value);
}

}  // namespace ddprun
