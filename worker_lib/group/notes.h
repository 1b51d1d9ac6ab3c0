// GroupNotes: data that ddprun's classes share through the ProcessGroup that they use.
//
// Owned jointly by the group and by its readers, because samplers and layers may outlive the
// group. Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "worker_lib/group/late_checks.h"

namespace ddprun {
class WorkerReporter;
}

namespace ddprun::detail {

struct GroupNotes {
  // For how many ns the training loop has waited for loaders of samplers that follow the group
  // (DistributedSampler::follow_group). They take the time only if times_loading is set.
  std::atomic<std::int64_t> loading_ns = 0;
  std::atomic<bool> times_loading = false;
  // Reports the group's calls, while the group exists. The group sets it.
  std::shared_ptr<WorkerReporter> reporter = nullptr;
  // Checks that a checkpoint must settle first. All groups of a Context share them.
  std::shared_ptr<LateChecksOfGroup> late_checks = std::make_shared<LateChecksOfGroup>();
  // The group has been destroyed.
  std::atomic<bool> has_ended = false;
};

}  // namespace ddprun::detail
