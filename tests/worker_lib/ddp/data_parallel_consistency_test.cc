// Tests the checks of DistributedDataParallel that all ranks hold the same bits.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>
#include <optional>

#include "ddprun/data_parallel.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::Each;
using testing::HasSubstr;

using testing_support::dist_error_of;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;
using Model = DistributedDataParallel<torch::nn::Sequential>;

// Trainer: a rank that trains, step by step.
struct Trainer {
  ProcessGroup& group;
  torch::nn::Sequential net = make_mlp();
  Model model;
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  int steps = 0;

  Trainer(ProcessGroup& the_group, const DataParallelOptions& options)
      : group(the_group), model(net, the_group, options) {}

  void forward_and_backward() {
    loss_of(model(input_of(group.rank(), steps)), group.rank(), steps).backward();
  }
  void step() {
    optimizer.zero_grad();
    forward_and_backward();
    optimizer.step();
    ++steps;
  }
  // Runs steps until `count` are done. Returns the error of the first forward that throws, if
  // any.
  std::optional<DistError> error_within(int count) {
    try {
      while (steps < count) step();
    } catch (const DistError& thrown) {
      return thrown;
    }
    return std::nullopt;
  }
};

DataParallelOptions every(std::int64_t count) {
  DataParallelOptions options{.first_bucket_bytes = 100, .bucket_bytes = 300};
  options.check_consistency_every = count;
  return options;
}

// Makes the smallest possible change, in the middle of the tensor.
void flip_lowest_bit(const torch::Tensor& tensor) {
  auto* bytes = static_cast<std::uint8_t*>(tensor.data_ptr());
  bytes[tensor.nbytes() / 2 / 4 * 4] ^= 1;
}

// Returns the number of checks in the world. One check exchanges a flag and a number from each
// rank.
std::ptrdiff_t checks_in(const ThreadWorld& world) {
  return std::ranges::count_if(world.calls(), [](const ThreadWorld::Call& call) {
    return call.name == "all_gather" && call.bytes == 16;
  });
}

TEST(DataParallelConsistency, RanksThatAgreeHearNothing) {
  for (const int size : {1, 2, 3}) {
    ThreadWorld world(size);
    world.run([](ProcessGroup& group) {
      Trainer trainer(group, every(2));
      trainer.model.watch_optimizer(&trainer.optimizer);
      EXPECT_FALSE(trainer.error_within(7));
    });
    EXPECT_EQ(checks_in(world), size == 1 ? 0 : 3) << size;  // after steps 2, 4 and 6
  }
}

TEST(DataParallelConsistency, NothingIsCheckedUnlessAskedFor) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    Trainer trainer(group, every(0));
    trainer.step();
    if (group.rank() == 1) flip_lowest_bit(trainer.net->parameters()[2]);
    EXPECT_FALSE(trainer.error_within(4));
  });
  EXPECT_EQ(checks_in(world), 0);
}

TEST(DataParallelConsistency, OneBitIsEnoughAndEveryRankNamesWhoHasIt) {
  struct Case {
    int size;
    int culprit;
    const char* words;
    int blamed;
  };
  for (const Case& c :
       {Case{2, 0, "rank 1 differs from rank 0 in parameter '2.weight'.", -1},
        Case{2, 1, "rank 1 differs from rank 0 in parameter '2.weight'.", -1},
        Case{3, 0, "rank 0 differs from ranks 1 and 2 in parameter '2.weight'.", 0},
        Case{3, 1, "rank 1 differs from ranks 0 and 2 in parameter '2.weight'.", 1}})
    ThreadWorld(c.size).run([&](ProcessGroup& group) {
      Trainer trainer(group, every(1));
      EXPECT_FALSE(trainer.error_within(3));
      if (group.rank() == c.culprit) flip_lowest_bit(trainer.net->named_parameters()["2.weight"]);
      const auto error = trainer.error_within(10);
      ASSERT_TRUE(error);
      EXPECT_EQ(error->kind(), Kind::kCorrupt);
      EXPECT_EQ(error->peer_rank(), c.blamed);
      EXPECT_THAT(error->what(),
                  AllOf(HasSubstr(c.words),
                        HasSubstr("the same after step 2, and no more after step 3 (option "
                                  "'check_consistency_every' 1)")));
      // The check runs in the background, so its error comes one step later.
      EXPECT_EQ(trainer.steps, 4);
    });
}

