// How a buffer is cut into chunks, and a chunk into the parts that each rank and node works on.
//
// Pure functions of sizes and the node layout; any thread. All lengths are in elements. Cutting
// decides only who does the work: the order of a reduction is the same for every cut.
//
//   buffer   [ chunk 0 | chunk 1 | ... ]                 each fits a stage of the segment
//   chunk    [ share of lane 0 | share of lane 1 | ... ]  reduced by the lane's ranks
//   share    [ piece of node 0 | piece of node 1 | ... ]  reduced over the nodes by that node; or all of it
//                                                         by every node
#pragma once

#include <cstddef>
#include <cstdint>

#include "worker_lib/collective/core/range.h"
#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {

// A buffer as a sequence of near-equal chunks. An empty buffer is one empty chunk, so that every
// collective meets its peers.
class ChunkPlan {
 public:
  // Chunks are multiples of `quantum` (the last one aside) and at most max_chunk long; max_chunk is
  // at least quantum.
  ChunkPlan(std::size_t total, std::size_t max_chunk, std::size_t quantum);

  std::size_t chunks() const { return chunks_; }
  Range at(std::size_t index) const { return cut({0, total_}, chunks_, index, quantum_); }

 private:
  std::size_t total_;
  std::size_t chunks_;
  std::size_t quantum_;
};

// One chunk as the lanes and nodes see it. Three forms:
//  - even: `length` elements that everyone has (all_reduce, reduce, broadcast); shares and pieces
//    are near-equal cuts of it.
//  - repeated: the same, but every node's piece is the whole share.
//  - by rank: a block of `length` elements for each rank (reduce_scatter, all_gather, ...), in the
//    order of NodeLayout's positions, so that what lane w owes to node j is one range.
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
