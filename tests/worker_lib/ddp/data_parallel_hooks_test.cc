// Tests communication hooks, and ranks with different numbers of inputs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/data_parallel.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;
using Model = DistributedDataParallel<torch::nn::Sequential>;

void pass(Model& model, const ProcessGroup& group, int step = 0) {
  loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
}

// --- hooks

// Runs three passes with a hook on each rank, and calls `check` with the gradients of each
// pass.
void expect_gradients(int world,
                      const std::function<std::shared_ptr<CommHook>(ProcessGroup&)>& make,
                      const std::function<void(const Tensors&, int step, int rank)>& check) {
  const auto results = on_each_rank(world, [&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    model.register_comm_hook(make(group));
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      pass(model, group, step);
      check(gradients_of(*net), step, group.rank());
    }
    return gradients_of(*net);
  });
}

TEST(CommHooks, OfAllReduceMakeTheAverageThatThereIsWithoutThem) {
  for (const int world : {1, 2, 3})
    expect_gradients(
        world, [](ProcessGroup&) { return std::make_shared<AllReduceHook>(); },
        [&](const Tensors& gradients, int step, int) {
          expect_same(gradients, averaged(local_gradients(world, step)));
        });
}

// The expected value is the sum of the ranks' gradients in 16 bits, rounded once.
TEST(CommHooks, Of16BitsRoundWhatTravels) {
  const auto expect = [](std::shared_ptr<CommHook> (*make)(), torch::ScalarType type) {
    expect_gradients(
        3, [&](ProcessGroup&) { return make(); },
        [&](const Tensors& gradients, int step, int) {
          const auto local = local_gradients(3, step);
          Tensors expected;
          for (std::size_t i = 0; i < local[0].size(); ++i) {
            torch::Tensor sum = torch::zeros_like(local[0][i]);
            for (const Tensors& of_rank : local) sum += of_rank[i].to(type).to(torch::kFloat32);
            expected.push_back((sum / 3).to(type).to(torch::kFloat32));
          }
          expect_same(gradients, expected);
        });
  };
  expect([]() -> std::shared_ptr<CommHook> { return std::make_shared<Fp16Compress>(); },
         torch::kFloat16);
  expect([]() -> std::shared_ptr<CommHook> { return std::make_shared<Bf16Compress>(); },
         torch::kBFloat16);
}

TEST(CommHooks, OfNothingLeaveGradientsLocal) {
  expect_gradients(
      2, [](ProcessGroup&) { return std::make_shared<NoopHook>(); },
      [](const Tensors& gradients, int step, int rank) {
        expect_same(gradients, local_gradients(2, step)[static_cast<std::size_t>(rank)]);
      });
}

// Recorder: a hook that records the buckets that it receives.
class Recorder : public CommHook {
 public:
  explicit Recorder(std::string name = "recorder") : name_(std::move(name)) {}
  std::string name() const override { return name_; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override {
    log.push_back("start " + std::to_string(bucket.index) + (bucket.is_last ? " last" : ""));
    EXPECT_EQ(bucket.gradients.size(), bucket.parameters.size());
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      EXPECT_EQ(bucket.gradients[i].sizes(), bucket.parameters[i].sizes());
      EXPECT_TRUE(bucket.gradients[i].is_alias_of(bucket.buffer) ||
                  bucket.gradients[i].const_data_ptr() >= bucket.buffer.const_data_ptr());
    }
    if (throws_at == bucket.index) throw std::runtime_error("a hook of the user's");
    auto finish = inner_.start(bucket, group);
    return [this, finish, index = bucket.index] {
      log.push_back("finish " + std::to_string(index));
      finish();
    };
  }
  std::vector<std::string> log;
  int throws_at = -1;

 private:
  std::string name_;
  AllReduceHook inner_;
};

TEST(CommHooks, GetBucketsInOrderAndEndThemInOrder) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    const auto hook = std::make_shared<Recorder>();
    model.register_comm_hook(hook);
    pass(model, group);
    hook->log.clear();
    net->zero_grad();
    pass(model, group);
    EXPECT_THAT(hook->log, ElementsAre("start 0", "start 1", "start 2 last", "finish 0", "finish 1",
                                       "finish 2"));
    expect_same(gradients_of(*net), averaged(local_gradients(2)));
  });
}

