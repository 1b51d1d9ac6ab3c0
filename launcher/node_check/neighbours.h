// measure_links(): exchanges data with the nodes of the next and the previous node rank, and
// measures how long that takes. Blocks; any thread.
//
// The nodes find each other by the store of their generation. Each node with a lower rank connects
// to the next one, and the last one to the first. The one that connects measures and says what it
// has measured.
#pragma once

#include <string>
#include <vector>

#include "base/host_port.h"
#include "launcher/node_check/core/judgement.h"

namespace ddprun {

struct NeighbourPlan {
  HostPort store;  // of the generation
  NodeRank node{0};
  int node_count = 1;
  std::string host;  // this node's name, for people
  PortRange ports;   // to listen on
  // Whether this node has passed its own check. If not, it only tells its neighbours that they
  // need not wait.
  bool takes_part = true;
  double enough = 0;  // bytes each second; an exchange that is slower is repeated a few times
};

// Returns the links that were measured, at most two. A neighbour that does not come within some
// seconds, or takes no part, is left out: the service finds out whether it is lost. Throws
// std::bad_alloc.
std::vector<LinkMeasurement> measure_links(const NeighbourPlan& plan);

}  // namespace ddprun
