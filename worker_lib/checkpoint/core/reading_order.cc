#include "worker_lib/checkpoint/core/reading_order.h"

#include <algorithm>

namespace ddprun {

// The largest file goes first, each to the rank that has the fewest bytes so far.
std::vector<std::vector<FileRange>> reading_order(std::span<const std::uint64_t> file_bytes,
                                                  int ranks) {
  std::vector<std::size_t> files(file_bytes.size());
  for (std::size_t i = 0; i < files.size(); ++i) files[i] = i;
  std::ranges::stable_sort(
      files, [&](std::size_t a, std::size_t b) { return file_bytes[a] > file_bytes[b]; });
  std::vector<std::vector<FileRange>> result(static_cast<std::size_t>(ranks));
  std::vector<std::uint64_t> sums(result.size());
  for (const std::size_t file : files) {
    const auto reader = static_cast<std::size_t>(std::ranges::min_element(sums) - sums.begin());
    result[reader].push_back({file, 0, file_bytes[file]});
    sums[reader] += file_bytes[file];
  }
  for (std::vector<FileRange>& ranges : result) std::ranges::sort(ranges, {}, &FileRange::file);
  return result;
}

std::vector<FileRange> in_pieces(const std::vector<FileRange>& ranges, std::uint64_t most) {
  std::vector<FileRange> result;
  for (const FileRange& range : ranges) {
    std::uint64_t at = range.begin;
    do {
      result.push_back({range.file, at, std::min(range.end, at + most)});
      at = result.back().end;
    } while (at < range.end);
  }
  return result;
}

}  // namespace ddprun
