#include "launcher/guard/run_cgroup.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <thread>

#include "base/deadline.h"
#include "base/random_id.h"
#include "base/write_all.h"
#include "launcher/process/own_cgroup.h"

namespace ddprun {
namespace {

constexpr Duration kRemoval = std::chrono::seconds(2);
constexpr Duration kPause = std::chrono::milliseconds(2);

bool write_into(const std::string& path, std::string_view text) {
  const UniqueFd file(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  return file.valid() && write_all(file.get(), text);
}

// Returns the number that follows a name, in a file with one name and number in each line.
long number_of(const std::string& path, std::string_view name) {
  std::ifstream file(path);
  long number = 0;
  for (std::string word; file >> word >> number;) {
    if (word == name) return number;
  }
  return 0;
}

// Enables the memory controller, and with it the counts, for groups created in this one from now
// on. The kernel refuses if this group contains processes and is not the root. Then there are no
// counts.
void pass_on_memory(const std::string& cgroup) {
  std::ifstream list(cgroup + "/cgroup.controllers");
  for (std::string controller; list >> controller;) {
    if (controller == "memory") write_into(cgroup + "/cgroup.subtree_control", "+memory");
  }
}

// Returns whether the group is gone.
bool remove_empty(const std::string& run) {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(run, ignored)) {
    if (entry.is_directory(ignored)) rmdir(entry.path().c_str());
  }
  return rmdir(run.c_str()) == 0 || errno == ENOENT;
}

}  // namespace

std::optional<RunDirectory> make_run_cgroup() {
  constexpr int kAttempts = 10;
  const std::string own = own_cgroup_directory();
  if (own.empty() || access(own.c_str(), W_OK) != 0) return std::nullopt;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    RunDirectory run;
    run.path = own + "/ddprun_" + random_hex(3);
    if (mkdir(run.path.c_str(), 0755) != 0) return std::nullopt;
    run.lock.reset(open(run.path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    // Another run may have removed the group as abandoned before it was locked.
    if (!run.lock.valid() || flock(run.lock.get(), LOCK_EX) != 0 ||
        access(run.path.c_str(), F_OK) != 0) {
      continue;
    }
    pass_on_memory(own);
    pass_on_memory(run.path);
    return run;
  }
  return std::nullopt;
}

std::string make_worker_cgroup(const std::string& run, LocalRank rank) {
  if (run.empty()) return "";
  const std::string path = run + "/worker-" + to_text(rank);
  if (mkdir(path.c_str(), 0755) == 0) return path;
  if (errno != EEXIST || rmdir(path.c_str()) != 0) return "";
  return mkdir(path.c_str(), 0755) == 0 ? path : "";
}

void kill_cgroup(const std::string& run) {
  if (!run.empty()) write_into(run + "/cgroup.kill", "1");
}

bool remove_cgroup(const std::string& run) {
  if (run.empty() || remove_empty(run)) return true;
  const Deadline deadline(kRemoval);
  while (!deadline.passed()) {
    kill_cgroup(run);
    // Poll, because no event tells when other processes have reaped the last killed process.
    std::this_thread::sleep_for(kPause);
    if (remove_empty(run)) return true;
  }
  return false;
}

long oom_kills_in(const std::string& cgroup) {
  return cgroup.empty() ? 0 : number_of(cgroup + "/memory.events", "oom_kill");
}

long oom_kills_of_machine() { return number_of("/proc/vmstat", "oom_kill"); }

}  // namespace ddprun
