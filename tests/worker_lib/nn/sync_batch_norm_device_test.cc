// Tests SyncBatchNorm as it works on a GPU: nothing waits for the device, and errors come one
// forward later. Here the tensors are on the CPU. Also tests groups that have ended, and calls
// that carried no values.
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <set>

#include "ddprun/sync_batch_norm.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/ended_backend.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::run_with_ends;
using testing_support::ThreadWorld;
using torch::Tensor;
using torch::nn::BatchNormOptions;
using Kind = DistError::Kind;

// DeviceLayer: a layer on the CPU that works as on a GPU.
struct DeviceLayer {
  DeviceLayer(std::int64_t channels, ProcessGroup& group_, BatchNormOptions options_)
      : options(options_),
        plain(options_),
        group(group_),
        checks(detail::make_late_checks(group_)) {
    torch::NoGradGuard no_grad;
    if (plain->weight.defined()) {
      plain->weight.copy_(data(3, {channels}));
      plain->bias.copy_(data(4, {channels}));
    }
  }
  DeviceLayer(std::int64_t channels, ProcessGroup& group_)
      : DeviceLayer(channels, group_, BatchNormOptions(channels)) {}

  Tensor forward(const Tensor& input) const {
    return detail::sync_batch_norm(
        input, {"SyncBatchNorm2d", group, options, plain->weight, plain->bias, plain->running_mean,
                plain->running_var, plain->num_batches_tracked, checks});
  }

  const BatchNormOptions options;
  torch::nn::BatchNorm2d plain;  // parameters and buffers
  detail::GroupOfLayers group;
  std::shared_ptr<detail::LateChecks> checks;
};

double largest(const Tensor& a, const Tensor& b) {
  return a.numel() == 0
             ? 0
             : (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().max().item<double>();
}

// Each rank's rows of the whole batch. Rank 1 has none.
constexpr std::int64_t kFirst[] = {0, 5, 5}, kRows[] = {5, 0, 3};

void expect_like_plain(const BatchNormOptions& options, torch::Dtype dtype, double tolerance) {
  ThreadWorld(3).run([&](ProcessGroup& group) {
    DeviceLayer layer(3, group, options);
    if (dtype == torch::kFloat64) layer.plain->to(dtype);
    torch::nn::BatchNorm2d plain(options);
    plain->to(torch::kFloat64);
    torch::NoGradGuard no_grad;
    if (plain->weight.defined()) plain->weight.copy_(layer.plain->weight);
    if (plain->bias.defined()) plain->bias.copy_(layer.plain->bias);
    for (std::uint64_t step = 0; step < 3; ++step) {
      const torch::AutoGradMode grad(true);
      const Tensor whole = (data(10 + step, {8, 3, 5, 4}) * 2 + 3).to(dtype);
      const Tensor gradient = data(20 + step, {8, 3, 5, 4}).to(dtype);
      const auto part = [&](const Tensor& t) {
        return t.narrow(0, kFirst[group.rank()], kRows[group.rank()]);
      };
      Tensor all =
          whole.to(torch::kFloat64, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
      const Tensor expected = plain->forward(all);
      plain->zero_grad();
      expected.backward(gradient.to(torch::kFloat64));

      const Tensor input = part(whole).clone().requires_grad_();
      layer.plain->zero_grad();
      const Tensor output = layer.forward(input);
      output.backward(part(gradient).clone());
      EXPECT_EQ(output.scalar_type(), dtype);
      EXPECT_LE(largest(output.detach(), part(expected.detach())), tolerance);
      EXPECT_LE(largest(input.grad(), part(all.grad())), tolerance);
      if (layer.plain->weight.defined()) {
        Tensor of_weight = layer.plain->weight.grad().clone(),
               of_bias = layer.plain->bias.grad().clone();
        group.all_reduce_coalesced({of_weight, of_bias});
        EXPECT_LE(largest(of_weight, plain->weight.grad()), 100 * tolerance);
        EXPECT_LE(largest(of_bias, plain->bias.grad()), 100 * tolerance);
      }
      if (plain->running_mean.defined()) {
        EXPECT_LE(largest(layer.plain->running_mean, plain->running_mean), tolerance);
        EXPECT_LE(largest(layer.plain->running_var, plain->running_var), tolerance);
        EXPECT_EQ(layer.plain->num_batches_tracked.item<std::int64_t>(),
                  static_cast<std::int64_t>(step) + 1);
      }
    }
  });
}

TEST(SyncBatchNormOnADevice, IsBatchNormOverTheWholeBatch) {
  expect_like_plain(BatchNormOptions(3), torch::kFloat32, 5e-6);
  expect_like_plain(BatchNormOptions(3), torch::kFloat64, 1e-12);
  expect_like_plain(BatchNormOptions(3), torch::kBFloat16, 4e-2);
  expect_like_plain(BatchNormOptions(3).momentum(std::nullopt), torch::kFloat32, 5e-6);
  expect_like_plain(BatchNormOptions(3).affine(false).track_running_stats(false), torch::kFloat32,
                    5e-6);
}

// An operation that reads a value, or makes a tensor from numbers of the host, waits for a GPU.
TEST(SyncBatchNormOnADevice, WaitsForNothing) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    DeviceLayer layer(3, group);
    const Tensor input = data(1, {4, 3, 5, 4}).requires_grad_();
    static thread_local std::set<std::string> waits;
    waits.clear();
    const auto handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& function) -> std::unique_ptr<at::ObserverContext> {
          const std::string name = function.name();
          for (const char* reads : {"aten::item", "aten::_local_scalar_dense", "aten::nonzero",
                                    "aten::is_nonzero", "aten::equal", "aten::masked_select"})
            if (name == reads) waits.insert(name);
          return nullptr;
        }));
    layer.forward(input).square().sum().backward();
    at::removeCallback(handle);
    EXPECT_THAT(waits, IsEmpty());
    EXPECT_TRUE(input.grad().defined());
  });
}

