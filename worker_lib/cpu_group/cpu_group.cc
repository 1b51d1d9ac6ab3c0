#include "worker_lib/cpu_group/cpu_group.h"

#include <algorithm>

#include "base/deadline.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_group/form_group.h"
#include "worker_lib/cpu_peers/node_bootstrap.h"
#include "worker_lib/store/result_store.h"

namespace ddprun {
namespace {

constexpr Duration kMoment = std::chrono::seconds(1);

class PeerInfoExchange {
 public:
  PeerInfoExchange(Store& store, const CpuGroupOptions& options)
      : store_(store), options_(options) {
    for (int rank = 0; rank < options.world_size; ++rank) {
      keys_.push_back(options.name + "/card/" + std::to_string(rank));
    }
  }

  Result<std::vector<std::string>> operator()(const std::string& info) {
    const Deadline deadline(options_.timeout);
    const Result<void> set = store_.set(keys_[options_.rank.value], info);
    if (!set) return set.error();
    Result<std::vector<std::string>> peers = await_peer_info(deadline);
    if (peers || peers.error().kind != ErrorKind::kTimeout) return peers;
    const std::vector<int> missing = missing_ranks();
    // The last info came just now, or another rank gave up a moment earlier.
    if (missing.empty()) return store_.multi_get(keys_, kMoment);
    const std::string who = name_ranks(missing);
    tell_the_others(missing, name_rank(options_.rank.value) + " gave up: " + who +
                                 " did not come within " + to_text(deadline.allowed()));
    Error error = timeout_error("connect to the other ranks", who + " did not come", deadline);
    if (missing.size() == 1) error.peer_rank = missing[0];
    return error;
  }

 private:
  // Waits for all infos. If `check_members` can report a dead rank, waits in slices: the store does
  // not report it.
  Result<std::vector<std::string>> await_peer_info(const Deadline& deadline) {
    if (!options_.check_members) return store_.multi_get(keys_, deadline.remaining());
    for (;;) {
      Result<std::vector<std::string>> peers =
          store_.multi_get(keys_, std::min(deadline.remaining(), kGlanceAtOthers));
      if (peers || peers.error().kind != ErrorKind::kTimeout || deadline.passed()) return peers;
      if (std::optional<Error> lost = options_.check_members()) {
        return std::move(*lost).within("connect to the other ranks");
      }
    }
  }

  // Returns the ranks whose keys are not in the store.
  std::vector<int> missing_ranks() {
    std::vector<int> ranks;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const Result<bool> is_here = store_.check({keys_[rank]});
      if (!is_here) break;  // the next error of the store has the reason
      if (!*is_here) ranks.push_back(rank);
    }
    return ranks;
  }

  // Ranks that began later would wait for a world that cannot be complete any more. If the store
  // ends with this rank, they would not even learn why. If the store fails here, each rank finds
  // out by itself.
  void tell_the_others(const std::vector<int>& missing, const std::string& reason) {
    for (const int rank : missing) {
      if (!store_.set(keys_[rank], absent_peer_info(reason))) return;
    }
  }

  ResultStore store_;
  const CpuGroupOptions& options_;
  std::vector<std::string> keys_;
};

}  // namespace

Result<std::unique_ptr<CpuGroup>> CpuGroup::form(Store& store, const CpuGroupOptions& options) {
  return form_group(PeerInfoExchange(store, options), options);
}

}  // namespace ddprun
