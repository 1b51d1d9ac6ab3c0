// A 64-bit hash of bytes, for finding out whether ranks hold the same bits. Not against forgers.
//
// Eight lanes take a word each in turn: lane = rotate((lane ^ word) * odd) * odd. Every step, the way in which
// the lanes are put together and the end can be undone when all but one argument are known, so a change
// within one aligned word of eight bytes always changes the hash; any other goes unnoticed once in about
// 2^64. Lanes do not wait for each other, so that the multiplier is always busy: about 10 GB/s
// on one core, which is as much as its memory gives, or more.
//
// The number depends on the byte order of the machine. Pure functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace ddprun {

std::uint64_t tensor_hash(std::span<const std::byte> bytes);

// Of numbers in order: of hashes, for one that stands for all of them.
inline std::uint64_t tensor_hash(std::span<const std::uint64_t> words) {
  return tensor_hash(std::as_bytes(words));
}

}  // namespace ddprun
