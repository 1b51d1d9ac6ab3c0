#include "launcher/process/own_cgroup.h"

#include <linux/magic.h>
#include <sys/vfs.h>

#include <array>
#include <fstream>
#include <string_view>

#include "base/parse_number.h"
#include "base/small_file.h"

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

std::string own_cgroup_directory() {
  const std::string mount = mount_of_version_2();
  if (mount.empty()) return "";
  std::ifstream list("/proc/self/cgroup");
  constexpr std::string_view kVersion2 = "0::";
  for (std::string line; std::getline(list, line);) {
    if (!line.starts_with(kVersion2)) continue;
    const std::string path = line.substr(kVersion2.size());
    if (path.find("/..") != std::string::npos) return "";
    return path == "/" ? mount : mount + path;
  }
  return "";
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