TEST(CommHooks, AreTheSameOnEveryRankAndOnlyOne) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    EXPECT_DIST_ERROR(
        model.register_comm_hook(std::make_shared<Recorder>(group.rank() ? "other" : "mine")),
        Kind::kInvalidArgument, HasSubstr("rank 0 has mine, rank 1 has other"));
    EXPECT_DIST_ERROR(model.register_comm_hook(nullptr), Kind::kInvalidArgument,
                      HasSubstr("there is no hook"));
    model.register_comm_hook(std::make_shared<Recorder>());
    EXPECT_DIST_ERROR(model.register_comm_hook(std::make_shared<Recorder>()),
                      Kind::kInvalidArgument, HasSubstr("there is one already"));
    Model later(make_mlp(), group, kSmall);
    pass(later, group);
    EXPECT_DIST_ERROR(later.register_comm_hook(std::make_shared<Recorder>()),
                      Kind::kInvalidArgument, HasSubstr("too late"));
  });
}

TEST(CommHooks, AreNotEndedInAPassThatFailedSomewhere) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    const auto hook = std::make_shared<Recorder>();
    model.register_comm_hook(hook);
    pass(model, group);
    hook->log.clear();
    const torch::Tensor output = model(input_of(group.rank()));
    const torch::Tensor loss =
        group.rank() == 0 ? loss_of(output, 0) : (*model)[4]->as<torch::nn::Linear>()->bias.sum();
    EXPECT_DIST_ERROR(loss.backward(), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient for '0.weight'"));
    EXPECT_THAT(hook->log, ElementsAre("start 0", "start 1", "start 2 last"));
    net->zero_grad();
    pass(model, group);
    expect_same(gradients_of(*net), averaged(local_gradients(2)));
  });
}

TEST(CommHooks, ThatThrowEndTheGroupOnEveryRank) {
  ThreadWorld world(2);
  const auto errors = world.errors([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    const auto hook = std::make_shared<Recorder>();
    model.register_comm_hook(hook);
    if (group.rank() == 1) hook->throws_at = 1;
    pass(model, group);
  });
  EXPECT_THAT(errors[0],
              HasSubstr("rank 1 aborted the group: the communication hook 'recorder' failed: "
                        "std::runtime_error: a hook of the user's"));
  EXPECT_THAT(errors[1], HasSubstr("a hook of the user's"));
}

// --- PowerSGD

TEST(PowerSgd, OfAMatrixOfItsRankIsExact) {
  // For one input row, the gradient of a layer without bias has rank 1 on each process. So the
  // sum over two processes has rank 2.
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::Linear net(torch::nn::LinearOptions(40, 30).bias(false));
    DistributedDataParallel model(net, group);
    const auto hook = std::make_shared<PowerSgd>(PowerSgdOptions{.rank = 2, .start_iteration = 2});
    model.register_comm_hook(hook);
    const auto local = [&](int rank, int step) {
      return torch::outer(data(70 + rank + 10 * step, {30}), data(90 + rank + 10 * step, {40}));
    };
    for (int step = 0; step < 5; ++step) {
      net->zero_grad();
      const torch::Tensor output = model(data(90 + group.rank() + 10 * step, {40}));
      (output * data(70 + group.rank() + 10 * step, {30})).sum().backward();
      const torch::Tensor expected = (local(0, step) + local(1, step)) / 2;
      EXPECT_TRUE(torch::allclose(net->weight.grad(), expected, 1e-3, 1e-4)) << step;
    }
    // Two passes send 30 x 40 elements, then three send (30 + 40) x 2.
    EXPECT_EQ(hook->compression().before, 5u * 1200 * 4);
    EXPECT_EQ(hook->compression().after, (2u * 1200 + 3 * 140) * 4);
  });
}

