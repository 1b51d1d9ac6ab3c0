#include "worker_lib/checkpoint/core/reading_order.h"

#include <algorithm>

namespace ddprun {
namespace {

// Returns the first state of the chain at or after the begin of a rank's share. The shares divide
// the row of all files with a chain. before: the bytes of this row before the file. Sums are
// doubles, because sizes of damaged manifests may overflow an integer.
std::uint64_t begin_of_share(const WrittenFile& file, double before, double all, std::size_t rank,
                             std::size_t ranks) {
  if (rank == ranks) return file.bytes;
  const double at = all / static_cast<double>(ranks) * static_cast<double>(rank) - before;
  if (at <= 0) return 0;
  if (at >= static_cast<double>(file.bytes)) return file.bytes;
  const auto bytes = static_cast<std::uint64_t>(at);
  const std::uint64_t states = bytes / file.chain_bytes + (bytes % file.chain_bytes > 0 ? 1 : 0);
  return states > chain_states(file.bytes, file.chain_bytes) ? file.bytes
                                                             : states * file.chain_bytes;
}

}  // namespace

// Files without a chain go to the ranks from the largest on, each to the rank that has the fewest
// bytes so far.
std::vector<std::vector<FileRange>> reading_order(std::span<const WrittenFile> files, int ranks) {
  std::vector<std::size_t> undivided;
  std::vector<std::vector<FileRange>> result(static_cast<std::size_t>(ranks));
  double all = 0, before = 0;
  for (const WrittenFile& file : files)
    if (file.chain_bytes > 0) all += static_cast<double>(file.bytes);
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].chain_bytes == 0) {
      undivided.push_back(i);
      continue;
    }
    for (std::size_t rank = 0; rank < result.size(); ++rank) {
      const FileRange range{i, begin_of_share(files[i], before, all, rank, result.size()),
                            begin_of_share(files[i], before, all, rank + 1, result.size())};
      if (range.bytes() > 0) result[rank].push_back(range);
    }
    before += static_cast<double>(files[i].bytes);
  }
  std::ranges::stable_sort(
      undivided, [&](std::size_t a, std::size_t b) { return files[a].bytes > files[b].bytes; });
  std::vector<std::uint64_t> sums(result.size());
  for (std::size_t rank = 0; rank < result.size(); ++rank)
    for (const FileRange& range : result[rank]) sums[rank] += range.bytes();
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
