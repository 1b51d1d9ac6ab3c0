#include "ddprun/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <condition_variable>
#include <fstream>
#include <limits>
#include <mutex>
#include <thread>

#include "tests/support/expect_dist_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"
#include "worker_lib/checkpoint/io.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::FileSizeLimit;
using testing_support::TemporaryDirectory;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;

// Returns the files of the directory without the claim and its lock.
std::vector<std::string> listing(const std::string& path) {
  std::vector<std::string> names = testing_support::listing(path);
  std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
  return names;
}

// Training: everything that a training run has.
struct Training {
  Training(int rank, int world)
      : sampler(100, {.seed = 3, .rank = rank, .world_size = world}),
        state{.model = net.ptr().get(), .optimizer = &optimizer, .sampler = &sampler} {}

  void step() {
    optimizer.zero_grad();
    net->forward(torch::rand({4, 3})).sum().backward();
    optimizer.step();
    sampler.next(4);
  }
  torch::Tensor weight() { return net->parameters()[0]; }

  torch::nn::Sequential net{torch::nn::Linear(3, 4), torch::nn::BatchNorm1d(4)};
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)};
  DistributedSampler sampler;
  TrainingState state;
};

void flip_a_bit(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(fs::file_size(path) / 2));
  const auto byte = static_cast<char>(file.get() ^ 4);
  file.seekp(static_cast<std::streamoff>(fs::file_size(path) / 2));
  file.put(byte);
}

class CheckpointTest : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const CheckpointOptions options_{.directory = directory_.path(), .keep_last = 3};

  std::string file(int step, const char* suffix) const {
    char name[64];
    std::snprintf(name, sizeof name, "step-%012d%s", step, suffix);
    return directory_ / name;
  }

  // Saves these steps in a world of `size` ranks, one after the other.
  void save_steps(const std::vector<int>& steps, int size = 1) {
    ThreadWorld(size).run([&](ProcessGroup& group) {
      CheckpointManager manager(group, 0, options_);
      Training training(group.rank(), group.size());
      manager.restore(training.state);
      for (const int step : steps) manager.save(step, training.state);
    });
  }

  Restored restore_alone() {
    Restored result;
    ThreadWorld(1).run([&](ProcessGroup& group) {
      Training training(0, 1);
      result = CheckpointManager(group, 0, options_).restore(training.state);
    });
    return result;
  }
};

TEST_F(CheckpointTest, AResumedTrainingGoesOnWithTheSameBits) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    torch::manual_seed(1);
    Training first(0, 1);
    for (int i = 0; i < 3; ++i) first.step();
    first.state.epoch = 2;
    first.state.extra = {{"best", 0.5}, {"names", {"a", "b"}}};
    manager.save(3, first.state);
    for (int i = 0; i < 3; ++i) first.step();
    const torch::Tensor draw = torch::rand({3});

    torch::manual_seed(99);
    Training second(0, 1);
    const Restored restored = manager.restore(second.state);
    EXPECT_EQ(restored.file, file(3, ".pt"));
    EXPECT_EQ(restored.step, 3);
    EXPECT_THAT(restored.skipped, IsEmpty());
    EXPECT_EQ(second.state.epoch, 2);
    EXPECT_EQ(second.state.extra, first.state.extra);
    EXPECT_EQ(second.sampler.state().at("position"), 12);
    second.sampler.reset();
    for (int i = 0; i < 3; ++i) second.step();
    EXPECT_TRUE(torch::equal(second.weight(), first.weight()));
    EXPECT_TRUE(torch::equal(second.net->buffers()[0], first.net->buffers()[0]));
    EXPECT_TRUE(torch::equal(torch::rand({3}), draw));
  });
}

TEST_F(CheckpointTest, AnEmptyDirectoryRestoresNothing) {
  const Restored restored = restore_alone();
  EXPECT_FALSE(restored);
  EXPECT_EQ(restored.step, 0);
  EXPECT_THAT(restored.skipped, IsEmpty());
}

