// Tests a whole CheckpointManager: a call of its writer fails, its process is killed, or the
// power fails. faults_test does the same with the directory alone, more thoroughly.
// DDPRUN_SAVE_KILLS is the number of kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>

#include "ddprun/checkpoint.h"
#include "tests/support/context_world.h"
#include "tests/support/failing_file_calls.h"
#include "tests/support/killed_child.h"
#include "tests/support/recorded_disk.h"
#include "tests/support/scoped_file_calls.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/test_seed.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::FailingFileCalls;
using testing_support::FilesWithoutFsync;
using testing_support::KilledChild;
using testing_support::listing;
using testing_support::RecordedDisk;
using testing_support::TemporaryDirectory;
using testing_support::ThreadWorld;

// Training: a model whose weights all have the number of the last step as their value. There are
// two of them, so that each of two ranks has one in its share.
class Training {
 public:
  explicit Training(std::int64_t width = 8) : state_{.model = net_.ptr().get()} {
    for (int i = 0; i < 2; ++i)
      net_->push_back(torch::nn::Linear(torch::nn::LinearOptions(width, width).bias(false)));
  }

  TrainingState& at(std::int64_t step) {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor weight : net_->parameters()) weight.fill_(static_cast<double>(step));
    return state_;
  }
  TrainingState& state() { return state_; }
  bool is_at(std::int64_t step) const {
    return std::ranges::all_of(net_->parameters(), [&](const torch::Tensor& weight) {
      return (weight == static_cast<double>(step)).all().item<bool>();
    });
  }

 private:
  torch::nn::Sequential net_;
  TrainingState state_;
};

// Who writes a checkpoint: rank 0 of a world, or both ranks together.
enum class Writers { kRank0, kTogether };

CheckpointOptions options_for(Writers writers, const std::string& directory) {
  CheckpointOptions options{.directory = directory, .keep_last = 2};
  if (writers == Writers::kTogether) options.write_together_from = 0;
  return options;
}

// Runs body(group) on every rank of a world.
template <class Body>
void run_world(Writers writers, int size, Body body) {
  if (writers == Writers::kRank0) return ThreadWorld(size).run(body);
  testing_support::in_a_world_of(2, [&](Context& context) { body(context.group()); });
}

class CheckpointCrash : public testing::TestWithParam<Writers> {};

TEST_P(CheckpointCrash, WhateverCallFailsEveryRankIsToldAndTheNextSaveWorks) {
  for (const int sys_errno : {EIO, ENOSPC})
    for (const bool asynchronous : {true, false}) {
      std::atomic<bool> is_over = false;
      run_world(GetParam(), 2, [&](ProcessGroup& group) {
        std::vector<std::unique_ptr<TemporaryDirectory>> directories;
        for (int call = 0; !is_over; ++call) {
          nlohmann::json path;
          if (group.rank() == 0)
            path = directories.emplace_back(std::make_unique<TemporaryDirectory>())->path();
          path = group.broadcast_object(path, 0);
          CheckpointOptions options = options_for(GetParam(), path);
          options.asynchronous = asynchronous;
          CheckpointManager manager(group, 0, options);
          Training training;
          manager.save(1, training.at(1));
          manager.wait();

          std::string told;
          FailingFileCalls calls({.call = call, .sys_errno = sys_errno});
          {
            std::optional<ScopedFileCalls> scope;
            if (group.rank() == 0) scope.emplace(calls);
            group.barrier();
            try {
              manager.save(2, training.at(2));
              manager.wait();
            } catch (const DistError& error) {
              told = error.what();
            }
            group.barrier();
          }
          const nlohmann::json all_told = group.all_gather_object(told);
          EXPECT_EQ(all_told[0], all_told[1]);
          if (group.rank() == 0 && calls.met().empty()) is_over = true;
          SCOPED_TRACE(calls.met());
          if (group.rank() == 0) {
            // A rank that cannot open the file sends its part to rank 0.
            const bool is_borne = GetParam() == Writers::kTogether &&
                                  calls.met().starts_with("open ") &&
                                  calls.met().find(".pt.") != std::string::npos;
            EXPECT_TRUE(told.empty() == calls.met().empty() || is_borne);
          }
          if (!told.empty()) {
            EXPECT_THAT(told, AllOf(HasSubstr(path.get<std::string>()),
                                    HasSubstr(std::strerror(sys_errno))));
          }
          const std::int64_t found = manager.restore(training.state()).step;
          EXPECT_TRUE(found == 2 || (found == 1 && !told.empty())) << found;
          EXPECT_TRUE(training.is_at(found));
          manager.save(3, training.at(3));
          EXPECT_EQ(manager.restore(training.state()).step, 3);
          group.barrier();
        }
      });
    }
}

