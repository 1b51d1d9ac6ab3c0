#include "worker_lib/cpu_shm/core/chunk_pipeline.h"

namespace ddprun {

std::optional<ChunkPipeline::Step> ChunkPipeline::next() {
  const int parts = work_ == Work::kSome ? 3 : 2;
  const std::size_t turns = chunks_ + (work_ == Work::kSome ? 2 : 1);
  while (turn_ < turns) {
    const auto step =
        work_ == Work::kSome ? step_with_work(turn_, part_) : step_without_work(turn_, part_);
    if (++part_ == parts) {
      part_ = 0;
      ++turn_;
    }
    if (step) return step;
  }
  return std::nullopt;
}

std::optional<ChunkPipeline::Step> ChunkPipeline::step_with_work(std::size_t turn, int part) const {
  switch (part) {
    case 0:
      if (turn < chunks_) return Step{Action::kStage, turn, 0, staged(turn)};
      break;
    case 1:
      if (turn >= 2) return Step{Action::kCopyOut, turn - 2, worked(turn - 2), 0};
      break;
    case 2:
      if (turn >= 1 && turn <= chunks_) {
        return Step{Action::kWork, turn - 1, staged(turn - 1), worked(turn - 1)};
      }
      break;
  }
  return std::nullopt;
}

std::optional<ChunkPipeline::Step> ChunkPipeline::step_without_work(std::size_t turn,
                                                                    int part) const {
  if (part == 0 && turn < chunks_) return Step{Action::kStage, turn, 0, staged(turn)};
  if (part == 1 && turn >= 1) return Step{Action::kCopyOut, turn - 1, staged(turn - 1), 0};
  return std::nullopt;
}

}  // namespace ddprun
