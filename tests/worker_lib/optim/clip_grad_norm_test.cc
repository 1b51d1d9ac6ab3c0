#include "ddprun/clip_grad_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/utils/clip_grad.h>

#include <limits>

#include "ddprun/data_parallel.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

Tensors with_gradients(torch::nn::Sequential& net) {
  loss_of(net->forward(input_of(0)), 0).backward();
  return net->parameters();
}

TEST(ClipGradNorm, DoesWhatLibTorchsFunctionDoes) {
  for (const double norm_type : {1.0, 2.0, 3.5, kInfinity})
    for (const double max_norm : {0.0, 0.01, 1.0, 1e6}) {
      auto ours = make_mlp(), theirs = make_mlp();
      const torch::Tensor norm = clip_grad_norm_(with_gradients(ours), max_norm, norm_type);
      const double expected =
          torch::nn::utils::clip_grad_norm_(with_gradients(theirs), max_norm, norm_type);
      EXPECT_FLOAT_EQ(norm.item<float>(), static_cast<float>(expected)) << norm_type;
      for (std::size_t i = 0; i < 6; ++i)
        EXPECT_TRUE(
            torch::allclose(ours->parameters()[i].grad(), theirs->parameters()[i].grad(), 1e-6))
            << norm_type << " " << max_norm;
    }
}

TEST(ClipGradNorm, MixedDtypesSparseOnesAndMissingOnes) {
  const torch::Tensor half = torch::zeros(2, torch::kBFloat16), none = torch::zeros(2);
  const torch::Tensor twice = torch::zeros(1, torch::kFloat64), sparse = torch::zeros({3, 1});
  half.mutable_grad() = torch::full(2, 2, torch::kBFloat16);
  twice.mutable_grad() = torch::full(1, 1, torch::kFloat64);
  // The same row appears twice: 3 + 1 = 4.
  sparse.mutable_grad() =
      torch::sparse_coo_tensor(torch::tensor({{1, 1}}), torch::tensor({{3.0F}, {1.0F}}), {3, 1});
  const torch::Tensor norm = clip_grad_norm_({half, none, twice, sparse}, 2.5);
  EXPECT_EQ(norm.scalar_type(), torch::kFloat64);
  EXPECT_NEAR(norm.item<double>(), 5, 1e-6);
  EXPECT_TRUE(torch::equal(half.grad(), torch::full(2, 1, torch::kBFloat16)));
  EXPECT_NEAR(twice.grad().item<double>(), 0.5, 1e-6);
  EXPECT_TRUE(torch::allclose(sparse.grad().to_dense(), torch::tensor({{0.0F}, {2.0F}, {0.0F}})));
  EXPECT_FALSE(none.grad().defined());
  EXPECT_EQ(clip_grad_norm_({none}, 1).item<float>(), 0);
  EXPECT_EQ(clip_grad_norm_({}, 1).item<float>(), 0);
}

TEST(ClipGradNorm, ANormThatIsNotFiniteIsAnErrorIfAsked) {
  const torch::Tensor one = torch::zeros(2);
  for (const double bad : {kInfinity, kNan}) {
    one.mutable_grad() = torch::tensor({1.0, bad}, torch::kFloat32);
    EXPECT_DIST_ERROR(clip_grad_norm_({one}, 1, 2, /*error_if_nonfinite=*/true), Kind::kCorrupt,
                      HasSubstr("the norm of the gradients is "));
    EXPECT_EQ(one.grad()[0].item<float>(), 1);
    EXPECT_FALSE(std::isfinite(clip_grad_norm_({one}, 1).item<float>()));
  }
}

TEST(ClipGradNorm, RefusesWhatCannotBeMeant) {
  for (const double bad : {-1.0, kNan})
    EXPECT_DIST_ERROR(clip_grad_norm_({}, bad), Kind::kInvalidArgument, HasSubstr("max_norm"));
  for (const double bad : {0.0, -2.0, kNan})
    EXPECT_DIST_ERROR(clip_grad_norm_({}, 1, bad), Kind::kInvalidArgument, HasSubstr("norm_type"));
}

TEST(ClipGradNorm, GradientsOfDdpStayInTheirBucketsAndAreEqual) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      {
        const auto quiet = model.no_sync();
        loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
      }
      loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
      std::vector<void*> places;
      for (const torch::Tensor& p : net->parameters()) places.push_back(p.grad().data_ptr());
      Tensors expected = averaged(local_gradients(2, step));
      for (torch::Tensor& one : expected) one *= 2;
      const torch::Tensor norm = model.clip_grad_norm_(0.5);
      EXPECT_GT(norm.item<float>(), 0.5);
      double squares = 0;
      for (std::size_t i = 0; i < places.size(); ++i) {
        const torch::Tensor gradient = net->parameters()[i].grad();
        EXPECT_EQ(gradient.data_ptr(), places[i]);
        EXPECT_TRUE(torch::allclose(gradient, expected[i] * (0.5 / norm), 1e-4, 1e-6)) << i;
        squares += gradient.pow(2).sum().item<double>();
      }
      EXPECT_NEAR(std::sqrt(squares), 0.5, 1e-4);
    }
  });
}

TEST(ClipGradNorm, GradientsThatAreEachRanksOwnAreRefused) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    DistributedDataParallel model(net, group);
    {
      const auto quiet = model.no_sync();
      loss_of(model(input_of(group.rank())), group.rank()).backward();
    }
    EXPECT_DIST_ERROR(model.clip_grad_norm_(1), Kind::kInvalidArgument,
                      HasSubstr("the last backward pass was in no_sync()"));
    loss_of(model(input_of(group.rank())), group.rank()).backward();
    EXPECT_NO_THROW(model.clip_grad_norm_(1));
  });
}

}  // namespace
}  // namespace ddprun
