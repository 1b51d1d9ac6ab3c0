// Parses the lists of hosts that --hosts and --hostfile give. Pure; any thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace ddprun {

struct HostEntry {
  std::string name;          // as ssh takes it: "node1", "me@node1", "2001:db8::1"
  std::optional<int> slots;  // workers of the host; nullopt: --nproc-per-node decides

  friend bool operator==(const HostEntry&, const HostEntry&) = default;
};

// Returns the name without the user: "node1" for "me@node1".
std::string_view without_user(std::string_view name);

// Returns whether the address is valid only on its link: "fe80::1%eth0".
bool is_link_local(std::string_view address);

// Parses "a:4,me@b,[2001:db8::1]:2". The order is that of the node ranks. kInvalidArgument: the
// error shows the entry that is wrong, or the host that is named twice.
Result<std::vector<HostEntry>> parse_hosts(std::string_view text);

// Parses the text of a host file. Each line is "HOST [slots=N]"; # begins a comment. OpenMPI's
// max_slots=N is accepted and has no effect. kInvalidArgument: the error begins with the line's
// number.
Result<std::vector<HostEntry>> parse_hostfile(std::string_view text);

}  // namespace ddprun