TEST_F(CheckpointTest, EveryRankGetsRankZerosState) {
  torch::Tensor weights[2];
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    {
      torch::NoGradGuard no_grad;
      training.weight().fill_(group.rank() + 1);
    }
    manager.save(1, training.state);
    {
      torch::NoGradGuard no_grad;
      training.weight().fill_(7);
    }
    EXPECT_EQ(manager.restore(training.state).step, 1);
    weights[group.rank()] = training.weight().detach().clone();
  });
  EXPECT_TRUE(torch::equal(weights[0], torch::ones({4, 3})));
  EXPECT_TRUE(torch::equal(weights[1], torch::ones({4, 3})));
}

TEST_F(CheckpointTest, TheLastKAreKept) {
  save_steps({1, 2, 3, 4, 5});
  EXPECT_THAT(
      listing(directory_.path()),
      ElementsAre("step-000000000003.json", "step-000000000003.pt", "step-000000000004.json",
                  "step-000000000004.pt", "step-000000000005.json", "step-000000000005.pt"));
}

TEST_F(CheckpointTest, DamagedOnesAreSkippedInWords) {
  save_steps({1, 2, 3});
  flip_a_bit(file(3, ".pt"));
  fs::resize_file(file(2, ".json"), fs::file_size(file(2, ".json")) - 1);
  const Restored restored = restore_alone();
  EXPECT_EQ(restored.step, 1);
  EXPECT_THAT(
      restored.skipped,
      ElementsAre(AllOf(HasSubstr("step 3: "), HasSubstr(file(3, ".pt")), HasSubstr("SHA-256")),
                  AllOf(HasSubstr("step 2: "), HasSubstr(file(2, ".json")))));
}

TEST_F(CheckpointTest, NothingWholeRestoresNothingAndSaysWhy) {
  save_steps({1});
  fs::remove(file(1, ".pt"));
  const Restored restored = restore_alone();
  EXPECT_FALSE(restored);
  EXPECT_THAT(restored.skipped, ElementsAre(HasSubstr("No such file")));
}

TEST_F(CheckpointTest, WhatWasPassedOverIsGoneAfterTheNextSave) {
  save_steps({10, 20, 30});
  flip_a_bit(file(30, ".pt"));
  flip_a_bit(file(20, ".json"));
  save_steps({15});  // restores step 10
  EXPECT_THAT(listing(directory_.path()),
              ElementsAre("step-000000000010.json", "step-000000000010.pt",
                          "step-000000000015.json", "step-000000000015.pt"));
}

TEST_F(CheckpointTest, ANewRunDoesNotSaveBelowAnotherRunsCheckpoint) {
  save_steps({10});
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    EXPECT_DIST_ERROR(manager.save(5, training.state), Kind::kInvalidArgument,
                      AllOf(HasSubstr("save step 5: " + directory_.path()),
                            HasSubstr("step 10 that this run did not restore")));
  });
  EXPECT_EQ(restore_alone().step, 10);
}

TEST_F(CheckpointTest, RanksAtDifferentStepsAreRefusedOnEveryRank) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    EXPECT_DIST_ERROR(manager.save(5 + group.rank(), training.state), Kind::kInvalidArgument,
                      AllOf(HasSubstr("step 5"), HasSubstr("step 6")));
  });
  EXPECT_THAT(listing(directory_.path()), IsEmpty());
}

TEST_F(CheckpointTest, AFailedWriteThrowsOnEveryRankNamingTheFile) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    manager.save(1, training.state);
    manager.wait();
    if (group.rank() == 0) {
      // The temporary file cannot be created if a plain file takes the place of the directory.
      fs::rename(directory_.path(), directory_.path() + ".away");
      std::ofstream(directory_.path()) << "a file";
    }
    group.barrier();
    EXPECT_DIST_ERROR(manager.save(2, training.state), Kind::kSystem, HasSubstr(directory_.path()));
    group.barrier();
    if (group.rank() == 0) {
      fs::remove(directory_.path());
      fs::rename(directory_.path() + ".away", directory_.path());
    }
    group.barrier();
    EXPECT_EQ(manager.restore(training.state).step, 1);
    manager.save(2, training.state);
  });
}

