#include "worker_lib/collective/core/tensor_hash.h"

#include <array>
#include <bit>
#include <cstring>

namespace ddprun {
namespace {

constexpr std::size_t kLanes = 8;
constexpr std::size_t kWord = sizeof(std::uint64_t);
constexpr std::size_t kBlock = kLanes * kWord;

// Odd, so that the multiplication can be inverted; about as many ones as zeros, without a
// pattern.
constexpr std::uint64_t kFactor = 0x9fb21c651e98df25;
constexpr std::uint64_t kStep = 0xd6e8feb86659fd93;

// A product's low bits depend on low bits only. So a change at the top would stay there, and one
// in the lane's next word could cancel it. The rotation and the second product spread it over
// the lane.
constexpr std::uint64_t mix(std::uint64_t lane, std::uint64_t word) {
  return std::rotl((lane ^ word) * kFactor, 29) * kStep;
}

// Every bit of the argument affects every bit of the result.
constexpr std::uint64_t spread(std::uint64_t hash) {
  hash = (hash ^ (hash >> 32)) * kStep;
  hash = (hash ^ (hash >> 29)) * kFactor;
  return hash ^ (hash >> 32);
}

void take_block(std::array<std::uint64_t, kLanes>& lanes, const std::byte* block) {
  std::array<std::uint64_t, kLanes> words;
  std::memcpy(words.data(), block, kBlock);
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = mix(lanes[i], words[i]);
}

}  // namespace

std::uint64_t tensor_hash(std::span<const std::byte> bytes) {
  std::array<std::uint64_t, kLanes> lanes;
  for (std::size_t i = 0; i < kLanes; ++i) lanes[i] = (i + 1) * kStep;
  const std::byte* at = bytes.data();
  std::size_t left = bytes.size();
  for (; left >= kBlock; at += kBlock, left -= kBlock) take_block(lanes, at);
  if (left > 0) {
    // Zeros fill the block: the length distinguishes them from data.
    std::array<std::byte, kBlock> rest{};
    std::memcpy(rest.data(), at, left);
    take_block(lanes, rest.data());
  }
  std::uint64_t hash = spread(bytes.size());
  for (const std::uint64_t lane : lanes) hash = mix(hash, spread(lane));
  return spread(hash);
}

}  // namespace ddprun
