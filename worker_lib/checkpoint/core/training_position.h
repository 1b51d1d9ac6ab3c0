// Where a training stands when it is saved, and what a resumed run would do wrong there: start an epoch
// again, or the whole epoch's part of the data.
//
// Value types; PositionWatch belongs to one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun {

struct SamplerPosition {
  std::int64_t epoch = 0;
  std::int64_t position = 0;  // samples that the world has got in this epoch
  bool operator==(const SamplerPosition&) const = default;
};

struct TrainingPosition {
  std::int64_t step = 0;
  std::int64_t epoch = 0;  // TrainingState::epoch
  std::optional<SamplerPosition> sampler;
};

// Says how the program's epoch contradicts the sampler's; nullopt: it does not. The program may be one epoch
// ahead: it counts the epoch that it is about to begin.
std::optional<std::string> epoch_contradiction(const TrainingPosition& position);

// Says in what two ranks differ ("is at step 3", "is in epoch 2 of its sampler"), first about `own`, then
// about `other`; nullopt: in nothing.
struct PositionDifference {
  std::string own, other;
};
std::optional<PositionDifference> difference_between(const TrainingPosition& own,
                                                     const TrainingPosition& other);

// Follows the saves of one run. Each warning is returned once.
class PositionWatch {
 public:
  // restore() is done, whether or not it found a checkpoint.
  void restored(const TrainingPosition& position);
  // has_position: false where the program keeps its position itself; then nothing is returned. Without a sampler there
  // is a warning if the epoch has not changed since the last save.
  std::vector<std::string> saving(const TrainingPosition& position, bool has_position);

 private:
  std::optional<TrainingPosition> first_;
  std::optional<TrainingPosition> last_;  // of the last save, or of restore()
  bool has_moved_ = false;  // the sampler since then
  bool told_contradiction_ = false, told_no_sampler_ = false, told_unused_ = false;
};

}  // namespace ddprun
