// What stands in front of a worker's lines on the console. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"

namespace ddprun {

// Ours: "[rank 3] ". coloured: with a colour of this rank's, for terminals.
std::string rank_prefix(Rank rank, bool coloured);

struct TeePrefix {
  std::string_view pattern;  // with ${role_name}, ${local_rank} and ${rank}; empty: torchrun's own
  std::string_view role;
  LocalRank local_rank{0};
  Rank rank{0};
};
// torchrun's: "[default3]:", or what TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE makes of it; other macros
// stay as they are.
std::string tee_prefix(const TeePrefix& parts);

}  // namespace ddprun
