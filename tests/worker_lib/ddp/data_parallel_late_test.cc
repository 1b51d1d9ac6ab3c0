// Tests passes whose words are read in the next pass, as on a GPU. Here the tensors are on the
// CPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "ddprun/checkpoint.h"
#include "ddprun/context.h"
#include "ddprun/sampler.h"
#include "tests/support/context_world.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/ended_backend.h"
#include "tests/worker_lib/support/small_mlp.h"
#include "worker_lib/ddp/reducer.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::in_a_world_of;
using testing_support::run_with_ends;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;

constexpr const char* kWhere = "backward pass of DistributedDataParallel";

// LateNet: a net on the CPU whose reducer reads words late, as on a GPU.
struct LateNet {
  explicit LateNet(ProcessGroup& group_, BucketCaps caps = {.first_bytes = 100, .bytes = 300},
                   bool as_views = true)
      : group(group_) {
    std::vector<Reducer::Parameter> parameters;
    for (const auto& one : net->named_parameters()) parameters.push_back({one.key(), one.value()});
    reducer = Reducer::make(std::move(parameters), group,
                            {.first_bucket_bytes = caps.first_bytes,
                             .bucket_bytes = caps.bytes,
                             .gradient_as_bucket_view = as_views});
  }

  void pass(int step = 0) {
    loss_of(net->forward(input_of(group.rank(), step)), group.rank(), step).backward();
  }
  // Runs a pass in which the last layer of rank 1 gets no gradient.
  void pass_with_a_missing_gradient() {
    const torch::Tensor hidden = net[2]->as<torch::nn::Linear>()->forward(
        net[0]->as<torch::nn::Linear>()->forward(input_of(group.rank())));
    if (group.rank() == 1) return hidden.sum().backward();
    net[4]->as<torch::nn::Linear>()->forward(hidden).sum().backward();
  }
  // Runs a pass in which a hook of rank 1 throws.
  void pass_with_an_exception_on_rank_1() {
    torch::Tensor hidden = net[0]->as<torch::nn::Linear>()->forward(input_of(group.rank()));
    if (group.rank() == 1)
      hidden.register_hook([](const torch::Tensor&) { throw std::runtime_error("a bad hook"); });
    for (std::size_t i = 1; i < 5; ++i)
      hidden = i % 2 == 1 ? hidden.tanh() : net[i]->as<torch::nn::Linear>()->forward(hidden);
    hidden.sum().backward();
  }
  void expect_nan_in_each_gradient() {
    for (const auto& one : net->named_parameters())
      EXPECT_TRUE(one.value().grad().isnan().any().item<bool>()) << one.key();
  }

  ProcessGroup& group;
  torch::nn::Sequential net = make_mlp();
  std::shared_ptr<Reducer> reducer;
};

void expect_averages(const BucketCaps& caps, bool as_views) {
  ThreadWorld(3).run([&](ProcessGroup& group) {
    LateNet late(group, caps, as_views);
    for (int step = 0; step < 4; ++step) {
      late.net->zero_grad();
      late.pass(step);
      expect_same(gradients_of(*late.net), averaged(local_gradients(3, step)));
    }
  });
}

TEST(DataParallelLate, GradientsHaveTheBitsOfTheAverages) {
  expect_averages({.first_bytes = 100, .bytes = 300}, true);
  expect_averages({.first_bytes = 100, .bytes = 300}, false);
  expect_averages({}, true);
}

TEST(DataParallelLate, AveragesOf16BitsAreNotTakenForIncomplete) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    torch::nn::Linear net(4, 4);
    net->to(torch::kBFloat16);
    const auto reducer = Reducer::make({{"weight", net->weight}, {"bias", net->bias}}, group,
                                       {.first_bucket_bytes = 0, .bucket_bytes = 0});
    for (int step = 0; step < 3; ++step)
      net->forward(torch::ones({2, 4}, torch::kBFloat16)).sum().backward();
    EXPECT_TRUE(net->weight.grad().isfinite().all().item<bool>());
  });
}

TEST(DataParallelLate, APassThatReducedNothingLeavesNaNAndTheNextOneThrows) {
  run_with_ends(2, [](ProcessGroup& group, bool& has_ended) {
    LateNet late(group);
    for (int step = 0; step < 2; ++step) late.pass(step);
    late.net->zero_grad();
    has_ended = true;
    late.pass();
    late.expect_nan_in_each_gradient();
    EXPECT_DIST_ERROR(late.pass(), Kind::kStopped,
                      AllOf(HasSubstr(kWhere),
                            HasSubstr("ended without rank " + std::to_string(1 - group.rank()))));
  });
}