TEST_F(CheckpointTest, AWriteThatFailsInTheBackgroundIsThrownByTheNextCallOnEveryRank) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    manager.save(1, training.state);
    manager.wait();
    const auto name_of_the_file = HasSubstr(directory_.path() + "/step-00000000000");
    {
      std::optional<FileSizeLimit> limit;
      if (group.rank() == 0) limit.emplace(100);
      group.barrier();
      manager.save(2, training.state);
      EXPECT_DIST_ERROR(manager.wait(), Kind::kSystem, name_of_the_file);
      manager.wait();  // the failure was already reported
      manager.save(3, training.state);
      EXPECT_DIST_ERROR(manager.save(4, training.state), Kind::kSystem, name_of_the_file);
      CheckpointOptions options = options_;
      options.asynchronous = false;
      CheckpointManager synchronous(group, 0, options);
      EXPECT_DIST_ERROR(synchronous.save(5, training.state), Kind::kSystem, name_of_the_file);
      group.barrier();
    }
    group.barrier();
    manager.save(6, training.state);
    EXPECT_EQ(manager.restore(training.state).step, 6);
  });
  EXPECT_THAT(listing(directory_.path()),
              testing::UnorderedElementsAre("step-000000000001.json", "step-000000000001.pt",
                                            "step-000000000006.json", "step-000000000006.pt"));
}

TEST_F(CheckpointTest, RanksRestoreTheNewestThatAllCanRead) {
  save_steps({1, 2, 3}, 2);
  // Rank 1 sees another directory, in which step 3 is damaged.
  const TemporaryDirectory other;
  fs::copy(directory_.path(), other.path(), fs::copy_options::recursive);
  flip_a_bit(other / "step-000000000003.pt");
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0,
                              {.directory = group.rank() == 0 ? directory_.path() : other.path()});
    Training training(group.rank(), 2);
    const Restored restored = manager.restore(training.state);
    EXPECT_EQ(restored.step, 2);
    EXPECT_THAT(restored.skipped,
                ElementsAre(AllOf(HasSubstr(other.path()), HasSubstr("SHA-256"))));
  });
}

TEST_F(CheckpointTest, DifferentCheckpointsOfOneStepAreNotMixed) {
  save_steps({1}, 2);
  const TemporaryDirectory other;
  fs::copy(directory_.path(), other.path(), fs::copy_options::recursive);
  save_steps({2}, 2);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, {.directory = other.path()});
    Training training(group.rank(), 2);
    manager.restore(training.state);
    training.state.extra = "another run";
    manager.save(2, training.state);
  });
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0,
                              {.directory = group.rank() == 0 ? directory_.path() : other.path()});
    Training training(group.rank(), 2);
    const Restored restored = manager.restore(training.state);
    EXPECT_EQ(restored.step, 1);
    EXPECT_THAT(restored.skipped,
                ElementsAre(HasSubstr("rank 1 has another checkpoint of step 2 than rank 0")));
  });
}

TEST_F(CheckpointTest, AHostWithoutTheMountIsAnErrorAndNotANewStart) {
  save_steps({1, 2}, 3);
  const TemporaryDirectory empty;
  ThreadWorld(3).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0,
                              {.directory = group.rank() == 2 ? empty.path() : directory_.path()});
    Training training(group.rank(), 3);
    EXPECT_DIST_ERROR(
        manager.restore(training.state), Kind::kSystem,
        AllOf(HasSubstr("rank 0 can read " + file(2, ".pt")), HasSubstr("rank 2 has no equal one"),
              HasSubstr("one directory that all ranks see?")));
  });
  EXPECT_EQ(listing(directory_.path()).size(), 4u) << "nothing was removed";
}

TEST_F(CheckpointTest, RanksWithNothingInCommonDoNotStartAnew) {
  save_steps({1}, 2);
  const TemporaryDirectory other;
  fs::copy(directory_.path(), other.path(), fs::copy_options::recursive);
  flip_a_bit(other / "step-000000000001.pt");
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0,
                              {.directory = group.rank() == 0 ? directory_.path() : other.path()});
    Training training(group.rank(), 2);
    EXPECT_DIST_ERROR(manager.restore(training.state), Kind::kSystem,
                      HasSubstr("no checkpoint in common"));
  });
}

