#include "ddprun/zero_optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/checkpoint.h"
#include "ddprun/data_parallel.h"
#include "ddprun/lr_scheduler.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::TemporaryDirectory;
using testing_support::ThreadWorld;
using torch::optim::Adam;
using torch::optim::AdamOptions;
using torch::optim::AdamW;
using torch::optim::AdamWOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;
using Kind = DistError::Kind;
using Groups = std::vector<torch::optim::OptimizerParamGroup>;

// Returns the parameters in two groups, weights and biases. The biases have another learning
// rate.
Groups groups_of(torch::nn::Module& net,
                 std::unique_ptr<torch::optim::OptimizerOptions> of_biases) {
  std::vector<torch::Tensor> weights, biases;
  for (const torch::Tensor& p : net.parameters()) (p.dim() > 1 ? weights : biases).push_back(p);
  of_biases->set_lr(0.03);
  Groups groups{Groups::value_type(weights)};
  groups.emplace_back(biases, std::move(of_biases));
  return groups;
}

// Sets gradients that depend only on the step, so all ranks have the same. The last bias gets
// none.
void set_gradients(torch::nn::Module& net, int step) {
  auto parameters = net.parameters();
  for (std::size_t i = 0; i + 1 < parameters.size(); ++i)
    parameters[i].mutable_grad() = data(1000 * (step + 1) + i, parameters[i].sizes().vec());
}

void train(torch::nn::Module& net, torch::optim::Optimizer& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    set_gradients(net, step);
    optimizer.step();
  }
}

template <class Base, class Options>
Tensors weights_without(const Options& options, int steps) {
  auto net = make_mlp();
  Base optimizer(groups_of(*net, std::make_unique<Options>(options)), options);
  train(*net, optimizer, 0, steps);
  return net->parameters();
}

void expect_same_bits(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(same_bits(a[i], b[i])) << i;
}

template <class Base, class Options>
void expect_same_as_without(const Options& options) {
  const Tensors expected = weights_without<Base>(options, 6);
  for (const int size : {1, 2, 3, 7})
    ThreadWorld(size).run([&](ProcessGroup& group) {
      auto net = make_mlp();
      ZeroRedundancyOptimizer<Base> optimizer(
          group, groups_of(*net, std::make_unique<Options>(options)), options);
      train(*net, optimizer, 0, 6);
      expect_same_bits(net->parameters(), expected);
    });
}

TEST(ZeroOptimizer, SgdHasTheBitsOfThePlainOne) {
  expect_same_as_without<SGD>(SGDOptions(0.1));
  expect_same_as_without<SGD>(SGDOptions(0.1).momentum(0.9).nesterov(true).weight_decay(0.01));
}
TEST(ZeroOptimizer, AdamHasTheBitsOfThePlainOne) {
  expect_same_as_without<Adam>(AdamOptions(0.01).amsgrad(true));
}
TEST(ZeroOptimizer, AdamWHasTheBitsOfThePlainOne) {
  expect_same_as_without<AdamW>(AdamWOptions(0.01));
}

TEST(ZeroOptimizer, EachRankKeepsItsShareOfTheStateAndTogetherTheyHaveAll) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    auto net = make_mlp();
    ZeroRedundancyOptimizer<Adam> optimizer(group, net->parameters(), AdamOptions(0.01));
    train(*net, optimizer, 0, 2);
    // The parameters have 5x16, 16, 16x8, 8, 8x2 and 2 elements; the last one has no gradient.
    // The ranks own 128 | 80 | 16, 16, 8, 2.
    EXPECT_EQ(optimizer.state().size(), group.rank() < 2 ? 1U : 3U);
    auto count = torch::tensor({static_cast<std::int64_t>(optimizer.state().size())});
    group.all_reduce(count);
    EXPECT_EQ(count.item<std::int64_t>(), 5);
  });
}

TEST(ZeroOptimizer, GradientsStayWhereTheyAre) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    ZeroRedundancyOptimizer<SGD> optimizer(group, net->parameters(), SGDOptions(0.1));
    set_gradients(*net, 0);
    std::vector<void*> places;
    for (const torch::Tensor& p : net->parameters())
      places.push_back(p.grad().defined() ? p.grad().data_ptr() : nullptr);
    optimizer.step();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const torch::Tensor gradient = net->parameters()[i].grad();
      EXPECT_EQ(gradient.defined() ? gradient.data_ptr() : nullptr, places[i]) << i;
    }
    optimizer.zero_grad();
    for (const torch::Tensor& p : net->parameters()) EXPECT_FALSE(p.grad().defined());
  });
}

TEST(ZeroOptimizer, SchedulesAndLaterGroupsWorkAsWithThePlainOne) {
  const auto steps = [](torch::nn::Sequential& net, torch::optim::Optimizer& optimizer) {
    LRScheduler schedule(optimizer, StepLR{.step_size = 1, .gamma = 0.5});
    train(*net, optimizer, 0, 2);
    schedule.step();
    train(*net, optimizer, 2, 3);
    torch::Tensor late = torch::ones({3, 3}, torch::requires_grad());
    optimizer.add_param_group({{late}});
    late.mutable_grad() = torch::full({3, 3}, 0.25F);
    train(*net, optimizer, 3, 5);
    Tensors result = net->parameters();
    result.push_back(late);
    return result;
  };
  auto net = make_mlp();
  SGD plain(net->parameters(), SGDOptions(0.1).momentum(0.9));
  const Tensors expected = steps(net, plain);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto own = make_mlp();
    ZeroRedundancyOptimizer<SGD> optimizer(group, own->parameters(), SGDOptions(0.1).momentum(0.9));
    expect_same_bits(steps(own, optimizer), expected);
  });
}