TEST(DataParallelLate, APassThatWasAbortedBehindItsWordsThrowsInTheNextOne) {
  run_with_ends(
      2,
      [](ProcessGroup& group, bool& has_ended) {
        LateNet late(group);
        late.pass();
        has_ended = true;
        late.pass();
        has_ended = false;
        EXPECT_DIST_ERROR(late.pass(), Kind::kStopped, HasSubstr("the call was aborted"));
      },
      testing_support::End::kBehindTheValues);
}

TEST(DataParallelLate, AMissingGradientIsNamedInTheNextPassWhichIsNotThePassThatMissesIt) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    LateNet late(group);
    late.pass();
    late.net->zero_grad();
    late.pass_with_a_missing_gradient();
    late.expect_nan_in_each_gradient();
    late.net->zero_grad();
    EXPECT_DIST_ERROR(late.pass(), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient for '4.weight', '4.bias'"));
    late.net->zero_grad();
    late.pass(1);  // the reducer still works
    expect_same(gradients_of(*late.net), averaged(local_gradients(2, 1)));
  });
}

TEST(DataParallelLate, AnExceptionThatLeavesAPassIsToldInTheNextOneOnEveryRank) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    LateNet late(group);
    late.pass();
    late.net->zero_grad();
    if (group.rank() == 1) {
      EXPECT_THROW(late.pass_with_an_exception_on_rank_1(), std::exception);
    } else {
      late.pass_with_an_exception_on_rank_1();
      late.expect_nan_in_each_gradient();
    }
    EXPECT_DIST_ERROR(late.pass(), Kind::kInvalidArgument,
                      HasSubstr("an exception left it on rank 1, whose gradients are missing"));
    late.net->zero_grad();
    late.pass(1);
    expect_same(gradients_of(*late.net), averaged(local_gradients(2, 1)));
  });
}

// Reading the words of the pass before is a collective. The rank with the exception takes part
// in it.
TEST(DataParallelLate, APassWithAnExceptionOnOneRankStillNamesTheMissingGradientOfThePassBefore) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    LateNet late(group);
    late.pass();
    late.pass_with_a_missing_gradient();
    late.net->zero_grad();
    if (group.rank() == 1) {
      EXPECT_THROW(late.pass_with_an_exception_on_rank_1(), std::exception);
    } else {
      EXPECT_DIST_ERROR(late.pass_with_an_exception_on_rank_1(), Kind::kInvalidArgument,
                        HasSubstr("rank 1 got no gradient for '4.weight', '4.bias'"));
    }
    late.net->zero_grad();
    late.pass(1);
    expect_same(gradients_of(*late.net), averaged(local_gradients(2, 1)));
  });
}

// The gradients are averages, but of different epochs.
TEST(DataParallelLate, EpochsThatDifferAreToldInTheNextPass) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    LateNet late(group);
    DistributedSampler sampler(8, group);
    late.pass();
    sampler.set_epoch(3 + group.rank());
    late.pass();
    sampler.set_epoch(7);
    EXPECT_DIST_ERROR(late.pass(), Kind::kInvalidArgument,
                      HasSubstr("rank 0 is in epoch 3, rank 1 is in epoch 4"));
  });
}

TEST(DataParallelLate, ACheckpointIsRefusedAfterAPassThatWentWrong) {
  testing_support::TemporaryDirectory folder;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    LateNet late(group);
    CheckpointManager checkpoints(group, 0, {.directory = folder.path()});
    const TrainingState state{.model = late.net.get()};
    late.pass();
    late.pass_with_a_missing_gradient();
    EXPECT_DIST_ERROR(checkpoints.save(1, state), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient for '4.weight', '4.bias'"));
    late.net->zero_grad();
    late.pass();
    EXPECT_TRUE(checkpoints.save(2, state)) << "it is told once";
  });
}

TEST(DataParallelLate, OneSaveReportsAllModelsAndTheNextOneSucceeds) {
  testing_support::TemporaryDirectory folder;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    LateNet generator(group), discriminator(group);
    CheckpointManager checkpoints(group, 0, {.directory = folder.path()});
    for (LateNet* late : {&generator, &discriminator}) {
      late->pass();
      late->pass_with_a_missing_gradient();
    }
    const TrainingState state{.model = generator.net.get()};
    EXPECT_DIST_ERROR(checkpoints.save(1, state), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient"));
    EXPECT_TRUE(checkpoints.save(2, state));
  });
}

