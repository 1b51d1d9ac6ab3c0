// Tests what the ranks' words at the end of a pass prove: the gradients were reduced at all,
// and all ranks are in the same epoch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/checkpoint.h"
#include "ddprun/data_parallel.h"
#include "ddprun/sampler.h"
#include "tests/support/context_world.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/ended_backend.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::run_with_ends;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;
using Model = DistributedDataParallel<torch::nn::Sequential>;

template <class AnyModel>
void pass(AnyModel& model, const ProcessGroup& group, int step = 0) {
  loss_of(model(input_of(group.rank(), step)), group.rank(), step).backward();
}

// --- a backend whose calls end without moving any values

void expect_unreduced_pass_to_throw(const DataParallelOptions& options, bool has_hook) {
  run_with_ends(2, [&](ProcessGroup& group, bool& has_ended) {
    auto net = make_mlp();
    Model model(net, group, options);
    if (has_hook) model.register_comm_hook(std::make_shared<AllReduceHook>());
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      pass(model, group, step);
    }
    expect_same(gradients_of(*net), averaged(local_gradients(2, 1)));
    net->zero_grad();
    has_ended = true;
    EXPECT_DIST_ERROR(pass(model, group), Kind::kStopped,
                      AllOf(HasSubstr("backward pass of DistributedDataParallel"),
                            HasSubstr("ended without rank " + std::to_string(1 - group.rank()))));
  });
}

TEST(DataParallelWords, APassThatReducedNothingDoesNotReturn) {
  expect_unreduced_pass_to_throw({}, false);
  expect_unreduced_pass_to_throw(kSmall, false);
}

TEST(DataParallelWords, NorDoesOneWithAHookOrWithUnusedParameters) {
  expect_unreduced_pass_to_throw(kSmall, true);
  expect_unreduced_pass_to_throw({.find_unused_parameters = true}, false);
  expect_unreduced_pass_to_throw({.static_graph = true}, false);
}

// In a join, buckets hold sums instead of averages.
TEST(DataParallelWords, NorDoesOneInAJoin) {
  run_with_ends(2, [](ProcessGroup& group, bool& has_ended) {
    Model model(make_mlp(), group);
    const auto loop = [&] {
      pass(model, group);
      const torch::Tensor output = model(input_of(group.rank()));
      has_ended = true;
      EXPECT_DIST_ERROR(loss_of(output, group.rank()).backward(), Kind::kStopped,
                        HasSubstr("ended without rank"));
      throw std::runtime_error("end of the loop");
    };
    EXPECT_THROW(model.join(loop, {.divide_by_initial_world_size = false}), std::runtime_error);
  });
}

// --- epochs

// One rank leaves its first epoch after one batch, the other after two.
TEST(DataParallelEpochs, ARankThatLeavesItsLoopEarlyIsNoticedInTheNextPass) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group);
    DistributedSampler sampler(8, group);
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    int steps = 0;
    const auto train = [&] {
      for (int epoch = 0; epoch < 2; ++epoch) {
        sampler.set_epoch(epoch);
        for (int batch = 0; batch < 2; ++batch) {
          if (epoch == 0 && batch == 1 && group.rank() == 0) break;
          optimizer.zero_grad();
          pass(model, group, steps);
          optimizer.step();
          ++steps;
        }
      }
    };
    EXPECT_DIST_ERROR(train(), Kind::kInvalidArgument,
                      HasSubstr("rank 1 is in epoch 0, rank 0 is in epoch 1"));
    EXPECT_EQ(steps, 1);
    group.barrier();  // the group still works
  });
}

TEST(DataParallelEpochs, ThatAreEqualOrUnknownAreNoError) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group);
    DistributedSampler sampler(9, group);
    pass(model, group);
    if (group.rank() != 1) sampler.set_epoch(4);
    pass(model, group);  // rank 1 has not set an epoch
    sampler.set_epoch(5);
    pass(model, group);
    DistributedSampler of_another_world(9, {.rank = group.rank(), .world_size = 4});
    of_another_world.set_epoch(group.rank());
    DistributedSampler alone(9, {});
    alone.set_epoch(group.rank());
    pass(model, group);
  });
}

TEST(DataParallelEpochs, OfASamplerWithoutAGroupCountByItsRankAndWorldSize) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    Model model(make_mlp(), group);
    DistributedSampler sampler(9, {.rank = group.rank(), .world_size = 3});
    const auto expect_error = [&] {
      EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                        HasSubstr("rank 1 is in epoch 4, ranks 0 and 2 are in epoch 5"));
    };
    pass(model, group);
    sampler.set_epoch(group.rank() == 1 ? 4 : 5);
    expect_error();
    sampler.set_epoch(5);
    pass(model, group);
    {  // a sampler that is gone does not count
      DistributedWeightedSampler other(std::vector<double>(9, 1), 9,
                                       {.rank = group.rank(), .world_size = 3});
      other.set_epoch(group.rank() == 1 ? 4 : 5);
    }
    pass(model, group);
    DistributedBatchSampler batches(
        7, {.batch_size = 2, .of_samples = {.rank = group.rank(), .world_size = 3}});
    batches.load_state(DistributedBatchSampler(7, {}).state());
    batches.set_epoch(group.rank() == 1 ? 4 : 6);
    EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                      HasSubstr("rank 1 is in epoch 4, ranks 0 and 2 are in epoch 6"));
  });
}