TEST_F(CheckpointTest, WhatCannotBeReadIsAnErrorOnEveryRankAndIsNotPassedOver) {
  save_steps({1, 2}, 2);
  // A link to itself takes the place of the file. So open() fails, even for root.
  fs::remove(file(2, ".pt"));
  fs::create_symlink(file(2, ".pt"), file(2, ".pt"));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    EXPECT_DIST_ERROR(manager.restore(training.state), Kind::kSystem,
                      AllOf(HasSubstr("rank 0: "), HasSubstr(file(2, ".pt"))));
  });
}

TEST_F(CheckpointTest, AWorldOfAnotherSizeGoesOn) {
  torch::Tensor weight;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    training.sampler.set_epoch(training.state.epoch = 1);
    for (int step = 0; step < 3; ++step) training.step();
    if (group.rank() == 0) weight = training.weight().clone();
    manager.save(3, training.state);
  });
  for (const int world : {1, 3})
    ThreadWorld(world).run([&](ProcessGroup& group) {
      CheckpointManager manager(group, 0, options_);
      Training training(group.rank(), world);
      const Restored restored = manager.restore(training.state);
      EXPECT_EQ(restored.step, 3);
      EXPECT_TRUE(torch::equal(training.weight(), weight));
      EXPECT_EQ(training.sampler.state().at("epoch"), 1);
      EXPECT_EQ(training.sampler.state().at("position"), 24);
      EXPECT_THAT(restored.remarks,
                  testing::ElementsAre(
                      AllOf(HasSubstr(file(3, ".pt")),
                            HasSubstr("a world of 2, this one has " + std::to_string(world))),
                      HasSubstr("all ranks take rank 0's buffers")));  // the buffers of BatchNorm
    });
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    EXPECT_THAT(manager.restore(training.state).remarks, IsEmpty());
  });
}

TEST_F(CheckpointTest, AnotherOptimizerOrModelIsAClearError) {
  save_steps({1});
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(0, 1);
    torch::optim::Adam adam(training.net->parameters());
    TrainingState state = training.state;
    state.optimizer = &adam;
    EXPECT_DIST_ERROR(
        manager.restore(state), Kind::kInvalidArgument,
        AllOf(HasSubstr(file(1, ".pt")), HasSubstr("state of SGD, this optimizer is Adam")));
    torch::nn::Linear other(3, 5);
    state = training.state;
    state.model = other.get();
    EXPECT_DIST_ERROR(manager.restore(state), Kind::kInvalidArgument, HasSubstr("'weight'"));
    struct Own : torch::optim::Optimizer {
      using Optimizer::Optimizer;
      torch::Tensor step(LossClosure) override { return {}; }
    } own(training.net->parameters(), std::make_unique<torch::optim::SGDOptions>(0.1));
    state.optimizer = &own;
    EXPECT_DIST_ERROR(manager.save(2, state), Kind::kUnsupported, HasSubstr("Own"));
  });
}

TEST_F(CheckpointTest, AnotherScheduleIsAClearError) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(0, 1);
    LRScheduler steps(*training.state.optimizer, StepLR{});
    ReduceLROnPlateau plateau(*training.state.optimizer);
    TrainingState state = training.state;
    manager.save(1, state);
    state.scheduler = &steps;
    EXPECT_DIST_ERROR(manager.restore(state), Kind::kCorrupt,
                      HasSubstr("it has no 'lr_scheduler_class'"));
    manager.save(2, state);
    state.scheduler = &plateau;
    EXPECT_DIST_ERROR(
        manager.restore(state), Kind::kInvalidArgument,
        AllOf(HasSubstr(file(2, ".pt")),
              HasSubstr("it holds the state of StepLR, this schedule is ReduceLROnPlateau")));
  });
}

