// PairBalance: checks that the ranks of an all_to_all agree on the bytes from each rank to each
// other one, without a table of all pairs. It has three sums modulo 2^64. To them every rank
// adds the bytes that it sends, and subtracts the bytes that it expects. Each is multiplied by a
// weight of the pair: the sender's, the receiver's, or the product of both. Weights are odd and
// look random. Over all ranks, pairs that agree sum to zero. Pairs that disagree cancel with a
// probability of 1 in 2^64, or 2^44 if all sizes are whole MiB. The sums also show which rank is
// wrong, if it is a single one:
//
//   rank 2 expects other sizes than it is sent       by_pair = receiver's weight * by_sender
//   rank 0 sends other sizes than expected           by_pair = sender's weight * by_receiver
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

// Returns what one rank adds: from the bytes that it sends to each rank and the bytes that it
// expects from each, its own included.
PairBalance balance_of(int rank, std::span<const std::size_t> sent,
                       std::span<const std::size_t> awaited);

// Convert the balance of a call to its weighted form in a sum over several calls, and back. The
// weight keeps the errors of two calls from cancelling.
PairBalance of_call(std::uint64_t number, const PairBalance& balance);
PairBalance alone(std::uint64_t number, const PairBalance& in_sum);

// from, to: -1 means several ranks.
struct PairExcess {
  int from = -1;
  int to = -1;
  std::int64_t bytes = 0;  // sent beyond what is expected; 0 if both ranks are -1
  friend bool operator==(const PairExcess&, const PairExcess&) = default;
};

// Returns where the ranks disagree, from the sum of all ranks' balances; nullopt: nowhere.
std::optional<PairExcess> excess_in(const PairBalance& sum, int ranks);

}  // namespace ddprun
