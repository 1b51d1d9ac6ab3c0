// Tests that a save and a restore keep the state that each rank has of its own. A run that was
// killed and resumed must end with the bits of a run that was not.
#include "worker_lib/checkpoint/rank_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/any.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <atomic>

#include "ddprun/data_parallel.h"
#include "ddprun/state_file.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/serialization/core/names_of_one_hash.h"
#include "tests/worker_lib/support/pickled.h"
#include "tests/worker_lib/support/small_mlp.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::TemporaryDirectory;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;
using Model = DistributedDataParallel<torch::nn::Sequential>;

torch::nn::Sequential make_normed_mlp() {
  torch::nn::Sequential plain = make_mlp(), result;
  for (const torch::nn::AnyModule& layer : *plain) {
    result->push_back(layer);
    if (result->size() == 1) result->push_back(torch::nn::BatchNorm1d(16));
  }
  return result;
}

// Setting: how a training run is made, as far as the tests differ.
struct Setting {
  torch::nn::Sequential (*net)() = make_mlp;
  DataParallelOptions options = {.first_bucket_bytes = 100, .bucket_bytes = 300};
  std::function<std::shared_ptr<CommHook>()> hook = {};
  std::optional<int> averaging_period = {};
  int accumulated = 1;  // passes in a step
  RanksDiffer ranks_differ = RanksDiffer::kInBuffers;
};

// RankTraining: one rank's training run.
struct RankTraining {
  RankTraining(const Setting& of, ProcessGroup& its_group)
      : setting(of), group(its_group), net(of.net()), model(net, group, of.options) {
    state.model = net.ptr().get();
    state.optimizer = &optimizer;
    state.ranks_differ = of.ranks_differ;
    if (of.hook) {
      hook = of.hook();
      model.register_comm_hook(hook);
      state.hook = hook.get();
    }
    if (of.averaging_period) state.averager = &averager.emplace(*of.averaging_period);
  }

  // Runs one pass of a step. The last pass of a step completes it.
  void pass(int number) {
    const int of_step = number % setting.accumulated;
    if (of_step == 0) optimizer.zero_grad();
    std::optional<NoSync> quiet;
    if (of_step + 1 < setting.accumulated) quiet.emplace(model.no_sync());
    loss_of(model(input_of(group.rank(), number)), group.rank(), number).backward();
    if (of_step + 1 < setting.accumulated) return;
    optimizer.step();
    if (averager) averager->average_parameters(net->parameters(), group);
  }
  void passes(int begin, int end) {
    for (int number = begin; number < end; ++number) pass(number);
  }

  Tensors tensors() {
    Tensors result = net->parameters();
    for (const torch::Tensor& buffer : net->buffers()) result.push_back(buffer);
    return result;
  }

  const Setting setting;  // a copy: tests pass temporaries
  ProcessGroup& group;
  torch::nn::Sequential net;
  Model model;
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)};
  std::shared_ptr<CommHook> hook;
  std::optional<PeriodicModelAverager> averager;
  TrainingState state;
};

class RankState : public testing::Test {
 protected:
  // Runs `total` passes once without a kill and once with a kill after `killed_at` passes.
  // Returns whether both end with the same bits on every rank. keeps: the checkpoint has the
  // ranks' own state.
  bool ends_the_same(const Setting& setting, int killed_at, int total, bool keeps) {
    const bool is_within = killed_at % setting.accumulated != 0;
    std::atomic<bool> all_same = true;
    ThreadWorld(2).run([&](ProcessGroup& group) {
      RankTraining whole(setting, group);
      whole.passes(0, total);
      const auto state_of = [&](RankTraining& training) {
        TrainingState state = training.state;
        if (!keeps) {
          state.hook = nullptr;
          state.averager = nullptr;
          state.ranks_differ = RanksDiffer::kNowhere;
        }
        return state;
      };
      {
        RankTraining killed(setting, group);
        killed.passes(0, killed_at);
        TrainingState state = state_of(killed);
        state.gradients = keeps && is_within;
        CheckpointManager manager(group, 0, options());
        manager.save(killed_at, state);
        manager.wait();
      }
      RankTraining resumed(setting, group);
      TrainingState state = state_of(resumed);
      const Restored restored = CheckpointManager(group, 0, options()).restore(state);
      ASSERT_EQ(restored.step, killed_at);
      EXPECT_THAT(restored.remarks, IsEmpty());
      EXPECT_EQ(state.gradients, keeps && is_within);
      resumed.passes(killed_at, total);
      const Tensors ours = resumed.tensors(), expected = whole.tensors();
      ASSERT_EQ(ours.size(), expected.size());
      if (!std::ranges::equal(ours, expected, same_bits)) all_same = false;
    });
    return all_same;
  }
  void expect_to_resume(const Setting& setting, int killed_at, int total) {
    EXPECT_TRUE(ends_the_same(setting, killed_at, total, /*keeps=*/true)) << killed_at;
  }
  // Checks that the test above can fail: without the ranks' own state the bits must differ.
  void expect_to_need_its_own(const Setting& setting, int killed_at, int total) {
    EXPECT_FALSE(ends_the_same(setting, killed_at, total, /*keeps=*/false)) << killed_at;
  }

