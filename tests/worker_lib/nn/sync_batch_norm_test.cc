#include "ddprun/sync_batch_norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/container/modulelist.h>
#include <torch/nn/modules/conv.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "ddprun/context.h"
#include "ddprun/data_parallel.h"
#include "tests/support/context_world.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::in_a_world_of;
using testing_support::ThreadWorld;
using torch::Tensor;
using torch::nn::BatchNormOptions;
using Kind = DistError::Kind;

Tensor tensor_of(const json& values, torch::IntArrayRef shape, torch::Dtype dtype) {
  return torch::tensor(values.get<std::vector<double>>(), torch::kFloat64).view(shape).to(dtype);
}

double largest_difference(const Tensor& a, const Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  if (a.numel() == 0) return 0;
  return (a.detach().to(torch::kFloat64) - b.detach().to(torch::kFloat64))
      .abs()
      .max()
      .item<double>();
}

// Returns a layer with the parameters of a plain one.
template <class Sync, class Plain>
Sync twin_of(const Plain& plain, ProcessGroup& group) {
  Sync sync(plain->options, group);
  torch::NoGradGuard no_grad;
  for (const auto& p : plain->named_parameters())
    sync->named_parameters()[p.key()].copy_(p.value());
  for (const auto& b : plain->named_buffers()) sync->named_buffers()[b.key()].copy_(b.value());
  sync->to(plain->options.affine() ? plain->weight.scalar_type() : torch::kFloat64);
  return sync;
}

// --- what is refused

// Expects that forward fails with these words on both ranks of a world of two.
template <class Body>
void expect_refused(Body forward, Kind kind, const std::string& words) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    EXPECT_DIST_ERROR(forward(group), kind, HasSubstr(words));
    group.barrier();  // the group still works
  });
}

TEST(SyncBatchNorm, InputsOfAnotherShapeOrDtypeAreRefused) {
  expect_refused(
      [](ProcessGroup& group) {
        SyncBatchNorm2d(3, group)->forward(torch::ones({2, 3, 4}));
      },
      Kind::kInvalidArgument,
      "forward of SyncBatchNorm2d: the input is Float of shape [2, 3, 4]; it must have 4 "
      "dimensions");
  expect_refused(
      [](ProcessGroup& group) {
        SyncBatchNorm1d(3, group)->forward(torch::ones({2, 3, 4, 5}));
      },
      Kind::kInvalidArgument, "it must have 2 or 3 dimensions");
  expect_refused(
      [](ProcessGroup& group) {
        SyncBatchNorm1d(3, group)->forward(torch::ones({2, 4}));
      },
      Kind::kInvalidArgument, "its second dimension must be 3 channels");
  expect_refused(
      [](ProcessGroup& group) {
        SyncBatchNorm1d(3, group)->forward(torch::ones({2, 3}, torch::kInt64));
      },
      Kind::kInvalidArgument, "the input is Long of shape [2, 3]; it must be floating-point");
}

TEST(SyncBatchNorm, FewerThanTwoValuesOnAllRanksAreRefusedOnAll) {
  for (const int rows : {0, 1})
    expect_refused(
        [rows](ProcessGroup& group) {
          SyncBatchNorm1d(3, group)->forward(torch::ones({group.rank() == 1 ? rows : 0, 3}));
        },
        Kind::kInvalidArgument,
        "the batches of all ranks have " + std::to_string(rows) + " values for each channel");
}

TEST(SyncBatchNorm, ARefusedBatchIsNotCounted) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    SyncBatchNorm1d layer(3, group);
    EXPECT_THROW(layer->forward(torch::ones({0, 3})), DistError);
    EXPECT_EQ(layer->num_batches_tracked.item<int>(), 0);
    EXPECT_TRUE(torch::equal(layer->running_mean, torch::zeros(3)));
  });
}

TEST(SyncBatchNorm, ARankWithoutGradientsAmongOthersIsNamedOnAll) {
  expect_refused(
      [](ProcessGroup& group) {
        const torch::AutoGradMode mode(group.rank() == 0);
        SyncBatchNorm1d(3, group)->forward(torch::ones({2, 3}));
      },
      Kind::kInvalidArgument, "rank 1 records no gradients, rank 0 does");
}

