#include "rendezvous/protocol/core/step_part.h"

#include <algorithm>

#include "base/concat.h"
#include "base/printed.h"

namespace ddprun {

PartShares parts_of(const StepShares& shares) {
  const double data = shares.data.value_or(0);
  const double other =
      100 - data - shares.forward - shares.backward - shares.communication - shares.checkpoint;
  PartShares parts{data, shares.forward, shares.backward, shares.communication, shares.checkpoint,
                   other};
  for (double& percent : parts) {
    if (!(percent >= 0 && percent <= 100)) percent = 0;
  }
  return parts;
}

std::string parts_text(const PartShares& shares) {
  auto parts = kStepPartWords;
  std::ranges::stable_sort(parts, std::ranges::greater(),
                           [&](const auto& one) { return share_of(shares, one.first); });
  std::string text;
  for (const auto& [part, word] : parts) {
    const double percent = share_of(shares, part);
    if (percent < 1) break;
    text += concat(text.empty() ? "" : ", ", word, " ", printed("%.0f", percent), " %");
  }
  return text;
}

}  // namespace ddprun
