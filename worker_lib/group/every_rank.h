// Runs a part of a collective operation on every rank, and throws its failures on all.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/process_group.h"

namespace ddprun {

// Converts a failure to JSON, for an exchange of objects; nullopt becomes null. Any thread.
nlohmann::json to_json_report(const std::optional<DistError>& failure);

// Throws a reported failure; null throws nothing. prefix: before the message, such as "rank 1: ".
// Any thread.
void throw_reported(const nlohmann::json& report, const std::string& prefix = "");

// Runs `part` on every rank and returns the results by rank. If a part throws, all ranks throw the
// failure of the first rank that failed. It names that rank, unless all ranks failed in the same
// way. Collective; for the thread of the group's calls.
//
// The ranks wait for each other for at most `timeout`; the wait is not taken for a hang (LongWait).
// doing: the operation, for errors, such as "save a checkpoint".
std::vector<nlohmann::json> on_every_rank(ProcessGroup& group, const char* doing, Timeout timeout,
                                          const std::function<nlohmann::json()>& part);

}  // namespace ddprun
