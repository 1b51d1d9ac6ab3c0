// Makes the prefixes of a worker's lines on the console. Pure; any thread.
#pragma once

#include <string>
#include <string_view>

#include "base/ids.h"

namespace ddprun {

// Returns ddprun's own prefix: "[rank 3] ". coloured: in this rank's colour, for terminals.
std::string rank_prefix(Rank rank, bool coloured);

struct TeePrefix {
  // May hold ${role_name}, ${local_rank} and ${rank}. Empty: torchrun's default.
  std::string_view pattern;
  std::string_view role;
  LocalRank local_rank{0};
  Rank rank{0};
};
// Returns torchrun's prefix: "[default3]:", or what TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE makes
// of it. Other macros stay as they are.
std::string tee_prefix(const TeePrefix& parts);

}  // namespace ddprun