// A plateau scheduler that has seen no metric yet has an infinite number in its state.
TEST_F(CheckpointTest, SchedulesGoOnWhereTheyWere) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Training training(group.rank(), 2);
    torch::optim::Optimizer& optimizer = *training.state.optimizer;
    TrainingState state = training.state;
    const auto rate = [&] { return optimizer.param_groups()[0].options().get_lr(); };
    const SequentialLR rules{{LinearWarmup{}, MultiStepLR{.milestones = {1, 2}}}, {3}};
    LRScheduler schedule(optimizer, rules);
    ReduceLROnPlateau plateau(optimizer, {.patience = 0});
    state.scheduler = &schedule;
    for (int epoch = 0; epoch < 4; ++epoch) schedule.step();
    const double saved = rate();
    manager.save(1, state);
    state.scheduler = &plateau;
    manager.save(2, state);
    plateau.step(1);
    const auto expected = plateau.state();

    ReduceLROnPlateau later_plateau(optimizer, {.factor = 0.7});
    state.scheduler = &later_plateau;
    EXPECT_EQ(manager.restore(state).step, 2);
    later_plateau.step(1);
    EXPECT_EQ(later_plateau.state(), expected);

    state.scheduler = &schedule;
    manager.save(3, state);
    optimizer.param_groups()[0].options().set_lr(5);
    LRScheduler later(optimizer, rules);
    state.scheduler = &later;
    EXPECT_EQ(manager.restore(state).step, 3);
    EXPECT_EQ(rate(), saved);
    schedule.step();
    const double next = rate();
    optimizer.param_groups()[0].options().set_lr(saved);
    later.step();
    EXPECT_EQ(rate(), next);
    EXPECT_NE(next, saved);
    EXPECT_EQ(later.state(), schedule.state());
  });
}

// HeldWriter: stops the writer's thread when the thread announces that a checkpoint is
// complete.
class HeldWriter {
 public:
  std::function<void(std::int64_t)> announce() {
    return [this](std::int64_t) {
      std::unique_lock lock(mutex_);
      released_.wait(lock, [&] { return !is_held_; });
    };
  }
  void release() {
    const std::lock_guard lock(mutex_);
    is_held_ = false;
    released_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable released_;
  bool is_held_ = true;
};

TEST_F(CheckpointTest, TrainingGoesOnWhileASaveIsWrittenAndTheNextIsSkippedOnRequest) {
  HeldWriter writer;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointOptions options = options_;
    options.skip_when_busy = true;
    CheckpointManager manager(group, 0, options, writer.announce());
    Training training(group.rank(), 2);
    EXPECT_TRUE(manager.save(1, training.state));
    EXPECT_FALSE(manager.save(2, training.state)) << "the first is being written";
    group.barrier();
    if (group.rank() == 0) writer.release();
    manager.wait();
    EXPECT_TRUE(manager.save(3, training.state));
    EXPECT_EQ(manager.restore(training.state).step, 3) << "it waits for what is being written";
  });
  EXPECT_FALSE(fs::exists(file(2, ".json")));
}

TEST_F(CheckpointTest, ASaveWaitsForTheLastOne) {
  HeldWriter writer;
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_, writer.announce());
    Training training(0, 1);
    manager.save(1, training.state);
    std::thread releaser([&] {
      EXPECT_TRUE(testing_support::eventually([&] { return fs::exists(file(1, ".json")); }));
      EXPECT_FALSE(fs::exists(file(2, ".json")));
      writer.release();
    });
    manager.save(2, training.state);
    releaser.join();
    manager.wait();
  });
  EXPECT_TRUE(fs::exists(file(2, ".json")));
}

// The state is so large that writing it takes longer than changing it.
TEST_F(CheckpointTest, WhatIsWrittenIsTheStateAtTheCallAndNotALaterOne) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    torch::nn::Linear net(2048, 4096);
    torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    TrainingState state{.model = net.get(), .optimizer = &optimizer};
    const auto step = [&] {
      for (torch::Tensor& parameter : net->parameters())
        parameter.mutable_grad() = torch::ones_like(parameter);
      optimizer.step();
    };
    step();
    const torch::Tensor weight = net->weight.detach().clone();
    for (int round = 1; round <= 3; ++round) {
      manager.save(round, state);
      torch::NoGradGuard no_grad;
      for (int i = 0; i < 3; ++i) net->weight.fill_(i);
      manager.restore(state);
      EXPECT_TRUE(torch::equal(net->weight, weight)) << round;
    }
  });
}

