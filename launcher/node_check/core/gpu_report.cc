#include "launcher/node_check/core/gpu_report.h"

#include <map>
#include <optional>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/split.h"
#include "launcher/node_check/core/speed_text.h"

namespace ddprun {
namespace {

constexpr std::string_view kNames = "gpus";
constexpr std::string_view kDriver = "driver ";

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

std::string driver_fault_line(std::string_view fault) { return concat(kDriver, fault, "\n"); }

std::string fault_in_gpu_report(std::string_view report, std::string_view missing) {
  std::optional<std::vector<std::string_view>> names;
  std::map<int, std::string_view> results;
  // What comes after the last line break was cut off.
  for (std::size_t end; (end = report.find('\n')) != report.npos; report.remove_prefix(end + 1)) {
    const std::string_view line = report.substr(0, end);
    if (line.starts_with(kDriver)) return concat("gpu: ", line.substr(kDriver.size()));
    const std::vector<std::string_view> words = split(line, ' ');
    if (words.front() == kNames) {
      names.emplace(words.begin() + 1, words.end());
    } else if (const auto gpu = parse_number<int>(words.front()); gpu && words.size() > 1) {
      results[*gpu] = line.substr(words.front().size() + 1);
    }
  }
  if (!names) return concat("gpu: ", missing);
  std::string faults;
  for (int gpu = 0; gpu < static_cast<int>(names->size()); ++gpu) {
    const auto result = results.find(gpu);
    const std::string_view fault = result == results.end() ? missing : result->second;
    if (fault.empty()) continue;
    faults += concat(faults.empty() ? "" : "; ", "gpu ", gpu, " (",
                     (*names)[static_cast<std::size_t>(gpu)], "): ", fault);
  }
  return faults;
}

}  // namespace ddprun
