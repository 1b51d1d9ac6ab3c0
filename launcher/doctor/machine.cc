#include "launcher/doctor/machine.h"

#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/timex.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <system_error>

#include "base/parse_number.h"
#include "base/result.h"
#include "base/small_file.h"
#include "base/split.h"
#include "base/usable_cpus.h"
#include "base/worker_env.h"
#include "launcher/plan/program.h"
#include "launcher/process/own_cgroup.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

// Returns the text that follows "Name:" in a file of /proc; empty if there is none.
std::string field_of(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with(name + ":")) continue;
    const std::size_t begin = line.find_first_not_of(" \t", name.size() + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

// Returns the number at the beginning of a text; 0 if there is none.
std::uint64_t leading_number(const std::string& text) {
  std::uint64_t number = 0;
  std::istringstream(text) >> number;
  return number;
}

Space look_at_space(const std::string& path) {
  Space space{.path = path};
  struct statvfs status {};
  if (statvfs(path.c_str(), &status) != 0) {
    space.why_not_writable = errno_text(errno);
    return space;
  }
  space.total = std::uint64_t{status.f_blocks} * status.f_frsize;
  space.available = std::uint64_t{status.f_bavail} * status.f_frsize;
  // A file system without a fixed number of inodes reports 0 of 0.
  space.free_inodes = status.f_files == 0 ? 1 : status.f_favail;
  std::error_code error;
  if (!fs::is_directory(path, error)) {
    space.why_not_writable = "not a directory";
  } else if (access(path.c_str(), W_OK | X_OK) != 0) {
    space.why_not_writable = errno_text(errno);
  }
  return space;
}

Limit limit_of(int resource) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0) return {};
  const auto value = [](rlim_t number) { return number == RLIM_INFINITY ? kUnlimited : number; };
  return {.soft = value(limit.rlim_cur), .hard = value(limit.rlim_max)};
}

bool has_capability(unsigned number) {
  const std::string text = field_of("/proc/self/status", "CapEff");
  return ((std::strtoull(text.c_str(), nullptr, 16) >> number) & 1) != 0;
}

// Counts the threads of all processes of this user, which is what the limit counts.
std::uint64_t count_own_threads() {
  const uid_t own = getuid();
  std::uint64_t count = 0;
  for (const fs::path& entry : entries_of("/proc")) {
    const std::string pid = entry.filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    const std::string status = entry / "status";
    if (leading_number(field_of(status, "Uid")) == own)
      count += leading_number(field_of(status, "Threads"));
  }
  return count;
}

std::vector<std::string> names_in(const std::string& directory) {
  std::vector<std::string> names;
  for (const fs::path& entry : entries_of(directory)) names.push_back(entry.filename());
  return names;
}

// --- cgroups -------------------------------------------------------------------------------------

// A mounted hierarchy, of v2 or of a v1 controller.
struct Hierarchy {
  std::string mount_point;
  std::string mounted_root;  // the cgroup at the mount point
};

// Finds a hierarchy in the text of /proc/self/mountinfo. controller: of v1; empty: v2.
std::optional<Hierarchy> find_hierarchy(const std::string& mountinfo,
                                        const std::string& controller) {
  std::istringstream lines(mountinfo);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    std::istringstream before(line.substr(0, dash));
    std::istringstream behind(line.substr(dash + 3));
    std::string id, parent, device, type, source, options;
    Hierarchy found;
    before >> id >> parent >> device >> found.mounted_root >> found.mount_point;
    behind >> type >> source >> options;
    const bool is_v2 = controller.empty() && type == "cgroup2";
    const bool is_v1 = !controller.empty() && type == "cgroup" &&
                       std::ranges::count(split(options, ','), controller) > 0;
    if (is_v2 || is_v1) return found;
  }
  return std::nullopt;
}

// Returns the directories of this process's cgroup and of those above it, as far as they are
// mounted, the innermost first. Empty: that hierarchy is not mounted.
std::vector<std::string> cgroup_directories(const std::string& root,
                                            const std::string& controller) {
  const auto hierarchy = find_hierarchy(text_of(root + "/proc/self/mountinfo"), controller);
  if (!hierarchy) return {};
  std::string path = cgroup_in(text_of(root + "/proc/self/cgroup"), controller).value_or("/");
  const std::string& top = hierarchy->mounted_root;
  if (top != "/" && (path + "/").starts_with(top + "/")) path.erase(0, top.size());
  std::vector<std::string> directories;
  std::error_code error;
  while (path.size() > 1 && path.starts_with('/')) {
    const std::string directory = root + hierarchy->mount_point + path;
    // A container does not see cgroups that its mounts do not show.
    if (fs::is_directory(directory, error)) directories.push_back(directory);
    path.erase(path.rfind('/'));
  }
  directories.push_back(root + hierarchy->mount_point);
  return directories;
}

// Returns the smallest number in files of this name. nullopt: there is none, or only "max".
std::optional<std::uint64_t> least_in(const std::vector<std::string>& directories,
                                      const std::string& file, std::string* where = nullptr) {
  // In v1, "no limit" is the largest number of whole pages.
  constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 62;
  std::optional<std::uint64_t> least;
  for (const std::string& directory : directories) {
    const auto number = parse_number<std::uint64_t>(first_line_of(directory + "/" + file));
    if (!number || *number >= kNoLimit || (least && *least <= *number)) continue;
    least = number;
    if (where) *where = directory;
  }
  return least;
}