TEST_F(CheckpointTest, SavesWhenItIsTime) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointOptions options = options_;
    options.keep_last = 100;
    options.every_steps = 3;
    CheckpointManager by_steps(group, 0, options);
    Training training(group.rank(), 2);
    std::vector<int> saved;
    for (int step = 1; step <= 7; ++step)
      if (by_steps.maybe_save(step, training.state).saved) saved.push_back(step);
    EXPECT_THAT(saved, ElementsAre(3, 6));
    by_steps.wait();

    options.every_steps = 0;
    options.every = std::chrono::milliseconds(100);
    const auto start = std::chrono::steady_clock::now();
    CheckpointManager by_time(group, 0, options);
    by_time.restore(training.state);
    saved.clear();
    int step = 7;
    while (saved.size() < 3 && step < 10'000'000)
      if (by_time.maybe_save(++step, training.state).saved) saved.push_back(step);
    EXPECT_EQ(saved.size(), 3u);
    EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(300));
    by_time.wait();
  });
}

TEST_F(CheckpointTest, ASaveThatIsDueAndSkippedIsMadeAsSoonAsTheWriterIsFree) {
  HeldWriter writer;
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointOptions options = options_;
    options.skip_when_busy = true;
    options.every = std::chrono::milliseconds(500);
    CheckpointManager manager(group, 0, options, writer.announce());
    Training training(0, 1);
    EXPECT_TRUE(manager.save(1, training.state));
    const auto until = std::chrono::steady_clock::now() + 1.1 * options.every;
    int step = 1;
    while (std::chrono::steady_clock::now() < until)
      EXPECT_FALSE(manager.maybe_save(++step, training.state).saved) << "one is being written";
    writer.release();
    manager.wait();
    EXPECT_TRUE(manager.maybe_save(++step, training.state).saved);
  });
}

TEST_F(CheckpointTest, TheBestAreKeptAndNamed) {
  CheckpointOptions options = options_;
  options.keep_last = 1;
  options.keep_best = 2;
  options.higher_is_better = true;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options);
    EXPECT_EQ(manager.best(), "");
    Training training(group.rank(), 2);
    const double nan = std::numeric_limits<double>::quiet_NaN();
    int step = 0;
    for (const double accuracy : {0.5, 0.9, nan, 0.7, 0.6}) {
      training.state.metric = accuracy;
      manager.save(++step, training.state);
    }
    manager.wait();
    EXPECT_EQ(manager.best(), file(2, ".pt"));
    EXPECT_EQ(manager.restore(training.state).step, 5) << "the newest is restored";
  });
  EXPECT_THAT(listing(directory_.path()),
              testing::UnorderedElementsAre("step-000000000002.pt", "step-000000000002.json",
                                            "step-000000000004.pt", "step-000000000004.json",
                                            "step-000000000005.pt", "step-000000000005.json"));
}

TEST_F(CheckpointTest, OtherDataIsAClearErrorAndOtherThreadsAreRemarkedOn) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    const int threads = torch::get_num_threads();
    CheckpointManager manager(group, 0, options_);
    Training training(0, 1);
    training.state.data = "digits v1";
    manager.save(1, training.state);
    EXPECT_THAT(manager.restore(training.state).remarks, IsEmpty());
    torch::set_num_threads(threads + 1);
    EXPECT_THAT(manager.restore(training.state).remarks,
                ElementsAre(AllOf(HasSubstr("workers of " + std::to_string(threads) + " threads"),
                                  HasSubstr("these have " + std::to_string(threads + 1)))));
    torch::set_num_threads(threads);
    training.state.data = "digits v2";
    EXPECT_DIST_ERROR(manager.restore(training.state), Kind::kInvalidArgument,
                      AllOf(HasSubstr("'digits v1'"), HasSubstr("'digits v2'")));
    training.state.data = "";
    EXPECT_EQ(manager.restore(training.state).step, 1) << "nothing to compare";
  });
}

