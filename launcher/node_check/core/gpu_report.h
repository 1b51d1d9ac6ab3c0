// GpuReport: what the process that checks the GPUs of a node prints, and what it means.
//
// The process prints one line with the names of the GPUs, and then one line for each GPU as soon as
// it has checked it. If it crashes or hangs, GPUs without a line may be fit: each of them is
// checked again in a process of its own, whose report is joined with the first one. Pure; any
// thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/gpu_speeds.h"

namespace ddprun {

// The FNV-1a hash of the product of two matrices by multiply() of gpu_kernels.h, over the bytes of
// its words in little-endian order. fill() has written the first one, of kMatrixSide x kMatrixDepth
// words, with the mask 1, and the second one, of kMatrixDepth x kMatrixSide words, with the mask 2.
inline constexpr std::uint64_t kKnownProduct = 0x59e9d3f6b00773a9;

// GpuMeasurement: what was measured on one GPU.
struct GpuMeasurement {
  std::string error;              // the call of the driver that failed, and why; empty: none did
  std::uint32_t wrong_words = 0;  // how many did not come back from memory as they were written
  std::uint64_t digest = kKnownProduct;
  double bytes_per_s = 0;       // of the fastest copy
  double multiplies_per_s = 0;  // of the fastest product; 0: no product was timed
};

// Returns what is wrong with a GPU: "memory: 3100 MB/s (limit 10000 MB/s)". Empty: it is fit.
// limit: bytes copied each second, at least.
std::string fault_of(const GpuMeasurement& measured, double limit);

// Return the lines of the report. names: of all GPUs that are checked, without spaces.
std::string gpu_names_line(const std::vector<std::string>& names);
std::string gpu_fault_line(int gpu, std::string_view fault);
std::string gpu_speed_line(int gpu, const GpuMeasurement& measured);
// Returns the only line of a report about a driver that does not work.
std::string driver_fault_line(std::string_view fault);

struct GpuReport {
  std::string driver_fault = {};  // empty: the driver works
  std::optional<std::vector<std::string>> names = {};
  std::map<int, std::string> faults = {};  // by GPU that has a result; empty: it is fit
  // By GPU: bytes and multiplications each second. Only if speeds are measured.
  std::map<int, std::pair<double, double>> speeds = {};
};

// Reads what the process has printed until now. Lines of other origin are left out.
GpuReport read_gpu_report(std::string_view text);

// Returns the GPUs without a result, ascending. Empty also if no names or a fault of the driver
// were reported.
std::vector<int> gpus_without_result(const GpuReport& report);

// Returns what is wrong with the GPUs: "gpu 1 (0000:3b:00.0): ..."; empty: they are fit, or there
// are none. missing: what a missing result means, for people.
std::string fault_in(const GpuReport& report, std::string_view missing);

// Returns the speeds of the slowest GPU, and what fault_in() returns.
GpuSpeeds speeds_in(const GpuReport& report, std::string_view missing);

}  // namespace ddprun
