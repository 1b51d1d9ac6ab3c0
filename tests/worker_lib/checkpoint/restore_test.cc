#include "worker_lib/checkpoint/restore.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <utility>

#include "base/concat.h"
#include "ddprun/zero_optimizer.h"
#include "tests/support/context_world.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_seed.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"
#include "worker_lib/checkpoint/restore_targets.h"
#include "worker_lib/checkpoint/shared_read.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::TemporaryDirectory;
using testing_support::ThreadWorld;
using Kind = DistError::Kind;

constexpr std::int64_t kMiB = 1 << 20;

// Wide: a training whose model and momentum have `mib` MiB each.
struct Wide {
  explicit Wide(std::int64_t mib)
      : net(torch::nn::LinearOptions(1024, 256 * mib).bias(false)),
        optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9)),
        state{.model = net.ptr().get(), .optimizer = &optimizer, .has_position = false} {}

  // Makes everything a function of `value`.
  void fill(double value) {
    torch::NoGradGuard no_grad;
    net->weight.fill_(value);
    net->weight.mutable_grad() = torch::full_like(net->weight, value);
    optimizer.step();
    net->weight.mutable_grad().reset();
  }
  torch::Tensor momentum() {
    auto& of_weight = *optimizer.state().at(net->weight.unsafeGetTensorImpl());
    return static_cast<torch::optim::SGDParamState&>(of_weight).momentum_buffer();
  }
  // Returns whether it is as fill(value) has made it.
  bool is(double value) {
    Wide other(net->weight.nbytes() / kMiB);
    other.fill(value);
    return torch::equal(net->weight, other.net->weight) &&
           torch::equal(momentum(), other.momentum());
  }

  torch::nn::Linear net;
  torch::optim::SGD optimizer;
  TrainingState state;
};

void flip_a_bit(const std::string& path, std::uintmax_t at) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(static_cast<std::streamoff>(at));
  const auto byte = static_cast<char>(file.get() ^ 4);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(byte);
}

// Returns a value of this process's memory in MiB.
std::int64_t memory_mib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;)
    if (std::int64_t kib = 0; word == key + ":" && status >> kib) return kib / 1024;
  ADD_FAILURE() << key << " is missing in /proc/self/status";
  return 0;
}

class RestoreTest : public testing::Test {
 protected:
  const TemporaryDirectory directory_;
  CheckpointOptions options_{.directory = directory_.path(), .asynchronous = false};
  CheckpointOptions reading_{.directory = directory_.path(), .read_only = true};

  std::string file(int step) const { return directory_ / concat("step-00000000000", step, ".pt"); }

  // Saves step s with values s.
  void save(const std::vector<int>& steps, std::int64_t mib) {
    ThreadWorld(1).run([&](ProcessGroup& group) {
      CheckpointManager manager(group, 0, options_);
      for (const int step : steps) {
        Wide training(mib);
        training.fill(step);
        manager.save(step, training.state);
      }
    });
  }
};

// 24 MiB are several pieces, so tensors are overwritten when the last bit turns out to be wrong.
TEST_F(RestoreTest, DamageThatIsFoundWhileReadingLeadsToTheNextOlderOnAllRanks) {
  save({1, 2}, 12);
  flip_a_bit(file(2), fs::file_size(file(2)) - (6 << 20));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Wide training(12);
    const Restored restored = manager.restore(training.state);
    EXPECT_EQ(restored.step, 1);
    EXPECT_THAT(restored.skipped, ElementsAre(AllOf(HasSubstr("step 2: "), HasSubstr(file(2)),
                                                    HasSubstr("SHA-256"))));
    EXPECT_TRUE(training.is(1));
  });
}

// The parts of a file are verified by different ranks.
TEST_F(RestoreTest, ADamagedBitOfAnyPartIsFound) {
  save({1, 2}, 12);
  const std::uintmax_t bytes = fs::file_size(file(2));
  for (const std::uintmax_t at : {std::uintmax_t{100}, bytes / 4, bytes / 2, bytes - 1}) {
    flip_a_bit(file(2), at);
    ThreadWorld(3).run([&](ProcessGroup& group) {
      Wide training(12);
      const Restored restored = CheckpointManager(group, 0, reading_).restore(training.state);
      EXPECT_EQ(restored.step, 1) << at;
      EXPECT_THAT(restored.skipped, ElementsAre(HasSubstr(file(2))));
    });
    flip_a_bit(file(2), at);
  }
  ThreadWorld(3).run([&](ProcessGroup& group) {
    Wide training(12);
    EXPECT_EQ(CheckpointManager(group, 0, reading_).restore(training.state).step, 2);
    EXPECT_TRUE(training.is(2));
  });
}

