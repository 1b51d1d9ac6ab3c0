// Formats the status of jobs as text, from the JSON of agents and services. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "rendezvous/protocol/core/progress.h"

namespace ddprun {

// Formats what is known about one job, in a few lines. Ignores unknown fields and leaves out
// missing ones, because the sender may be of another version. Fields of picture:
//   "job": as in a service's /status.json
//   "service_silent": why "job" is missing
//   "agents": the "node" objects of the job's agents on this host.
std::string status_text(const nlohmann::json& picture);
// Returns how far the foremost rank of the picture is. left: only while the job runs.
Progress progress_of(const nlohmann::json& picture);
// Returns one line per job, from which a user can choose.
std::string list_text(const std::vector<nlohmann::json>& agents);
// Returns one line per job of a service.
std::string service_list_text(const nlohmann::json& page);

}  // namespace ddprun
