// Tells all ranks whether any of them has a request. Collective; for the thread of the group's
// calls.
#pragma once

#include <optional>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

// Returns for each request whether any rank has it. A collective call: one small all-reduce,
// none in a world of one. Throws as the group's calls do.
std::vector<bool> any_rank_requests(ProcessGroup& group, const std::vector<bool>& mine);

// LateRequests: any_rank_requests() without waiting: the ranks learn the requests of one step in
// the next one.
//
//   const auto known = late.take_previous(mine);  // what any rank sent in the step before
//   late.send(mine);
//
// In a world of one, take_previous() returns `mine` at once. On a GPU neither call waits for the
// caller's stream; take_previous() waits until the device has exchanged the previous requests.
// The group must outlive it. Owner: the thread of the group's calls.
class LateRequests {
 public:
  explicit LateRequests(ProcessGroup& group) : group_(group) {}

  // Returns the requests that any rank gave to the last send(); all false if there was none since
  // the last call. Collective if there was one. Throws as the group's calls do.
  std::vector<bool> take_previous(const std::vector<bool>& mine);
  // Sends requests and does not wait. Collective. Throws as the group's calls do.
  void send(const std::vector<bool>& mine);

 private:
  struct Sent {
    torch::Tensor requested;
    Work work;
  };
  ProcessGroup& group_;
  std::optional<Sent> sent_;
};

}  // namespace ddprun
