// PassWords: what the ranks say to each other at the end of a pass of DistributedDataParallel.
//
// Each rank writes numbers at its own places and 0 at those of the others; the sum over the ranks holds what each one
// has written. The sums travel with the gradients, as averages, so they may have lost bits: every number is small
// enough that rounding brings it back from an average in bfloat16.
//
//   | codes, by rank | epochs, by rank | by parameter: how many ranks used it |
//
// No code is 0. A code that is 0 in the sums shows that nothing was reduced.
//
// A value type; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ddprun {

enum class PassCode { kComplete = 1, kMissing = 2, kGivenUp = 3 };

class PassWords {
 public:
  // parameters: for which it is told who used them; may be 0.
  static std::size_t count(int ranks, std::size_t parameters) {
    return 2 * static_cast<std::size_t>(ranks) + parameters;
  }

  // What a rank writes. epoch: negative: none that is to be compared.
  static std::vector<double> of_rank(int rank, int ranks, PassCode code, std::int64_t epoch,
                                     std::span<const bool> used);

  // sums: over the ranks, as many as count() says.
  PassWords(std::vector<double> sums, int ranks) : sums_(std::move(sums)), ranks_(ranks) {}

  // The first rank whose code has not come. Where there is one the rest means nothing.
  std::optional<int> missing_rank() const;
  PassCode code(int rank) const;
  // Whether two ranks are in epochs that differ by something else than a multiple of 30.
  bool do_epochs_differ() const;
  // Whether any rank used the parameter.
  bool is_used(std::size_t parameter) const;

 private:
  std::optional<long> number(std::size_t i) const;

  std::vector<double> sums_;
  int ranks_;
};

}  // namespace ddprun
