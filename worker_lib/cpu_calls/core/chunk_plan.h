// ChunkPlan and ChunkShape: cut a buffer into chunks, and a chunk into the parts that each rank
// and node works on.
//
// Pure functions of sizes and the node layout; thread-safe. All lengths are in elements. Cuts
// decide only which rank does the work: the order of a reduction is the same for every cut.
//
//   buffer   [ chunk 0 | chunk 1 | ... ]                 each fits a stage of the segment
//   chunk    [ share of lane 0 | share of lane 1 | ... ]  reduced by the lane's ranks
//   share    [ piece of node 0 | piece of node 1 | ... ]  reduced over the nodes by that node, or
//                                                         the whole share by every node
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_lib/collective/core/range.h"
#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {

// ChunkPlan: a buffer as a sequence of chunks of nearly equal size. An empty buffer is one empty
// chunk, so that every collective synchronizes with its peers.
class ChunkPlan {
 public:
  // Chunks are multiples of `quantum` (except the last one) and at most max_chunk long.
  // max_chunk is at least quantum.
  ChunkPlan(std::size_t total, std::size_t max_chunk, std::size_t quantum);

  std::size_t chunks() const { return chunks_; }
  Range at(std::size_t index) const { return cut({0, total_}, chunks_, index, quantum_); }

 private:
  std::size_t total_;
  std::size_t chunks_;
  std::size_t quantum_;
};

// ChunkShape: cuts one chunk for the lanes and nodes. There are three forms:
// - even: `length` elements that every rank has (all_reduce, reduce, broadcast). Shares and
//   pieces are cuts of it of nearly equal size.
// - repeated: the same, but every node's piece is the whole share.
// - by rank: a block of `length` elements for each rank (reduce_scatter, all_gather, ...), in
//   the order of NodeLayout's positions. So the bytes that lane w carries to node j are one
//   range.
class ChunkShape {
 public:
  static ChunkShape even(const NodeLayout& layout, std::size_t length, std::size_t quantum) {
    return {layout, length, quantum, Form::kEven};
  }
  static ChunkShape repeated(const NodeLayout& layout, std::size_t length, std::size_t quantum) {
    return {layout, length, quantum, Form::kRepeated};
  }
  static ChunkShape by_rank(const NodeLayout& layout, std::size_t length) {
    return {layout, length, 1, Form::kByRank};
  }

  Range share(int lane) const;
  Range piece(int lane, int node) const;
  Range block(int rank) const;  // by rank only

 private:
  enum class Form : std::uint8_t { kEven, kRepeated, kByRank };
  ChunkShape(const NodeLayout& layout, std::size_t length, std::size_t quantum, Form form)
      : layout_(&layout), length_(length), quantum_(quantum), form_(form) {}

  const NodeLayout* layout_;
  std::size_t length_;
  std::size_t quantum_;
  Form form_;
};

}  // namespace ddprun
