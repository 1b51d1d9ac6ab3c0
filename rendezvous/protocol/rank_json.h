// Formats what is known about a rank as one JSON object, for agents' sockets and status pages.
// docs/reference/status.md lists its fields. Agents and service exchange the same values in
// another form (shared_fields.h).
//
// A pure function; any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "rendezvous/protocol/core/rank_row.h"

namespace ddprun {

// RankPlace: what a row does not say itself.
struct RankPlace {
  std::string host;
  std::optional<NodeRank> node;                    // nullopt: the node has no part in a generation
  int restarts = 0;                                // of the job, before this generation
  std::optional<std::int64_t> foremost_step = {};  // of all ranks that are shown
};

// Returns the object. What is not known is left out. Invalid UTF-8 is not replaced here.
nlohmann::json rank_json(const RankRow& row, const RankPlace& place);

}  // namespace ddprun
