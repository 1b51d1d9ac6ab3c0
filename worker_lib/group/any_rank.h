// What any rank of a group wants, or could not do, known to all of them.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/process_group.h"

namespace ddprun {

// Of each wish whether some rank has it. A collective call: one small all-reduce, none in a world of one.
// The thread of the group's calls; throws as they do.
std::vector<bool> any_rank_requests(ProcessGroup& group, const std::vector<bool>& mine);

// The same without waiting: what the ranks wish in one step is known in the next one. In a world of
// one there is nothing to wait for. On a GPU neither call waits for the caller's stream; last()
// waits until the device has exchanged the requests of the step before. The group must outlive it;
// the thread of the group's calls owns it.
class LateRequests {
 public:
  explicit LateRequests(ProcessGroup& group) : group_(group) {}

  // What any rank gave to the last begin(); of none yet, no wish. In a world of one: `mine`. Collective where a
  // begin() came before; throws as collectives do.
  std::vector<bool> last(const std::vector<bool>& mine);
  // Sends requests, asynchronously. Collective.
  void begin(const std::vector<bool>& mine);

 private:
  struct Sent {
    torch::Tensor requested;
    Work work;
  };
  ProcessGroup& group_;
  std::optional<Sent> sent_;
};

// A failure for an exchange of objects; null: none. Throws it again, with whose it is in front.
nlohmann::json to_json_report(const std::optional<DistError>& failure);
void throw_reported(const nlohmann::json& report, const std::string& whose = "");

// Runs every rank's part. What the parts return, by rank; what the first of them threw is thrown on
// every rank. Collective; ranks wait for each other as long as timeout says without being taken for
// a hang.
std::vector<nlohmann::json> on_every_rank(ProcessGroup& group, const char* doing, Timeout timeout,
                                          const std::function<nlohmann::json()>& part);

}  // namespace ddprun
