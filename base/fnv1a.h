// fnv1a(): the 64-bit FNV-1a hash, for ids and digests that need no protection against forgery.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun {

inline constexpr std::uint64_t kEmptyFnv1a = 0xcbf29ce484222325;

// Returns the hash of the bytes; `before` is the hash of the bytes before them.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t before = kEmptyFnv1a) {
  std::uint64_t hash = before;
  for (const char byte : bytes) hash = (hash ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return hash;
}

static_assert(fnv1a("a") == 0xaf63dc4c8601ec8c);

}  // namespace ddprun
