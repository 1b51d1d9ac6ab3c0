#include "worker_lib/checkpoint/core/reading_order.h"

#include <algorithm>

namespace ddprun {
namespace {

// Returns the first state of the chain at or after a rank's share of the file.
std::uint64_t begin_of_share(const WrittenFile& file, std::uint64_t rank, std::uint64_t ranks) {
  const std::uint64_t parts = chain_states(file.bytes, file.chain_bytes) + 1;
  const std::uint64_t first = parts / ranks * rank + std::min(rank, parts % ranks);
  return first == parts ? file.bytes : first * file.chain_bytes;
}

}  // namespace

// Of the files without a chain, the largest goes first, each to the rank that has the fewest bytes
// so far.
std::vector<std::vector<FileRange>> reading_order(std::span<const WrittenFile> files, int ranks) {
  std::vector<std::size_t> undivided;
  std::vector<std::vector<FileRange>> result(static_cast<std::size_t>(ranks));
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].chain_bytes == 0) {
      undivided.push_back(i);
      continue;
    }
    for (std::size_t rank = 0; rank < result.size(); ++rank) {
      const FileRange range{i, begin_of_share(files[i], rank, result.size()),
                            begin_of_share(files[i], rank + 1, result.size())};
      if (range.bytes() > 0) result[rank].push_back(range);
    }
  }
  std::ranges::stable_sort(
      undivided, [&](std::size_t a, std::size_t b) { return files[a].bytes > files[b].bytes; });
  std::vector<std::uint64_t> sums(result.size());
  for (const std::size_t file : undivided) {
    const auto reader = static_cast<std::size_t>(std::ranges::min_element(sums) - sums.begin());
    result[reader].push_back({file, 0, files[file].bytes});
    sums[reader] += files[file].bytes;
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
