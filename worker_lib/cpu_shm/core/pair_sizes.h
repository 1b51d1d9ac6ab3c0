// PairSizes: the bytes that each rank sends to each other rank in an all_to_all, and how stages
// are cut for them.
//
// Pure values and functions; thread-safe. The ranks compute the same from the same tables.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "worker_lib/cpu_shm/core/node_layout.h"

namespace ddprun {

class PairSizes {
 public:
  // Makes the table in which every rank sends `bytes` to every rank.
  static PairSizes even(std::size_t bytes);

  // tables: one table per rank, in rank order. It has the bytes that the rank sends to each
  // rank, and then the bytes that it expects from each rank.
  static PairSizes from_tables(const std::vector<std::uint64_t>& tables, std::size_t ranks);

  std::size_t of(int from, int to) const { return world_ == 0 ? even_ : sent_[from * world_ + to]; }
  std::size_t largest() const { return largest_; }
  bool is_even() const { return smallest_ == largest_; }

  // Clash: the first pair, by sender and then by receiver, whose sizes differ.
  struct Clash {
    int from = -1;
    int to = -1;
    std::uint64_t sent = 0;
    std::uint64_t expected = 0;
    friend bool operator==(const Clash&, const Clash&) = default;
  };
  const std::optional<Clash>& clash() const { return clash_; }

 private:
  std::size_t even_ = 0;   // of every pair
  std::size_t world_ = 0;  // 0: even
  std::size_t smallest_ = 0;
  std::size_t largest_ = 0;
  std::vector<std::uint64_t> sent_;  // row by row
  std::optional<Clash> clash_;
};

// Returns the number of pair slots that a stage must hold. There is one for each rank that its
// owner sends to. If the owner leads a lane, there is one for each pair whose bytes come from
// another node over that lane.
std::size_t pair_slots(const NodeLayout& layout);

// Returns the bytes of one slot, in whole cache lines, at least one line.
std::size_t pair_slot_bytes(const NodeLayout& layout, std::size_t stage_bytes);

}  // namespace ddprun
