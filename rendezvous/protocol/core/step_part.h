// StepPart: what the time of a training step is spent on, for texts and sums over ranks.
// docs/how-to/see-your-job.md describes the parts. Pure; any thread.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "base/enum_names.h"
#include "base/step_shares.h"

namespace ddprun {

enum class StepPart : std::size_t {
  kData,
  kForward,
  kBackward,
  kCommunication,
  kCheckpoint,
  kOther,
};

inline constexpr std::size_t kStepParts = 6;
inline constexpr EnumNames<StepPart, kStepParts> kStepPartWords{
    {{StepPart::kData, "data"},
     {StepPart::kForward, "forward"},
     {StepPart::kBackward, "backward"},
     {StepPart::kCommunication, "communication"},
     {StepPart::kCheckpoint, "checkpoint"},
     {StepPart::kOther, "other"}}};

// PartShares: percent of a step, by StepPart.
using PartShares = std::array<double, kStepParts>;

inline double share_of(const PartShares& shares, StepPart part) {
  return shares[static_cast<std::size_t>(part)];
}

// Returns the shares by part; the rest is kOther. Agents may send any number: a share outside 0 to
// 100 becomes 0.
PartShares parts_of(const StepShares& shares);

// Returns the parts that have 1 % or more, the largest first: "data 62 %, backward 30 %". Empty:
// there are none.
std::string parts_text(const PartShares& shares);

}  // namespace ddprun