TEST(DataParallelConsistency, TheErrorSaysBetweenWhichChecksItCame) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    Trainer trainer(group, every(3));
    EXPECT_FALSE(trainer.error_within(4));
    if (group.rank() == 2)
      for (const torch::Tensor& parameter : trainer.net->parameters()) parameter.detach().add_(1);
    const auto error = trainer.error_within(20);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                AllOf(HasSubstr("the same after step 3, and no more after step 6"),
                      HasSubstr("rank 2 differs from ranks 0 and 1 in parameter '0.weight', "
                                "parameter '0.bias', parameter '2.weight', parameter '2.bias' and "
                                "2 more. ")));
    EXPECT_EQ(trainer.steps, 7);
  });
}

TEST(DataParallelConsistency, RanksThatDifferInDifferentThingsAreAllNamed) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.step();
    if (group.rank() == 0) flip_lowest_bit(trainer.net->named_parameters()["0.bias"]);
    if (group.rank() == 2) flip_lowest_bit(trainer.net->named_parameters()["4.bias"]);
    const auto error = trainer.error_within(5);
    ASSERT_TRUE(error);
    EXPECT_EQ(error->peer_rank(), -1);
    EXPECT_THAT(error->what(),
                HasSubstr("rank 0 differs from ranks 1 and 2 in parameter '0.bias'; rank 2 differs "
                          "from ranks 0 and 1 in parameter '4.bias'. "));
  });
}

TEST(DataParallelConsistency, TheGroupGoesOn) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.step();
    const torch::Tensor parameter = trainer.net->named_parameters()["2.weight"];
    if (group.rank() == 1) flip_lowest_bit(parameter);
    ASSERT_TRUE(trainer.error_within(5));
    ASSERT_TRUE(trainer.error_within(5));  // the parameter still differs
    group.broadcast(parameter.detach());
    EXPECT_FALSE(trainer.error_within(9));
  });
}

// --- the optimizer

TEST(DataParallelConsistency, TheStateOfAWatchedOptimizerIsCompared) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.model.watch_optimizer(&trainer.optimizer);
    EXPECT_FALSE(trainer.error_within(2));
    if (group.rank() == 1) {
      const torch::Tensor weight = trainer.net->named_parameters()["2.weight"];
      auto& state = *trainer.optimizer.state().at(weight.unsafeGetTensorImpl());
      flip_lowest_bit(static_cast<torch::optim::SGDParamState&>(state).momentum_buffer());
    }
    const auto error = trainer.error_within(5);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                HasSubstr("rank 1 differs from ranks 0 and 2 in 'momentum_buffer' of "
                          "parameter '2.weight'. "));
  });
}

TEST(DataParallelConsistency, SoIsItsLearningRate) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.model.watch_optimizer(&trainer.optimizer);
    trainer.step();
    auto& options = trainer.optimizer.param_groups()[0].options();
    if (group.rank() == 1) options.set_lr(std::nextafter(0.1, 1.0));
    const auto error = trainer.error_within(5);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(),
                HasSubstr("rank 1 differs from rank 0 in 'lr' of parameter group 0 of "
                          "the optimizer. "));
  });
}

TEST(DataParallelConsistency, AnOptimizerThatOnlySomeWatchDiffers) {
  ThreadWorld(3).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    if (group.rank() == 1) trainer.model.watch_optimizer(&trainer.optimizer);
    const auto error = trainer.error_within(5);
    ASSERT_TRUE(error);
    EXPECT_THAT(error->what(), AllOf(HasSubstr("rank 1 differs from ranks 0 and 2 in 'lr' of"),
                                     HasSubstr(" more. They")));
  });
}

TEST(DataParallelConsistency, AnOptimizerThatIsNotWatchedIsNot) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.model.watch_optimizer(&trainer.optimizer);
    trainer.model.watch_optimizer(nullptr);
    auto& options = trainer.optimizer.param_groups()[0].options();
    if (group.rank() == 1)
      static_cast<torch::optim::SGDOptions&>(options).nesterov(false).dampening(0);
    trainer.optimizer.add_param_group({{torch::zeros({group.rank() + 1})}});
    EXPECT_FALSE(trainer.error_within(4));
  });
}

// --- when checks run

TEST(DataParallelConsistency, PassesInNoSyncAreNoSteps) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    Trainer trainer(group, every(2));
    for (int step = 0; step < 6; ++step) {
      {
        const auto quiet = trainer.model.no_sync();
        trainer.forward_and_backward();
        trainer.forward_and_backward();
      }
      trainer.step();
    }
  });
  EXPECT_EQ(checks_in(world), 2);  // after steps 2 and 4
}

TEST(DataParallelConsistency, WithAccumulationTheErrorComesInASynchronisedForward) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.step();
    if (group.rank() == 1) flip_lowest_bit(trainer.net->named_parameters()["2.weight"]);
    trainer.step();
    {
      const auto quiet = trainer.model.no_sync();
      trainer.forward_and_backward();
    }
    EXPECT_THAT(dist_error_of([&] { trainer.step(); }).what(),
                HasSubstr("rank 1 differs from rank 0"));
  });
}

