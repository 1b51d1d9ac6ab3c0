// SoloGroup: a CpuGroup of one rank. Results are copies of inputs. Nothing is shared or waited
// for.
#pragma once

#include <memory>

#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

std::unique_ptr<CpuGroup> make_solo_group();

}  // namespace ddprun
