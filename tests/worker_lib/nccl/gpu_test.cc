// Tests of the nccl backend that need a GPU: how a program gets the backend, kernels that an
// abort ends, splits, CUDA graphs. If NCCL allows several ranks on one GPU (2.30), also ranks
// that disagree or are missing. What every backend does is tested in gpu_conformance_test.cc.
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cuda/CUDAGraph.h>
#include <c10/cuda/CUDAStream.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <latch>

#include "ddprun/context.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/ranks.h"
#include "tests/worker_lib/support/gpu_ranks.h"
#include "tests/worker_lib/support/scoped_environment.h"
#include "tests/worker_lib/support/tensor_list.h"
#include "worker_lib/nccl/backend_nccl.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::dist_error_of;
using torch::Tensor;

class NcclOnGpu : public testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = why_no_ranks_on_gpu(1); !why.empty()) GTEST_SKIP() << why;
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

TEST_F(NcclOnGpu, IsChosenWithTheFirstDevice) { EXPECT_EQ(context_->device(), kFirstGpu); }

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
  void SetUp() override {
    if (const std::string why = why_no_ranks_on_gpu(2); !why.empty()) GTEST_SKIP() << why;
  }

  static Tensor filled(float value, std::int64_t count = 1000) {
    return torch::full({count}, value, kFirstGpu);
  }

  static constexpr CallOptions kCall{.timeout = seconds(60), .async = true};
  NcclRanks ranks_{real_nccl_api(), kFirstGpu};
};

TEST_F(NcclRanksOnOneGpu, ReduceExchangeAndSplit) {
  std::latch has_memory(3);
  run_ranks_on_gpu(3, [&](int rank) {
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
      const auto part = BackendFactory(real_nccl_api())
                            .make(nullptr, {.rank = 1 - rank, .world_size = 2, .device = kFirstGpu},
                                  nullptr, seed);
      part->broadcast(list_of_one(own), 0, kCall).wait(seconds(60));
      EXPECT_EQ(own[0].item<float>(), 1);
    }
    const Tensor shared = backend->shared_empty({1000}, torch::kFloat32);
    has_memory.arrive_and_wait();
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
  run_ranks_on_gpu(2, [&](int rank) {
    const Tensor tensor = filled(1, rank == 0 ? 1 << 22 : 1 << 21);
    const auto backend = ranks_.make(rank, 2);  // all ranks have allocated their memory
    backend->barrier(kCall).wait(seconds(60));
    const TimePoint start = BootClock::now();
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
  run_ranks_on_gpu(2, [&](int rank) {
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
