// StoreSim: the store of one generation in the simulation, with the real KvState. Its clients
// are workers that meet. Each worker adds itself to a counter and waits for a key. The last one
// sets the key.
//
// ClusterSim owns it, and decides which workers reach it and when.
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

  // Adds a worker that has just connected. Returns the clients whose wait has ended with that.
  std::vector<Client> arrive(Client client);
  // Closes the client's connection.
  void leave(Client client);
  // Announces a checkpoint of a worker. Returns true if the store's host has seen it.
  bool announce(Client client, std::string_view key);

  // Returns an invariant that was violated; empty: none. There must be no more arrivals than
  // workers, and the parked waits must be those of the waiting clients.
  const std::string& violation() const { return violation_; }

  const std::size_t node;
  const Generation generation;
  const int world_size;

 private:
  // Performs the request to its end. Returns the answer to the client, and adds the clients that
  // get other answers to `others`.
  std::string ask(Client client, const Request& request, std::vector<Client>& others);

  KvState kv_;
  Replies replies_;
  std::set<Client> waiting_;
  std::string violation_;
};

}  // namespace ddprun::sim
