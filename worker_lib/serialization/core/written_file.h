// WrittenFile: the name, size and digests of a file that was written. Value; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

struct WrittenFile {
  std::string name;  // without its directory
  std::uint64_t bytes = 0;
  std::string sha256;  // 64 hexadecimal digits
  // The states of this SHA-256 after each `chain_bytes` bytes, except after the last one, without
  // separators (util/chained_sha256.h). A part of the file can be verified by itself with them.
  // chain_bytes is 0 if there are none, because the file is small or an earlier version wrote it.
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

// Returns the state after the first `bytes` bytes. REQUIRES: `bytes` is a multiple of chain_bytes,
// above 0 and below file.bytes.
inline std::string_view state_after(const WrittenFile& file, std::uint64_t bytes) {
  return std::string_view(file.chain)
      .substr(static_cast<std::size_t>(bytes / file.chain_bytes - 1) * kChainDigits, kChainDigits);
}

// Thins the chain out: keeps every second state, then every second of those, until at most `most`
// are left. A chain without states has chain_bytes 0.
void thin_out_chain(WrittenFile& file, std::uint64_t most);

}  // namespace ddprun
