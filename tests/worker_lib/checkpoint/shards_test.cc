// Tests checkpoints of which each rank writes its share.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <filesystem>
#include <fstream>

#include "ddprun/checkpoint.h"
#include "ddprun/zero_optimizer.h"
#include "tests/support/context_world.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/read_file.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "worker_lib/checkpoint/shard_assignment.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::FileSizeLimit;
using testing_support::in_a_world_of;
using testing_support::TemporaryDirectory;
using Kind = DistError::Kind;

torch::nn::Sequential make_net() {
  return torch::nn::Sequential(torch::nn::Linear(10, 20), torch::nn::BatchNorm1d(20),
                               torch::nn::Linear(20, 5));
}

// Sets the same values on every rank.
template <class Optimizer>
void fill_with_numbers(torch::nn::Sequential& net, Optimizer& optimizer) {
  const torch::NoGradGuard no_grad;
  float number = 0;
  for (torch::Tensor parameter : net->parameters()) {
    parameter.fill_(number += 1);
    parameter.mutable_grad() = torch::full_like(parameter, number);
  }
  for (torch::Tensor buffer : net->buffers()) buffer.fill_(static_cast<int>(number += 1));
  optimizer.step();
}

bool equal(const c10::IValue& a, const c10::IValue& b);

bool equal_dicts(const PickleDict& a, const PickleDict& b) {
  if (a.size() != b.size()) return false;
  auto other = b.begin();  // the order counts
  for (const auto& entry : a) {
    if (!equal(entry.key(), other->key()) || !equal(entry.value(), other->value())) return false;
    ++other;
  }
  return true;
}

// Compares tensors bit for bit, and dicts including their order.
bool equal(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor())
    return b.isTensor() && a.toTensor().dtype() == b.toTensor().dtype() &&
           torch::equal(a.toTensor(), b.toTensor());
  if (a.isGenericDict())
    return b.isGenericDict() && equal_dicts(a.toGenericDict(), b.toGenericDict());
  if (a.isList() || a.isTuple()) {
    const auto items = [](const c10::IValue& value) {
      return value.isList() ? value.toListRef().vec() : value.toTupleRef().elements().vec();
    };
    const auto own = items(a), others = items(b);
    return std::ranges::equal(own, others, equal);
  }
  return a == b;
}

class ShardedCheckpoint : public testing::Test {
 protected:
  CheckpointOptions options(bool sharded = true) const {
    return {.directory = directory_.path(), .sharded = sharded};
  }
  std::string file(int step, const std::string& suffix) const {
    char name[64];
    std::snprintf(name, sizeof name, "step-%012d", step);
    return directory_ / (name + suffix);
  }
  c10::IValue read(const std::string& path) const {
    return read_pickle(testing_support::read_file(path), path);
  }
  std::vector<std::string> files() const { return files(directory_.path()); }
  static std::vector<std::string> files(const std::string& path) {
    std::vector<std::string> names = testing_support::listing(path);
    std::erase_if(names, [](const std::string& name) { return name.starts_with('.'); });
    return names;
  }
  // Saves these steps in a world of `size` ranks. The weights are filled with numbers.
  void save_steps(const std::vector<int>& steps, int size = 2) {
    in_a_world_of(size, [&](Context& context) {
      auto net = make_net();
      torch::optim::Adam optimizer(net->parameters());
      fill_with_numbers(net, optimizer);
      TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer};
      CheckpointManager manager(context, options());
      manager.restore(state);
      for (const int step : steps) manager.save(step, state);
      manager.wait();
    });
  }

  const TemporaryDirectory directory_;
};

TEST_F(ShardedCheckpoint, IsAFileOfEachRankAndAManifest) {
  save_steps({1}, 3);
  EXPECT_THAT(files(),
              ElementsAre("step-000000000001.json", "step-000000000001.shard-0000.pt",
                          "step-000000000001.shard-0001.pt", "step-000000000001.shard-0002.pt"));
  std::size_t tensors = 0, states = 0;
  for (const char* shard : {"0", "1", "2"}) {
    const c10::IValue top = read(file(1, std::string(".shard-000") + shard + ".pt"));
    const std::size_t here = entry_of(top, "model").toGenericDict().size();
    EXPECT_GE(here, 1u);
    EXPECT_LT(here, 9u);
    tensors += here;
    states += entry_of(entry_of(top, "optimizer"), "state").toGenericDict().size();
  }
  EXPECT_EQ(tensors, 9u);
  EXPECT_EQ(states, 6u);
}

