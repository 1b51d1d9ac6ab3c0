// ChainedSha256: the SHA-256 of bytes that come in pieces, whose state can be taken out between
// pieces and continued elsewhere.
//
//   first.add(a); const std::string state = first.state();
//   ChainedSha256 second(state, a.size()); second.add(b); second.hex();   // of a and b together
//
// So each part of a file can be compared by itself, if the states at its begin and end are known:
// its bytes lead from the one state to the other. Together this is as strong as the comparison of
// the whole file's SHA-256, and costs nothing more.
//
// One owner thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace ddprun {

class ChainedSha256 {
 public:
  static constexpr std::size_t kBlockBytes = 64;  // states exist at its multiples
  static constexpr std::size_t kStateDigits = 64;

  ChainedSha256();
  // Continues after `bytes` bytes. REQUIRES: is_state(state), and a multiple of kBlockBytes.
  ChainedSha256(std::string_view state, std::uint64_t bytes);
  ~ChainedSha256();
  ChainedSha256(const ChainedSha256&) = delete;
  ChainedSha256& operator=(const ChainedSha256&) = delete;

  void add(const void* data, std::size_t bytes);

  // Returns the state as lower-case hexadecimal digits. REQUIRES: the number of bytes so far is a
  // multiple of kBlockBytes.
  std::string state() const;
  // Returns 64 lower-case hexadecimal digits. Ends the digest: call it once.
  std::string hex();

  // Returns whether the text can be a state, which says nothing about its value.
  static bool is_state(std::string_view text);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace ddprun
