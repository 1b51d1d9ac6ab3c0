#include "launcher/node_check/gpus.h"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <limits>
#include <optional>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/exit_codes.h"
#include "base/fnv1a.h"
#include "base/library_function.h"
#include "base/parse_number.h"
#include "base/printed.h"
#include "base/write_all.h"
#include "launcher/node_check/core/gpu_kernels.h"
#include "launcher/node_check/core/gpu_report.h"
#include "launcher/node_check/core/judgement.h"
#include "launcher/process/command_output.h"
#include "launcher/process/side_by_side.h"

namespace ddprun {
namespace {

constexpr unsigned kThreads = 256;  // in a block
constexpr std::size_t kLeastBytes = std::size_t{1} << 20;
constexpr std::size_t kMostBytes = std::size_t{1} << 30;
constexpr std::size_t kShare = 10;  // a tenth of what is free
constexpr unsigned kFactorWords = kMatrixSide * kMatrixDepth;
constexpr unsigned kProductWords = kMatrixSide * kMatrixSide;
// Products become deeper until one takes kLongProduct, so that the start of a kernel takes a small
// part of it. They are repeated for kProductsTime.
constexpr std::chrono::duration<double> kLongProduct(0.001);
constexpr std::chrono::duration<double> kProductsTime(0.02);
static_assert(kThreads == kMatrixSide &&
              kLeastBytes >= (2 * kFactorWords + kProductWords) * sizeof(std::uint32_t));

// What cuInit returns where the library is installed and no GPU is.
constexpr int kStubLibrary = 34;
constexpr int kNoDevice = 100;

using Address = std::uint64_t;  // in the memory of a GPU

// Driver: the functions of libcuda.so.1. It declares them by itself, because most build machines
// have no cuda.h.
struct Driver {
  int (*init)(unsigned flags);
  int (*count)(int* count);
  int (*device)(int* device, int index);
  int (*bus_id)(char* text, int size, int device);
  int (*retain)(void** context, int device);
  int (*set_current)(void* context);
  int (*memory)(std::size_t* free, std::size_t* total);
  int (*allocate)(Address* address, std::size_t bytes);
  int (*set)(Address to, unsigned value, std::size_t words);
  int (*copy)(Address to, Address from, std::size_t bytes);
  int (*read)(void* to, Address from, std::size_t bytes);
  int (*load)(void** module, const void* text);
  int (*find)(void** function, void* module, const char* name);
  int (*launch)(void* function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,
                unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,
                void* stream, void** arguments, void** extra);
  int (*wait)();
  int (*name_of)(int status, const char** name);

  // Finds the functions. Returns the name of one that the library does not have; empty: it has all.
  std::string find_all(void* library) {
    std::string absent;
    const auto look = [&](const char* name, auto& function) {
      if (!find_function(library, name, function)) absent = name;
    };
    look("cuInit", init);
    look("cuDeviceGetCount", count);
    look("cuDeviceGet", device);
    look("cuDeviceGetPCIBusId", bus_id);
    look("cuDevicePrimaryCtxRetain", retain);
    look("cuCtxSetCurrent", set_current);
    look("cuMemGetInfo_v2", memory);
    look("cuMemAlloc_v2", allocate);
    look("cuMemsetD32_v2", set);
    look("cuMemcpyDtoD_v2", copy);
    look("cuMemcpyDtoH_v2", read);
    look("cuModuleLoadData", load);
    look("cuModuleGetFunction", find);
    look("cuLaunchKernel", launch);
    look("cuCtxSynchronize", wait);
    look("cuGetErrorName", name_of);
    return absent;
  }

  std::string failure(const char* call, int status) const {
    const char* name = nullptr;
    const bool has_name = name_of(status, &name) == 0 && name;
    return concat(call, ": ", has_name ? std::string(name) : concat("error ", status));
  }
};

// GpuCheck: checks one GPU, on one thread. A step returns false after a call that failed, which
// `measured_` tells.
class GpuCheck {
 public:
  GpuCheck(const Driver& driver, double limit) : driver_(driver), limit_(limit) {}