  c10::IValue file_of(int step) const {
    char name[64];
    std::snprintf(name, sizeof name, "step-%012d.pt", step);
    return read_pickle(testing_support::read_file(directory_ / name), name);
  }
  CheckpointOptions options() const { return {.directory = directory_.path()}; }

  const TemporaryDirectory directory_;
};

TEST_F(RankState, BuffersOfEachRankAreSaved) {
  const Setting setting{
      .net = make_normed_mlp,
      .options = {.first_bucket_bytes = 100, .bucket_bytes = 300, .broadcast_buffers = false}};
  expect_to_need_its_own(setting, 2, 6);
  expect_to_resume(setting, 3, 6);
  const auto ranks = entry_of(file_of(3), "ranks").toListRef().vec();
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_TRUE(ranks[0].toGenericDict().empty());
  const auto own = entry_of(ranks[1], "model").toGenericDict();
  EXPECT_EQ(own.size(), 2u) << "the count of batches is the same on both";
  EXPECT_TRUE(own.contains("1.running_mean"));
  EXPECT_TRUE(own.contains("1.running_var"));
}

TEST_F(RankState, NothingIsAddedWhereNothingDiffers) {
  ThreadWorld world(2);
  world.run([&](ProcessGroup& group) {
    RankTraining training({.net = make_normed_mlp}, group);
    CheckpointManager(group, 0, options()).save(1, training.state);
    training.pass(0);
    training.state.ranks_differ = RanksDiffer::kNowhere;
    CheckpointManager(group, 0, options()).save(2, training.state);
  });
  for (const int step : {1, 2})
    for (const char* key : {"ranks", "comm_hook", "gradients", "averager"})
      EXPECT_FALSE(has_entry(file_of(step), key)) << step << " " << key;
}

TEST_F(RankState, ParametersThatAreEachRanksOwnAreSavedOnRequest) {
  expect_to_resume({.options = {.first_bucket_bytes = 100,
                                .bucket_bytes = 300,
                                .ignored_names = {"2.weight", "2.bias"}},
                    .ranks_differ = RanksDiffer::kAnywhere},
                   2, 5);
  const auto own = file_of(2).toGenericDict().at("ranks").toListRef()[1];
  EXPECT_EQ(entry_of(own, "model").toGenericDict().size(), 2u);
  EXPECT_EQ(entry_of(own, "optimizer").toGenericDict().size(), 2u);
}

TEST_F(RankState, PowerSgdGoesOnWithItsErrorsAndItsQ) {
  for (const int killed_at : {1, 5})
    for (const bool warm_start : {true, false}) {
      SCOPED_TRACE(warm_start);
      const Setting setting{.hook = [warm_start] {
        return std::make_shared<PowerSgd>(
            PowerSgdOptions{.start_iteration = 2, .warm_start = warm_start});
      }};
      expect_to_need_its_own(setting, killed_at, 9);
      expect_to_resume(setting, killed_at, 9);
    }
}

TEST_F(RankState, OnlyErrorsOfPowerSgdAreSavedForEachRank) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    const Setting setting{
        .hook = [] { return std::make_shared<PowerSgd>(PowerSgdOptions{.start_iteration = 2}); }};
    RankTraining training(setting, group);
    training.passes(0, 4);
    CheckpointManager(group, 0, options()).save(4, training.state);
  });
  const c10::IValue top = file_of(4);
  const auto of_rank_0 = entry_of(entry_of(top, "comm_hook"), "tensors").toGenericDict();
  EXPECT_EQ(of_rank_0.size(), 4u) << "two matrices are worth it";
  const auto of_rank_1 =
      entry_of(top.toGenericDict().at("ranks").toListRef()[1], "comm_hook").toGenericDict();
  EXPECT_EQ(of_rank_1.size(), 2u);
  EXPECT_TRUE(of_rank_1.contains("error 0.weight"));
}

