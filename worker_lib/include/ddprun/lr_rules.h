// Rules of learning-rate schedules, as values, for LRScheduler and ReduceLROnPlateau
// (lr_scheduler.h).
//
// Names, fields, defaults and formulas are those of torch.optim.lr_scheduler of PyTorch 2.11.
// "Epoch" is the number of step() calls. Value types; any thread.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

namespace ddprun {

// StepLR: multiplies by gamma every step_size epochs.
struct StepLR {
  std::int64_t step_size = 1;  // at least 1
  double gamma = 0.1;
};

// MultiStepLR: multiplies by gamma at each milestone. A milestone given twice counts twice.
struct MultiStepLR {
  std::vector<std::int64_t> milestones = {};  // ascending, not negative
  double gamma = 0.1;
};

// CosineAnnealingLR: half a cosine from the base rate down to eta_min at epoch t_max, and up
// again after it. (Loshchilov and Hutter, SGDR, 2017, without the restarts.)
struct CosineAnnealingLR {
  std::int64_t t_max = 1;  // at least 1
  double eta_min = 0;
};

// LinearWarmup: a straight line from start_factor to end_factor, times the base rate, over
// total_iters epochs. PyTorch's LinearLR.
struct LinearWarmup {
  double start_factor = 1.0 / 3;  // above 0, at most 1
  double end_factor = 1;          // 0 to 1
  std::int64_t total_iters = 5;   // at least 1
};

using LRRule = std::variant<StepLR, MultiStepLR, CosineAnnealingLR, LinearWarmup>;

// SequentialLR: one schedule after another. The first runs up to milestones[0], then the second,
// and so on. Each counts its own epochs from 0.
struct SequentialLR {
  std::vector<LRRule> schedules = {};
  std::vector<std::int64_t> milestones = {};  // ascending, above 0; one fewer than schedules
};

// Multiplies the rates by `factor` when the metric has not become better for `patience` epochs.
struct ReduceLROnPlateauOptions {
  enum class Mode { kMin, kMax };  // a lower or a higher metric is better
  enum class ThresholdMode { kRelative, kAbsolute };
  Mode mode = Mode::kMin;
  double factor = 0.1;         // below 1
  std::int64_t patience = 10;  // not negative
  double threshold = 1e-4;     // an improvement of at most this does not count
  ThresholdMode threshold_mode = ThresholdMode::kRelative;
  std::int64_t cooldown = 0;         // epochs after a reduction in which the metric is ignored
  std::vector<double> min_lr = {0};  // for each parameter group, or one for all
  double eps = 1e-8;                 // smaller reductions are not made
};

}  // namespace ddprun