std::optional<double> least_cpus(const std::vector<std::string>& v2,
                                 const std::vector<std::string>& v1) {
  std::optional<double> least;
  const auto take = [&](double quota, double period) {
    if (quota > 0 && period > 0 && (!least || quota / period < *least)) least = quota / period;
  };
  for (const std::string& directory : v2) {
    std::istringstream words(
        first_line_of(directory + "/cpu.max"));  // "max 100000", "50000 100000"
    double quota = 0;
    double period = 0;
    if (words >> quota >> period) take(quota, period);
  }
  for (const std::string& directory : v1) {
    const auto quota = parse_number<long>(first_line_of(directory + "/cpu.cfs_quota_us"));
    const auto period = parse_number<long>(first_line_of(directory + "/cpu.cfs_period_us"));
    if (quota && period) take(static_cast<double>(*quota), static_cast<double>(*period));
  }
  return least;
}

template <class T>
std::optional<T> lesser(const std::optional<T>& a, const std::optional<T>& b) {
  return a && b ? std::optional<T>(std::min(*a, *b)) : a ? a : b;
}

}  // namespace

SharedMemoryFacts look_at_shared_memory() {
  constexpr const char* kPath = "/dev/shm";
  SharedMemoryFacts facts;
  if (access(kPath, F_OK) != 0) {
    facts.why_missing = errno_text(errno);
    return facts;
  }
  facts.space = look_at_space(kPath);
  for (const fs::path& entry : entries_of(kPath)) {
    std::error_code error;
    if (!fs::is_regular_file(entry, error)) continue;
    ++facts.files;
    const std::uintmax_t size = fs::file_size(entry, error);
    if (!error) facts.file_bytes += size;
  }
  return facts;
}

Space look_at_temporary() {
  const std::string given = environment_text("TMPDIR");
  return look_at_space(given.empty() ? "/tmp" : given);
}

LimitFacts look_at_limits() {
  constexpr unsigned kIpcLock = 14;  // capabilities, as linux/capability.h numbers them
  constexpr unsigned kSysAdmin = 21;
  constexpr unsigned kSysResource = 24;
  return {.open_files = limit_of(RLIMIT_NOFILE),
          .processes = limit_of(RLIMIT_NPROC),
          .processes_bind = !has_capability(kSysResource) && !has_capability(kSysAdmin),
          .own_processes = count_own_threads(),
          .locked_memory = limit_of(RLIMIT_MEMLOCK),
          .locked_memory_binds = !has_capability(kIpcLock),
          .rdma_devices = names_in("/sys/class/infiniband"),
          .address_space = limit_of(RLIMIT_AS)};
}

MachineFacts look_at_machine() {
  return {.usable_cores = static_cast<int>(usable_cpus().size()),
          .online_cores = static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN))),
          .memory = leading_number(field_of("/proc/meminfo", "MemTotal")) * 1024,
          .memory_available = leading_number(field_of("/proc/meminfo", "MemAvailable")) * 1024};
}

ClockFacts look_at_clock() {
  ClockFacts facts{
      .source = first_line_of("/sys/devices/system/clocksource/clocksource0/current_clocksource")};
  timex state{};  // no mode: sets nothing
  const int status = adjtimex(&state);
  if (status >= 0) facts.synchronised = status != TIME_ERROR && (state.status & STA_UNSYNC) == 0;
  return facts;
}

DebuggerFacts look_at_debuggers() {
  return {.has_gdb = find_in_path("gdb").has_value(),
          .has_py_spy = find_in_path("py-spy").has_value(),
          .ptrace_scope = static_cast<int>(
              leading_number(first_line_of("/proc/sys/kernel/yama/ptrace_scope")))};
}

CgroupFacts look_at_cgroups() {
  CgroupFacts facts = read_cgroup_limits();
  facts.path = own_cgroup_directory();
  if (facts.path.empty()) return facts;
  facts.can_make_children = access(facts.path.c_str(), W_OK | X_OK) == 0 &&
                            access((facts.path + "/cgroup.procs").c_str(), W_OK) == 0;
  std::istringstream words(first_line_of(facts.path + "/cgroup.controllers"));
  for (std::string word; words >> word;) facts.controllers.push_back(word);
  return facts;
}

CgroupFacts read_cgroup_limits(const std::string& root) {
  CgroupFacts facts;
  const std::vector<std::string> v2 = cgroup_directories(root, "");
  const std::vector<std::string> memory = cgroup_directories(root, "memory");
  facts.memory_max = lesser(least_in(v2, "memory.max"), least_in(memory, "memory.limit_in_bytes"));
  std::vector<std::string> with_pids = v2;
  const std::vector<std::string> pids = cgroup_directories(root, "pids");
  with_pids.insert(with_pids.end(), pids.begin(), pids.end());
  std::string where;
  facts.pids_max = least_in(with_pids, "pids.max", &where);
  facts.pids_now = leading_number(first_line_of(where + "/pids.current"));
  facts.cpus = least_cpus(v2, cgroup_directories(root, "cpu"));
  return facts;
}

}  // namespace ddprun