TEST(DataParallelEpochs, OfASamplerWithAnotherGroupCountToo) {
  testing_support::in_a_world_of(2, [](Context& context) {
    ProcessGroup& group = context.group();
    const auto other = group.split(0);
    Model model(make_mlp(), group);
    DistributedSampler sampler(8, *other);
    sampler.set_epoch(group.rank());
    EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                      HasSubstr("rank 0 is in epoch 0, rank 1 is in epoch 1"));
  });
}

// Its rank and world size say nothing here: each rank has data of its own.
TEST(DataParallelEpochs, OfASamplerInACheckpointsStateCountToo) {
  testing_support::TemporaryDirectory folder;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    Model model(net, group);
    CheckpointManager checkpoints(group, 0, {.directory = folder.path()});
    for (const bool does_save : {true, false}) {
      DistributedSampler sampler(8, {});
      TrainingState state{.model = net.get(), .sampler = &sampler};
      sampler.set_epoch(group.rank());
      pass(model, group);  // not known yet
      sampler.set_epoch(2);
      if (does_save)
        checkpoints.save(1, state);
      else
        checkpoints.restore(state);
      pass(model, group);
      sampler.set_epoch(2 + group.rank());
      EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                        HasSubstr("rank 0 is in epoch 2, rank 1 is in epoch 3"));
      checkpoints.wait();
    }
  });
}

// As where rank 0 evaluates alone, or chooses the epochs in another order. Also if both samplers
// have the same options.
TEST(DataParallelEpochs, OfTwoSamplersAreNotTakenForEachOther) {
  for (const std::size_t eval_size : {8, 6})
    ThreadWorld(3).run([eval_size](ProcessGroup& group) {
      Model model(make_mlp(), group);
      const DistributedSamplerOptions place{.rank = group.rank(), .world_size = 3};
      DistributedSampler train(8, place), eval(eval_size, group);
      for (int epoch = 0; epoch < 3; ++epoch) {
        train.set_epoch(epoch);
        if (group.rank() == 0) eval.set_epoch(77);
        pass(model, group);
      }
      eval.set_epoch(77);
      pass(model, group);
      if (group.rank() == 0) train.set_epoch(2);
      pass(model, group);
      train.set_epoch(group.rank() == 1 ? 3 : 4);
      if (group.rank() == 0) eval.set_epoch(77);
      EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                        HasSubstr("rank 1 is in epoch 3, ranks 0 and 2 are in epoch 4"));
    });
}

TEST(DataParallelEpochs, OfManyRanksAreNamedWithTheirRanks) {
  ThreadWorld(4).run([](ProcessGroup& group) {
    Model model(make_mlp(), group, {.find_unused_parameters = true});
    DistributedSampler sampler(8, group);
    sampler.set_epoch(group.rank() == 2 ? 1000 : 1001);
    EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                      HasSubstr("rank 2 is in epoch 1000, ranks 0, 1 and 3 are in epoch 1001"));
  });
}

TEST(DataParallelEpochs, AreComparedInBucketsOf16Bits) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    torch::nn::Linear net(4, 4);
    net->to(torch::kBFloat16);
    DistributedDataParallel model(net, group);
    DistributedSampler sampler(8, group);
    const auto step = [&] { model(torch::ones({2, 4}, torch::kBFloat16)).sum().backward(); };
    for (const int epoch : {0, 58, 59, 60, 777}) {
      sampler.set_epoch(epoch);
      step();
      sampler.set_epoch(epoch + (group.rank() == 1 ? 1 : 0));
      EXPECT_DIST_ERROR(step(), Kind::kInvalidArgument,
                        HasSubstr("are in epoch " + std::to_string(epoch)));
    }
  });
}

TEST(DataParallelEpochs, OfARestoredSamplerCountToo) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Model model(make_mlp(), group);
    DistributedSampler sampler(8, group), saved(8, group);
    saved.set_epoch(3);
    sampler.load_state(saved.state());
    if (group.rank() == 0) sampler.set_epoch(4);
    EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument,
                      HasSubstr("rank 1 is in epoch 3, rank 0 is in epoch 4"));
  });
}

TEST(DataParallelEpochs, MayDifferInAJoin) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Model model(make_mlp(), group);
    DistributedSampler sampler(8, group);
    model.join([&] {
      for (int epoch = 0; epoch < 3; ++epoch) {
        sampler.set_epoch(epoch);
        for (int batch = 0; batch <= group.rank(); ++batch) pass(model, group);
      }
    });
    sampler.set_epoch(group.rank());
    EXPECT_DIST_ERROR(pass(model, group), Kind::kInvalidArgument, HasSubstr("in epoch 1"));
  });
}

}  // namespace
}  // namespace ddprun
