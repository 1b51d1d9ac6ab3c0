#include "launcher/node_check/core/gpu_report.h"

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/printed.h"
#include "base/split.h"
#include "launcher/node_check/core/speed_text.h"

namespace ddprun {
namespace {

constexpr std::string_view kNames = "gpus";
constexpr std::string_view kDriver = "driver ";
constexpr std::string_view kSpeed = "speed";

}  // namespace

std::string fault_of(const GpuMeasurement& measured, double limit) {
  if (!measured.error.empty()) return measured.error;
  if (measured.wrong_words > 0) {
    return concat("memory: ", measured.wrong_words, " words are not what was written");
  }
  if (measured.digest != kKnownProduct) {
    return concat("a known product gave ", measured.digest, " instead of ", kKnownProduct);
  }
  return measured.bytes_per_s < limit ? too_slow("memory", measured.bytes_per_s, limit) : "";
}

std::string gpu_names_line(const std::vector<std::string>& names) {
  std::string line(kNames);
  for (const std::string& name : names) line += " " + name;
  return line + "\n";
}

std::string gpu_fault_line(int gpu, std::string_view fault) {
  return concat(gpu, " ", fault, "\n");
}

std::string gpu_speed_line(int gpu, const GpuMeasurement& measured) {
  return concat(kSpeed, " ", gpu,
                printed(" %.17g %.17g\n", measured.bytes_per_s, measured.multiplies_per_s));
}

std::string driver_fault_line(std::string_view fault) { return concat(kDriver, fault, "\n"); }

GpuReport read_gpu_report(std::string_view text) {
  GpuReport report;
  // What comes after the last line break was cut off.
  for (std::size_t end; (end = text.find('\n')) != text.npos; text.remove_prefix(end + 1)) {
    const std::string_view line = text.substr(0, end);
    if (line.starts_with(kDriver)) {
      report.driver_fault = line.substr(kDriver.size());
      return report;
    }
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.front() == kNames) {
      report.names.emplace(words.begin() + 1, words.end());
    } else if (words.front() == kSpeed && words.size() == 4) {
      const auto gpu = parse_number<int>(words[1]);
      const auto bytes = parse_number<double>(words[2]);
      const auto multiplies = parse_number<double>(words[3]);
      if (gpu && bytes && multiplies) report.speeds[*gpu] = {*bytes, *multiplies};
    } else if (const auto gpu = parse_number<int>(words.front()); gpu && words.size() > 1) {
      report.faults[*gpu] = line.substr(words.front().size() + 1);
    }
  }
  return report;
}

std::vector<int> gpus_without_result(const GpuReport& report) {
  std::vector<int> missing;
  if (!report.names || !report.driver_fault.empty()) return missing;
  for (int gpu = 0; gpu < static_cast<int>(report.names->size()); ++gpu) {
    if (!report.faults.contains(gpu)) missing.push_back(gpu);
  }
  return missing;
}

std::string fault_in(const GpuReport& report, std::string_view missing) {
  if (!report.driver_fault.empty()) return "gpu: " + report.driver_fault;
  if (!report.names) return concat("gpu: ", missing);
  std::string faults;
  for (int gpu = 0; gpu < static_cast<int>(report.names->size()); ++gpu) {
    const auto result = report.faults.find(gpu);
    const std::string_view fault = result == report.faults.end() ? missing : result->second;
    if (fault.empty()) continue;
    faults += concat(faults.empty() ? "" : "; ", "gpu ", gpu, " (",
                     (*report.names)[static_cast<std::size_t>(gpu)], "): ", fault);
  }
  return faults;
}

GpuSpeeds speeds_in(const GpuReport& report, std::string_view missing) {
  GpuSpeeds slowest{.fault = fault_in(report, missing)};
  if (report.names) slowest.gpus = static_cast<int>(report.names->size());
  const auto lower = [](double& least, double value) {
    if (least == 0 || (value > 0 && value < least)) least = value;
  };
  for (const auto& [gpu, speed] : report.speeds) {
    lower(slowest.bytes_per_s, speed.first);
    lower(slowest.multiplies_per_s, speed.second);
  }
  return slowest;
}

}  // namespace ddprun