TEST(SyncBatchNorm, DoubleBackwardIsRefused) {
  expect_refused(
      [](ProcessGroup& group) {
        const Tensor input = torch::ones({2, 3}).requires_grad_();
        SyncBatchNorm1d(3, group)->forward(input).sum().backward({}, {}, /*create_graph=*/true);
      },
      Kind::kUnsupported, "create_graph is not supported");
}

TEST(SyncBatchNorm, AnInputChangedBeforeTheBackwardPassIsNoticed) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Tensor input = torch::ones({2, 3});
    const Tensor output = SyncBatchNorm1d(3, group)->forward(input);
    input.add_(1);
    EXPECT_THROW(output.sum().backward(), c10::Error);
  });
}

// --- PyTorch's vectors

struct Step {
  Tensor output, of_input, of_weight, of_bias;
};

template <class Sync>
Step step_of(Sync& layer, const json& of_rank, torch::Dtype dtype) {
  const auto shape = of_rank.at("shape").get<std::vector<std::int64_t>>();
  const Tensor input = tensor_of(of_rank.at("input"), shape, dtype).requires_grad_();
  layer->zero_grad();
  const Tensor output = layer->forward(input);
  output.backward(tensor_of(of_rank.at("grad_output"), shape, dtype));
  const bool affine = layer->weight.defined();
  return {output, input.grad(), affine ? layer->weight.grad() : Tensor(),
          affine ? layer->bias.grad() : Tensor()};
}

template <class Sync>
void expect_vectors(const json& one, ProcessGroup& group, torch::Dtype dtype, double tolerance) {
  const std::int64_t channels = one.at("channels");
  auto options = BatchNormOptions(channels)
                     .eps(one.at("eps"))
                     .affine(one.at("affine"))
                     .track_running_stats(one.at("track_running_stats"));
  options.momentum(one.at("momentum").is_null() ? std::optional<double>()
                                                : one.at("momentum").get<double>());
  Sync layer(options, group);
  layer->to(dtype);
  const auto expect = [&](const Tensor& value, const json& expected, const char* what) {
    const double difference = largest_difference(value, tensor_of(expected, value.sizes(), dtype));
    EXPECT_LE(difference, tolerance) << one.at("name") << " " << what << " " << dtype;
  };
  if (options.affine()) {
    torch::NoGradGuard no_grad;
    layer->weight.copy_(tensor_of(one.at("weight"), channels, dtype));
    layer->bias.copy_(tensor_of(one.at("bias"), channels, dtype));
  }
  for (const json& step : one.at("steps")) {
    const json& own = step.at("ranks").at(static_cast<std::size_t>(group.rank()));
    const Step got = step_of(layer, own, dtype);
    expect(got.output, own.at("output"), "output");
    expect(got.of_input, own.at("grad_input"), "grad_input");
    if (options.affine()) {
      expect(got.of_weight, own.at("grad_weight_local"), "grad_weight");
      expect(got.of_bias, own.at("grad_bias_local"), "grad_bias");
    }
    if (options.track_running_stats()) {
      expect(layer->running_mean, step.at("running_mean"), "running_mean");
      expect(layer->running_var, step.at("running_var"), "running_var");
      EXPECT_EQ(layer->num_batches_tracked.template item<std::int64_t>(),
                step.at("num_batches_tracked"));
    }
  }
  if (!one.contains("eval_input_all_ones_output") || one.at("eval_input_all_ones_output").is_null())
    return;
  layer->eval();
  auto shape = one.at("steps")[0].at("ranks")[0].at("shape").get<std::vector<std::int64_t>>();
  shape[0] = 1;
  const json& expected = one.at("eval_input_all_ones_output");
  if (static_cast<std::int64_t>(expected.size()) != c10::multiply_integers(shape))
    shape = {1, channels};
  expect(layer->forward(torch::ones(shape, dtype)), expected, "eval");
}

TEST(SyncBatchNorm, EveryVectorOfPyTorchOverTheWholeBatch) {
  std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/syncbn-vectors.json");
  const json vectors = json::parse(file);
  ASSERT_GE(vectors.at("cases").size(), 7u);
  for (const json& one : vectors.at("cases"))
    ThreadWorld(one.at("world")).run([&](ProcessGroup& group) {
      for (const auto& [dtype, tolerance] :
           {std::pair{torch::kFloat64, 1e-9}, {torch::kFloat32, 1e-5}})
        if (one.at("steps")[0].at("ranks")[0].at("shape").size() == 2)
          expect_vectors<SyncBatchNorm1d>(one, group, dtype, tolerance);
        else
          expect_vectors<SyncBatchNorm2d>(one, group, dtype, tolerance);
    });
}

