// How a CpuGroup is formed: every rank says where it can be met, hears of all others, and meets
// them.
//
//   1  open a listener on the node (a Unix socket) and one for other nodes (a TCP port)
//   2  exchange peers: one text of each rank, through the store
//   3  ranks of one node meet and share a segment (node_bootstrap.h)
//   4  ranks of different nodes connect; the higher-numbered node calls, the lower one admits
//
// Each rank computes the same layout from the same peers. One round through the store, one through
// the node's listener, one connection per link.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/result.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

// Publishes this rank's info and returns everyone's, by rank.
using ExchangePeerInfo = std::function<Result<std::vector<std::string>>(const std::string& info)>;

Result<std::unique_ptr<CpuGroup>> form_group(const ExchangePeerInfo& exchange,
                                             const CpuGroupOptions& options);

// The info of a rank that did not come, which another one sets for all who still wait for it.
std::string absent_card(const std::string& reason);

}  // namespace ddprun
