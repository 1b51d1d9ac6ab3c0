// What any rank of a group wants, known to all of them.
#pragma once

#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

// Of each wish whether some rank has it. A collective call: one small all-reduce, none in a world of one.
// The thread of the group's calls; throws as they do.
std::vector<bool> wishes_of_all(ProcessGroup& group, const std::vector<bool>& mine);

}  // namespace ddprun
