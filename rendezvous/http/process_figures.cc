#include "rendezvous/http/process_figures.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <ctime>
#include <fstream>
#include <sstream>
#include <string>

namespace ddprun {
namespace {

// Fields of /proc/self/stat. They are counted after the name in brackets, because the name may
// contain anything. 1 is the third field of the line, the state.
constexpr int kUserTime = 12;
constexpr int kSystemTime = 13;
constexpr int kStartTime = 20;
constexpr int kVirtualBytes = 21;
constexpr int kResidentPages = 22;

std::uint64_t count_descriptors() {
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return 0;
  std::uint64_t count = 0;
  while (const dirent* entry = readdir(directory)) count += entry->d_name[0] != '.' ? 1 : 0;
  closedir(directory);
  return count - 1;  // without the descriptor that opendir() opened
}

}  // namespace

ProcessFigures process_figures() {
  std::ifstream file("/proc/self/stat");
  std::string text;
  if (!std::getline(file, text) || text.rfind(')') == text.npos) return {};
  std::istringstream fields(text.substr(text.rfind(')') + 1));
  const auto ticks = static_cast<std::uint64_t>(sysconf(_SC_CLK_TCK));
  const auto page_bytes = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  ProcessFigures figures;
  std::uint64_t cpu_ticks = 0;
  std::uint64_t start_ticks = 0;
  std::string field;
  for (int i = 1; i <= kResidentPages && fields >> field; ++i) {
    const bool is_number = i > 1 && field[0] != '-';
    const std::uint64_t value = is_number ? std::stoull(field) : 0;
    if (i == kUserTime || i == kSystemTime) cpu_ticks += value;
    if (i == kStartTime) start_ticks = value;
    if (i == kVirtualBytes) figures.virtual_bytes = value;
    if (i == kResidentPages) figures.resident_bytes = value * page_bytes;
  }
  figures.cpu = std::chrono::milliseconds(cpu_ticks * 1000 / ticks);
  timespec since_boot{};
  clock_gettime(CLOCK_BOOTTIME, &since_boot);
  const auto age = static_cast<std::uint64_t>(since_boot.tv_sec) - start_ticks / ticks;
  figures.started = static_cast<std::uint64_t>(std::time(nullptr)) - age;
  figures.open_descriptors = count_descriptors();
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) figures.max_descriptors = limit.rlim_cur;
  return figures;
}

}  // namespace ddprun