// With error feedback nothing is lost in the long run. Over many passes of the same gradient,
// the sum of the results approaches the sum of the inputs.
TEST(PowerSgd, FeedsBackWhatItLost) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    torch::nn::Linear net(30, 20);
    DistributedDataParallel model(net, group);
    model.register_comm_hook(std::make_shared<PowerSgd>(PowerSgdOptions{.start_iteration = 2}));
    const torch::Tensor x = data(600 + group.rank(), {8, 30}),
                        y = data(700 + group.rank(), {8, 20});
    torch::Tensor sum = torch::zeros({20, 30});
    constexpr int kPasses = 60;
    torch::Tensor bias;
    for (int number = 0; number < kPasses; ++number) {
      net->zero_grad();
      (model(x) * y).sum().backward();
      if (number >= 2) sum += net->weight.grad();
      bias = net->bias.grad();
    }
    torch::Tensor expected = torch::zeros({20, 30}), expected_bias = torch::zeros({20});
    for (int rank = 0; rank < 2; ++rank) {
      expected += data(700 + rank, {8, 20}).t().mm(data(600 + rank, {8, 30})) / 2;
      expected_bias += data(700 + rank, {8, 20}).sum(0) / 2;
    }
    const auto error = ((sum / (kPasses - 2) - expected).norm() / expected.norm()).item<float>();
    EXPECT_LT(error, 0.2);
    EXPECT_TRUE(torch::allclose(bias, expected_bias, 1e-5, 1e-6));
  });
}

TEST(PowerSgd, RefusesWhatCannotBeMeant) {
  EXPECT_DIST_ERROR(PowerSgd({.rank = 0}), Kind::kInvalidArgument, HasSubstr("'rank' is 0"));
  EXPECT_DIST_ERROR(PowerSgd({.start_iteration = 1}), Kind::kInvalidArgument,
                    HasSubstr("'start_iteration' is 1; it is at least 2"));
}

// --- local SGD

TEST(LocalSgd, AveragesGradientsAtFirstAndParametersNowAndThen) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    model.register_comm_hook(std::make_shared<PostLocalSgd>(2, nullptr));
    PeriodicModelAverager averager(/*period=*/2, /*warmup_steps=*/3);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    const auto differ = [&] {
      const auto digests = group.all_gather_object(net->parameters()[0].sum().item<double>());
      return digests[0] != digests[1];
    };
    std::vector<bool> apart;
    for (int step = 0; step < 6; ++step) {
      net->zero_grad();
      pass(model, group, step);
      optimizer.step();
      apart.push_back(differ());
      averager.average_parameters(net->parameters(), group);
      apart.push_back(differ());
    }
    // Gradients are synchronised in steps 0 and 1. Parameters are averaged after steps 3 and 5.
    EXPECT_THAT(apart, ElementsAre(false, false, false, false, true, true, true, false, true, true,
                                   true, false));
  });
}

TEST(LocalSgd, WithinSubgroupsAveragesThere) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    // A subgroup of one rank holds only the rank itself.
    auto net = make_mlp();
    Model model(net, group, kSmall);
    model.register_comm_hook(std::make_shared<PostLocalSgd>(0, &group));
    pass(model, group);
    expect_same(gradients_of(*net), local_gradients(1)[0]);
  });
  EXPECT_DIST_ERROR(PostLocalSgd(-1, nullptr), Kind::kInvalidArgument,
                    HasSubstr("start_iteration is -1"));
  EXPECT_DIST_ERROR(PeriodicModelAverager(0), Kind::kInvalidArgument, HasSubstr("a period of 0"));
}

// --- join

// OneWeightImpl: a module with one weight, whose gradient is rank + 1.
struct OneWeightImpl : torch::nn::Module {
  OneWeightImpl() {
    weight = register_parameter("weight", torch::zeros({1}));
    steps = register_buffer("steps", torch::zeros({1}));
  }
  torch::Tensor forward(int rank) {
    steps += 1;
    return weight * (rank + 1);
  }
  torch::Tensor weight, steps;
};
TORCH_MODULE(OneWeight);

// Runs a join in which rank r has inputs[r] inputs. Returns for each rank the gradients that it
// saw, then the weight after SGD and the buffer.
std::vector<std::vector<float>> joined(const std::vector<int>& inputs, const JoinOptions& options) {
  return on_each_rank(static_cast<int>(inputs.size()), [&](ProcessGroup& group) {
    OneWeight net;
    DistributedDataParallel model(net, group);
    torch::optim::SGD optimizer(net->parameters(), 1.0);
    std::vector<float> seen;
    model.join(
        [&] {
          for (int i = 0; i < inputs[static_cast<std::size_t>(group.rank())]; ++i) {
            optimizer.zero_grad();
            model(group.rank()).sum().backward();
            seen.push_back(net->weight.grad().item<float>());
            optimizer.step();
          }
        },
        options);
    seen.push_back(net->weight.item<float>());
    seen.push_back(net->steps.item<float>());
    return seen;
  });
}

