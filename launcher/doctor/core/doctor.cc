#include "launcher/doctor/core/doctor.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <utility>

#include "base/counted.h"
#include "base/joined.h"
#include "launcher/options/core/wrapped_text.h"

namespace ddprun {
namespace {

constexpr std::size_t kLevelColumns = 9;
constexpr std::size_t kIdColumns = 21;

// Terminal escape codes: green, cyan, yellow, bold red.
constexpr EnumNames<Level, 4> kColours{{{Level::kOk, "\x1b[32m"},
                                        {Level::kNote, "\x1b[36m"},
                                        {Level::kWarning, "\x1b[33m"},
                                        {Level::kProblem, "\x1b[1;31m"}}};
constexpr std::string_view kPlain = "\x1b[0m";

std::string padded(std::string_view text, std::size_t columns) {
  std::string result(text);
  result.resize(std::max(columns, result.size() + 1), ' ');
  return result;
}

std::string summary(const std::vector<Finding>& findings) {
  const auto count = [&](Level level) {
    return std::ranges::count(findings, level, &Finding::level);
  };
  std::vector<std::string> parts;
  for (const auto& [level, noun] :
       {std::pair(Level::kProblem, "problem"), std::pair(Level::kWarning, "warning"),
        std::pair(Level::kNote, "note")}) {
    if (const auto number = count(level)) parts.push_back(counted(number, noun));
  }
  if (const auto number = count(Level::kOk)) parts.push_back(std::to_string(number) + " ok");
  switch (worst_of(findings)) {
    case Level::kProblem: return "jobs will hang, be slow or fail here: " + joined(parts);
    case Level::kWarning: return "no problem, but some jobs may be slow or fail: " + joined(parts);
    default: return "no problem: " + joined(parts);
  }
}

}  // namespace

std::vector<Check> all_checks() {
  std::vector<Check> checks = network_checks();
  for (const auto& more : {host_checks(), gpu_checks()}) {
    checks.insert(checks.end(), more.begin(), more.end());
  }
  return checks;
}

std::vector<Finding> diagnose(const DoctorFacts& facts) {
  std::vector<Finding> findings;
  for (const Check& check : all_checks()) {
    std::optional<Finding> finding = check.judge(facts);
    if (!finding) continue;
    finding->id = check.id;
    findings.push_back(std::move(*finding));
  }
  return findings;
}

Level worst_of(const std::vector<Finding>& findings) {
  Level worst = Level::kOk;
  for (const Finding& one : findings) worst = std::max(worst, one.level);
  return worst;
}

std::string report_text(const std::vector<Finding>& findings, const ReportStyle& style) {
  constexpr std::size_t kIndent = kLevelColumns + kIdColumns;
  std::string text;
  for (const Finding& one : findings) {
    const std::string level = padded(enum_name(kLevelWords, one.level), kLevelColumns);
    text += style.coloured
                ? std::string(enum_name(kColours, one.level)) + level + std::string(kPlain)
                : level;
    text += padded(one.id, kIdColumns) + wrapped(one.seen, kIndent, style.width) + "\n";
    if (!one.effect.empty()) {
      text += std::string(kIndent, ' ') + wrapped(one.effect, kIndent, style.width) + "\n";
    }
    if (!one.advice.empty()) {
      text +=
          std::string(kIndent - 3, ' ') + "-> " + wrapped(one.advice, kIndent, style.width) + "\n";
    }
  }
  return text + "ddprun doctor: " + summary(findings) + "\n";
}

std::string bytes_text(std::uint64_t bytes) {
  constexpr std::array kUnits{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (value /= 1024; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.1f %s", value, kUnits[unit]);
  return text.data();
}

}  // namespace ddprun
