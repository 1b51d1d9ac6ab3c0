// StatePlace: where a service keeps its state, as --state says it.
//
//   dir:/var/lib/ddp-rendezvous      a directory on this host
//   etcd://h1:2379,h2,h3/prefix      etcd, for several services of which one leads
//
// A value type; any thread.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/host_port.h"
#include "base/result.h"

namespace ddprun {

struct StatePlace {
  static constexpr std::uint16_t kEtcdPort = 2379;
  static constexpr const char* kEtcdPrefix = "/ddprun";
  static constexpr std::size_t kMaxPrefixBytes = 256;

  std::string directory;       // empty: in etcd
  std::vector<HostPort> etcd;  // its members; empty: in the directory
  std::string prefix;          // of all keys, with a slash at its beginning and none at its end
};

// Returns whether this is a prefix of keys without a slash at its end. The keys of two such
// prefixes are apart whenever the prefixes differ.
bool is_etcd_prefix(std::string_view prefix);

// Parses the value of --state. kInvalidArgument says what is wrong with it.
Result<StatePlace> parse_state_place(std::string_view text);

}  // namespace ddprun