  GpuMeasurement run(int index) {
    if (prepare(index) && check_memory(0) && check_memory(~0U) && multiply() && limit_ == 0)
      time_products();
    return measured_;
  }

 private:
  bool did(const char* call, int status) {
    if (status == 0) return true;
    measured_.error = driver_.failure(call, status);
    return false;
  }

  bool prepare(int index) {
    int device = 0;
    void* context = nullptr;
    void* module = nullptr;
    std::size_t free = 0, total = 0;
    if (!did("cuDeviceGet", driver_.device(&device, index)) ||
        !did("cuDevicePrimaryCtxRetain", driver_.retain(&context, device)) ||
        !did("cuCtxSetCurrent", driver_.set_current(context)) ||
        !did("cuModuleLoadData", driver_.load(&module, kGpuKernels)) ||
        !did("cuModuleGetFunction", driver_.find(&fill_, module, "fill")) ||
        !did("cuModuleGetFunction", driver_.find(&count_wrong_, module, "count_wrong")) ||
        !did("cuModuleGetFunction", driver_.find(&multiply_, module, "multiply")) ||
        !did("cuMemGetInfo", driver_.memory(&free, &total))) {
      return false;
    }
    half_ = std::clamp(free / kShare, kLeastBytes, kMostBytes) / 2 / kWord * kWord;
    return did("cuMemAlloc", driver_.allocate(&counter_, kWord)) &&
           did("cuMemAlloc", driver_.allocate(&memory_, 2 * half_));
  }

  // Writes a pattern into one half, copies it to the other half, and looks at both.
  bool check_memory(unsigned mask) {
    const auto words = static_cast<unsigned>(half_ / kWord);
    std::uint32_t wrong = 0;
    if (!did("cuMemsetD32", driver_.set(counter_, 0, 1)) || !fill(memory_, words, mask) ||
        !measure_copies() || !count_wrong(memory_, words, mask) ||
        !count_wrong(memory_ + half_, words, mask) ||
        !did("cuMemcpyDtoH", driver_.read(&wrong, counter_, kWord))) {
      return false;
    }
    measured_.wrong_words += wrong;
    return true;
  }

  bool measure_copies() {
    const auto goes_on = [&](int tries) {
      return tries < kLeastTries || measured_.bytes_per_s < limit_ || limit_ == 0;
    };
    for (int i = 0; i < kTries && goes_on(i); ++i) {
      if (!wait()) return false;
      const TimePoint start = BootClock::now();
      if (!did("cuMemcpyDtoD", driver_.copy(memory_ + half_, memory_, half_)) || !wait())
        return false;
      const std::chrono::duration<double> took = BootClock::now() - start;
      measured_.bytes_per_s = std::max(measured_.bytes_per_s,
                                       static_cast<double>(half_) / std::max(took.count(), 1e-9));
    }
    return true;
  }

  bool multiply() {
    const Address right = memory_ + kFactorWords * kWord, product = right + kFactorWords * kWord;
    std::vector<std::uint32_t> words(kProductWords);
    if (!fill(memory_, kFactorWords, 1) || !fill(right, kFactorWords, 2) ||
        !launch_product(kMatrixDepth) ||
        !did("cuMemcpyDtoH", driver_.read(words.data(), product, kProductWords * kWord))) {
      return false;
    }
    measured_.digest = fnv1a({reinterpret_cast<const char*>(words.data()), kProductWords * kWord});
    return true;
  }

  // The products before have brought the GPU to its speed.
  bool time_products() {
    std::chrono::duration<double> total(0);
    for (unsigned depth = kMatrixDepth; total < kProductsTime;) {
      const TimePoint start = BootClock::now();
      if (!launch_product(depth)) return false;
      const std::chrono::duration<double> took = BootClock::now() - start;
      total += took;
      measured_.multiplies_per_s =
          std::max(measured_.multiplies_per_s,
                   static_cast<double>(kProductWords) * depth / std::max(took.count(), 1e-9));
      if (took < kLongProduct && bytes_of_product(2 * depth) <= 2 * half_) depth *= 2;
    }
    return true;
  }

