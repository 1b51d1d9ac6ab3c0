#include "base/process_stat.h"

#include <unistd.h>

#include <fstream>
#include <sstream>
#include <string>

namespace ddprun {

std::optional<ProcessStat> process_stat(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text, '\0');
  // The format is "pid (name) state parent ...". The name may hold any character, also
  // parentheses.
  const std::size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return std::nullopt;
  std::istringstream rest(text.substr(name_end + 1));
  ProcessStat stat;
  if (!(rest >> stat.state >> stat.parent)) return std::nullopt;
  // Fields are numbered from 1 by proc(5): utime is the 14th, rss the 24th.
  std::int64_t user = 0;
  std::int64_t system = 0;
  std::int64_t pages = 0;
  std::string skipped;
  for (int field = 5; field < 14; ++field) rest >> skipped;
  rest >> user >> system;
  for (int field = 16; field < 24; ++field) rest >> skipped;
  rest >> pages;
  const std::int64_t ticks_per_second = sysconf(_SC_CLK_TCK);
  stat.cpu = Duration(std::chrono::seconds(1)) / ticks_per_second * (user + system);
  stat.resident_bytes = pages * sysconf(_SC_PAGESIZE);
  return stat;
}

pid_t process_behind(int pidfd) {
  std::ifstream info("/proc/self/fdinfo/" + std::to_string(pidfd));
  pid_t pid = -1;
  for (std::string key; info >> key;) {
    if (key == "Pid:") info >> pid;
  }
  return pid > 0 ? pid : -1;
}

}  // namespace ddprun
