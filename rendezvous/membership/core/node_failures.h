// NodeFailures: counts, since the job's start, how often the workers of each node were the
// first to fail.
//
// A node that fails repeatedly where others do not is probably broken: a GPU, a cable, a full
// disk. A node is blamed only for the first failure of a generation; later failures are caused
// by it. A node is identified by its host name, so that a new agent on a broken machine keeps
// the old count.
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
  // Limit of the counted hosts. One more removes the host with the fewest failures.
  static constexpr std::size_t kHostsKept = 1024;

  NodeFailures() = default;
  // Continues with the counts() of an earlier run of the service.
  explicit NodeFailures(Counts counts) : counts_(std::move(counts)) {}

  // Counts one more generation in which the host's workers were the first to fail. Returns the
  // new count.
  int blame(const std::string& host);
  // Returns the host's count; 0 for an unknown host.
  int of(const std::string& host) const;
  const Counts& counts() const { return counts_; }

 private:
  Counts counts_;
};

}  // namespace ddprun
