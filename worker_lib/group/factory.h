// GroupFactory: forms groups of some ranks of the world. ProcessGroup::split() uses it.
//
// Any thread may form groups. The program decides their order.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "ddprun/process_group.h"

namespace ddprun {

class GroupFactory {
 public:
  virtual ~GroupFactory() = default;

  // Forms the group of these ranks of the world, in their order. This rank is one of them.
  // timeout_override: timeout for the forming, if it differs from the group's timeout. seed: what
  // the parent group gave for it (Backend::split_off), or null. Returns kPeerLost as soon as the
  // world notices that one of them is dead.
  virtual Result<std::unique_ptr<ProcessGroup>> form(const std::vector<int>& ranks,
                                                     const GroupOptions& options,
                                                     std::optional<Duration> timeout_override = {},
                                                     std::shared_ptr<void> seed = nullptr) = 0;
};

}  // namespace ddprun
