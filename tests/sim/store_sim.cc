#include "tests/sim/store_sim.h"

#include <cstring>

namespace ddprun::sim {

std::string StoreSim::ask(Client client, const Request& request, std::vector<Client>& others) {
  KvState::Progress progress;
  std::string answer;
  const auto deliver = [&] {
    for (std::size_t i = 0; i < replies_.pieces(); ++i) {
      const Replies::Piece piece = replies_.piece(i);
      if (piece.to.value == client) {
        answer += piece.bytes;
      } else {
        others.push_back(piece.to.value);
      }
    }
    replies_.clear();
  };
  while (!progress.done()) {
    const auto refusal = kv_.handle(StoreConnectionId(client), request, progress, replies_);
    if (refusal) violation_ = "the store refused a worker: " + refusal->reason;
    deliver();
    if (refusal) break;
  }
  while (kv_.has_work()) {
    kv_.work(replies_);
    deliver();
  }
  return answer;
}

std::vector<StoreSim::Client> StoreSim::arrive(Client client) {
  std::vector<Client> met;
  const std::string count =
      ask(client, {.command = Command::kAdd, .strings = {"here"}, .number = 1}, met);
  std::int64_t here = 0;
  if (count.size() == sizeof here) std::memcpy(&here, count.data(), sizeof here);
  if (here < 1 || here > world_size) {
    violation_ = "worker " + std::to_string(here) + " of " + std::to_string(world_size) +
                 " comes to the store of generation " + to_text(generation);
  }
  if (here == world_size) {
    ask(client, {.command = Command::kSet, .strings = {"all", "1"}}, met);
  }
  const std::string all = ask(client, {.command = Command::kWait, .strings = {"all"}}, met);
  for (const Client other : met) waiting_.erase(other);
  if (all.empty()) {
    waiting_.insert(client);
  } else {
    met.push_back(client);
  }
  if (kv_.parked_count() != waiting_.size()) {
    violation_ = std::to_string(kv_.parked_count()) + " waits are parked of " +
                 std::to_string(waiting_.size()) + " workers that wait";
  }
  return met;
}

void StoreSim::leave(Client client) {
  kv_.give_up_wait(StoreConnectionId(client));
  while (kv_.has_work()) kv_.work(replies_);
  waiting_.erase(client);
  if (kv_.parked_count() != waiting_.size()) violation_ = "a wait outlives its client";
}

bool StoreSim::announce(Client client, std::string_view key) {
  std::vector<Client> others;
  ask(client, {.command = Command::kSet, .strings = {key, "1"}}, others);
  return violation_.empty();
}

}  // namespace ddprun::sim
