#include "worker_lib/cpu_shm/core/chunk_pipeline.h"

namespace ddprun {

std::optional<ChunkPipeline::Step> ChunkPipeline::next() {
  const bool works = work_ == Work::kSome;
  const std::size_t delay = works ? 2 : 1;  // of copy_out
  while (turn_ < chunks_ + delay) {
    const std::size_t turn = turn_;
    switch (part_++) {
      case 0:
        if (turn < chunks_) return Step{Action::kStage, turn, 0, staged(turn)};
        break;
      case 1:
        if (turn >= delay) {
          const std::size_t chunk = turn - delay;
          return Step{Action::kCopyOut, chunk, works ? worked(chunk) : staged(chunk), 0};
        }
        break;
      default:
        part_ = 0;
        ++turn_;
        if (works && turn >= 1 && turn <= chunks_) {
          return Step{Action::kWork, turn - 1, staged(turn - 1), worked(turn - 1)};
        }
    }
  }
  return std::nullopt;
}

}  // namespace ddprun
