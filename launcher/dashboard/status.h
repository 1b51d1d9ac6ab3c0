// Makes /status.json of the page from what `ddprun status` knows of a job. Pure; any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

namespace ddprun {

// DashboardStatus: the newest state of the job, for the page.
class DashboardStatus {
 public:
  // Takes a picture of JobWatch, taken at that time. Returns whether it has the job: an agent
  // whose service is silent knows only its own node.
  bool take(const nlohmann::json& picture, std::chrono::system_clock::time_point when);
  // Notes why there is no newer picture; empty: there is one.
  void set_trouble(std::string trouble) { trouble_ = std::move(trouble); }
  // Notes that the job is over. How it ended may be unknown.
  void end();

  bool has_job() const { return !job_.empty(); }
  // Returns whether the job has ended.
  bool is_over() const;
  std::string job() const;
  std::optional<std::int64_t> generation() const;
  // Returns the text of /status.json.
  std::string text() const;

 private:
  nlohmann::json job_ = nlohmann::json::object();
  std::string time_;
  std::string trouble_;
};

}  // namespace ddprun
