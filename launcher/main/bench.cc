#include "launcher/main/bench.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>

#include "base/exit_codes.h"
#include "base/fail.h"

namespace ddprun {

std::vector<std::string> bench_job(const std::vector<std::string>& arguments,
                                   const std::string& program) {
  const auto end = std::ranges::find(arguments, "--");
  std::vector<std::string> job(arguments.begin(), end);
  const bool has_workers = std::ranges::any_of(job, [](const std::string& word) {
    return word.starts_with("--nproc-per-node") || word.starts_with("--nproc_per_node");
  });
  if (!has_workers) job.emplace_back("--nproc-per-node=1");
  job.insert(job.end(), {"--no-python", program});
  if (end != arguments.end()) job.insert(job.end(), end + 1, arguments.end());
  return job;
}

int run_bench(const std::vector<std::string>& arguments) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  std::vector<std::string> words = bench_job(arguments, self.parent_path() / "ddprun-bench");
  words.insert(words.begin(), "ddprun");
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  execv("/proc/self/exe", pointers.data());
  return fail("ddprun", system_error("exec " + self.string(), errno), ExitCode::kCannotStart);
}

}  // namespace ddprun
