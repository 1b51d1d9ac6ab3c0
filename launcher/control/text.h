// Status of jobs in words, from the JSON that agents and services tell it in. Pure; any thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ddprun {

// picture: what is known of one job, {"job": as in a service's /status.json, "service_silent": or why
// that is missing, "agents": the "node" objects of those on this host}. A few lines; unknown fields
// are passed over, missing ones left out: the other side may be of another version.
std::string status_text(const nlohmann::json& picture);
// A line for each of several jobs, with a headline: what a user may choose from.
std::string list_text(const std::vector<nlohmann::json>& agents);
// The same for the jobs of a service.
std::string service_list_text(const nlohmann::json& page);

}  // namespace ddprun