TEST_F(ShardedCheckpoint, RestoresInWorldsOfEverySizeAndIntoAPlainManager) {
  save_steps({1, 2});
  const auto expected = make_net();
  torch::optim::Adam its_optimizer(expected->parameters());
  auto filled = expected;
  fill_with_numbers(filled, its_optimizer);
  for (const int world : {1, 2, 3})
    in_a_world_of(world, [&](Context& context) {
      auto net = make_net();
      torch::optim::Adam optimizer(net->parameters());
      TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer};
      CheckpointManager manager(context, options(/*sharded=*/world == 2));
      const Restored restored = manager.restore(state);
      EXPECT_EQ(restored.step, 2);
      EXPECT_EQ(restored.file, file(2, ".shard-0000.pt"));
      EXPECT_THAT(restored.skipped, IsEmpty());
      EXPECT_EQ(digest_of(*net), digest_of(*expected));
      EXPECT_EQ(optimizer.state().size(), 6u);
    });
}

TEST_F(ShardedCheckpoint, OneOfWhichAShardIsMissingOrDamagedIsPassedOverByName) {
  save_steps({1, 2, 3});
  fs::remove(file(3, ".shard-0001.pt"));
  std::ofstream(file(2, ".shard-0000.pt"), std::ios::in | std::ios::out).seekp(200).put('x');
  in_a_world_of(2, [&](Context& context) {
    auto net = make_net();
    TrainingState state{.model = net.ptr().get()};
    CheckpointManager manager(context, options());
    const Restored restored = manager.restore(state);
    EXPECT_EQ(restored.step, 1);
    EXPECT_THAT(restored.skipped,
                ElementsAre(AllOf(HasSubstr("step 3: "), HasSubstr("shard-0001.pt: No such file")),
                            AllOf(HasSubstr("step 2: "), HasSubstr("shard-0000.pt: "))));
    manager.save(4, state);
    manager.wait();
  });
  EXPECT_THAT(files(),
              ElementsAre("step-000000000001.json", "step-000000000001.shard-0000.pt",
                          "step-000000000001.shard-0001.pt", "step-000000000004.json",
                          "step-000000000004.shard-0000.pt", "step-000000000004.shard-0001.pt"));
}

TEST_F(ShardedCheckpoint, TheLastKAreKeptAndWhatAKilledSaveLeftIsRemoved) {
  save_steps({1, 2, 3, 4, 5});
  EXPECT_EQ(files().size(), 9u);
  EXPECT_FALSE(fs::exists(file(2, ".shard-0001.pt")));
  std::ofstream(file(6, ".shard-0001.pt")) << "killed before the manifest";
  std::ofstream(file(6, ".shard-0000.pt.ab12.tmp")) << "killed before that";
  save_steps({5});
  EXPECT_THAT(files(),
              ElementsAre("step-000000000003.json", "step-000000000003.shard-0000.pt",
                          "step-000000000003.shard-0001.pt", "step-000000000004.json",
                          "step-000000000004.shard-0000.pt", "step-000000000004.shard-0001.pt",
                          "step-000000000005-2.shard-0000.pt", "step-000000000005-2.shard-0001.pt",
                          "step-000000000005.json"));
}

// The limit applies to the whole process. Shard 0 also has the small entries, so it is the
// larger one and only its write fails.
TEST_F(ShardedCheckpoint, AWriteThatFailsOnOneRankIsThrownOnAllNamingTheFile) {
  for (const bool asynchronous : {true, false}) {
    const std::string path = directory_ / (asynchronous ? "a" : "s");
    const CheckpointOptions how{.directory = path, .asynchronous = asynchronous, .sharded = true};
    in_a_world_of(2, [&](Context& context) {
      auto net = make_net();
      TrainingState state{.model = net.ptr().get()};
      CheckpointManager manager(context, how);
      manager.save(1, state);
      manager.wait();
      const std::uint64_t limit = fs::file_size(path + "/step-000000000001.shard-0001.pt") + 64;
      ASSERT_LT(limit, fs::file_size(path + "/step-000000000001.shard-0000.pt"));
      context.group().barrier();
      {
        std::optional<FileSizeLimit> limited;
        if (context.rank() == 0) limited.emplace(limit);
        context.group().barrier();
        const auto save = [&] {
          manager.save(2, state);
          manager.wait();
        };
        EXPECT_DIST_ERROR(
            save(), Kind::kSystem,
            AllOf(HasSubstr("rank 0: "), HasSubstr(path + "/step-000000000002.shard-0000.pt")));
        context.group().barrier();
      }
      context.group().barrier();
      EXPECT_EQ(manager.restore(state).step, 1);
    });
    EXPECT_THAT(files(path), testing::SizeIs(3)) << "of step 2 nothing is left";
  }
}

