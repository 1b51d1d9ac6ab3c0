// Makes backends of nccl groups for tests: a store, and ranks that are threads.
#pragma once

#include <memory>
#include <string>

#include "tests/support/eventually.h"
#include "tests/support/running_store.h"
#include "tests/support/store_of.h"
#include "worker_lib/nccl/backend_nccl.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {

class NcclRanks {
 public:
  NcclRanks(const NcclApi& api, torch::Device device) : api_(api), device_(device) {}

  // Fills in the options' rank, world and device. Every two ranks are a node, so traffic
  // between nodes is tested, too.
  std::unique_ptr<Backend> make(int rank, int size, NcclBackendOptions options = {}) {
    complete(rank, size, options);
    const auto store = connect();
    auto peers = value_or_throw(CpuGroup::form(*store, {.rank = Rank(rank),
                                                        .world_size = size,
                                                        .node_id = std::to_string(rank / 2),
                                                        .name = options.name + "/peers",
                                                        .timeout = testing_support::kPatience}));
    return BackendFactory(api_).make(store, options, std::move(peers));
  }

  // Makes a backend without a group of peers.
  std::unique_ptr<Backend> make_alone(int rank, int size, NcclBackendOptions options = {}) {
    complete(rank, size, options);
    return BackendFactory(api_).make(connect(), options);
  }

  std::shared_ptr<Store> connect() { return testing_support::store_of(store_.port()); }

 private:
  void complete(int rank, int size, NcclBackendOptions& options) {
    options.rank = rank;
    options.world_size = size;
    options.device = device_;
    if (options.name.empty()) options.name = "group-7";
    options.close_grace = std::chrono::milliseconds(300);
  }

  const NcclApi& api_;
  const torch::Device device_;
  testing_support::RunningStore store_;
};

}  // namespace ddprun
