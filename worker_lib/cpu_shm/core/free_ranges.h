// FreeRanges: which parts of a heap are free.
//
// A pure value; one owner at a time. First fit from the front, in whole pages; neighbours that are
// free become one. For few and large blocks: every operation is O(number of gaps).
#pragma once

#include <cstddef>
#include <map>
#include <optional>

namespace ddprun {

class FreeRanges {
 public:
  static constexpr std::size_t kPage = 4096;

  explicit FreeRanges(std::size_t bytes);

  // Where a block of so many bytes lies from now on, on a page's boundary; nullopt: there is no gap
  // for it. Blocks of no bytes get a page, so that no two are at one place.
  std::optional<std::size_t> take(std::size_t bytes);
  // The block that take(bytes) placed there.
  void give_back(std::size_t begin, std::size_t bytes);

  // What a block takes up.
  static std::size_t in_pages(std::size_t bytes);

 private:
  std::map<std::size_t, std::size_t> gaps_;  // begin -> end
};

}  // namespace ddprun