TEST_F(ShardedCheckpoint, WhatRanksHaveOfTheirOwnComesBack) {
  in_a_world_of(2, [&](Context& context) {
    auto net = make_net();
    torch::optim::SGD optimizer(net->parameters(), 0.1);
    fill_with_numbers(net, optimizer);
    net->buffers()[0].fill_(5 + context.rank());
    net->parameters()[0].mutable_grad().fill_(8 + context.rank());
    TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer, .gradients = true};
    CheckpointManager manager(context, options());
    manager.save(1, state);
    const std::string digest = digest_of(*net);
    net->buffers()[0].fill_(0);
    net->zero_grad();
    manager.restore(state);
    EXPECT_EQ(digest_of(*net), digest);
    EXPECT_TRUE(state.gradients);
    EXPECT_TRUE((net->parameters()[0].grad() == 8 + context.rank()).all().item<bool>());
  });
}

// The file that `merge` makes has the same entries, in the same order, as a file that rank 0
// writes. checkpoint_tool_test tests the tool. This test checks what restore() puts together in
// the same way.
TEST_F(ShardedCheckpoint, OfAZeroOptimizerIsThatOfAPlainOne) {
  const TemporaryDirectory plain;
  in_a_world_of(2, [&](Context& context) {
    auto net = make_net();
    ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(context.group(), net->parameters(),
                                                           torch::optim::AdamWOptions(0.1));
    fill_with_numbers(net, optimizer);
    TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer};
    CheckpointManager(context, options()).save(1, state);
    CheckpointManager(context, {.directory = plain.path()}).save(1, state);
  });
  const auto whole_of = [&](const std::string& path) {
    auto net = make_net();
    torch::optim::AdamW optimizer(net->parameters());
    in_a_world_of(1, [&](Context& context) {
      TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer};
      EXPECT_TRUE(CheckpointManager(context, {.directory = path}).restore(state));
    });
    const TemporaryDirectory again;
    in_a_world_of(1, [&](Context& context) {
      TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer};
      CheckpointManager(context, {.directory = again.path()}).save(1, state);
    });
    const c10::IValue top = read(again / "step-000000000001.pt");
    return std::pair(entry_of(top, "model"), entry_of(top, "optimizer"));
  };
  const auto of_shards = whole_of(directory_.path()), of_one = whole_of(plain.path());
  EXPECT_TRUE(equal(of_shards.first, of_one.first));
  EXPECT_TRUE(equal(of_shards.second, of_one.second));
}

TEST_F(ShardedCheckpoint, AGenerationThatWasCutOffAnnouncesNone) {
  in_a_world_of(2, [&](Context& context) {
    auto net = make_net();
    TrainingState state{.model = net.ptr().get()};
    CheckpointManager cut_off(context.group(), 0, options());
    cut_off.save(10, state);
    cut_off.wait();
    CheckpointManager later(context.group(), 1, options());
    cut_off.save(20, state);
    EXPECT_DIST_ERROR(cut_off.wait(), Kind::kStopped, HasSubstr("a later run (generation 1)"));
    EXPECT_EQ(later.restore(state).step, 10);
  });
  EXPECT_THAT(files(), testing::SizeIs(3));
}

TEST(ShardAssignment, DealsOutBytesAndKeepsWhatSharesMemoryTogether) {
  auto net = make_net();
  net->push_back(torch::nn::Linear(20, 10));
  net->ptr<torch::nn::LinearImpl>(3)->weight.set_data(
      net->ptr<torch::nn::LinearImpl>(0)->weight.detach().t());
  torch::optim::Adam optimizer(net->parameters());
  const TrainingState state{.model = net.ptr().get(), .optimizer = &optimizer};
  for (const bool are_equal : {true, false}) {
    std::vector<int> tensors(3), states(3);
    for (int rank = 0; rank < 3; ++rank) {
      const ShardAssignment share(state, rank, 3, are_equal);
      EXPECT_EQ(share.has_tensor("0.weight"), share.has_tensor("3.weight"));
      EXPECT_EQ(share.has_tensor("1.running_mean"), rank == 0);
      for (const auto& item : net->named_parameters())
        tensors[static_cast<std::size_t>(rank)] += share.has_tensor(item.key());
      for (std::size_t i = 0; i < 8; ++i)
        states[static_cast<std::size_t>(rank)] += share.has_optimizer_state(i);
    }
    EXPECT_EQ(tensors[0] + tensors[1] + tensors[2], 8);
    EXPECT_EQ(states[0] + states[1] + states[2], 8);
    if (are_equal)
      EXPECT_TRUE(tensors[1] > 0 && tensors[2] > 0 && states[1] > 0 && states[2] > 0);
    else
      EXPECT_THAT(tensors, ElementsAre(8, 0, 0)) << "the file has rank 0's";
  }
}

}  // namespace
}  // namespace ddprun