  // The factors, and then the product, lie in `memory_`.
  static std::size_t bytes_of_product(std::size_t depth) {
    return (2 * kMatrixSide * depth + kProductWords) * kWord;
  }
  bool launch_product(unsigned depth) {
    const std::size_t factor = std::size_t{kMatrixSide} * depth * kWord;
    Address left = memory_, right = left + factor, product = right + factor;
    std::array<void*, 4> arguments{&left, &right, &product, &depth};
    return launch(multiply_, kProductWords, arguments.data());
  }

  bool fill(Address words, unsigned count, unsigned mask) {
    std::array<void*, 3> arguments{&words, &count, &mask};
    return launch(fill_, count, arguments.data());
  }
  bool count_wrong(Address words, unsigned count, unsigned mask) {
    std::array<void*, 4> arguments{&words, &count, &mask, &counter_};
    return launch(count_wrong_, count, arguments.data());
  }
  bool launch(void* function, unsigned threads, void** arguments) {
    const unsigned blocks = (threads + kThreads - 1) / kThreads;
    return did("cuLaunchKernel", driver_.launch(function, blocks, 1, 1, kThreads, 1, 1, 0, nullptr,
                                                arguments, nullptr)) &&
           wait();
  }
  // A kernel that fails is told by the next call.
  bool wait() { return did("cuCtxSynchronize", driver_.wait()); }

  static constexpr std::size_t kWord = sizeof(std::uint32_t);

  const Driver& driver_;
  double limit_;
  GpuMeasurement measured_;
  void* fill_ = nullptr;
  void* count_wrong_ = nullptr;
  void* multiply_ = nullptr;
  std::size_t half_ = 0;  // bytes of half of the memory that is checked
  Address memory_ = 0;
  Address counter_ = 0;
};

void print(const std::string& line) { write_all(STDOUT_FILENO, line); }

// Returns how many GPUs are visible; nullopt: the driver does not work, which the report tells.
std::optional<int> find_gpus(const Driver& driver) {
  int count = 0;
  int status = driver.init(0);
  if (status == kNoDevice || status == kStubLibrary) return 0;
  const char* call = "cuInit";
  if (status == 0) {
    call = "cuDeviceGetCount";
    status = driver.count(&count);
  }
  if (status == 0) return count;
  print(driver_fault_line(driver.failure(call, status)));
  return std::nullopt;
}

// Returns the address of a GPU on the PCI bus; "?": the driver does not tell.
std::string name_of(const Driver& driver, int index) {
  std::array<char, 32> text{};
  int device = 0;
  const bool found = driver.device(&device, index) == 0 &&
                     driver.bus_id(text.data(), static_cast<int>(text.size()), device) == 0;
  return found ? text.data() : "?";
}

// only: the only GPU that is checked; nullopt: all are, at the same time.
void report_gpus(int most, double limit, std::optional<int> only) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) return print(gpu_names_line({}));  // no GPU without a driver
  Driver driver{};
  if (const std::string absent = driver.find_all(library); !absent.empty())
    return print(driver_fault_line(concat("libcuda.so.1 has no function ", absent)));
  const std::optional<int> found = find_gpus(driver);
  if (!found) return;
  std::vector<std::string> names;
  for (int gpu = 0; gpu < std::min(*found, most); ++gpu) names.push_back(name_of(driver, gpu));
  print(gpu_names_line(names));
  std::vector<std::function<void()>> bodies;
  for (int gpu = 0; gpu < static_cast<int>(names.size()); ++gpu) {
    if (only && *only != gpu) continue;
    bodies.emplace_back([&driver, gpu, limit] {
      const GpuMeasurement measured = GpuCheck(driver, limit).run(gpu);
      const std::string speed = limit == 0 ? gpu_speed_line(gpu, measured) : "";
      print(speed + gpu_fault_line(gpu, fault_of(measured, limit)));
    });
  }
  side_by_side(std::move(bodies));
}