TEST_F(CheckpointTest, OptionsThatCannotBeMeantAreRefused) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, {.directory = ""}), Kind::kInvalidArgument,
                      HasSubstr("'directory' is empty"));
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, {.directory = "x", .keep_last = 0}),
                      Kind::kInvalidArgument, HasSubstr("'keep_last' is 0"));
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, {.directory = "x", .keep_best = -1}),
                      Kind::kInvalidArgument, HasSubstr("'keep_best' is -1"));
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, {.directory = "x", .every_steps = -5}),
                      Kind::kInvalidArgument, HasSubstr("'every_steps' is -5"));
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, {.directory = "/proc/none"}), Kind::kSystem,
                      HasSubstr("/proc/none"));
  });
}

TEST_F(CheckpointTest, TheManifestCarriesTheGeneration) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 4, options_);
    Training training(0, 1);
    manager.save(1, training.state);
  });
  std::ifstream manifest(file(1, ".json"));
  EXPECT_EQ(nlohmann::json::parse(manifest).at("generation"), 4);
}

TEST_F(CheckpointTest, ARankZeroThatWasCutOffCannotAnnounceAnyMore) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager cut_off(group, 0, options_);
    Training training(group.rank(), 2);
    cut_off.save(10, training.state);
    cut_off.wait();
    CheckpointManager later(group, 1, options_);
    group.barrier();
    cut_off.save(20, training.state);
    EXPECT_DIST_ERROR(
        cut_off.wait(), Kind::kStopped,
        AllOf(HasSubstr("step-000000000020.pt"),
              HasSubstr("a later run (generation 1) has taken " + directory_.path())));
    EXPECT_EQ(later.restore(training.state).step, 10);
    later.save(15, training.state);
    later.wait();
  });
  EXPECT_EQ(restore_alone().step, 15);
}

// The later run has taken the directory and saved a later step. The error must name the taken
// directory as the reason, not the step.
TEST_F(CheckpointTest, ARunThatWasCutOffIsToldSoAlsoWhereTheLaterOneIsAhead) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Training training(group.rank(), 2);
    CheckpointManager cut_off(group, 0, options_);
    cut_off.save(10, training.state);
    cut_off.wait();
    CheckpointManager later(group, 1, options_);
    later.save(30, training.state);
    later.wait();
    EXPECT_DIST_ERROR(cut_off.save(20, training.state), Kind::kStopped,
                      AllOf(HasSubstr("save step 20 in " + directory_.path() +
                                      ": a later run (generation 1) has taken "),
                            testing::Not(HasSubstr("did not restore"))));
  });
}

// Without locks, its manifest may get through. Such a manifest is not restored, does not keep
// the later run from saving, and does not stay.
TEST_F(CheckpointTest, WhatARankZeroThatWasCutOffAnnouncesLateDoesNotCount) {
  const auto slip_through = [&](std::int64_t step) {
    CheckpointDirectory blind(directory_.path());
    ASSERT_TRUE(blind.announce({.step = step}, [](AtomicFile& file) { file.write("late", 4); }));
  };
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Training training(group.rank(), 2);
    CheckpointManager(group, 0, options_).save(10, training.state);
    CheckpointManager later(group, 1, options_);
    group.barrier();
    if (group.rank() == 0) slip_through(20);
    group.barrier();
    const Restored restored = later.restore(training.state);
    EXPECT_EQ(restored.step, 10);
    EXPECT_THAT(restored.skipped,
                ElementsAre(AllOf(HasSubstr("step 20: "), HasSubstr("it does not count"))));
    if (group.rank() == 0) slip_through(30);
    group.barrier();
    later.save(11, training.state);
    later.wait();
  });
  EXPECT_THAT(listing(directory_.path()),
              ElementsAre("step-000000000010.json", "step-000000000010.pt",
                          "step-000000000011.json", "step-000000000011.pt"));
}

