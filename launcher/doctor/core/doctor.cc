#include "launcher/doctor/core/doctor.h"

#include <algorithm>
#include <array>

#include "base/concat.h"
#include "base/counted.h"
#include "base/joined.h"
#include "launcher/options/core/wrapped_text.h"

namespace ddprun {
namespace {

constexpr std::size_t kLevelColumns = 9;
constexpr std::size_t kIdColumns = 21;

// The words of the levels, by Level, and their terminal escape codes: green, cyan, yellow, bold
// red.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kLooks{
    {{"ok", "\x1b[32m"}, {"note", "\x1b[36m"}, {"warn", "\x1b[33m"}, {"PROBLEM", "\x1b[1;31m"}}};
constexpr std::string_view kPlain = "\x1b[0m";

std::string padded(std::string_view text, std::size_t columns) {
  std::string result(text);
  result.resize(std::max(columns, result.size() + 1), ' ');
  return result;
}

std::string summary(const std::vector<Finding>& findings) {
  using enum Level;
  const auto count = [&](Level level) {
    return std::ranges::count(findings, level, &Finding::level);
  };
  std::vector<std::string> parts;
  for (const Level level : {kProblem, kWarning, kNote}) {
    const std::string noun(enum_name(kLevelNames, level));
    if (const auto number = count(level)) parts.push_back(counted(number, noun));
  }
  if (const auto number = count(kOk)) parts.push_back(std::to_string(number) + " ok");
  switch (worst_of(findings)) {
    case kProblem: return "jobs will hang, be slow or fail here: " + joined(parts);
    case kWarning: return "no problem, but some jobs may be slow or fail: " + joined(parts);
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
    const auto& [word, colour] = kLooks[static_cast<std::size_t>(one.level)];
    const std::string level = padded(word, kLevelColumns);
    text += style.coloured ? concat(colour, level, kPlain) : level;
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

}  // namespace ddprun
