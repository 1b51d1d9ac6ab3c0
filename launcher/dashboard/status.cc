#include "launcher/dashboard/status.h"

#include <algorithm>
#include <utility>

#include "base/version.h"
#include "launcher/control/json_fields.h"
#include "rendezvous/http/status_page.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/control_json.h"

namespace ddprun {

using Json = nlohmann::json;

bool DashboardStatus::take(const Json& picture, std::chrono::system_clock::time_point when) {
  Json job = object_field(picture, "job");
  if (job.empty()) return false;
  // What agents say is newer than what the service knows. They may have a part of the ranks only.
  Json ranks = Json::array();
  std::optional<std::int64_t> foremost;
  for (const Json& agent : list_field(picture, "agents")) {
    for (const Json& rank : list_field(agent, "ranks")) {
      if (const auto step = integer_field(rank, "step")) {
        foremost = std::max(foremost.value_or(*step), *step);
      }
      ranks.push_back(rank);
    }
  }
  // Agents say how far a rank is behind their own ranks only. Programs may report any number: the
  // difference of two of them fits only if it is unsigned.
  for (Json& rank : ranks) {
    const auto step = integer_field(rank, "step");
    if (!step) continue;
    rank["lag"] = static_cast<std::uint64_t>(*foremost) - static_cast<std::uint64_t>(*step);
  }
  if (!ranks.empty() && ranks.size() >= list_field(job, "ranks").size()) {
    job["ranks"] = std::move(ranks);
    job["ranks_left_out"] = 0;
  }
  job_ = std::move(job);
  time_ = calendar_text({.boot = TimePoint(), .calendar = when}, TimePoint());
  return true;
}

void DashboardStatus::end() {
  if (has_job()) job_["phase"] = "ended";
}

bool DashboardStatus::is_over() const { return text_field(job_, "phase") == "ended"; }

std::string DashboardStatus::job() const {
  const auto id = job_.find("id");
  return id != job_.end() && id->is_string() ? id->get<std::string>() : "";
}

std::optional<std::int64_t> DashboardStatus::generation() const {
  return integer_field(job_, "generation");
}

std::string DashboardStatus::text() const {
  Json status{{"version", kVersion},
              {"host", host_name()},
              {"time", time_},
              {"jobs", Json::array()},
              {"jobs_left_out", 0}};
  if (has_job()) status["jobs"].push_back(job_);
  if (!trouble_.empty()) status["trouble"] = trouble_;
  return text_of(status);
}

}  // namespace ddprun
