#include "worker_lib/checkpoint/core/training_position.h"

#include <utility>

#include "base/concat.h"

namespace ddprun {

std::optional<std::string> epoch_contradiction(const TrainingPosition& position) {
  if (!position.sampler) return std::nullopt;
  const std::int64_t own = position.epoch, of_sampler = position.sampler->epoch;
  if (own == of_sampler || own == of_sampler + 1) return std::nullopt;
  const std::string text =
      concat("TrainingState::epoch is ", own, ", but its sampler is in epoch ", of_sampler, ": ");
  if (own < of_sampler)
    return concat(text, "a resumed run begins at epoch ", own,
                  " and trains epochs twice; let the loop count in TrainingState::epoch");
  return text +
         "every epoch has the same order, and a resumed run may skip or repeat one; call "
         "set_epoch(epoch) at the beginning of each epoch";
}

std::optional<PositionDifference> difference_between(const TrainingPosition& own,
                                                     const TrainingPosition& other) {
  const auto both = [](const char* before, std::int64_t a, std::int64_t b) {
    return PositionDifference{concat(before, a), concat(before, b)};
  };
  if (own.step != other.step) return both("is at step ", own.step, other.step);
  if (own.epoch != other.epoch) return both("is in epoch ", own.epoch, other.epoch);
  if (own.sampler.has_value() != other.sampler.has_value()) {
    const auto words = [](const TrainingPosition& one) {
      return std::string(one.sampler ? "has a sampler" : "has no sampler");
    };
    return PositionDifference{words(own), words(other)};
  }
  if (!own.sampler || *own.sampler == *other.sampler) return std::nullopt;
  if (own.sampler->epoch != other.sampler->epoch)
    return both("has a sampler in epoch ", own.sampler->epoch, other.sampler->epoch);
  return both("has a sampler at position ", own.sampler->position, other.sampler->position);
}

void PositionWatch::restored(const TrainingPosition& position) {
  first_ = last_ = position;
  has_moved_ = false;
}

std::vector<std::string> PositionWatch::saving(const TrainingPosition& position,
                                               bool has_position) {
  std::vector<std::string> warnings;
  const std::optional<TrainingPosition> last = std::exchange(last_, position);
  if (!has_position) return warnings;
  if (const auto contradiction = epoch_contradiction(position);
      contradiction && !std::exchange(told_contradiction_, true))
    warnings.push_back(*contradiction);
  if (!position.sampler) {
    const bool is_within_epoch =
        last && position.epoch == last->epoch && position.step > last->step;
    if (is_within_epoch && !std::exchange(told_no_sampler_, true))
      warnings.push_back(
          "TrainingState::sampler is null: the position in the epoch's data is missing, and a "
          "resumed run begins the epoch again with samples that it has trained on (where there is "
          "no such position, set TrainingState::has_position to false)");
    return warnings;
  }
  if (!first_) first_ = TrainingPosition{.sampler = SamplerPosition{}};
  has_moved_ = has_moved_ || first_->sampler != position.sampler;
  if (!has_moved_ && position.step > first_->step && !std::exchange(told_unused_, true))
    warnings.push_back(concat(
        "the sampler in TrainingState::sampler has not moved since step ", first_->step, " (epoch ",
        position.sampler->epoch, ", position ", position.sampler->position,
        "): the loop takes its samples from another one, so the position in the epoch's data is "
        "missing, and a resumed run repeats samples; give the loader this sampler"));
  return warnings;
}

}  // namespace ddprun
