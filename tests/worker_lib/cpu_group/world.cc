#include "tests/worker_lib/cpu_group/world.h"

#include "tests/support/rank_threads.h"
#include "tests/support/store_of.h"

namespace ddprun {

std::unique_ptr<CpuGroup> form_rank(std::uint16_t store_port, const std::string& letters, int rank,
                                    const std::string& name, const WorldOptions& options) {
  const auto store = testing_support::store_of(store_port);
  return CpuGroup::form(*store,
                        {.rank = Rank(rank),
                         .world_size = static_cast<int>(letters.size()),
                         .node_id = std::string(1, letters[rank]),
                         .name = name,
                         .page = options.pages.empty() ? PagePlace() : options.pages[rank],
                         .deterministic_across_layouts = options.deterministic_across_layouts,
                         .timeout = std::chrono::seconds(30),
                         .tune = options.tuning})
      .value();
}

EngineWorld::EngineWorld(std::string letters, const WorldOptions& options)
    : letters_(std::move(letters)), groups_(letters_.size()) {
  testing_support::run_ranks(size(), [&](int rank) {
    groups_[rank] = form_rank(store_.port(), letters_, rank, "world", options);
  });
}

void EngineWorld::run(const std::function<void(CpuGroup& group, int rank)>& body) {
  testing_support::run_ranks(size(), [&](int rank) { body(*groups_[rank], rank); });
}

}  // namespace ddprun
