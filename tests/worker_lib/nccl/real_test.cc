// Tests the real NCCL as far as a machine without a GPU allows: it makes and exchanges unique
// ids, and reports that there is no GPU. Tests that need a GPU are in gpu_test.cc.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <mutex>
#include <set>

#include "ddprun/context.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/store_of.h"
#include "tests/worker_lib/support/scoped_environment.h"
#include "worker_lib/nccl/backend_nccl.h"
#include "worker_lib/nccl/communicator.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::StrEq;
using testing_support::run_ranks;

// Hides the GPUs, if there are any. CUDA reads it once, so it is set before the first TEST.
[[maybe_unused]] const int hidden = setenv("CUDA_VISIBLE_DEVICES", "", 1);

using IdBytes = std::array<char, 128>;

// The ids that were passed to init.
struct SeenIds {
  std::mutex mutex;
  std::vector<IdBytes> ids;
};
SeenIds seen;

// Returns the real table, with doubles from the first call on that needs a GPU.
NcclApi real_until_init() {
  NcclApi api = real_nccl_api();
  api.get_device = [](int* device) {
    *device = 0;
    return CudaResult::kSuccess;
  };
  api.comm_init_rank = [](NcclComm*, int, const NcclUniqueId& id, int) {
    const std::lock_guard lock(seen.mutex);
    seen.ids.push_back(id.bytes);
    return NcclResult::kSystemError;
  };
  return api;
}

TEST(RealNccl, MakesAnotherUniqueIdEachTime) {
  NcclUniqueId first{};
  NcclUniqueId second{};
  ASSERT_EQ(real_nccl_api().get_unique_id(&first), NcclResult::kSuccess);
  ASSERT_EQ(real_nccl_api().get_unique_id(&second), NcclResult::kSuccess);
  EXPECT_NE(first.bytes, IdBytes{});
  EXPECT_NE(first.bytes, second.bytes);
}

TEST(RealNccl, EveryRankBeginsItsCommunicatorWithTheIdOfRankZero) {
  testing_support::RunningStore store;
  const NcclApi api = real_until_init();
  run_ranks(3, [&](int rank) {
    const auto client = testing_support::store_of(store.port());
    const auto communicator = NcclCommunicator::form(
        api, client.get(), std::make_shared<NcclAbortState>(), {.rank = rank, .world_size = 3},
        Deadline(testing_support::kPatience));
    ASSERT_FALSE(communicator);
    EXPECT_THAT(communicator.error().message(), HasSubstr("NCCL: unhandled system error"));
  });
  ASSERT_EQ(seen.ids.size(), 3U);
  EXPECT_EQ(std::set<IdBytes>(seen.ids.begin(), seen.ids.end()).size(), 1U);
  EXPECT_NE(seen.ids[0], IdBytes{});
}

// Checks that the library of the tests has all newer functions.
TEST(RealNccl, WhatIsNewerThanTheOldestNcclIsFoundInTheLoadedOne) {
  const NcclApi& api = real_nccl_api();
  EXPECT_NE(api.comm_init_rank_scalable, nullptr);
  EXPECT_NE(api.comm_split, nullptr);
  EXPECT_NE(api.comm_revoke, nullptr);
  EXPECT_NE(api.mem_alloc, nullptr);
  EXPECT_NE(api.mem_free, nullptr);
  EXPECT_NE(api.comm_register, nullptr);
  EXPECT_NE(api.comm_deregister, nullptr);
}

TEST(RealNccl, AProgramForGpusRunsOnTheCpuWhereThereIsNoGpu) {
  const ScopedEnvironment none({});
  ASSERT_EQ(nccl_backend_factory()->device_count(), 0);
  EXPECT_EQ(init().group().backend_name(), "cpu");
  EXPECT_DIST_ERROR(init({.backend = "nccl"}), DistError::Kind::kUnsupported,
                    StrEq("ddprun::init: there is no GPU here, or no driver for it"));
}

}  // namespace
}  // namespace ddprun