// Large tensors are read and received in their own memory, small ones are copied there.
TEST_F(RestoreTest, TensorsOfAllSizesGetTheirBytes) {
  const auto state_of = [](double value) {
    TrainingState state{.has_position = false};
    torch::manual_seed(static_cast<std::uint64_t>(value));
    for (const std::int64_t count : {1, 1000, 32767, 32769, 100'000, 300'000, 3'000'001, 17})
      state.tensors.emplace(std::to_string(count), torch::rand({count}));
    return state;
  };
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    for (const int step : {1, 2}) manager.save(step, state_of(step));
  });
  const TrainingState saved = state_of(2);
  for (const int ranks : {1, 2, 3, 9})
    ThreadWorld(ranks).run([&](ProcessGroup& group) {
      TrainingState state{.has_position = false};
      for (const auto& [name, tensor] : saved.tensors)
        state.tensors.emplace(name, torch::zeros_like(tensor));
      EXPECT_EQ(CheckpointManager(group, 0, reading_).restore(state).step, 2);
      for (const auto& [name, tensor] : saved.tensors)
        EXPECT_TRUE(torch::equal(state.tensors[name], tensor)) << name << ", " << ranks;
    });
}

// With this many ranks, a rank's piece is smaller than a piece of the chained digest.
TEST_F(RestoreTest, NineRanksVerifyPiecesThatAreSmallerThanParts) {
  save({1, 2}, 6);
  flip_a_bit(file(2), fs::file_size(file(2)) / 2);
  ThreadWorld(9).run([&](ProcessGroup& group) {
    Wide training(6);
    EXPECT_EQ(CheckpointManager(group, 0, reading_).restore(training.state).step, 1);
    EXPECT_TRUE(training.is(1));
  });
}

TEST_F(RestoreTest, ShardsOfSeveralPartsAreReadByAllRanks) {
  testing_support::in_a_world_of(2, [&](Context& context) {
    CheckpointOptions sharded = options_;
    sharded.sharded = true;
    CheckpointManager manager(context, sharded);
    for (const int step : {1, 2}) {
      Wide training(12);
      training.fill(step);
      manager.save(step, training.state);
    }
  });
  const CheckpointManifest manifest =
      CheckpointDirectory(directory_.path()).read_manifest(2)->manifest;
  ASSERT_EQ(manifest.files.size(), 2u);
  for (const WrittenFile& shard : manifest.files) EXPECT_GT(shard.chain_bytes, 0u);
  for (const int step : {2, 1}) {
    ThreadWorld(3).run([&](ProcessGroup& group) {
      Wide training(12);
      EXPECT_EQ(CheckpointManager(group, 0, reading_).restore(training.state).step, step);
      EXPECT_TRUE(training.is(step));
    });
    const std::string shard = directory_ / manifest.files[1].name;
    flip_a_bit(shard, fs::file_size(shard) / 2);
  }
}

// An outline of other bytes than those that are verified: a storage would be at another place.
TEST_F(RestoreTest, AFileThatChangesAfterItsOutlineWasReadIsDamaged) {
  save({1}, 6);
  const CheckpointDirectory directory(directory_.path());
  const CheckpointManifest manifest = directory.read_manifest(1)->manifest;
  const std::string other = directory_ / "other";
  fs::copy_file(file(1), other);
  std::ifstream in(other, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  flip_a_bit(other, bytes.find("archive/data/0") - 2);  // the length of the padding
  for (const bool is_changed : {false, true})
    ThreadWorld(2).run([&](ProcessGroup& group) {
      std::vector<FileOutline> outlines;
      const bool is_other = is_changed && group.rank() == 1;
      outlines.push_back(*FileOutline::read(is_other ? other : file(1), bytes.size()));
      const auto damage =
          read_together(group, directory, manifest, outlines,
                        std::vector<std::vector<Destination>>(1), std::chrono::minutes(1));
      EXPECT_EQ(damage.has_value(), is_changed);
    });
}

// As an earlier version wrote it.
TEST_F(RestoreTest, AFileWithoutAChainIsReadByOneRank) {
  save({1, 2}, 12);
  CheckpointDirectory directory(directory_.path());
  CheckpointManifest manifest = directory.read_manifest(2)->manifest;
  ASSERT_GT(manifest.files[0].chain_bytes, 0u);
  manifest.files[0].chain_bytes = 0;
  manifest.files[0].chain.clear();
  fs::remove(directory_ / ".claim.json");
  ASSERT_TRUE(directory.announce(manifest));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Wide training(12);
    EXPECT_EQ(CheckpointManager(group, 0, reading_).restore(training.state).step, 2);
    EXPECT_TRUE(training.is(2));
  });
}