// Neither half of a check depends on how often a rank calls forward.
TEST(DataParallelConsistency, ARankMayCallForwardAloneInBetween) {
  ThreadWorld world(2);
  world.run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    for (int step = 0; step < 4; ++step) {
      if (group.rank() == 0) trainer.model(input_of(0, step));
      trainer.step();
    }
    if (group.rank() == 1) flip_lowest_bit(trainer.net->named_parameters()["2.weight"]);
    EXPECT_TRUE(trainer.error_within(9));
  });
}

TEST(DataParallelConsistency, EvaluationChecksNothing) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    Trainer trainer(group, every(1));
    trainer.step();
    if (group.rank() == 1) flip_lowest_bit(trainer.net->named_parameters()["2.weight"]);
    trainer.step();
    const torch::NoGradGuard no_grad;
    EXPECT_NO_THROW(trainer.model(input_of(0)));
  });
}

// --- what is compared

struct NetWithBuffer : torch::nn::Module {
  torch::nn::Linear layer = register_module("layer", torch::nn::Linear(5, 2));
  torch::Tensor seen = register_buffer("seen", torch::zeros({1}));
  torch::Tensor forward(const torch::Tensor& input) {
    seen += input.sum().detach();
    return layer(input);
  }
};

TEST(DataParallelConsistency, BuffersThatAreEachRanksOwnAreNot) {
  for (const bool broadcast : {true, false})
    ThreadWorld(2).run([&](ProcessGroup& group) {
      auto options = every(1);
      options.broadcast_buffers = broadcast;
      DistributedDataParallel model(std::make_shared<NetWithBuffer>(), group, options);
      for (int step = 0; step < 6; ++step) {
        {
          const auto quiet = model.no_sync();
          model(input_of(group.rank(), step)).sum().backward();
        }
        if (step % 2 == 0) model(input_of(group.rank(), step)).sum().backward();
      }
    });
}

TEST(DataParallelConsistency, IgnoredParametersAndTheirStateAreNot) {
  ThreadWorld(2).run([](ProcessGroup& group) {
    auto options = every(1);
    options.ignored_names = {"2.weight"};
    Trainer trainer(group, options);
    trainer.model.watch_optimizer(&trainer.optimizer);
    EXPECT_FALSE(trainer.error_within(6));
    const torch::Tensor own = trainer.net->named_parameters()["2.weight"];
    const torch::Tensor theirs = own.detach().clone();
    torch::NoGradGuard no_grad;
    group.broadcast(theirs, {.root = 0});
    EXPECT_EQ(same_bits(own, theirs), group.rank() == 0);
  });
}

// --- join

TEST(DataParallelConsistency, InAJoinTheRanksThatTrainAreCompared) {
  for (const bool diverges : {false, true}) {
    const auto errors = ThreadWorld(3).errors([&](ProcessGroup& group) {
      Trainer trainer(group, every(1));
      auto& options = trainer.optimizer.param_groups()[0].options();
      // Momentum would differ between the ranks, which take different numbers of steps.
      static_cast<torch::optim::SGDOptions&>(options).momentum(0);
      trainer.model.join([&] {
        for (int step = 0; step < (group.rank() == 0 ? 2 : 8); ++step) {
          if (diverges && step == 4 && group.rank() == 2)
            flip_lowest_bit(trainer.net->named_parameters()["2.weight"]);
          trainer.step();
        }
      });
      // All ranks have the parameters of the rank that trained longest.
      EXPECT_FALSE(trainer.error_within(trainer.steps + 3));
    });
    EXPECT_THAT(errors, Each(diverges ? testing::Matcher<std::string>(HasSubstr(
                                            "rank 2 differs from rank 1 in parameter '2.weight'. "))
                                      : testing::Matcher<std::string>(testing::IsEmpty())));
  }
}

// --- bad options

TEST(DataParallelConsistency, RefusesWhatCannotBeMeant) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    EXPECT_DIST_ERROR(Model(make_mlp(), group, every(-1)), Kind::kInvalidArgument,
                      HasSubstr("the option 'check_consistency_every' is -1 (expected a number of "
                                "steps, or 0 for no checks)"));
  });
  ThreadWorld(2).run([](ProcessGroup& group) {
    EXPECT_DIST_ERROR(Model(make_mlp(), group, every(group.rank() + 1)), Kind::kInvalidArgument,
                      AllOf(HasSubstr("option 'check_consistency_every' 1"),
                            HasSubstr("option 'check_consistency_every' 2")));
  });
}

}  // namespace
}  // namespace ddprun
