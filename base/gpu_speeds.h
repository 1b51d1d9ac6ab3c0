// GpuSpeeds: what a hidden command of ddprun measures on the GPUs of a node, and the line that it
// prints. ddprun-bench reads the line. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/printed.h"
#include "base/split.h"

namespace ddprun {

// The command. It has no arguments.
inline constexpr const char* kGpuSpeedsCommand = "node-gpu-speeds";

// GpuSpeeds: the speeds are those of the slowest GPU. 0: none was measured.
struct GpuSpeeds {
  int gpus = 0;                 // that programs on the node see
  double bytes_per_s = 0;       // copied within its memory
  double multiplies_per_s = 0;  // u32 multiplications, each with an addition
  std::string fault = {};       // for people, without line breaks; empty: the GPUs are fit

  friend bool operator==(const GpuSpeeds&, const GpuSpeeds&) = default;
};

// Returns the line: "2 1.2e+12 3e+11 gpu 1 (0000:9d:00.0): ...".
inline std::string gpu_speeds_line(const GpuSpeeds& speeds) {
  return concat(speeds.gpus, printed(" %.17g %.17g ", speeds.bytes_per_s, speeds.multiplies_per_s),
                speeds.fault, "\n");
}

// Reads the line. nullopt: the text is anything else, or the line was cut off.
inline std::optional<GpuSpeeds> read_gpu_speeds(std::string_view text) {
  if (!text.ends_with('\n')) return std::nullopt;
  text.remove_suffix(1);
  const std::vector<std::string_view> words = split(text, ' ');
  if (words.size() < 4) return std::nullopt;
  const auto gpus = parse_number<int>(words[0]);
  const auto copied = parse_number<double>(words[1]);
  const auto multiplied = parse_number<double>(words[2]);
  if (!gpus || !copied || !multiplied) return std::nullopt;
  const std::string_view fault =
      text.substr(static_cast<std::size_t>(words[3].data() - text.data()));
  return GpuSpeeds{*gpus, *copied, *multiplied, std::string(fault)};
}

}  // namespace ddprun
