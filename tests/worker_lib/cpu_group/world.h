// Makes worlds for tests: a real store on a thread of this process, and groups whose ranks are
// threads.
//
// A world is written as letters, one for each rank: "aab" has ranks 0 and 1 on one node and
// rank 2 on another. Nodes are simulated: each rank states its node. So traffic between nodes
// goes over loopback TCP.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/running_store.h"
#include "tests/worker_lib/support/tuning_overrides.h"
#include "worker_lib/cpu_group/cpu_group.h"

namespace ddprun {

// The options that all ranks of a world share.
struct WorldOptions {
  bool deterministic_across_layouts = false;
  std::vector<PagePlace> pages = {};  // by rank, see CpuGroupOptions::page
  TuningOverrides tuning = {};
};

// Forms one rank's group through the store. A failure ends the test program.
std::unique_ptr<CpuGroup> form_rank(std::uint16_t store_port, const std::string& letters, int rank,
                                    const std::string& name, const WorldOptions& options = {});

// Returns all bytes of a container, as the engine takes them.
template <class Container>
WritableBytes writable(Container& all) {
  return {reinterpret_cast<char*>(all.data()), all.size() * sizeof(all[0])};
}
template <class Container>
ReadableBytes readable(const Container& all) {
  return {reinterpret_cast<const char*>(all.data()), all.size() * sizeof(all[0])};
}
template <class Container>
std::vector<WritableBytes> writable_each(std::vector<Container>& list) {
  std::vector<WritableBytes> result;
  for (Container& one : list) result.push_back(writable(one));
  return result;
}
template <class Container>
std::vector<ReadableBytes> readable_each(const std::vector<Container>& list) {
  std::vector<ReadableBytes> result;
  for (const Container& one : list) result.push_back(readable(one));
  return result;
}

class EngineWorld {
 public:
  explicit EngineWorld(std::string letters, const WorldOptions& options = {});

  int size() const { return static_cast<int>(letters_.size()); }
  const std::string& letters() const { return letters_; }
  CpuGroup& group(int rank) { return *groups_[rank]; }
  // Destroys the group of one rank.
  void destroy(int rank) { groups_[rank].reset(); }

  // Calls body once for each rank, each on its own thread, and waits for all of them.
  void run(const std::function<void(CpuGroup& group, int rank)>& body);

 private:
  std::string letters_;
  testing_support::RunningStore store_;
  std::vector<std::unique_ptr<CpuGroup>> groups_;
};

// The layouts on which the conformance suite runs.
inline constexpr const char* kLayouts[] = {
    "a",    "aa",  "aaa",  "aaaa", "aaaaaaaa", "ab",       "aab",      "abb",     "aabb",
    "abab", "abc", "aabc", "abcc", "abcd",     "aaaabbbb", "aaabbbcc", "abbbbccc"};

}  // namespace ddprun
