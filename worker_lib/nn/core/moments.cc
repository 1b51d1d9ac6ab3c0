#include "worker_lib/nn/core/moments.h"

#include "base/assert.h"

namespace ddprun {

void Moments::merge(double count, std::span<const double> mean, std::span<const double> squares) {
  DDPRUN_ASSERT(mean.size() == mean_.size() && squares.size() == squares_.size(),
                "a part has the channels of the whole");
  if (count == 0) return;
  const double share = count / (count_ + count);
  for (std::size_t c = 0; c < mean_.size(); ++c) {
    const double distance = mean[c] - mean_[c];
    squares_[c] += squares[c] + distance * distance * count_ * share;
    mean_[c] += distance * share;
  }
  count_ += count;
}

}  // namespace ddprun
