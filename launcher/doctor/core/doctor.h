// The checks of `ddprun doctor`: they turn facts into findings. Pure. Any thread.
//
// Each check makes at most one finding and has one row in docs/how-to/doctor.md; a test compares
// them. A check that has nothing to look at (no endpoint was given) makes no finding.
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
  kWarning,  // some jobs are slow or fail because of it
  kProblem,  // jobs hang, are slow or fail because of it
};
// The levels as JSON has them.
inline constexpr EnumNames<Level, 4> kLevelNames{{{Level::kOk, "ok"},
                                                  {Level::kNote, "note"},
                                                  {Level::kWarning, "warning"},
                                                  {Level::kProblem, "problem"}}};

using DetailValue = std::variant<std::string, double, std::uint64_t, int, bool>;

struct Finding {
  Level level = Level::kOk;
  std::string seen;    // what was observed, with its numbers
  std::string effect;  // what it does to a job; empty for kOk
  std::string advice;  // what to do; empty for kOk
  std::vector<std::pair<std::string, DetailValue>> details = {};  // for programs (--json)
  std::string_view id = {};                                       // of the check; set by diagnose()

  // Sets what is found to be wrong.
  void rate(Level how_bad, std::string what_it_does, std::string what_to_do) {
    level = how_bad;
    effect = std::move(what_it_does);
    advice = std::move(what_to_do);
  }
};

// One check. judge: returns the check's finding; nullopt if it does not apply.
struct Check {
  std::string_view id;
  std::optional<Finding> (*judge)(const DoctorFacts& facts);
};

// Return the checks of one topic, in the order of the report.
std::vector<Check> network_checks();  // doctor/core/network.cc: names, endpoint, ports
std::vector<Check> host_checks();     // doctor/core/host.cc: memory, limits, cgroups, clock
std::vector<Check> gpu_checks();      // doctor/core/gpu.cc: GPUs, driver, NCCL

// Returns all checks.
std::vector<Check> all_checks();

// Runs all checks and returns their findings.
std::vector<Finding> diagnose(const DoctorFacts& facts);

// Returns the worst level; kOk without a finding.
Level worst_of(const std::vector<Finding>& findings);

// --- text of findings ----------------------------------------------------------------------------

struct ReportStyle {
  bool coloured = false;
  std::size_t width = 100;  // of a line
};

// Returns one line for each finding, with its effect and its advice below. The last line is a
// summary.
std::string report_text(const std::vector<Finding>& findings, const ReportStyle& style);

}  // namespace ddprun
