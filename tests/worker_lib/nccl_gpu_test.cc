// The nccl backend on a GPU: a world of one, every collective.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "ddprun/context.h"
#include "tests/support/expect_dist_error.h"
#include "tests/worker_lib/scoped_environment.h"
#include "worker_lib/backend_nccl.h"

namespace ddprun {
namespace {

using std::chrono::seconds;
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
  for (int i = 0; i < 4; ++i) {
    const Tensor y = torch::zeros_like(x);
    if (i == 0) group().all_gather({y}, x);
    if (i == 1) group().reduce_scatter(y, {x});
    if (i == 2) group().gather({y}, x);
    if (i == 3) group().scatter(y, {x});
    expect_values(y);
  }
  group().barrier();
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
  group().abort("enough");
  EXPECT_DIST_ERROR(group().all_reduce(values()), DistError::Kind::kStopped,
                    testing::HasSubstr("enough"));
}

}  // namespace
}  // namespace ddprun
