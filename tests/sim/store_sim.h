// StoreSim: the store of one generation in the simulation. The real KvState; its clients are workers
// that meet: each adds itself to a counter and waits for a key, which the last one sets.
//
// Owned by ClusterSim, which decides who reaches it, and when.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/ids.h"
#include "rendezvous/store/core/kv_state.h"

namespace ddprun::sim {

class StoreSim {
 public:
  using Client = std::uint64_t;  // one for each connection

  StoreSim(std::size_t node, Generation generation, int world_size)
      : node(node), generation(generation), world_size(world_size) {}

  // A worker has connected and says that it is here. Returns whose wait has ended with that.
  std::vector<Client> arrive(Client client);
  // Its connection is closed.
  void leave(Client client);
  // A worker announces a checkpoint. True: the store's host has seen it.
  bool announce(Client client, std::string_view key);

  // What must never be: more arrivals than workers, a wait that nobody has or that nobody knows.
  const std::string& violation() const { return violation_; }

  const std::size_t node;
  const Generation generation;
  const int world_size;

 private:
  // Performs the request to its end; returns what is answered to others, and to the client.
  std::string ask(Client client, const Request& request, std::vector<Client>& others);

  KvState kv_;
  Replies replies_;
  std::set<Client> waiting_;
  std::string violation_;
};

}  // namespace ddprun::sim