TEST(ZeroOptimizer, AClosureIsCalledWithGradientsOn) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    ZeroRedundancyOptimizer<SGD> optimizer(group, net->parameters(), SGDOptions(0.1));
    const torch::Tensor loss = optimizer.step([&] {
      optimizer.zero_grad();
      const torch::Tensor result = loss_of(net->forward(input_of(0)), 0);
      result.backward();
      return result;
    });
    EXPECT_TRUE(loss.requires_grad());
    EXPECT_FALSE(same_bits(net->parameters()[0], make_mlp()->parameters()[0]));
  });
}

// With DDP the gradients are views of buckets, and DDP's consistency check compares the
// optimizer.
TEST(ZeroOptimizer, TrainsUnderDistributedDataParallel) {
  const auto weights = [](bool sharded) {
    std::vector<Tensors> of_rank(2);
    ThreadWorld(2).run([&](ProcessGroup& group) {
      auto net = make_mlp();
      DistributedDataParallel model(net, group, {.check_consistency_every = 1});
      std::unique_ptr<torch::optim::Optimizer> optimizer;
      if (sharded)
        optimizer = std::make_unique<ZeroRedundancyOptimizer<AdamW>>(group, net->parameters(),
                                                                     AdamWOptions(0.01));
      else
        optimizer = std::make_unique<AdamW>(net->parameters(), AdamWOptions(0.01));
      model.watch_optimizer(optimizer.get());
      for (int step = 0; step < 5; ++step) {
        optimizer->zero_grad();
        loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
        optimizer->step();
      }
      of_rank[static_cast<std::size_t>(group.rank())] = net->parameters();
    });
    expect_same_bits(of_rank[0], of_rank[1]);
    return of_rank[0];
  };
  expect_same_bits(weights(true), weights(false));
}

// --- checkpoints

TEST(ZeroOptimizer, ACheckpointIsWholeAndGoesOnInAnyWorldWithOrWithoutShares) {
  const Tensors expected = weights_without<Adam>(AdamOptions(0.01), 6);
  const TemporaryDirectory directory;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    ZeroRedundancyOptimizer<Adam> optimizer(
        group, groups_of(*net, std::make_unique<AdamOptions>(0.01)), AdamOptions(0.01));
    train(*net, optimizer, 0, 3);
    CheckpointManager manager(group, 0, {.directory = directory.path()});
    manager.save(3, {.model = net.ptr().get(), .optimizer = &optimizer});
    manager.wait();
  });
  for (const int size : {1, 2, 3})
    for (const bool sharded : {true, false})
      ThreadWorld(size).run([&](ProcessGroup& group) {
        auto net = make_mlp();
        auto groups = groups_of(*net, std::make_unique<AdamOptions>(0.01));
        std::unique_ptr<torch::optim::Optimizer> optimizer;
        if (sharded)
          optimizer =
              std::make_unique<ZeroRedundancyOptimizer<Adam>>(group, groups, AdamOptions(0.5));
        else
          optimizer = std::make_unique<Adam>(groups, AdamOptions(0.5));
        CheckpointManager manager(group, 0, {.directory = directory.path()});
        TrainingState state{.model = net.ptr().get(), .optimizer = optimizer.get()};
        EXPECT_EQ(manager.restore(state).step, 3);
        EXPECT_EQ(optimizer->state().size() < 5, sharded && size > 1);  // at most its share
        train(*net, *optimizer, 3, 6);
        expect_same_bits(net->parameters(), expected);
      });
}

TEST(ZeroOptimizer, TorchSaveIsRefused) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    auto net = make_mlp();
    ZeroRedundancyOptimizer<SGD> optimizer(group, net->parameters(), SGDOptions(0.1));
    torch::serialize::OutputArchive archive;
    EXPECT_DIST_ERROR(optimizer.save(archive), Kind::kUnsupported, HasSubstr("CheckpointManager"));
  });
}

// --- bad input

TEST(ZeroOptimizer, ParametersThatDifferAreRefusedOnEveryRank) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    const torch::Tensor other = torch::ones({2, 3 + group.rank()}, torch::requires_grad());
    EXPECT_DIST_ERROR(
        ZeroRedundancyOptimizer<SGD>(group, {torch::ones({2}), other}, SGDOptions(0.1)),
        Kind::kInvalidArgument,
        AllOf(HasSubstr("parameter 1 is "), HasSubstr("[2, 3]"), HasSubstr("[2, 4]")));
    group.barrier();
    std::vector<torch::Tensor> more(static_cast<std::size_t>(1 + group.rank()), torch::ones({2}));
    for (torch::Tensor& one : more) one = one.clone();
    EXPECT_DIST_ERROR(ZeroRedundancyOptimizer<SGD>(group, more, SGDOptions(0.1)),
                      Kind::kInvalidArgument, HasSubstr("'none'"));
    group.barrier();
  });
}

TEST(ZeroOptimizer, MemoryWithGapsIsRefusedAndAnotherOrderOfDimensionsIsNot) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    const torch::Tensor gaps = torch::ones({4, 4}).narrow(1, 0, 2);
    EXPECT_DIST_ERROR(ZeroRedundancyOptimizer<SGD>(group, {gaps}, SGDOptions(0.1)),
                      Kind::kInvalidArgument, HasSubstr("gaps"));
    const torch::Tensor turned = torch::arange(6.0F).view({2, 3}).clone().t();
    turned.mutable_grad() = torch::ones({3, 2});
    ZeroRedundancyOptimizer<SGD> optimizer(group, {turned}, SGDOptions(1));
    optimizer.step();
    EXPECT_TRUE(torch::equal(turned, torch::arange(6.0F).view({2, 3}).t() - 1));
  });
}

}  // namespace
}  // namespace ddprun
