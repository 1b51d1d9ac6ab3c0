#include "worker_lib/nccl/core/pair_balance.h"

namespace ddprun {
namespace {

// SplitMix64, made odd, so that it has an inverse.
std::uint64_t weight(std::uint64_t of) {
  of += 0x9e3779b97f4a7c15u;
  of = (of ^ of >> 30) * 0xbf58476d1ce4e5b9u;
  of = (of ^ of >> 27) * 0x94d049bb133111ebu;
  return (of ^ of >> 31) | 1;
}

std::uint64_t sender_weight(std::size_t rank) { return weight(3 * std::uint64_t{rank}); }
std::uint64_t receiver_weight(std::size_t rank) { return weight(3 * std::uint64_t{rank} + 1); }
std::uint64_t call_weight(std::uint64_t number) { return weight(3 * number + 2); }

// Returns the inverse of an odd number modulo 2^64. Each Newton step doubles the number of
// correct bits. An odd number is its own inverse in its lowest three bits.
std::uint64_t inverse(std::uint64_t odd) {
  std::uint64_t result = odd;
  for (int i = 0; i < 5; ++i) result *= 2 - odd * result;
  return result;
}

PairBalance times(const PairBalance& balance, std::uint64_t factor) {
  return {balance.by_sender * factor, balance.by_receiver * factor, balance.by_pair * factor};
}

PairBalance of_pair(std::size_t from, std::size_t to, std::uint64_t bytes) {
  const std::uint64_t sender = sender_weight(from);
  const std::uint64_t receiver = receiver_weight(to);
  return {bytes * sender, bytes * receiver, bytes * sender * receiver};
}

}  // namespace

PairBalance& PairBalance::operator+=(const PairBalance& other) {
  by_sender += other.by_sender;
  by_receiver += other.by_receiver;
  by_pair += other.by_pair;
  return *this;
}

PairBalance balance_of(int rank, std::span<const std::size_t> sent,
                       std::span<const std::size_t> awaited) {
  const std::size_t own = rank;
  PairBalance balance;
  for (std::size_t to = 0; to < sent.size(); ++to) balance += of_pair(own, to, sent[to]);
  for (std::size_t from = 0; from < awaited.size(); ++from) {
    balance += of_pair(from, own, -std::uint64_t{awaited[from]});
  }
  return balance;
}

PairBalance of_call(std::uint64_t number, const PairBalance& balance) {
  return times(balance, call_weight(number));
}

PairBalance alone(std::uint64_t number, const PairBalance& in_sum) {
  return times(in_sum, inverse(call_weight(number)));
}

std::optional<PairExcess> excess_in(const PairBalance& sum, int ranks) {
  if (sum == PairBalance()) return std::nullopt;
  PairExcess excess;
  for (int rank = 0; rank < ranks; ++rank) {
    const std::uint64_t sender = sender_weight(rank);
    const std::uint64_t receiver = receiver_weight(rank);
    if (sum.by_pair == sender * sum.by_receiver) {
      excess.from = rank;
      excess.bytes = sum.by_sender * inverse(sender);
    }
    if (sum.by_pair == receiver * sum.by_sender) {
      excess.to = rank;
      excess.bytes = sum.by_receiver * inverse(receiver);
    }
  }
  return excess;
}

}  // namespace ddprun