// PyTorch 2.11 gives these numbers for 2 and 4 inputs.
TEST(Join, ARankWithoutInputsCountsAsZeros) {
  EXPECT_THAT(joined({2, 4}, {}),
              ElementsAre(ElementsAre(1.5, 1.5, -5, 4), ElementsAre(1.5, 1.5, 1, 1, -5, 4)));
  EXPECT_THAT(joined({2, 4}, {.divide_by_initial_world_size = false}),
              ElementsAre(ElementsAre(1.5, 1.5, -7, 4), ElementsAre(1.5, 1.5, 2, 2, -7, 4)));
}

TEST(Join, WorksForAnyNumbersOfInputs) {
  EXPECT_THAT(joined({3, 3}, {})[0], ElementsAre(1.5, 1.5, 1.5, -4.5, 3));
  EXPECT_THAT(joined({0, 0}, {})[1], ElementsAre(0, 0));
  EXPECT_THAT(joined({2, 0}, {}), ElementsAre(ElementsAre(.5, .5, -1, 2), ElementsAre(-1, 2)));
  EXPECT_THAT(joined({1, 0, 3}, {.divide_by_initial_world_size = false}),
              ElementsAre(ElementsAre(2, -8, 3), ElementsAre(-8, 3), ElementsAre(2, 3, 3, -8, 3)));
}

TEST(Join, MayBeRepeatedAndLeavesOrdinaryPassesAlone) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    for (int epoch = 0; epoch < 2; ++epoch) {
      model.join([&] {
        for (int i = 0; i < 1 + 2 * group.rank(); ++i) pass(model, group, i);
      });
      net->zero_grad();
      pass(model, group);
      expect_same(gradients_of(*net), averaged(local_gradients(2)));
    }
  });
}

// A shadow pass says nothing about the rank's own graph.
TEST(Join, ARankThatHadNoInputsInTheFirstPassMayHaveSomeLaterInAStaticGraph) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, {.first_bucket_bytes = 100, .bucket_bytes = 300, .static_graph = true});
    for (int epoch = 0; epoch < 3; ++epoch) {
      model.join([&] {
        if (epoch > 0 || group.rank() == 0) pass(model, group);
      });
      net->zero_grad();
      if (epoch == 0) continue;
      pass(model, group);
      expect_same(gradients_of(*net), averaged(local_gradients(2)));
    }
  });
}

TEST(Join, CanEndAllWhenTheFirstHasNoInputs) {
  ThreadWorld world(2);
  const auto errors = world.errors([](ProcessGroup& group) {
    OneWeight net;
    DistributedDataParallel model(net, group);
    int steps = 0;
    try {
      model.join(
          [&] {
            for (; steps < 2 + 2 * group.rank(); ++steps) model(group.rank()).sum().backward();
          },
          {.throw_on_early_termination = true});
    } catch (const DistError& error) {
      EXPECT_EQ(error.kind(), Kind::kStopped);
      EXPECT_EQ(steps, 2);
      group.barrier();  // the group still works
      throw;
    }
  });
  for (const std::string& error : errors)
    EXPECT_THAT(error, HasSubstr("no inputs are left on rank 0"));
}

TEST(Join, WhatTheLoopThrowsPassesThrough) {
  ThreadWorld world(2);
  const auto errors = world.errors([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    model.join([&] {
      pass(model, group);
      if (group.rank() == 1) throw std::runtime_error("no such file");
      pass(model, group, 1);
    });
  });
  EXPECT_THAT(errors[1], HasSubstr("no such file"));
  EXPECT_THAT(errors[0], HasSubstr("rank 1"));
}

TEST(Join, IsNotNested) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group, kSmall);
    EXPECT_DIST_ERROR(model.join([&] { model.join([] {}); }), Kind::kUnsupported,
                      HasSubstr("it cannot be inside another one"));
    model.register_comm_hook(std::make_shared<AllReduceHook>());
    EXPECT_DIST_ERROR(model.join([] {}, {.divide_by_initial_world_size = false}),
                      Kind::kUnsupported, HasSubstr("communication hooks average over all ranks"));
    model.join([&] { pass(model, group); });
  });
}

}  // namespace
}  // namespace ddprun
