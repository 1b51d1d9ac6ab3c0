// Tells all ranks of a group about a request or a failure of any rank.
#pragma once

#include <chrono>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/process_group.h"

namespace ddprun {

// How long an aborted call may take to report its reason.
inline constexpr auto kTimeToFail = std::chrono::seconds(10);

// Returns for each request whether any rank has it. A collective call: one small all-reduce,
// none in a world of one. For the thread of the group's calls; throws as they do.
std::vector<bool> any_rank_requests(ProcessGroup& group, const std::vector<bool>& mine);

// LateRequests: the same without waiting. The ranks learn the requests of one step in the next
// step. A world of one has nothing to wait for. On a GPU neither call waits for the caller's
// stream; last() waits until the device has exchanged the requests of the previous step. The
// group must outlive it. The thread of the group's calls owns it.
class LateRequests {
 public:
  explicit LateRequests(ProcessGroup& group) : group_(group) {}

  // Returns the requests that any rank gave to the last begin(); all false if there was none. In
  // a world of one it returns `mine`. Collective if a begin() came before; throws as collectives
  // do.
  std::vector<bool> last(const std::vector<bool>& mine);
  // Sends requests asynchronously. Collective.
  void begin(const std::vector<bool>& mine);

 private:
  struct Sent {
    torch::Tensor requested;
    Work work;
  };
  ProcessGroup& group_;
  std::optional<Sent> sent_;
};

// Convert a failure for an exchange of objects (null: none), and throw it again with the text
// `whose` before the message.
nlohmann::json to_json_report(const std::optional<DistError>& failure);
void throw_reported(const nlohmann::json& report, const std::string& whose = "");

// Runs every rank's part and returns the results by rank. The first exception of a part is
// thrown on every rank. Collective. The ranks wait for each other for at most `timeout`, without
// being taken for a hang.
std::vector<nlohmann::json> on_every_rank(ProcessGroup& group, const char* doing, Timeout timeout,
                                          const std::function<nlohmann::json()>& part);

}  // namespace ddprun
