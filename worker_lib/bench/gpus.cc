#include "worker_lib/bench/gpus.h"

#include <sys/wait.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "base/pipe.h"
#include "base/read_all.h"
#include "base/spawn_program.h"

namespace ddprun {
namespace {

// Returns what the program prints, at most 4 KiB.
Result<std::string> output_of(const std::string& program, const std::string& command) {
  Result<Pipe> pipe = make_pipe();
  if (!pipe) return pipe.error();
  const Result<pid_t> pid =
      spawn_program({.words = {program, command}, .output = pipe->write.get()});
  pipe->write.reset();
  if (!pid) return pid.error();
  std::array<char, 4096> bytes;
  const ssize_t count = read_all(pipe->read.get(), bytes.data(), bytes.size());
  pipe->read.reset();
  ::waitpid(*pid, nullptr, 0);
  return std::string(bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0)));
}

}  // namespace

GpuSpeeds measure_gpus() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const Result<std::string> output = output_of(self.parent_path() / "ddprun", kGpuSpeedsCommand);
  if (!output) return {.fault = "gpu: " + output.error().message()};
  return read_gpu_speeds(*output).value_or(GpuSpeeds{.fault = "gpu: ddprun has printed no speeds"});
}

}  // namespace ddprun
