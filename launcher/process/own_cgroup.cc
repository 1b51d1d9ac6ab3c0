#include "launcher/process/own_cgroup.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <sstream>

#include "base/parse_number.h"
#include "base/small_file.h"
#include "base/split.h"

namespace ddprun {
namespace {

// Both exist where systemd runs a machine with both versions of control groups.
constexpr std::array kMounts{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"};

std::string mount_of_version_2() {
  for (const char* mount : kMounts) {
    struct statfs info {};
    if (statfs(mount, &info) == 0 && info.f_type == CGROUP2_SUPER_MAGIC) return mount;
  }
  return "";
}

}  // namespace

std::optional<std::string> cgroup_in(const std::string& text, std::string_view controller) {
  std::istringstream lines(text);  // "4:cpu,cpuacct:/a/b" in version 1, "0::/a/b" in version 2
  for (std::string line; std::getline(lines, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool is_it = controller.empty()
                           ? controllers.empty()
                           : std::ranges::count(split(controllers, ','), controller) > 0;
    if (is_it) return line.substr(second + 1);
  }
  return std::nullopt;
}

std::string own_cgroup_directory() {
  const std::string mount = mount_of_version_2();
  if (mount.empty()) return "";
  const auto path = cgroup_in(text_of("/proc/self/cgroup"), "");
  if (!path || path->find("/..") != std::string::npos) return "";
  return *path == "/" ? mount : mount + *path;
}

std::string full_pids_cgroup() {
  const std::string mount = mount_of_version_2();
  for (std::string at = own_cgroup_directory(); at.size() > mount.size();
       at.resize(at.rfind('/'))) {
    const auto most = parse_number<long>(first_line_of(at + "/pids.max"));  // or "max"
    const auto there = parse_number<long>(first_line_of(at + "/pids.current"));
    if (!most || !there || *there < *most) continue;
    return "pids.max of the control group " + at.substr(mount.size()) + " is " +
           std::to_string(*most);
  }
  return "";
}

}  // namespace ddprun
