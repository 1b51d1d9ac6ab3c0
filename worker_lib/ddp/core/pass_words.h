// PassWords: the numbers that the ranks exchange at the end of a pass of
// DistributedDataParallel.
//
// Each rank writes numbers at its own places and 0 at those of the others. So the sum over the
// ranks holds the number of each rank. The sums travel with the gradients, as averages, so they
// may have lost bits. Every number is so small that rounding recovers it from an average in
// bfloat16.
//
//   | codes, by rank | epochs, by rank | by parameter: how many ranks used it |
//
// An epoch is negative if the rank's samplers chose several ones. The number is then that of the
// newest choice.
//
// No code is 0. A code that is 0 in the sums shows that nothing was reduced.
//
// A value type; any thread.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "worker_lib/data/core/chosen_epochs.h"

namespace ddprun {

enum class PassCode { kComplete = 1, kMissing = 2, kGivenUp = 3 };

class PassWords {
 public:
  // parameters: the number of parameters with a usage count; may be 0.
  static std::size_t count(int ranks, std::size_t parameters) { return 2 * ranks + parameters; }

  // Returns the words that a rank writes. epochs: of its samplers; empty: not compared.
  static std::vector<double> of_rank(int rank, int ranks, PassCode code, const ChosenEpochs& epochs,
                                     const std::vector<bool>& used);

  // sums: over the ranks, with count() elements.
  PassWords(std::vector<double> sums, int ranks) : sums_(std::move(sums)), ranks_(ranks) {}

  // Returns the first rank whose code did not arrive. If there is one, the other numbers are
  // meaningless.
  std::optional<int> missing_rank() const;
  PassCode code(int rank) const;
  // Returns whether the newest epochs of two ranks have a difference that is not a multiple of 30.
  // kSure: looks only at ranks whose samplers are all in one epoch.
  enum class Ranks { kAll, kSure };
  bool do_epochs_differ(Ranks which = Ranks::kAll) const;
  // Returns whether any rank used the parameter.
  bool is_used(std::size_t parameter) const;

 private:
  std::optional<long> number(std::size_t i) const;

  std::vector<double> sums_;
  int ranks_;
};

}  // namespace ddprun