// --- against plain batch norm over the whole batch, in float64

// Share: the rows of the whole batch that a rank has.
struct Share {
  std::int64_t first, rows;
};
constexpr Share kShares[] = {{0, 5}, {5, 0}, {5, 1}};  // one rank has none

struct Case {
  std::string name;
  std::vector<std::int64_t> shape;  // of the whole batch
  double offset;                    // of the values, whose spread is 1
  torch::Dtype dtype;
  double tolerance;  // of outputs and gradients, whose size is about 1
  torch::MemoryFormat format = torch::MemoryFormat::Contiguous;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

class SyncBatchNormAccuracy : public testing::TestWithParam<Case> {};

// Comparison: the largest differences between a rank's results and the expected ones, in
// float64.
struct Comparison {
  double output, of_input, of_weight, of_bias, running;
};

template <class Sync, class Plain>
Comparison compare(const Case& one, ProcessGroup& group) {
  const std::int64_t channels = one.shape[1];
  const Tensor whole = (data(1, one.shape, torch::kFloat64) + one.offset).to(one.dtype);
  const Tensor gradient = data(2, one.shape, torch::kFloat64).to(one.dtype);
  Plain plain{BatchNormOptions(channels)};
  plain->to(torch::kFloat64);
  {
    torch::NoGradGuard no_grad;
    plain->weight.copy_(data(3, {channels}));
    plain->bias.copy_(data(4, {channels}));
  }
  Sync sync = twin_of<Sync>(plain, group);
  sync->to(one.dtype == torch::kFloat64 ? torch::kFloat64 : torch::kFloat32);

  const Share share = kShares[group.rank()];
  const auto part = [&](const Tensor& t) { return t.narrow(0, share.first, share.rows); };
  const Tensor all = whole.clone().to(torch::kFloat64).requires_grad_();
  const Tensor expected = plain->forward(all);
  expected.backward(gradient.to(torch::kFloat64));

  const Tensor input = part(whole).clone(one.format).requires_grad_();
  const Tensor output = sync->forward(input);
  EXPECT_EQ(output.scalar_type(), one.dtype);
  EXPECT_TRUE(output.is_contiguous(one.format));
  output.backward(part(gradient).clone(one.format));
  Tensor weight = sync->weight.grad().clone(), bias = sync->bias.grad().clone();
  group.all_reduce_coalesced({weight, bias});
  return {largest_difference(output, part(expected)),
          largest_difference(input.grad(), part(all.grad())),
          largest_difference(weight, plain->weight.grad()),
          largest_difference(bias, plain->bias.grad()),
          largest_difference(sync->running_var, plain->running_var)};
}

TEST_P(SyncBatchNormAccuracy, IsThatOfTheDtype) {
  const Case& one = GetParam();
  const double sums = std::sqrt(c10::multiply_integers(one.shape)) * one.tolerance;
  ThreadWorld(3).run([&](ProcessGroup& group) {
    const Comparison got =
        one.shape.size() == 5   ? compare<SyncBatchNorm3d, torch::nn::BatchNorm3d>(one, group)
        : one.shape.size() == 4 ? compare<SyncBatchNorm2d, torch::nn::BatchNorm2d>(one, group)
                                : compare<SyncBatchNorm1d, torch::nn::BatchNorm1d>(one, group);
    EXPECT_LE(got.output, one.tolerance);
    EXPECT_LE(got.of_input, one.tolerance);
    EXPECT_LE(got.of_weight, sums);
    EXPECT_LE(got.of_bias, sums);
    EXPECT_LE(got.running, one.tolerance);
  });
}

// Results are rounded once. Half a unit in the last place of values up to 8 is 2.4e-7 in
// float32 and 1.6e-2 in bfloat16. The large shapes take several blocks. Far from zero, the
// rounding of the input matters; the computation is not less exact.
INSTANTIATE_TEST_SUITE_P(
    All, SyncBatchNormAccuracy,
    testing::Values(Case{"Double2d", {6, 4}, 0, torch::kFloat64, 1e-13},
                    Case{"Double3d", {6, 4, 5}, 0, torch::kFloat64, 1e-13},
                    Case{"Double4d", {6, 3, 9, 7}, 0, torch::kFloat64, 1e-13},
                    Case{"Double5d", {6, 3, 2, 3, 4}, 0, torch::kFloat64, 1e-13},
                    Case{"DoubleLarge", {6, 3, 200, 201}, 0, torch::kFloat64, 1e-12},
                    Case{"DoubleFarFromZero", {6, 3, 20, 20}, 1e6, torch::kFloat64, 1e-8},
                    Case{"Float2d", {6, 4}, 0, torch::kFloat32, 3e-7},
                    Case{"Float4d", {6, 3, 9, 7}, 0, torch::kFloat32, 3e-7},
                    Case{"FloatLarge", {6, 3, 200, 201}, 0, torch::kFloat32, 3e-7},
                    Case{"FloatFarFromZero", {6, 3, 20, 20}, 1000, torch::kFloat32, 3e-7},
                    Case{"FloatPlanesOf16", {6, 3, 4, 4}, 0, torch::kFloat32, 3e-7},
                    Case{"BFloat16", {6, 3, 9, 7}, 0, torch::kBFloat16, 2e-2},
                    Case{"ChannelsLast",
                         {6, 3, 9, 7},
                         0,
                         torch::kFloat32,
                         3e-7,
                         torch::MemoryFormat::ChannelsLast}),
    [](const auto& instance) { return instance.param.name; });

TEST(SyncBatchNorm, RunningStatisticsHaveTheSameBitsOnEveryRank) {
  const auto results = on_each_rank(3, [](ProcessGroup& group) {
    SyncBatchNorm2d layer(4, group);
    for (int step = 0; step < 3; ++step)
      layer->forward(
          data(static_cast<std::uint64_t>(group.rank() * 10 + step), {group.rank() + 1, 4, 3, 3}));
    return Tensors{layer->running_mean, layer->running_var};
  });
  for (const Tensors& of_rank : results) expect_same(of_rank, results[0]);
}

// For example, the gradient of sum() is one value that is expanded to the shape.
TEST(SyncBatchNorm, AGradientOfAnotherLayoutIsTakenForWhatItIs) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    SyncBatchNorm2d layer(3, group);
    const auto gradient_with = [&](const Tensor& g) {
      Tensor input = data(static_cast<std::uint64_t>(group.rank()), {2, 3, 5, 4}).requires_grad_();
      layer->forward(input).backward(g);
      return input.grad();
    };
    const Tensor rows = data(9, {2, 3, 4, 5});
    EXPECT_TRUE(same_bits(gradient_with(rows.transpose(2, 3)),
                          gradient_with(rows.transpose(2, 3).contiguous())));
    const Tensor one = torch::ones({1});
    EXPECT_TRUE(same_bits(gradient_with(one.expand({2, 3, 5, 4})),
                          gradient_with(torch::ones({2, 3, 5, 4}))));
  });
}