TEST_P(CheckpointCrash, KilledAtAnyInstantTheNewestAnnouncedCheckpointIsRestored) {
  const std::uint64_t seed = testing_support::test_seed(20260103);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  const TemporaryDirectory directory;
  const CheckpointOptions options = options_for(GetParam(), directory.path());
  std::int64_t newest = 0;
  int interrupted = 0;
  const auto kills = static_cast<int>(testing_support::number_from("DDPRUN_SAVE_KILLS", 100));
  for (int round = 0; round < kills; ++round) {
    KilledChild child([&](const KilledChild::Tell& tell) {
      // LibTorch makes its threads anew after a fork(), for the first thread that asks.
      at::set_num_threads(1);
      // With fsync, nearly all kills would come while the child waits for the disk.
      FilesWithoutFsync quick;
      std::optional<ScopedFileCalls> scope;
      if (round % 5 != 0) scope.emplace(quick);
      run_world(GetParam(), 1, [&](ProcessGroup& group) {
        CheckpointManager manager(group, 0, options);
        Training training(128);
        manager.restore(training.state());
        for (std::int64_t step = newest + 1;; ++step) {
          manager.save(step, training.at(step));  // waits for the save of the step before
          if (group.rank() == 0) tell(step - 1);
        }
      });
    });
    const std::int64_t told =
        child.kill_after(1 + static_cast<int>(rng.below(3)),
                         std::chrono::microseconds(rng.below(4000)), /*none=*/newest);
    ASSERT_TRUE(child.was_killed());
    const auto left = listing(directory.path());
    ThreadWorld(1).run([&](ProcessGroup& group) {
      CheckpointManager manager(group, 0, options);
      Training training(128);
      const Restored restored = manager.restore(training.state());
      EXPECT_GE(restored.step, told);
      // One is being written, one was announced but not yet reported.
      EXPECT_LE(restored.step, told + 2);
      EXPECT_TRUE(training.is_at(restored.step)) << restored.step;
      EXPECT_THAT(restored.skipped, IsEmpty());
      newest = restored.step;
    });
    interrupted += left != listing(directory.path());
    ASSERT_FALSE(HasFailure());
  }
  EXPECT_GT(newest, kills / 2) << "the child got somewhere";
  EXPECT_GT(interrupted, kills / 10) << "the kills came in the middle of saves";
}

TEST_P(CheckpointCrash, WhereverThePowerGoesWhatWasAnnouncedIsRestored) {
  const std::uint64_t seed = testing_support::test_seed(20260104);
  SCOPED_TRACE(testing_support::seed_text(seed));
  Rng rng(seed);
  const TemporaryDirectory root;
  RecordedDisk disk(root.path());
  std::vector<std::size_t> calls_of;  // calls until wait() returned, by step
  {
    const ScopedFileCalls scope(disk);
    for (int run = 0; run < 2; ++run)
      run_world(GetParam(), 1, [&](ProcessGroup& group) {
        CheckpointManager manager(group, 0, options_for(GetParam(), root / "run"));
        Training training;
        auto step = manager.restore(training.state()).step;
        EXPECT_EQ(step, 3 * run);
        if (run == 0 && group.rank() == 0) calls_of.push_back(0);
        for (const std::int64_t last = step + 3; step < last;) {
          ++step;
          manager.save(step, training.at(step));
          manager.wait();
          if (group.rank() == 0) calls_of.push_back(disk.calls());
          group.barrier();
        }
      });
  }
  ASSERT_EQ(calls_of.size(), 7u);

  std::map<RecordedDisk::Image, std::int64_t> restored_from;  // many images are equal
  FilesWithoutFsync quick;
  const ScopedFileCalls scope(quick);
  ThreadWorld(1).run([&](ProcessGroup& group) {
    std::int64_t promised = 0;
    for (std::size_t calls = 0; calls <= disk.calls(); ++calls) {
      while (promised < 6 && calls_of[static_cast<std::size_t>(promised) + 1] <= calls) ++promised;
      for (const RecordedDisk::Image& image : disk.images_after(calls, rng)) {
        const auto [known, is_new] = restored_from.try_emplace(image, 0);
        if (is_new) {
          const TemporaryDirectory after;
          RecordedDisk::write(image, after.path());
          CheckpointManager manager(group, 0, {.directory = after / "run", .keep_last = 2});
          Training training;
          known->second = manager.restore(training.state()).step;
          EXPECT_TRUE(known->second == 0 || training.is_at(known->second));
          manager.save(known->second + 1, training.at(known->second + 1));
          EXPECT_EQ(manager.restore(training.state()).step, known->second + 1);
        }
        EXPECT_GE(known->second, promised) << "after " << calls << " calls";
        if (HasFailure()) return;
      }
    }
  });
  EXPECT_GT(restored_from.size(), 100u) << "there were disks of many kinds";
}

INSTANTIATE_TEST_SUITE_P(, CheckpointCrash, testing::Values(Writers::kRank0, Writers::kTogether),
                         [](const auto& writers) {
                           return writers.param == Writers::kRank0 ? "OfRank0" : "OfAllRanks";
                         });

}  // namespace
}  // namespace ddprun
