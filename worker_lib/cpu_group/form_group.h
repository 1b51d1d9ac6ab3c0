// Forms a CpuGroup: every rank publishes its addresses, learns those of all other ranks, and
// connects.
//
//   1  Open a listener for the node (a Unix socket) and one for other nodes (a TCP port).
//   2  Exchange peer infos, one text per rank, through the store.
//   3  Ranks of one node bootstrap and share a segment (node_bootstrap.h).
//   4  Ranks of different nodes connect: the higher-numbered node connects, the lower one accepts.
//
// Each rank computes the same layout from the same peer infos. This takes one round through the
// store, one through the node's listener, and one connection per link.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

// Publishes this rank's peer info and returns those of all ranks, by rank.
using ExchangePeerInfo = std::function<Result<std::vector<std::string>>(const std::string& info)>;

Result<std::unique_ptr<CpuGroup>> form_group(const ExchangePeerInfo& exchange,
                                             const CpuGroupOptions& options);

// Returns the peer info of a rank that did not come. Another rank publishes it for all ranks
// that still wait.
std::string absent_peer_info(const std::string& reason);

}  // namespace ddprun