TEST(SyncBatchNorm, ANaNOfOneRankReachesItsChannelOnAllAndNoOther) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    SyncBatchNorm2d layer(3, group);
    Tensor input = data(static_cast<std::uint64_t>(group.rank()), {2, 3, 5, 4});
    if (group.rank() == 1) input[1][2][3][3] = std::nan("");
    const Tensor output = layer->forward(input);
    EXPECT_TRUE(output.select(1, 2).isnan().all().item<bool>());
    EXPECT_FALSE(output.narrow(1, 0, 2).isnan().any().item<bool>());
    for (const Tensor& statistic : {layer->running_mean, layer->running_var})
      EXPECT_TRUE(torch::equal(statistic.isnan(), torch::tensor({false, false, true})));
  });
}

TEST(SyncBatchNorm, AnInputThatNeedsAGradientOnOneRankOnlyGetsIt) {
  const auto results = on_each_rank(2, [](ProcessGroup& group) {
    SyncBatchNorm1d layer(3, group);
    Tensor input = data(static_cast<std::uint64_t>(group.rank()), {4, 3});
    input.set_requires_grad(group.rank() == 0);
    layer->forward(input).square().sum().backward();
    EXPECT_TRUE(layer->weight.grad().defined());
    return input.grad().defined();
  });
  EXPECT_THAT(results, ElementsAre(true, false));
}

