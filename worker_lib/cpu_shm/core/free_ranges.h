// FreeRanges: the free parts of a heap.
//
// A pure value; one owner at a time. First fit from the front, in whole pages; adjacent free
// parts are merged. For few and large blocks: every operation is O(number of gaps).
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace ddprun {

class FreeRanges {
 public:
  static constexpr std::size_t kPage = 4096;

  explicit FreeRanges(std::size_t bytes);

  // Takes a block of `bytes` bytes and returns its offset, on a page boundary; nullopt: no gap
  // is large enough. A block of 0 bytes takes a page, so that no two blocks have the same
  // offset.
  std::optional<std::size_t> take(std::size_t bytes);
  // Frees the block that take(bytes) placed at `begin`.
  void give_back(std::size_t begin, std::size_t bytes);

  // Returns the bytes that a block occupies.
  static std::size_t in_pages(std::size_t bytes);

 private:
  std::map<std::size_t, std::size_t> gaps_;  // begin -> end
};

}  // namespace ddprun
