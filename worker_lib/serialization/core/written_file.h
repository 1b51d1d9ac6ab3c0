// WrittenFile: the name, size and digests of a file that was written. temporary_name(): its name
// until it is complete. Values and pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/concat.h"

namespace ddprun {

struct WrittenFile {
  std::string name;  // without its directory
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
  // The states of this SHA-256 after each `chain_bytes` bytes, except after the last one, without
  // separators (util/chained_sha256.h). So a part of the file can be verified by itself. 0: there
  // are none, because the file is small or an earlier version wrote it.
  std::uint64_t chain_bytes = 0;
  std::string chain = {};
  bool operator==(const WrittenFile&) const = default;
};

// Digits of a state in WrittenFile::chain.
inline constexpr std::size_t kChainDigits = 64;

// Returns how many states a chain of a file has.
constexpr std::uint64_t chain_states(std::uint64_t file_bytes, std::uint64_t chain_bytes) {
  return file_bytes == 0 || chain_bytes == 0 ? 0 : (file_bytes - 1) / chain_bytes;
}

// Returns the state after `bytes` bytes, which are a multiple of chain_bytes, not the first and not
// the last byte.
inline std::string_view state_after(const WrittenFile& file, std::uint64_t bytes) {
  return std::string_view(file.chain)
      .substr(static_cast<std::size_t>(bytes / file.chain_bytes - 1) * kChainDigits, kChainDigits);
}

// Keeps every second state, again and again, until there are at most `most`.
void thin_out_chain(WrittenFile& file, std::uint64_t most);

inline constexpr std::string_view kTemporarySuffix = ".tmp";

// Returns the name under which a file is written before it is renamed to `name`. `unique`
// (hexadecimal) distinguishes two processes that write the same file, such as a rank 0 of an
// older generation.
inline std::string temporary_name(std::string_view name, std::string_view unique) {
  return concat(name, ".", unique, kTemporarySuffix);
}

}  // namespace ddprun
