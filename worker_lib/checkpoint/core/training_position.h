// The position of a training when it is saved, and warnings about a resumed run that would repeat
// an epoch, or part of the epoch's data.
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

// Describes how the program's epoch contradicts the sampler's; nullopt: it does not. The program
// may be one epoch ahead: it may count the epoch that it is about to begin.
std::optional<std::string> epoch_contradiction(const TrainingPosition& position);

// Describes how two ranks differ ("is at step 3", "is in epoch 2 of its sampler"), first `own`,
// then `other`; nullopt: they do not.
struct PositionDifference {
  std::string own, other;
};
std::optional<PositionDifference> difference_between(const TrainingPosition& own,
                                                     const TrainingPosition& other);

// PositionWatch: follows the saves of one run. Returns each warning once.
class PositionWatch {
 public:
  // Records that restore() has ended, whether or not it found a checkpoint.
  void restored(const TrainingPosition& position);
  // Returns warnings about a save. has_position: false if the program keeps its position itself;
  // then there are none. Without a sampler it warns if the epoch has not changed since the last
  // save.
  std::vector<std::string> saving(const TrainingPosition& position, bool has_position);

 private:
  std::optional<TrainingPosition> first_;
  std::optional<TrainingPosition> last_;  // of the last save, or of restore()
  bool has_moved_ = false;                // the sampler has moved since then
  bool told_contradiction_ = false, told_no_sampler_ = false, told_unused_ = false;
};

}  // namespace ddprun
