#include "base/process_stat.h"

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