TEST_F(RestoreTest, TheOnlyCheckpointIsVerifiedBeforeAnythingIsOverwritten) {
  save({1}, 12);
  flip_a_bit(file(1), fs::file_size(file(1)) - (6 << 20));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Wide training(12);
    training.fill(7);
    EXPECT_FALSE(manager.restore(training.state));
    EXPECT_TRUE(training.is(7));
  });
}

TEST_F(RestoreTest, AStateThatWasOverwrittenInPartIsNeverTakenForAFreshOne) {
  save({1, 2}, 12);
  for (const int step : {1, 2}) flip_a_bit(file(step), fs::file_size(file(step)) - (6 << 20));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Wide training(12);
    EXPECT_DIST_ERROR(
        manager.restore(training.state), Kind::kCorrupt,
        AllOf(HasSubstr(file(2)), HasSubstr("must not be trained on"), HasSubstr("step 1: ")));
  });
}

// A bit in a name, which is in the archive's pickle.
TEST_F(RestoreTest, ADamagedNameIsDamageAndNotAnotherTraining) {
  save({1, 2}, 1);
  std::ifstream in(file(2), std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  const std::size_t name = bytes.find("weight");
  ASSERT_NE(name, std::string::npos);
  flip_a_bit(file(2), name);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Wide training(1);
    const Restored restored = CheckpointManager(group, 0, options_).restore(training.state);
    EXPECT_EQ(restored.step, 1);
    EXPECT_THAT(restored.skipped, ElementsAre(HasSubstr("SHA-256")));
    EXPECT_TRUE(training.is(1));
  });
}

// Two directories with the same checkpoints, of which rank 1's is damaged where only rank 0 reads
// its share: in the name of a tensor, and in the end of the archive.
TEST_F(RestoreTest, ADamagedOutlineOfOneRankIsDamage) {
  save({1, 2}, 1);
  const TemporaryDirectory other;
  fs::copy(directory_.path(), other.path(), fs::copy_options::recursive);
  const std::string copy = other / "step-000000000002.pt";
  std::ifstream in(copy, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  for (const std::uintmax_t at : {bytes.find("weight"), bytes.size() - 22}) {
    flip_a_bit(copy, at);
    ThreadWorld(2).run([&](ProcessGroup& group) {
      CheckpointOptions options = reading_;
      if (group.rank() == 1) options.directory = other.path();
      Wide training(1);
      const Restored restored = CheckpointManager(group, 0, options).restore(training.state);
      EXPECT_EQ(restored.step, 1) << at;
      EXPECT_THAT(restored.skipped, ElementsAre(HasSubstr(copy)));
      EXPECT_TRUE(training.is(1));
    });
    flip_a_bit(copy, at);
  }
}

// A schedule that runs `then` when a restore has read the outline and has not read the tensors.
struct Interruption : SavedScheduler {
  std::function<void()> then;
  std::string class_name() const override {
    if (then) then();
    return "Interruption";
  }
  nlohmann::json state() const override { return 1; }
  void load_state(const nlohmann::json&) override {}
  std::vector<double> last_lr() const override { return {}; }
};

// A run that writes removes the checkpoint that this one reads.
TEST_F(RestoreTest, ACheckpointThatVanishesIsNotTheLast) {
  const auto name = [](int step, const char* suffix) {
    return concat("step-00000000000", step, suffix);
  };
  const TemporaryDirectory elsewhere;
  const auto move_2 = [&](const std::string& from, const std::string& to) {
    for (const char* suffix : {".pt", ".json"})
      fs::rename(from + "/" + name(2, suffix), to + "/" + name(2, suffix));
  };
  for (const bool is_replaced : {true, false})
    ThreadWorld(1).run([&](ProcessGroup& group) {
      Interruption schedule;
      for (const int step : {1, 2}) {
        Wide training(6);
        training.fill(step);
        training.state.scheduler = &schedule;
        CheckpointManager(group, 0, options_).save(step, training.state);
      }
      Wide training(6);
      training.state.scheduler = &schedule;
      move_2(directory_.path(), elsewhere.path());
      schedule.then = [&, is_first = true]() mutable {
        if (!std::exchange(is_first, false)) return;
        for (const char* suffix : {".json", ".pt"}) fs::remove(directory_ / name(1, suffix));
        if (is_replaced) move_2(elsewhere.path(), directory_.path());
      };
      CheckpointManager manager(group, 0, reading_);
      if (is_replaced) {
        EXPECT_EQ(manager.restore(training.state).step, 2);
        EXPECT_TRUE(training.is(2));
        for (const char* suffix : {".json", ".pt"}) fs::remove(directory_ / name(2, suffix));
      } else {
        EXPECT_DIST_ERROR(manager.restore(training.state), Kind::kSystem,
                          AllOf(HasSubstr(file(1)), HasSubstr("vanished")));
      }
    });
}

// The copy of rank 1 vanishes while the ranks read.
TEST_F(RestoreTest, AFileThatIsGoneForOneRankLeadsAllToAnother) {
  Interruption schedule;
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    for (const int step : {1, 2}) {
      Wide training(6);
      training.fill(step);
      training.state.scheduler = &schedule;
      manager.save(step, training.state);
    }
  });
  const TemporaryDirectory other;
  fs::copy(directory_.path(), other.path(), fs::copy_options::recursive);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointOptions options = reading_;
    Interruption own;
    if (group.rank() == 1) {
      options.directory = other.path();
      own.then = [&] { fs::remove(other / "step-000000000002.pt"); };
    }
    Wide training(6);
    training.state.scheduler = &own;
    const Restored restored = CheckpointManager(group, 0, options).restore(training.state);
    EXPECT_EQ(restored.step, 1);
    EXPECT_TRUE(training.is(1));
  });
}

