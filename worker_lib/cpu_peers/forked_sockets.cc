#include "worker_lib/cpu_peers/forked_sockets.h"

#include <unistd.h>

#include <filesystem>
#include <set>
#include <string>
#include <system_error>
#include <vector>

#include "base/parse_number.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

void close_sockets_at(std::span<const HostPort> addresses) {
  std::set<std::string> texts;
  for (const HostPort& one : addresses) {
    if (const auto address = numeric_address(one)) texts.insert(to_text(*address));
  }
  std::vector<int> found;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const auto file = parse_number<int>(entry.path().filename().string());
    if (!file) continue;
    for (const SocketAddress& end : {local_address_of(*file), peer_address_of(*file)}) {
      if (end.size > 0 && texts.contains(to_text(end))) {
        found.push_back(*file);
        break;
      }
    }
  }
  for (const int file : found) close(file);
}

}  // namespace ddprun
