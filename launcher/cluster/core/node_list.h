// Expands the lists in which Slurm names nodes and counts tasks. Pure; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

// Returns the names of a list such as "rack1-n[1,3],gpu5" or "x[1-2]y[00-11]", in its order. A
// name may be there twice. kInvalidArgument: the text has another form, or names more than
// kMaxNodes nodes. Source: slurm's hostlist.c, "scontrol show hostnames".
Result<std::vector<std::string>> expand_node_list(std::string_view text);

// Returns the numbers of a list such as "8(x2),4", which is 8, 8, 4. kInvalidArgument: the text has
// another form, or stands for more than kMaxNodes numbers.
Result<std::vector<int>> expand_counts(std::string_view text);

}  // namespace ddprun
