// The nccl backend on a GPU: a world of one, every collective; and, where NCCL can (2.30), several
// ranks on one GPU.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nccl.h>
#include <torch/torch.h>

#include <cstdlib>
#include <latch>

#include "ddprun/context.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/rank_threads.h"
#include "tests/worker_lib/nccl_ranks.h"
#include "tests/worker_lib/scoped_environment.h"
#include "tests/worker_lib/tensor_list.h"
#include "worker_lib/backend_nccl.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::dist_error_of;
using testing_support::run_ranks;
using torch::Tensor;

class NcclOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (nccl_backend_factory()->device_count() == 0) GTEST_SKIP() << "there is no GPU here";
    context_.emplace(init());
    ASSERT_EQ(group().backend_name(), "nccl");
  }

  ProcessGroup& group() { return context_->group(); }
  Tensor values() const { return torch::arange(1000, context_->device()).to(torch::kFloat32); }
  void expect_values(const Tensor& tensor) const {
    EXPECT_TRUE(torch::equal(tensor.cpu(), values().cpu()));
  }

  const ScopedEnvironment none_{{}};
  std::optional<Context> context_;
};

TEST_F(NcclOnGpu, IsChosenWithTheFirstDevice) {
  EXPECT_EQ(context_->device(), torch::Device(torch::kCUDA, 0));
}

TEST_F(NcclOnGpu, EveryCollectiveOfAWorldOfOneGivesWhatItGot) {
  const Tensor x = values();
  for (const ReduceOp op :
       {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kProduct, ReduceOp::kMin, ReduceOp::kMax}) {
    group().all_reduce(x, {.op = op});
    expect_values(x);
  }
  group().reduce(x);
  group().broadcast(x);
  expect_values(x);
  for (int i = 0; i < 9; ++i) {
    const Tensor y = torch::zeros_like(x);
    if (i == 0) group().all_gather({y}, x);
    if (i == 1) group().reduce_scatter(y, {x});
    if (i == 2) group().gather({y}, x);
    if (i == 3) group().scatter(y, {x});
    if (i == 4) group().all_gather_into_tensor(y, x);
    if (i == 5) group().reduce_scatter_tensor(y, x);
    if (i == 6) group().all_to_all({y}, {x});
    if (i == 7) group().all_to_all_single(y, x);
    if (i == 8) group().all_gather_into_tensor_coalesced({y}, {x});
    expect_values(y);
  }
  group().all_reduce_coalesced({x, values()});
  group().broadcast_coalesced({x, values()});
  expect_values(x);
  group().barrier();
  group().monitored_barrier();
}

TEST_F(NcclOnGpu, PremulSumMultiplies) {
  const Tensor x = values();
  for (int i = 0; i < 3; ++i)
    group().all_reduce(x, {.op = ReduceOp::kPremulSum, .premul_factor = 2});
  EXPECT_TRUE(torch::equal(x.cpu(), values().cpu() * 8));
}

TEST_F(NcclOnGpu, WorksInFlightRunInOrder) {
  const Tensor x = values();
  std::vector<Work> works;
  for (int i = 0; i < 50; ++i) works.push_back(group().all_reduce(x, {.async = true}));
  works.back().wait(seconds(30));
  for (const Work& work : works) {
    work.wait();
    EXPECT_TRUE(work.is_completed());
  }
  expect_values(x);
}

TEST_F(NcclOnGpu, ObjectsTravelThroughTheDevice) {
  const nlohmann::json value{{"exact", 0.1}, {"text", "object"}};
  EXPECT_EQ(group().broadcast_object(value), value);
  EXPECT_EQ(group().all_gather_object(value), std::vector<nlohmann::json>{value});
}

TEST_F(NcclOnGpu, AnAbortedGroupSaysSo) {
  group().all_reduce(values());
  group().abort("enough");
  EXPECT_DIST_ERROR(group().all_reduce(values()), DistError::Kind::kStopped,
                    testing::HasSubstr("enough"));
}

TEST_F(NcclOnGpu, AnAbortEndsWhatIsInFlightWithinASecond) {
  const Tensor x = torch::ones({1 << 26}, context_->device());
  group().all_reduce(x);
  std::vector<Work> works;
  for (int i = 0; i < 1000; ++i) works.push_back(group().all_reduce(x, {.async = true}));
  const TimePoint start = BootClock::now();
  group().abort("enough");
  EXPECT_LT(BootClock::now() - start, seconds(1));
  EXPECT_TRUE(works.back().is_completed());
}

TEST_F(NcclOnGpu, ASharedTensorIsReducedAndOutlivesTheGroup) {
  Tensor shared = group().shared_empty({1000}, torch::kFloat32);
  EXPECT_EQ(shared.device(), context_->device());
  for (int i = 0; i < 3; ++i) {
    shared.copy_(values());
    group().all_reduce(shared);
    expect_values(shared);
  }
  const Tensor expected = values().cpu();
  context_.reset();
  EXPECT_TRUE(torch::equal(shared.cpu(), expected));
  shared.reset();
}

TEST_F(NcclOnGpu, ASplitOffGroupWorksBesideItsParent) {
  group().all_reduce(values());
  const auto part = group().split(0, 0);
  const Tensor x = values();
  part->all_reduce(x);
  group().all_reduce(x);
  part->all_reduce(x);
  expect_values(x);
}

