#include "worker_lib/ddp/core/step_parts.h"

#include <algorithm>

namespace ddprun {

StepShares StepMeans::add(const StepParts& step) {
  const Duration busy = step.forward + step.backward + step.communication;
  const Duration whole = std::max(step.whole, busy);
  const Duration checkpoint = std::clamp(step.checkpoint, Duration(), whole - busy);
  const Duration data =
      std::clamp(step.data.value_or(Duration()), Duration(), whole - busy - checkpoint);
  steps_ = std::min(steps_ + 1, kSteps);
  const auto follow = [&](double& mean, Duration value) {
    mean += (static_cast<double>(value.count()) - mean) / steps_;
  };
  follow(means_.whole, whole);
  follow(means_.data, data);
  follow(means_.forward, step.forward);
  follow(means_.backward, step.backward);
  follow(means_.communication, step.communication);
  follow(means_.checkpoint, checkpoint);
  const auto percent = [&](double mean) {
    return means_.whole > 0 ? 100 * mean / means_.whole : 0.0;
  };
  StepShares shares{.forward = percent(means_.forward),
                    .backward = percent(means_.backward),
                    .communication = percent(means_.communication),
                    .checkpoint = percent(means_.checkpoint)};
  if (step.data) shares.data = percent(means_.data);
  return shares;
}

}  // namespace ddprun