TEST(SyncBatchNormOnADevice, WhatIsRefusedIsNaNAndThrownInTheNextForward) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    DeviceLayer layer(3, group);
    const Tensor output = layer.forward(torch::ones({group.rank() == 1 ? 1 : 0, 3, 1, 1}));
    EXPECT_TRUE(output.isnan().all().item<bool>());
    EXPECT_EQ(layer.plain->num_batches_tracked.item<int>(), 0);
    EXPECT_TRUE(torch::equal(layer.plain->running_var, torch::ones(3)));
    EXPECT_DIST_ERROR(layer.forward(torch::ones({2, 3, 2, 2})), Kind::kInvalidArgument,
                      HasSubstr("the batches of all ranks have 1 values for each channel"));
    layer.forward(torch::ones({2, 3, 2, 2}));  // the layer still works
    {
      const torch::AutoGradMode mode(group.rank() == 0);
      layer.forward(torch::ones({2, 3, 2, 2}));
    }
    EXPECT_DIST_ERROR(layer.forward(torch::ones({2, 3, 2, 2})), Kind::kInvalidArgument,
                      HasSubstr("rank 1 records no gradients, rank 0 does"));
  });
}

// --- calls that end without any values

TEST(SyncBatchNormOnADevice, CallsThatCarriedNothingGiveNaNAndThrowInTheNextForward) {
  run_with_ends(2, [](ProcessGroup& group, bool& has_ended) {
    DeviceLayer layer(3, group);
    layer.forward(data(1, {4, 3, 5, 4}));
    const Tensor running = layer.plain->running_mean.clone();
    has_ended = true;
    EXPECT_TRUE(layer.forward(data(2, {4, 3, 5, 4})).isnan().all().item<bool>());
    EXPECT_TRUE(torch::equal(layer.plain->running_mean, running));
    EXPECT_DIST_ERROR(layer.forward(data(3, {4, 3, 5, 4})), Kind::kStopped,
                      HasSubstr("without the values of all ranks"));

    has_ended = false;
    const Tensor input = data(4, {4, 3, 5, 4}).requires_grad_();
    const Tensor output = layer.forward(input);
    has_ended = true;
    output.square().sum().backward();
    EXPECT_TRUE(input.grad().isnan().all().item<bool>());
    EXPECT_DIST_ERROR(layer.forward(data(5, {4, 3, 5, 4})), Kind::kStopped,
                      HasSubstr("backward pass of SyncBatchNorm2d"));
  });
}

TEST(SyncBatchNormOnADevice, CallsThatWereAbortedBehindTheirValuesThrowInTheNextForward) {
  run_with_ends(
      2,
      [](ProcessGroup& group, bool& has_ended) {
        DeviceLayer layer(3, group);
        has_ended = true;
        layer.forward(data(1, {4, 3, 5, 4}));
        has_ended = false;
        EXPECT_DIST_ERROR(layer.forward(data(2, {4, 3, 5, 4})), Kind::kStopped,
                          HasSubstr("the call was aborted"));

        const Tensor input = data(3, {4, 3, 5, 4}).requires_grad_();
        const Tensor output = layer.forward(input);
        has_ended = true;
        output.square().sum().backward();
        EXPECT_DIST_ERROR(layer.forward(data(4, {4, 3, 5, 4})), Kind::kStopped,
                          HasSubstr("the call was aborted"));
      },
      testing_support::End::kBehindTheValues);
}

TEST(SyncBatchNorm, CallsThatCarriedNothingThrow) {
  run_with_ends(2, [](ProcessGroup& group, bool& has_ended) {
    SyncBatchNorm2d layer(3, group);
    const Tensor input = data(4, {4, 3, 5, 4}).requires_grad_();
    const Tensor output = layer->forward(input);
    has_ended = true;
    EXPECT_DIST_ERROR(output.square().sum().backward(), Kind::kStopped,
                      HasSubstr("backward pass of SyncBatchNorm2d: its collective ended without"));
    EXPECT_DIST_ERROR(layer->forward(input), Kind::kStopped,
                      HasSubstr("forward of SyncBatchNorm2d: its collective ended without"));
  });
}

// --- a group that ends first

TEST(SyncBatchNorm, OutlivesItsGroup) {
  SyncBatchNorm2d layer(nullptr);
  Tensor loss;
  ThreadWorld(1).run([&](ProcessGroup& group) { layer = SyncBatchNorm2d(3, group); });
  EXPECT_DIST_ERROR(layer->forward(torch::ones({2, 3, 2, 2})), Kind::kStopped,
                    HasSubstr("the group that the layer was made with has ended"));
  EXPECT_DIST_ERROR(static_cast<void>(layer->group()), Kind::kStopped, HasSubstr("has ended"));
  layer->eval();
  layer->forward(torch::ones({2, 3, 2, 2}));

  const auto losses = on_each_rank(2, [](ProcessGroup& group) {
    SyncBatchNorm2d of_rank(3, group);
    const Tensor input = data(static_cast<std::uint64_t>(group.rank()), {2, 3, 2, 2});
    return of_rank->forward(input.clone().requires_grad_()).square().sum();
  });
  EXPECT_DIST_ERROR(
      losses[0].backward(), Kind::kStopped,
      HasSubstr("backward pass of SyncBatchNorm2d: the group that the layer was made with"));
}

}  // namespace
}  // namespace ddprun