// The bytes are not read for that: they are damaged.
TEST_F(RestoreTest, AnotherModelIsRefusedWithoutReadingTheTensors) {
  save({1}, 2);
  flip_a_bit(file(1), fs::file_size(file(1)) / 2);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Wide training(1);
    EXPECT_DIST_ERROR(CheckpointManager(group, 0, options_).restore(training.state),
                      Kind::kInvalidArgument, HasSubstr("'weight' is"));
  });
}

TEST_F(RestoreTest, AnExceptionOfOneRankEndsTheReadOnAllRanks) {
  save({1}, 12);
  const CheckpointDirectory directory(directory_.path());
  const CheckpointManifest manifest = directory.read_manifest(1)->manifest;
  ThreadWorld(2).run([&](ProcessGroup& group) {
    std::vector<std::vector<Destination>> destinations(1);
    char byte = 0;
    if (group.rank() == 1)
      destinations[0].push_back({.at = 0, .bytes = 1, .memory = &byte, .device = c10::kXLA});
    EXPECT_DIST_ERROR(
        read_together(group, directory, manifest, {}, destinations, std::chrono::minutes(1)),
        Kind::kSystem, HasSubstr("rank 1"));
    group.barrier();
  });
}

TEST_F(RestoreTest, AFailureOfTheSearchIsNotAnAnswer) {
  std::ofstream(file(1)) << "a file";
  const CheckpointDirectory no_directory(file(1));
  ThreadWorld(2).run([&](ProcessGroup& group) {
    EXPECT_DIST_ERROR(is_found_by_all(group, no_directory, 1, std::chrono::minutes(1)),
                      Kind::kSystem, HasSubstr(file(1)));
  });
}

TEST_F(RestoreTest, ACheckpointOfAnotherModelChangesNothing) {
  save({1}, 2);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    Wide training(1);
    training.fill(7);
    EXPECT_DIST_ERROR(manager.restore(training.state), Kind::kInvalidArgument,
                      HasSubstr("'weight' is"));
    EXPECT_TRUE(training.is(7));
  });
}

// Two parameters that share their memory, saved by a model whose parameters do not.
TEST_F(RestoreTest, TensorsThatShareMemoryTakeTheLastValueAsACopyWould) {
  ThreadWorld(1).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    TrainingState saved{.tensors = {{"a", torch::full({5}, 1.0)}, {"b", torch::full({5}, 2.0)}},
                        .has_position = false};
    manager.save(1, saved);
    const torch::Tensor shared = torch::zeros({8});
    TrainingState state{.tensors = {{"a", shared.narrow(0, 0, 5)}, {"b", shared.narrow(0, 3, 5)}},
                        .has_position = false};
    manager.restore(state);
    EXPECT_TRUE(torch::equal(shared, torch::tensor({1.f, 1.f, 1.f, 2.f, 2.f, 2.f, 2.f, 2.f})));
  });
}

