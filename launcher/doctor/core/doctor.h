// The judgement of `ddprun doctor`: facts in, findings out. Pure; any thread.
//
// One check, one finding, one row in docs/doctor.md, which a test compares. A check that has no
// object (no endpoint was given) has no finding.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/enum_names.h"
#include "launcher/doctor/core/facts.h"

namespace ddprun {

enum class Level {
  kOk,
  kNote,     // worth knowing; jobs run well
  kWarning,  // some jobs crawl or fail of it
  kProblem,  // jobs hang, crawl or fail of it
};
// As they are written in the report, and in JSON.
inline constexpr EnumNames<Level, 4> kLevelWords{{{Level::kOk, "ok"},
                                              {Level::kNote, "note"},
                                              {Level::kWarning, "warn"},
                                              {Level::kProblem, "PROBLEM"}}};
inline constexpr EnumNames<Level, 4> kLevelNames{{{Level::kOk, "ok"},
                                              {Level::kNote, "note"},
                                              {Level::kWarning, "warning"},
                                              {Level::kProblem, "problem"}}};

using DetailValue = std::variant<std::string, double, std::int64_t, bool>;

struct Finding {
  Level level = Level::kOk;
  std::string seen;    // with its numbers
  std::string effect;  // what it does to a job; empty where the level is kOk
  std::string advice;  // what to do; the same
  std::vector<std::pair<std::string, DetailValue>> details = {};  // for programs
  std::string_view id = {};                                       // of the check; set by diagnose()
};

// One look at the facts.
struct Check {
  std::string_view id;
  std::optional<Finding> (*judge)(const DoctorFacts& facts);
};

// By topic, in the order of the report.
std::vector<Check> network_checks();  // doctor/core/network.cc: names, endpoint, ports
std::vector<Check> host_checks();     // doctor/core/host.cc: memory, limits, cgroups, clock
std::vector<Check> gpu_checks();      // doctor/core/gpu.cc: GPUs, driver, NCCL

// Every check there is.
std::vector<Check> all_checks();

std::vector<Finding> diagnose(const DoctorFacts& facts);

// kOk where there is no finding.
Level worst_of(const std::vector<Finding>& findings);

// --- how findings are written -----------------------------------------------------------------------

struct ReportStyle {
  bool coloured = false;
  std::size_t width = 100;  // of a line
};

// One line for each finding, what it does and what to do below it, and a last line that sums up.
std::string report_text(const std::vector<Finding>& findings, const ReportStyle& style);

// "16.0 MiB"
std::string bytes_text(std::uint64_t bytes);
// "a, b, c"
std::string list_text(const std::vector<std::string>& parts);

}  // namespace ddprun
