// GroupNotes: what ddprun's classes that use one ProcessGroup tell each other by way of it.
//
// Owned jointly by the group and by those who look at it, because samplers and layers may outlive the group.
// Any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "worker_lib/group/late_checks.h"

namespace ddprun::detail {

struct GroupNotes {
  static constexpr std::int64_t kNoEpoch = -1;

  // What set_epoch() of a sampler that was made with the group has chosen last.
  std::atomic<std::int64_t> epoch = kNoEpoch;
  // What a checkpoint must look at first. All groups of a Context share it.
  std::shared_ptr<LateChecksOfGroup> late_checks = std::make_shared<LateChecksOfGroup>();
  // The group has been destroyed.
  std::atomic<bool> has_ended = false;
};

}  // namespace ddprun::detail