TEST_F(RestoreTest, EachRankGetsWhatItHadStraightFromTheFile) {
  const auto state_of = [](int rank) {
    return TrainingState{.tensors = {{"own", torch::full({1 << 20}, rank + 1.0)},
                                     {"same", torch::full({1 << 20}, 5.0)}},
                         .has_position = false};
  };
  ThreadWorld(3).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    const TrainingState saved = state_of(group.rank());
    manager.save(1, saved);
    TrainingState state = state_of(9);
    state.tensors["same"].zero_();
    manager.restore(state);
    EXPECT_TRUE(torch::equal(state.tensors["own"], saved.tensors.at("own")));
    EXPECT_TRUE(torch::equal(state.tensors["same"], saved.tensors.at("same")));
  });
}

// Rank 1 of the manager's group is rank 0 of the optimizer's group.
TEST_F(RestoreTest, AZeroOptimizerOfASubgroupGetsItsState) {
  ThreadWorld(2).run([&](ProcessGroup& group) {
    CheckpointManager manager(group, 0, options_);
    ThreadWorld(1).run([&](ProcessGroup& alone) {
      Wide training(1);
      ZeroRedundancyOptimizer<torch::optim::SGD> optimizer(
          alone, training.net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      training.state.optimizer = &optimizer;
      training.net->weight.mutable_grad() = torch::full_like(training.net->weight, 3);
      optimizer.step();
      manager.save(1, training.state);
      optimizer.state().clear();
      manager.restore(training.state);
      auto& momentum = static_cast<torch::optim::SGDParamState&>(
          *optimizer.state().at(training.net->weight.unsafeGetTensorImpl()));
      EXPECT_TRUE((momentum.momentum_buffer() == 3).all().item<bool>());
    });
  });
}

// The states of an optimizer that the program does not give, and those of other ranks.
TEST_F(RestoreTest, OnlyWhatATrainingTakesGetsMemory) {
  constexpr std::uint64_t kTensor = 4 * kMiB, kSmall = 64 << 10;
  const auto placed_bytes = [&](const TrainingState& state, int rank, int world_size) {
    const CheckpointDirectory directory(directory_.path());
    const CheckpointManifest manifest = directory.read_manifest(1)->manifest;
    std::vector<FileOutline> outlines;
    outlines.push_back(*FileOutline::read(file(1), manifest.files[0].bytes));
    RestoreTargets targets(directory, manifest, outlines);
    std::uint64_t bytes = 0;
    bool is_straight = false;  // into the training's own tensor
    const void* const weight = state.model->parameters()[0].const_data_ptr();
    const auto destinations = targets.place(state, rank, world_size);
    for (const Destination& one : destinations[0]) {
      bytes += one.bytes;
      is_straight = is_straight || one.memory == weight;
    }
    EXPECT_TRUE(is_straight);
    return bytes;
  };
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Wide training(4);
    training.fill(group.rank() + 1);
    training.state.ranks_differ = RanksDiffer::kAnywhere;
    CheckpointManager(group, 0, options_).save(1, training.state);
  });
  Wide training(4);
  for (const auto& [rank, world_size] : {std::pair{0, 2}, {1, 2}, {0, 1}, {2, 3}}) {
    EXPECT_GE(placed_bytes(training.state, rank, world_size), 2 * kTensor);
    EXPECT_LE(placed_bytes(training.state, rank, world_size), 2 * kTensor + kSmall);
    EXPECT_LE(placed_bytes({.model = training.net.ptr().get()}, rank, world_size),
              kTensor + kSmall);
  }
}

// Each of two ranks has a model of 128 MiB and gets a momentum of 128 MiB. DDPRUN_RESTORE_MIB is
// another size of each.
TEST_F(RestoreTest, MemoryBeyondTheTensorsIsALittle) {
  const auto mib =
      static_cast<std::int64_t>(testing_support::number_from("DDPRUN_RESTORE_MIB", 128));
  save({1, 2}, mib);
  ThreadWorld(2).run([&](ProcessGroup& group) {
    Wide training(mib);
    CheckpointManager manager(group, 0, options_);
    group.barrier();
    const std::int64_t before = memory_mib("VmRSS");
    if (group.rank() == 0) std::ofstream("/proc/self/clear_refs") << 5;  // resets VmHWM
    group.barrier();
    EXPECT_EQ(manager.restore(training.state).step, 2);
    group.barrier();
    EXPECT_LE(memory_mib("VmHWM") - before, 2 * mib + 2 * 64);
  });
}

}  // namespace
}  // namespace ddprun