TEST_F(NcclOnGpu, CallsAreCapturedIntoAGraphAndRunWithIt) {
  const Tensor input = values();
  const Tensor output = torch::zeros_like(input);
  const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
  const c10::cuda::CUDAStream before = c10::cuda::getCurrentCUDAStream();
  at::cuda::getCurrentDeviceProperties();
  group().all_gather_into_tensor(output, input);
  c10::cuda::device_synchronize();
  c10::cuda::setCurrentCUDAStream(side);
  at::cuda::CUDAGraph graph;
  graph.capture_begin();
  EXPECT_DIST_ERROR(group().barrier(), DistError::Kind::kUnsupported, HasSubstr("captured"));
  group().all_gather_into_tensor(output, input);
  group().all_reduce(output);
  graph.capture_end();
  for (int i = 1; i <= 3; ++i) {
    input.fill_(i);
    graph.replay();
    EXPECT_TRUE(torch::equal(output.cpu(), torch::full({1000}, i, torch::kFloat32)));
  }
  c10::cuda::setCurrentCUDAStream(before);
  group().all_reduce(output);
}

class NcclRanksOnOneGpu : public testing::Test {
 protected:
  static void SetUpTestSuite() { setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1); }
  void SetUp() override {
    if (nccl_backend_factory()->device_count() == 0) GTEST_SKIP() << "there is no GPU here";
    int version = 0;
    ASSERT_EQ(ncclGetVersion(&version), ncclSuccess);
    if (version < 23000) GTEST_SKIP() << "several ranks on a GPU need NCCL 2.30, not " << version;
  }

  static Tensor filled(float value, std::int64_t count = 1000) {
    return torch::full({count}, value, torch::Device(torch::kCUDA, 0));
  }

  static constexpr CallOptions kCall{.timeout = seconds(60), .async = true};
  NcclRanks ranks_{real_nccl_api(), torch::Device(torch::kCUDA, 0)};
};

TEST_F(NcclRanksOnOneGpu, ReduceExchangeAndSplit) {
  run_ranks(3, [&](int rank) {
    const auto backend = ranks_.make(rank, 3);
    const Tensor sum = filled(rank + 1.0F);
    backend->all_reduce(list_of_one(sum), {ReduceOp::kSum}, kCall).wait(seconds(60));
    EXPECT_EQ(sum[999].item<float>(), 6);
    const Tensor got = filled(0);
    const Tensor own = filled(static_cast<float>(rank));
    const std::vector<Work> works =
        backend->batch({{.kind = P2POp::Kind::kSend, .tensor = own, .peer = (rank + 1) % 3},
                        {.kind = P2POp::Kind::kRecv, .tensor = got, .peer = (rank + 2) % 3}},
                       kCall);
    for (const Work& one : works) one.wait(seconds(60));
    EXPECT_EQ(got[0].item<float>(), static_cast<float>((rank + 2) % 3));
    std::shared_ptr<void> seed;
    backend->split_off(rank < 2 ? 0 : -1, -rank, &seed, kCall).wait();
    ASSERT_EQ(seed != nullptr, rank < 2);
    if (seed) {
      NcclBackend part(real_nccl_api(), nullptr,
                       {.rank = 1 - rank, .world_size = 2, .device = {torch::kCUDA, 0}}, nullptr,
                       std::static_pointer_cast<NcclSeed>(seed));
      part.broadcast(list_of_one(own), 0, kCall).wait(seconds(60));
      EXPECT_EQ(own[0].item<float>(), 1);
    }
    const Tensor shared = backend->shared_empty({1000}, torch::kFloat32);
    if (shared.defined()) {
      shared.fill_(1);
      backend->all_reduce(list_of_one(shared), {ReduceOp::kSum}, kCall).wait(seconds(60));
      EXPECT_EQ(shared[0].item<float>(), 3);
    }
    backend->barrier(kCall).wait(seconds(60));
  });
}

TEST_F(NcclRanksOnOneGpu, ThatDisagreeAreTold) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto backend = ranks_.make(rank, 2);
    backend->barrier(kCall).wait(seconds(60));
    const TimePoint start = BootClock::now();
    const Tensor tensor = filled(1, rank == 0 ? 1 << 22 : 1 << 21);
    const Work work = backend->all_reduce(list_of_one(tensor), {ReduceOp::kSum}, kCall);
    const DistError error = dist_error_of([&] { work.wait(seconds(30)); });
    EXPECT_EQ(error.kind(), DistError::Kind::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 1 called all_reduce #2 of 2097152 f32 (sum)"));
    EXPECT_LT(BootClock::now() - start, seconds(2));
    over.arrive_and_wait();
  });
}

TEST_F(NcclRanksOnOneGpu, AMissingRankIsNamedAndNobodyHangs) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto backend = ranks_.make(rank, 2);
    backend->barrier(kCall).wait(seconds(60));
    if (rank == 0) {
      const Work work = backend->all_reduce(list_of_one(filled(1)), {ReduceOp::kSum},
                                            {.timeout = milliseconds(500), .async = true});
      const DistError error = dist_error_of([&] { work.wait(seconds(30)); });
      EXPECT_EQ(error.kind(), DistError::Kind::kTimeout) << error.what();
      EXPECT_THAT(error.what(), HasSubstr("rank 1 has not come"));
    }
    over.arrive_and_wait();
  });
}

}  // namespace
}  // namespace ddprun