TEST(DataParallelLate, ARestoreDropsWhatThePassesBeforeItHaveLeft) {
  testing_support::TemporaryDirectory folder;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    LateNet late(group);
    CheckpointManager checkpoints(group, 0, {.directory = folder.path()});
    TrainingState state{.model = late.net.get()};
    late.pass();
    EXPECT_TRUE(checkpoints.save(1, state));
    late.pass_with_a_missing_gradient();
    checkpoints.restore(state);
    late.net->zero_grad();
    late.pass(1);
    expect_same(gradients_of(*late.net), averaged(local_gradients(2, 1)));
    EXPECT_TRUE(checkpoints.save(2, state));
  });
}

TEST(DataParallelLate, ACheckpointManagerOfANewGroupLooksAtPassesOfTheWorld) {
  testing_support::TemporaryDirectory folder;
  in_a_world_of(2, [&](Context& context) {
    const auto for_saves = context.new_group({0, 1});
    LateNet late(context.group());
    CheckpointManager checkpoints(*for_saves, 0, {.directory = folder.path()});
    late.pass();
    late.pass_with_a_missing_gradient();
    const TrainingState state{.model = late.net.get()};
    EXPECT_DIST_ERROR(checkpoints.save(1, state), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient for '4.weight', '4.bias'"));
    EXPECT_TRUE(checkpoints.save(2, state)) << "it is told once";
  });
}

// The save must not wait for the other ranks. All ranks read the words together in the next
// pass.
TEST(DataParallelLate, ASaveOfSomeRanksLooksAloneAndTheNextPassStillThrowsOnAll) {
  testing_support::TemporaryDirectory folder;
  in_a_world_of(2, [&](Context& context) {
    LateNet late(context.group());
    const auto part = context.group().split(context.rank() == 0 ? 0 : -1);
    DistributedSampler sampler(8, context.group());
    late.pass();
    const auto expect_refused_on_rank_0 = [&](const char* why) {
      if (!part) return;
      CheckpointManager checkpoints(*part, 0, {.directory = folder.path()});
      const TrainingState state{.model = late.net.get()};
      EXPECT_DIST_ERROR(checkpoints.save(1, state), Kind::kInvalidArgument, HasSubstr(why));
    };
    late.pass_with_a_missing_gradient();
    expect_refused_on_rank_0("rank 1 got no gradient for some parameter");
    late.net->zero_grad();
    EXPECT_DIST_ERROR(late.pass(), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient for '4.weight', '4.bias'"));
    sampler.set_epoch(3 + context.rank());
    late.pass();
    expect_refused_on_rank_0("the ranks are in different epochs");
    sampler.set_epoch(7);
    EXPECT_DIST_ERROR(late.pass(), Kind::kInvalidArgument,
                      HasSubstr("rank 0 is in epoch 3, rank 1 is in epoch 4"));
  });
}

TEST(DataParallelLate, ASaveOfSomeRanksIsNotRefusedForTheEpochOfASecondSampler) {
  testing_support::TemporaryDirectory folder;
  in_a_world_of(2, [&](Context& context) {
    LateNet late(context.group());
    const auto part = context.group().split(context.rank() == 0 ? 0 : -1);
    DistributedSampler train(8, context.group()), eval(6, context.group());
    late.pass();
    train.set_epoch(3);
    if (part) eval.set_epoch(1);
    late.pass();
    if (part) {
      CheckpointManager checkpoints(*part, 0, {.directory = folder.path()});
      EXPECT_TRUE(checkpoints.save(1, {.model = late.net.get()}));
    }
    late.pass();
  });
}

// Such a pass throws at once, because it may be the last one: then no later pass could report
// it.
TEST(DataParallelLate, TheFirstPassAndPassesInAJoinThrowThemselves) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    LateNet late(group);
    EXPECT_DIST_ERROR(late.pass_with_a_missing_gradient(), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient"));
    late.pass();
    late.reducer->compare_epochs(false);  // as join() does
    EXPECT_DIST_ERROR(late.pass_with_a_missing_gradient(), Kind::kInvalidArgument,
                      HasSubstr("rank 1 got no gradient"));
  });
}

}  // namespace
}  // namespace ddprun