TEST_F(CheckpointTest, AReadOnlyManagerTakesNothingFromTheRunThatSaves) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Training training(group.rank(), 2);
    CheckpointManager training_run(group, 0, options_);
    training_run.save(1, training.state);
    training_run.wait();
    CheckpointManager reader(group, 5, {.directory = directory_.path(), .read_only = true});
    EXPECT_EQ(reader.restore(training.state).step, 1);
    EXPECT_DIST_ERROR(reader.save(2, training.state), Kind::kInvalidArgument,
                      HasSubstr("'read_only' is on"));
    training_run.save(2, training.state);
    training_run.wait();
  });
}

TEST_F(CheckpointTest, CommandsCopyCheckpointsAndFetchThemIntoAnEmptyDirectory) {
  const TemporaryDirectory store;
  const std::string fetch = "cp " + store.path() + "/* \"$DDPRUN_CHECKPOINT_DIRECTORY\"";
  CheckpointOptions options{
      .directory = directory_ / "first",
      .asynchronous = false,
      .copy_command = "cp \"$DDPRUN_CHECKPOINT_DIRECTORY/$DDPRUN_CHECKPOINT_NAME\"* " +
                      store.path() + "; [ $DDPRUN_CHECKPOINT_STEP = 1 ]",  // 2: a warning
      .fetch_command = "true"};
  torch::Tensor weight;
  for (const int step : {1, 2})
    ThreadWorld(2).run([&](ProcessGroup& group) {
      Training training(group.rank(), group.size());
      CheckpointManager manager(group, 0, options);
      manager.restore(training.state);
      manager.save(step, training.state);
      if (group.rank() == 0) weight = training.weight().detach().clone();
    });
  EXPECT_THAT(listing(store.path()), ElementsAre("step-000000000001.json", "step-000000000001.pt",
                                                 "step-000000000002.json", "step-000000000002.pt"));
  options.directory = directory_ / "second";
  options.fetch_command = fetch;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Training training(group.rank(), group.size());
    EXPECT_EQ(CheckpointManager(group, 0, options).restore(training.state).step, 2);
    EXPECT_TRUE(torch::equal(training.weight(), weight));
  });
  options.fetch_command = "echo not fetched again >&2; false";
  ThreadWorld(1).run([&](ProcessGroup& group) { CheckpointManager(group, 0, options); });
  options.directory = directory_ / "third";
  ThreadWorld(2).run([&](ProcessGroup& group) {
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, options), Kind::kSystem,
                      HasSubstr("fetch checkpoints: run the command 'echo not fetched again >&2; "
                                "false': exit code 1"));
  });
  // Manifests of a fetch that was cut off are no checkpoints: the fetch is repeated.
  options.directory = directory_ / "fourth";
  options.fetch_command =
      "cp " + store.path() + "/*.json \"$DDPRUN_CHECKPOINT_DIRECTORY\"; kill -9 $$";
  ThreadWorld(1).run([&](ProcessGroup& group) {
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, options), Kind::kSystem, HasSubstr("signal 9"));
    options.fetch_command = fetch;
    Training training(group.rank(), group.size());
    EXPECT_EQ(CheckpointManager(group, 0, options).restore(training.state).step, 2);
    options.fetch_command = "false";
    EXPECT_EQ(CheckpointManager(group, 0, options).restore(training.state).step, 2);
  });
}

TEST(DigestOf, SeesEveryBitAndEveryName) {
  const auto digest = [](auto change) {
    torch::nn::Sequential net{torch::nn::BatchNorm1d(2)};
    torch::NoGradGuard no_grad;
    change(net);
    return digest_of(*net);
  };
  const std::string plain = digest([](auto&) {});
  EXPECT_EQ(plain.size(), 64u);
  EXPECT_EQ(plain, digest([](auto&) {}));
  EXPECT_NE(plain, digest([](auto& net) { net->parameters()[1].neg_(); }));  // 0 becomes -0
  EXPECT_NE(plain, digest([](auto& net) { net->buffers()[2].add_(1); }));
  EXPECT_NE(plain, digest([](auto& net) { net->to(torch::kFloat64); }));
  EXPECT_NE(plain, digest_of(*torch::nn::BatchNorm1d(2)));
}

}  // namespace
}  // namespace ddprun