TEST(SyncBatchNorm, CollectivesAreOneForwardAndOneBackward) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    SyncBatchNorm1d layer(3, group);
    layer->forward(torch::ones({2, 3})).sum().backward();  // the input needs no gradient
    layer->forward(torch::ones({2, 3}).requires_grad_()).sum().backward();
    const torch::NoGradGuard no_grad;
    layer->forward(torch::ones({2, 3}));
  });
  EXPECT_THAT(sizes_of(world, "all_gather"), ElementsAre(8 * 8, 8 * 8, 8 * 8));
  EXPECT_THAT(sizes_of(world, "all_reduce"), ElementsAre(7 * 8));
}

// --- plain batch norm

template <class Plain, class Sync>
void expect_plain_bits(ProcessGroup& group, const BatchNormOptions& options, bool training,
                       const std::vector<std::int64_t>& shape) {
  Plain plain(options);
  Sync sync(options, group);
  plain->train(training);
  sync->train(training);
  for (std::uint64_t step = 0; step < 3; ++step) {
    Tensor a = data(step, shape).requires_grad_(), b = data(step, shape).requires_grad_();
    const Tensor expected = plain->forward(a), output = sync->forward(b);
    expected.square().sum().backward();
    output.square().sum().backward();
    EXPECT_TRUE(same_bits(output, expected));
    EXPECT_TRUE(same_bits(b.grad(), a.grad()));
  }
  expect_same(sync->buffers(), plain->buffers());
}

TEST(SyncBatchNorm, AloneItHasTheBitsOfBatchNorm) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    using namespace torch::nn;
    for (const bool training : {true, false}) {
      expect_plain_bits<BatchNorm1d, SyncBatchNorm1d>(group, 3, training, {5, 3});
      expect_plain_bits<BatchNorm2d, SyncBatchNorm2d>(group, 3, training, {5, 3, 4, 4});
      expect_plain_bits<BatchNorm3d, SyncBatchNorm3d>(group, 3, training, {5, 3, 2, 2, 2});
      expect_plain_bits<BatchNorm2d, SyncBatchNorm2d>(
          group, BatchNormOptions(3).momentum(std::nullopt).affine(false), training, {5, 3, 4, 4});
    }
  });
}

TEST(SyncBatchNorm, InEvalModeItHasTheBitsOfBatchNormAndSendsNothing) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    using torch::nn::BatchNorm2d;
    expect_plain_bits<BatchNorm2d, SyncBatchNorm2d>(group, 3, false, {5, 3, 4, 4});
    expect_plain_bits<BatchNorm2d, SyncBatchNorm2d>(
        group, BatchNormOptions(3).track_running_stats(false), false, {5, 3, 4, 4});
  });
  EXPECT_TRUE(world.calls().empty());
}

TEST(SyncBatchNorm, LooksLikeBatchNormToTheRestOfLibTorch) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    torch::nn::BatchNorm2d plain(4);
    SyncBatchNorm2d sync(4, group);
    EXPECT_EQ(sync->named_parameters().keys(), plain->named_parameters().keys());
    EXPECT_EQ(sync->named_buffers().keys(), plain->named_buffers().keys());
    load_module_state(*sync, through_a_file(module_state(*plain)), "f.pt");
    load_module_state(*plain, through_a_file(module_state(*sync)), "f.pt");

    std::ostringstream text;
    text << sync;
    EXPECT_EQ(text.str(),
              "ddprun::SyncBatchNorm2d(4, eps=1e-05, momentum=0.1, affine=true, "
              "track_running_stats=true)");
    const auto copy = std::dynamic_pointer_cast<SyncBatchNorm2dImpl>(sync->clone());
    ASSERT_TRUE(copy);
    EXPECT_EQ(&copy->group(), &group);
    EXPECT_FALSE(copy->weight.is_same(sync->weight));
    torch::NoGradGuard no_grad;
    sync->weight.fill_(7);
    sync->reset_parameters();
    EXPECT_TRUE(torch::equal(sync->weight, torch::ones(4)));
  });
}

// --- in a training run

struct Net {
  torch::nn::Sequential layers;
  std::unique_ptr<torch::optim::SGD> optimizer;
};