TEST_F(RankState, LocalSgdGoesOnWithEachRanksParametersAndPeriods) {
  const Setting setting{.hook = [] { return std::make_shared<PostLocalSgd>(2, nullptr); },
                        .averaging_period = 3};
  expect_to_resume(setting, 1, 8);
  expect_to_need_its_own(setting, 5, 8);
  expect_to_resume(setting, 5, 8);
}

TEST_F(RankState, AnAccumulationGoesOnInItsMiddle) {
  for (const int killed_at : {1, 7, 8}) {
    expect_to_need_its_own({.accumulated = 3}, killed_at, 12);
    expect_to_resume({.accumulated = 3}, killed_at, 12);
    expect_to_resume({.options = {.gradient_as_bucket_view = false}, .accumulated = 3}, killed_at,
                     12);
  }
}

TEST_F(RankState, ARankWithoutAGradientGetsNone) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    auto net = make_mlp();
    TrainingState state{.model = net.ptr().get(), .gradients = true};
    if (group.rank() == 0) loss_of(net->forward(input_of(0)), 0).backward();
    CheckpointManager manager(group, 0, options());
    manager.save(1, state);
    loss_of(net->forward(input_of(1)), 1).backward();
    manager.restore(state);
    EXPECT_EQ(net->parameters()[0].grad().defined(), group.rank() == 0);
    if (group.rank() == 0) {
      EXPECT_TRUE(std::ranges::equal(gradients_of(*net), local_gradients(1)[0], same_bits));
    }
  });
}

TEST_F(RankState, ASparseGradientIsRefusedByName) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    torch::nn::Embedding net(torch::nn::EmbeddingOptions(5, 2).sparse(true));
    net->forward(torch::tensor({1, 2})).sum().backward();
    const TrainingState state{.model = net.ptr().get(), .gradients = true};
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, options()).save(1, state), Kind::kUnsupported,
                      HasSubstr("save the gradient of 'weight': it is sparse"));
  });
}

// Two ranks save, three ranks restore.
TEST_F(RankState, AWorldOfAnotherSizeTakesRankZerosAndTheAverageOfSums) {
  const auto gradient = [](int rank) { return torch::full({2, 3}, 1.0f + 2 * rank); };
  ThreadWorld(2).run([&](ProcessGroup& group) {
    torch::nn::Sequential net{torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)};
    net->parameters()[0].mutable_grad() = gradient(group.rank());
    if (group.rank() == 1) net->parameters()[1].mutable_grad() = torch::full({2}, 8.0f);
    net->buffers()[0].fill_(5 + group.rank());
    const TrainingState state{.model = net.ptr().get(), .gradients = true};
    CheckpointManager(group, 0, options()).save(1, state);
  });
  ThreadWorld(3).run([&](ProcessGroup& group) {
    torch::nn::Sequential net{torch::nn::Linear(3, 2), torch::nn::BatchNorm1d(2)};
    TrainingState state{.model = net.ptr().get()};
    const Restored restored = CheckpointManager(group, 0, options()).restore(state);
    EXPECT_THAT(restored.remarks,
                ElementsAre(HasSubstr("a world of 2"),
                            HasSubstr("all ranks take rank 0's buffers and parameters")));
    EXPECT_TRUE(torch::equal(net->parameters()[0].grad(), torch::full({2, 3}, 2.0f)));
    EXPECT_TRUE(torch::equal(net->parameters()[1].grad(), torch::full({2}, 4.0f)));
    EXPECT_FALSE(net->parameters()[2].grad().defined());
    EXPECT_TRUE(torch::equal(net->buffers()[0], torch::full({2}, 5.0f)));
  });
}

TEST_F(RankState, HooksThatDoNotFitAreSaidOrRefused) {
  const auto training_with = [](int rank_of_hook) {
    return Setting{.hook = [rank_of_hook] {
      return std::make_shared<PowerSgd>(
          PowerSgdOptions{.rank = rank_of_hook, .start_iteration = 2});
    }};
  };
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options());
    const Setting plain, rank_1 = training_with(1), rank_2 = training_with(2);
    RankTraining without(plain, group), with(rank_1, group), with_other(rank_2, group);
    with.passes(0, 4);
    manager.save(4, with.state);
    EXPECT_DIST_ERROR(manager.restore(with_other.state), Kind::kInvalidArgument,
                      AllOf(HasSubstr("step-000000000004.pt: it holds the state of power_sgd of "
                                      "rank 1"),
                            HasSubstr("this communication hook is power_sgd of rank 2")));
    EXPECT_THAT(manager.restore(without.state).remarks,
                ElementsAre(HasSubstr("which is not restored")));
    manager.save(5, without.state);
    EXPECT_THAT(manager.restore(with.state).remarks,
                ElementsAre(HasSubstr("starts without state")));
    TrainingState state{.optimizer = &with.optimizer, .hook = with.hook.get()};
    EXPECT_DIST_ERROR(manager.save(6, state), Kind::kInvalidArgument,
                      HasSubstr("a hook's state needs TrainingState::model"));
  });
}

