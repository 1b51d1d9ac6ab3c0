// tensor_hash(): a 64-bit hash of bytes, to check whether ranks hold the same bits. It does not
// protect against deliberate collisions.
//
// Eight lanes take one word each in turn: lane = rotate((lane ^ word) * odd) * odd. Each step, the
// combination of the lanes and the last step can be inverted when all but one argument are known.
// So a change within one aligned word of eight bytes always changes the hash. Any other change is
// missed about once in 2^64. Lanes do not wait for each other, so the multiplier is always busy.
// One core hashes about 10 GB/s, which is at least what its memory delivers.
//
// The number depends on the byte order of the machine. Pure functions; thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddprun {

std::uint64_t tensor_hash(std::span<const std::byte> bytes);

// Returns a hash of numbers in order, for example one hash for many hashes.
inline std::uint64_t tensor_hash(std::span<const std::uint64_t> words) {
  return tensor_hash(std::as_bytes(words));
}

}  // namespace ddprun
