// PairBalance: whether the ranks of an all_to_all agree in how much goes from whom to whom, without
// a table of all pairs. Three sums modulo 2^64, to which every rank adds the bytes that it sends
// and from which it takes those that it awaits, each pair's times a weight: the sender's, the
// receiver's, and the product of both. Weights are odd and look random. Over all ranks, pairs that
// agree leave nothing; others cancel out by a chance of 1 in 2^64, or 2^44 where all sizes are
// whole MiB. What they leave also tells whose fault it is, where it is one rank's:
//
//   rank 2 awaits something else than it is sent     by_pair = receiver's weight * by_sender
//   rank 0 sends something else than is awaited      by_pair = sender's weight * by_receiver
//   both of these                                    it is this pair alone
//
// Pure values and functions; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace ddprun {

struct PairBalance {
  std::uint64_t by_sender = 0;
  std::uint64_t by_receiver = 0;
  std::uint64_t by_pair = 0;

  PairBalance& operator+=(const PairBalance& other);
  friend bool operator==(const PairBalance&, const PairBalance&) = default;
};

// What one rank adds: the bytes that it sends to each rank and those that it awaits from each, its
// own among them.
PairBalance balance_of(int rank, std::span<const std::size_t> sent,
                       std::span<const std::size_t> awaited);

// The balance as it counts in a sum over several calls, so that the faults of two do not cancel
// out, and back.
PairBalance of_call(std::uint64_t number, const PairBalance& balance);
PairBalance alone(std::uint64_t number, const PairBalance& in_sum);

// -1: several ranks.
struct PairExcess {
  int from = -1;
  int to = -1;
  std::int64_t bytes = 0;  // sent beyond what is awaited; 0 where both are several
  friend bool operator==(const PairExcess&, const PairExcess&) = default;
};

// Where the ranks disagree, by the sum of what all of them add; nullopt: nowhere.
std::optional<PairExcess> excess_in(const PairBalance& sum, int ranks);

}  // namespace ddprun