TEST_F(RankState, AHooksStateOfAnotherModelIsRefused) {
  torch::nn::Linear net(30, 20), other(40, 20);
  HookState state{.values = {{"passes", 3}, {"numbers", {{"weight", 0}}}},
                  .tensors = {{"error weight", torch::zeros({20, 30})}}};
  PowerSgd hook;
  hook.load_state(state, *net);
  EXPECT_EQ(hook.state(*net).values, state.values);
  EXPECT_TRUE(torch::equal(hook.state(*net).tensors.at("error weight"), torch::zeros({20, 30})));
  EXPECT_DIST_ERROR(hook.load_state(state, *other), Kind::kInvalidArgument,
                    HasSubstr("'error weight' has another shape here"));
  EXPECT_DIST_ERROR(hook.state(*other), Kind::kInvalidArgument,
                    HasSubstr("parameters of another model"));
  state.values["numbers"] = {{"no such", 0}};
  EXPECT_DIST_ERROR(hook.load_state(state, *net), Kind::kInvalidArgument,
                    HasSubstr("this model has no 'no such'"));
}

// The hashes of the keys differ in the file, and are equal in a dict that is made from it.
TEST(NamedEntries, NamesThatFillTheMemoryOfAHashTableAreRefused) {
  PickleDict of_model = make_string_dict(), section = make_string_dict();
  for (const std::string& name : names_of_one_hash(60)) {
    of_model.insert("pppp" + name, 1);
    section.insert("gan/" + name, 1);
  }
  PickleDict models = make_string_dict();
  EXPECT_DIST_ERROR(add_named(models, "gan", of_model, "f.pt"), Kind::kCorrupt,
                    HasSubstr("read f.pt: keys of a dict were chosen"));
  EXPECT_TRUE(models.empty());
  EXPECT_DIST_ERROR(part_named(section, "gan", "f.pt"), Kind::kCorrupt,
                    HasSubstr("read f.pt: keys of a dict were chosen"));
  add_named(models, "other", of_model, "f.pt");
  EXPECT_EQ(part_named(models, "other", "f.pt").size(), 60u);
  EXPECT_EQ(part_named(models, "gan", "f.pt").size(), 0u);
}

// Each rank's keys are few enough for a table of its own.
TEST(RankView, KeysOfAllRanksThatFillTheMemoryOfAHashTableAreRefused) {
  const std::vector<std::string> names = names_of_one_hash(60);
  const auto dict_of = [&](std::size_t begin, std::size_t end) {
    PickleDict dict = make_string_dict();
    for (std::size_t i = begin; i < end; ++i) dict.insert(names[i], torch::ones({1}));
    return dict;
  };
  const auto view_of = [](const std::vector<PickleDict>& sections, int world_size) {
    auto ranks = make_list();
    for (const PickleDict& section : sections) {
      PickleDict own = make_string_dict();
      own.insert("model", section);
      ranks.push_back(own);
    }
    PickleDict top = make_string_dict();
    top.insert("world_size", static_cast<std::int64_t>(sections.size()));
    top.insert("ranks", ranks);
    return RankView({top, "f.pt"}, 0, world_size);
  };
  PickleDict of_rank_0 = dict_of(0, 10);
  for (int i = 0; i < 500; ++i) of_rank_0.insert(concat("layer.", i), torch::ones({1}));
  EXPECT_EQ(view_of({dict_of(8, 12)}, 1).section("model", of_rank_0).size(), 512u);
  EXPECT_DIST_ERROR(view_of({dict_of(10, 20)}, 1).section("model", of_rank_0), Kind::kCorrupt,
                    HasSubstr("read f.pt: keys of a dict were chosen"));
  // The average of more ranks has the keys of all.
  std::vector<PickleDict> few, many;
  for (std::size_t rank = 0; rank < 12; ++rank) {
    few.push_back(dict_of(3 * (rank % 2), 3 * (rank % 2) + 3));
    many.push_back(dict_of(5 * rank, 5 * rank + 5));
  }
  EXPECT_EQ(view_of(few, 1).averaged_section("model", make_string_dict()).size(), 6u);
  EXPECT_DIST_ERROR(view_of(many, 1).averaged_section("model", make_string_dict()), Kind::kCorrupt,
                    HasSubstr("read f.pt: keys of a dict were chosen"));
}

}  // namespace
}  // namespace ddprun
