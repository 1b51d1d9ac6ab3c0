// PeerInfo: what the ranks of a group tell each other through the store before they connect: one
// text per rank. Each rank computes the same layout from the same infos.
//
// Value types; the thread that forms the group calls the functions.
#pragma once

#include <string>
#include <vector>

#include "base/host_port.h"
#include "base/result.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

struct PeerInfo {
  std::string listener;  // name of the listener for its node
  HostPort address;
  std::string token;  // rank 0's becomes the group's
  // Of its worker page, in the file that it shows to its node; empty: none.
  std::string page_offset;
  std::string machine;  // the machine on which it runs
  std::string cpus;     // '1' for each processor that the rank may use
  std::string cache;    // bytes of a core's second-level cache; "0": unknown
  // Ranks with equal text share memory. It may hold line ends, hence the last field.
  std::string node;
};

// Publishes this rank's info and returns those of all ranks, by rank. The first rank whose
// deadline passes publishes, in the place of the missing infos, which ranks did not come.
Result<std::vector<PeerInfo>> exchange_peer_info(Store& store, const CpuGroupOptions& options,
                                                 const PeerInfo& own);

}  // namespace ddprun