// Checks the GPUs, or only one of them, in a process. Puts what a missing result means into
// `missing`.
GpuReport check_in_process(const GpuPlan& plan, std::optional<int> only, Duration patience,
                           std::string& missing) {
  std::vector<std::string> command{plan.ddprun, kGpuCheckCommand, concat(plan.gpus),
                                   printed("%.17g", plan.limit)};
  if (only) command.push_back(concat(*only));
  const Deadline deadline(patience);
  const CommandOutput output = output_of(command, deadline, Stderr::kDropped, plan.stop);
  missing = !output.is_started  ? "its check could not be started"
            : deadline.passed() ? concat("no result within ", patience)
                                : "its check ended without a result";
  return read_gpu_report(output.text);
}

// Returns what is wrong with a GPU that was checked in a process of its own. Its number means
// another GPU there if one was lost in between.
// names: of the first check. missing: what a missing result means.
std::string fault_of_one(int gpu, const std::vector<std::string>& names, const GpuReport& alone,
                         const std::string& missing) {
  if (!alone.driver_fault.empty()) return alone.driver_fault;
  const auto index = static_cast<std::size_t>(gpu);
  if (alone.names && (index >= alone.names->size() || (*alone.names)[index] != names[index])) {
    return std::ranges::count(*alone.names, names[index]) == 0
               ? "the driver does not list it any more"
               : "the driver gives it another number now, so another GPU was lost";
  }
  const auto found = alone.faults.find(gpu);
  return found == alone.faults.end() ? missing : found->second;
}

// Checks the GPUs, those without a result once more. missing: as in check_in_process().
GpuReport check_all(const GpuPlan& plan, std::string& missing) {
  GpuReport report = check_in_process(plan, std::nullopt, plan.patience.first, missing);
  const std::vector<int> again = gpus_without_result(report);
  std::vector<std::string> results(again.size());
  std::vector<GpuReport> reports(again.size());
  std::vector<std::function<void()>> bodies;
  for (std::size_t i = 0; i < again.size(); ++i) {
    bodies.emplace_back(
        [&plan, &names = *report.names, gpu = again[i], &result = results[i], &alone = reports[i]] {
          std::string why;
          alone = check_in_process(plan, gpu, plan.patience.second, why);
          result = fault_of_one(gpu, names, alone, why);
        });
  }
  side_by_side(std::move(bodies));
  for (std::size_t i = 0; i < again.size(); ++i) {
    report.faults[again[i]] = results[i];
    report.speeds.merge(reports[i].speeds);
  }
  return report;
}

}  // namespace

std::string check_gpus(const GpuPlan& plan) {
  std::string missing;
  const GpuReport report = check_all(plan, missing);
  return fault_in(report, missing);
}

GpuSpeeds measure_gpus(const std::string& ddprun) {
  std::string missing;
  const GpuReport report =
      check_all({.ddprun = ddprun, .gpus = std::numeric_limits<int>::max(), .limit = 0}, missing);
  return speeds_in(report, missing);
}

void run_gpu_check(const std::vector<std::string>& arguments) {
  const bool has_only = arguments.size() == 3;
  const bool has_all = arguments.size() == 2 || has_only;
  const auto gpus = has_all ? parse_number<int>(arguments[0]) : std::nullopt;
  const auto limit = has_all ? parse_number<double>(arguments[1]) : std::nullopt;
  const auto only = has_only ? parse_number<int>(arguments[2]) : std::nullopt;
  const bool is_valid = gpus && limit && *gpus > 0 && *limit >= 0 &&
                        (!has_only || (only && *only >= 0 && *only < *gpus));
  if (!is_valid) {
    std::fprintf(stderr, "ddprun: %s: expected a number of GPUs and bytes each second\n",
                 kGpuCheckCommand);
    _exit(to_int(ExitCode::kUsage));
  }
  report_gpus(*gpus, *limit, only);
  _exit(0);  // without the driver's own end, which a GPU that has failed may hold up
}

}  // namespace ddprun
