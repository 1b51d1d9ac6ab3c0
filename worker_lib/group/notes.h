// GroupNotes: data that ddprun's classes share through the ProcessGroup that they use.
//
// Owned jointly by the group and by its readers, because samplers and layers may outlive the
// group. Any thread.
#pragma once

#include <atomic>
#include <memory>

#include "worker_lib/group/late_checks.h"

namespace ddprun::detail {

struct GroupNotes {
  // Checks that a checkpoint must settle first. All groups of a Context share them.
  std::shared_ptr<LateChecksOfGroup> late_checks = std::make_shared<LateChecksOfGroup>();
  // The group has been destroyed.
  std::atomic<bool> has_ended = false;
};

}  // namespace ddprun::detail