Net make_net(torch::nn::AnyModule norm1, torch::nn::AnyModule norm2) {
  Net net;
  net.layers->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 4, 3)));
  net.layers->push_back(std::move(norm1));
  net.layers->push_back(torch::nn::Tanh());
  net.layers->push_back(torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 3, 3)));
  net.layers->push_back(std::move(norm2));
  net.layers->push_back(torch::nn::Flatten());
  net.layers->push_back(torch::nn::Linear(3 * 2 * 2, 2));
  net.layers->to(torch::kFloat64);
  torch::NoGradGuard no_grad;
  std::uint64_t seed = 50;
  for (Tensor& p : net.layers->parameters()) p.copy_(data(seed++, p.sizes().vec()) * 0.3);
  net.optimizer = std::make_unique<torch::optim::SGD>(net.layers->parameters(),
                                                      torch::optim::SGDOptions(0.05).momentum(0.9));
  return net;
}

Tensor batch_of(int step) {
  return data(700 + static_cast<std::uint64_t>(step), {6, 2, 6, 6}, torch::kFloat64) + step;
}
Tensor loss_over(const Tensor& output) { return (output - 1).square().mean(); }

Tensors state_of(torch::nn::Module& module) {
  Tensors result = module.parameters();
  for (const Tensor& buffer : module.buffers()) result.push_back(buffer);
  return result;
}

Net train_a_rank(ProcessGroup& group, ProcessGroup& statistics, std::size_t bucket_bytes,
                 int steps) {
  Net net = make_net(torch::nn::AnyModule(SyncBatchNorm2d(4, statistics)),
                     torch::nn::AnyModule(SyncBatchNorm2d(3, statistics)));
  DistributedDataParallel model(net.layers, group,
                                {.first_bucket_bytes = bucket_bytes, .bucket_bytes = bucket_bytes});
  const int rows = 6 / group.size();
  for (int step = 0; step < steps; ++step) {
    net.optimizer->zero_grad();
    loss_over(model(batch_of(step).narrow(0, group.rank() * rows, rows))).backward();
    net.optimizer->step();
  }
  return net;
}

// The buckets are small, so that their collectives and those of the layers alternate in one
// group.
TEST(SyncBatchNorm, UnderDataParallelTheRanksTrainLikeOneProcessOnTheWholeBatch) {
  constexpr int kSteps = 6;
  Net whole = make_net(torch::nn::AnyModule(torch::nn::BatchNorm2d(4)),
                       torch::nn::AnyModule(torch::nn::BatchNorm2d(3)));
  for (int step = 0; step < kSteps; ++step) {
    whole.optimizer->zero_grad();
    loss_over(whole.layers->forward(batch_of(step))).backward();
    whole.optimizer->step();
  }
  for (const int size : {2, 3})
    for (const std::size_t bytes : {std::size_t{1}, std::size_t{400}, std::size_t{1} << 20}) {
      const auto results = on_each_rank(size, [&](ProcessGroup& group) {
        return state_of(*train_a_rank(group, group, bytes, kSteps).layers);
      });
      const Tensors expected = state_of(*whole.layers);
      for (const Tensors& of_rank : results) {
        expect_same(of_rank, results[0]);
        for (std::size_t i = 0; i < expected.size(); ++i)
          EXPECT_LE(largest_difference(of_rank[i], expected[i]), 1e-12) << "tensor " << i;
      }
    }
}

TEST(SyncBatchNorm, AGroupOfItsOwnGivesTheSameBits) {
  const auto expected = on_each_rank(
      2, [](ProcessGroup& group) { return state_of(*train_a_rank(group, group, 400, 3).layers); });
  in_a_world_of(2, [&](Context& context) {
    const auto statistics = context.group().split(0, 0, {.name = "batch norm"});
    expect_same(state_of(*train_a_rank(context.group(), *statistics, 400, 3).layers), expected[0]);
  });
}

// --- conversion

struct BlockImpl : torch::nn::Module {
  BlockImpl() {
    register_module("bn", bn);
    register_module("layers", layers);
  }
  Tensor forward(const Tensor& x) { return layers->forward(bn(x)); }
  torch::nn::BatchNorm1d bn{3};
  torch::nn::Sequential layers{torch::nn::BatchNorm1d(3)};
};
TORCH_MODULE(Block);

// InnerImpl: a Sequential that may be a member of another one.
struct InnerImpl : torch::nn::SequentialImpl {
  using SequentialImpl::SequentialImpl;
  Tensor forward(const Tensor& x) { return SequentialImpl::forward(x); }
};
TORCH_MODULE(Inner);

