// GroupFactory: forms groups of some ranks of the world. ProcessGroup::split() uses it.
//
// Any thread may form groups; the order in which they are formed is up to the program.
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

  // The group of these ranks of the world, in their order; this rank is one of them. patience: for the
  // others to come, where it is not the group's own timeout. seed: what the group that it is a part of
  // has given for it (Backend::split_off), or null. kPeerLost as soon as the world notices that one of
  // them is dead.
  virtual Result<std::unique_ptr<ProcessGroup>> form(const std::vector<int>& ranks,
                                                     const GroupOptions& how,
                                                     std::optional<Duration> patience = {},
                                                     std::shared_ptr<void> seed = nullptr) = 0;
};

}  // namespace ddprun
