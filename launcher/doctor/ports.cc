#include "launcher/doctor/ports.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>

#include "base/small_file.h"
#include "base/split.h"
#include "rendezvous/net/listen.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

// Adds the inodes of sockets that listen on the port, from one table of /proc/net.
void find_listeners(const std::string& table, std::uint16_t port, std::set<std::string>& inodes) {
  constexpr std::string_view kListens = "0A";
  std::ifstream file(table);
  std::string line;
  std::getline(file, line);  // the names of the columns
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string number, local, remote, state, queues, timer, retries, user, timeout, inode;
    words >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >>
        inode;
    const std::size_t colon = local.rfind(':');
    if (state != kListens || colon == std::string::npos) continue;
    if (std::strtoul(local.c_str() + colon + 1, nullptr, 16) == port) inodes.insert(inode);
  }
}

bool has_one_of(const fs::path& descriptors, const std::set<std::string>& inodes) {
  for (const fs::path& entry : entries_of(descriptors)) {
    std::error_code error;
    const std::string target = fs::read_symlink(entry, error).string();
    constexpr std::string_view kSocket = "socket:[";
    if (!target.starts_with(kSocket)) continue;
    if (inodes.contains(target.substr(kSocket.size(), target.size() - kSocket.size() - 1)))
      return true;
  }
  return false;
}

}  // namespace

std::string holder_of_port(std::uint16_t port) {
  std::set<std::string> inodes;
  for (const char* table : {"/proc/net/tcp", "/proc/net/tcp6"}) find_listeners(table, port, inodes);
  if (inodes.empty()) return "";
  for (const fs::path& entry : entries_of("/proc")) {
    const std::string pid = entry.filename();
    if (pid.find_first_not_of("0123456789") != std::string::npos) continue;
    if (has_one_of(entry / "fd", inodes)) {
      return first_line_of(entry / "comm") + " (pid " + pid + ")";
    }
  }
  return "";
}

ListenTry try_to_listen(const HostPort& address) {
  const Result<Listener> listener = listen_tcp(address);
  if (listener) return {.works = true};
  return {.why = listener.error().cause, .holder = holder_of_port(address.port)};
}

PortRangeFacts count_free(PortRange range) {
  PortRangeFacts facts{.range = range};
  for (int port = range.first; port <= range.last; ++port) {
    if (listen_tcp(HostPort{"*", static_cast<std::uint16_t>(port)})) ++facts.free;
  }
  return facts;
}

std::optional<PortRange> ephemeral_ports() {
  std::istringstream words(first_line_of("/proc/sys/net/ipv4/ip_local_port_range"));
  PortRange range;
  if (words >> range.first >> range.last) return range;
  return std::nullopt;
}

std::vector<PortRange> reserved_ports() {
  return parse_port_ranges(first_line_of("/proc/sys/net/ipv4/ip_local_reserved_ports"));
}

std::vector<PortRange> parse_port_ranges(const std::string& text) {
  std::vector<PortRange> ranges;
  for (const std::string_view part : split(text, ',')) {
    if (const Result<PortRange> range = parse_port_range(part)) ranges.push_back(*range);
  }
  return ranges;
}

}  // namespace ddprun