// MixedImpl: a Sequential that has a member outside its list, too.
struct MixedImpl : torch::nn::SequentialImpl {
  MixedImpl() : SequentialImpl(torch::nn::BatchNorm1d(3)) { register_module("last", last); }
  Tensor forward(const Tensor& x) { return last(SequentialImpl::forward(x)); }
  torch::nn::BatchNorm1d last{3};
};
TORCH_MODULE(Mixed);

struct OuterImpl : torch::nn::Module {
  OuterImpl() { register_module("layers", layers); }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers{torch::nn::Linear(3, 3), torch::nn::BatchNorm1d(3),
                               Inner(torch::nn::Tanh(), torch::nn::BatchNorm1d(3))};
};
TORCH_MODULE(Outer);

TEST(ConvertSyncBatchNorm, LayersThatCppCannotReplaceAreNamedAndNothingChanges) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    torch::nn::Sequential net{torch::nn::BatchNorm1d(3), Block()};
    EXPECT_DIST_ERROR(
        convert_sync_batchnorm(*net, group), Kind::kUnsupported,
        AllOf(HasSubstr("'1.bn' in "), HasSubstr("BlockImpl would keep calling"),
              HasSubstr("declare these as ddprun::SyncBatchNorm"), testing::Not(HasSubstr("'0'"))));
    EXPECT_TRUE(net->ptr(0)->as<torch::nn::BatchNorm1d>());

    torch::nn::ModuleList list{torch::nn::BatchNorm1d(3)};
    EXPECT_DIST_ERROR(convert_sync_batchnorm(*list, group), Kind::kUnsupported,
                      HasSubstr("'0' in"));
    Mixed mixed;
    EXPECT_DIST_ERROR(convert_sync_batchnorm(*mixed, group), Kind::kUnsupported,
                      AllOf(HasSubstr("'last' in"), testing::Not(HasSubstr("'0'"))));
    torch::nn::BatchNorm3d bare(3);
    EXPECT_DIST_ERROR(convert_sync_batchnorm(*bare, group), Kind::kUnsupported,
                      HasSubstr("is a torch::nn::BatchNorm3dImpl itself"));
  });
}

TEST(ConvertSyncBatchNorm, LayersOfSequentialsAreReplacedAndReallyCalled) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    Outer net;
    const auto names = net->named_parameters().keys();
    const auto buffers = net->named_buffers().keys();
    const Tensors parameters = net->parameters();
    auto old = std::dynamic_pointer_cast<torch::nn::BatchNorm1dImpl>(net->layers->ptr(1));
    old->eval();
    EXPECT_EQ(convert_sync_batchnorm(*net, group), 2u);
    EXPECT_EQ(net->named_parameters().keys(), names);
    EXPECT_EQ(net->named_buffers().keys(), buffers);
    for (std::size_t i = 0; i < parameters.size(); ++i)
      EXPECT_TRUE(net->parameters()[i].is_same(parameters[i])) << names[i];
    const auto layer = std::dynamic_pointer_cast<SyncBatchNorm1dImpl>(net->layers->ptr(1));
    ASSERT_TRUE(layer);
    EXPECT_FALSE(layer->is_training());
    net->train();
    net->forward(data(static_cast<std::uint64_t>(group.rank()), {4, 3}));
    EXPECT_EQ(net->named_buffers()["layers.1.num_batches_tracked"].item<int>(), 1);
    EXPECT_TRUE(torch::equal(old->running_mean, layer->running_mean));
    EXPECT_EQ(convert_sync_batchnorm(*net, group), 0u);  // nothing is left
  });
  EXPECT_EQ(sizes_of(world, "all_gather").size(), 2u);
}

TEST(ConvertSyncBatchNorm, ALayerInTwoPlacesStaysOneLayer) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    torch::nn::BatchNorm2d shared(3);
    torch::nn::Sequential net{Inner(shared), Inner(shared)};
    EXPECT_EQ(convert_sync_batchnorm(*net, group), 1u);
    EXPECT_EQ(net->ptr<InnerImpl>(0)->ptr(0), net->ptr<InnerImpl>(1)->ptr(0));
    EXPECT_TRUE(net->ptr<InnerImpl>(0)->ptr(0)->as<SyncBatchNorm2d>());
  });
}

}  // namespace
}  // namespace ddprun
