// NodeFailures: how often the workers of each node were the first to fail, since the job's start.
//
// A node that fails again and again where others do not is likely to be broken: a GPU, a cable, a
// full disk. It is blamed for the first failure of a generation only; the rest are its victims. A
// node is known by its host's name, so that a new agent on a broken machine does not begin anew.
//
// Owner: Membership. A value type without clock or randomness; one owner thread.
#pragma once

#include <cstddef>
#include <map>
#include <string>

namespace ddprun {

class NodeFailures {
 public:
  using Counts = std::map<std::string, int>;  // by host
  // Past it the host that failed least is forgotten.
  static constexpr std::size_t kHostsKept = 1024;

  NodeFailures() = default;
  // Goes on with what counts() of an earlier life has said.
  explicit NodeFailures(Counts counts) : counts_(std::move(counts)) {}

  // Its workers were the first to fail in one more generation. Returns in how many now.
  int blame(const std::string& host);
  // In how many they were; 0 for a host that is not known.
  int of(const std::string& host) const;
  const Counts& counts() const { return counts_; }

 private:
  Counts counts_;
};

}  // namespace ddprun
