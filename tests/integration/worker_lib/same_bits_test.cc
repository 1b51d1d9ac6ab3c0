// Tests that a training ends with the same bits if it is killed repeatedly, from outside and
// at any point. It runs under the real ddprun. same_bits_worker is the training and reports
// its phase. DDPRUN_SAME_BITS_KILLS is the number of kills.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <iostream>
#include <map>

#include "base/rng.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/integration/worker_lib/training_phases.h"
#include "tests/support/job_workers.h"
#include "tests/support/test_seed.h"
#include "worker_lib/checkpoint/core/manifest.h"

namespace ddprun::testing_support {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;
using std::chrono::seconds;

using testing::HasSubstr;

constexpr Duration kAllowed = seconds(60);
constexpr std::uint64_t kStepsOfAnEpoch = 30, kStepsForAKill = 32;

struct Setting {
  int ranks;
  std::string optimizer;

  friend void PrintTo(const Setting& setting, std::ostream* out) {
    *out << setting.ranks << " ranks, " << setting.optimizer;
  }
};

// The targets of kills: phases of the training thread, and work that runs at the same time.
const std::string kWriting = "writing";  // a save that is copied, but not announced
const std::vector<std::string> kTargets{"start-up",   "forward", "backward", "optimizer",
                                        "collective", "saving",  kWriting};

std::string target_of(Phase phase) {
  if (phase < Phase::kForward) return "start-up";
  return std::string(kPhaseNames[static_cast<std::size_t>(phase)]);
}

class SameBits : public LauncherTest {
 protected:
  std::unique_ptr<ChildProcess> start_training(const Setting& setting, const std::string& name,
                                               Arguments options, bool saves = true) {
    const std::string phases = directory_ / (name + ".phases");
    std::filesystem::remove(phases);  // of an earlier training of this name
    phases_ = std::make_unique<PhaseFile>(phases);
    Arguments worker{program("same_bits_worker"), setting.optimizer, std::to_string(epochs_),
                     digest_file(name), phases};
    if (saves) worker.push_back(checkpoints(name));
    options.push_back("--nproc-per-node=" + std::to_string(setting.ranks));
    return start(joined({"--standalone"}, options, worker));
  }

  std::string digest_file(const std::string& name) const { return directory_ / (name + ".digest"); }
  std::string checkpoints(const std::string& name) const { return directory_ / (name + ".run"); }
  std::string digest(const std::string& name) const { return first_line_of(digest_file(name)); }

  // This training saves nothing. So the test also shows that saving does not change a
  // training.
  void train_undisturbed(const Setting& setting) {
    auto job = start_training(setting, "undisturbed", {}, /*saves=*/false);
    ASSERT_EQ(job->wait(kAllowed), 0) << job->err();
    ASSERT_THAT(digest("undisturbed"), testing::MatchesRegex("[0-9a-f]{64} 0x1.*"));
  }

  // Returns whether the checkpoint of rank 0's last save of the generation is not announced
  // yet.
  bool is_writing(const std::string& name, const PhaseSlot& rank_0) const {
    const std::int64_t step = rank_0.saved_step;
    return step > 0 && rank_0.phase != Phase::kSaving &&
           ::access((checkpoints(name) + "/" + manifest_name(step)).c_str(), F_OK) != 0;
  }

  // All kills happen in one training, which is long enough for them.
  const std::uint64_t planned_ = number_from("DDPRUN_SAME_BITS_KILLS", 10);
  const std::uint64_t epochs_ = planned_ * kStepsForAKill / kStepsOfAnEpoch;
  std::unique_ptr<PhaseFile> phases_;  // of the latest training
};

// --- workers -------------------------------------------------------------------------------------

// Kills workers of one training, and records in which phase.
class WorkerKills : public SameBits, public testing::WithParamInterface<Setting> {
 protected:
  void start_job() {
    generation_ = 0;
    job_ = start_training(GetParam(), "killed", {"--max-restarts=3"});
  }

  void wait_for_start() const {
    // The first generation starts without a message.
    const std::string said =
        generation_ == 0 ? "" : "generation " + std::to_string(generation_) + ": starting";
    ASSERT_TRUE(job_->wait_for_err(said, kAllowed)) << job_->err();
  }

  // Kills a rank, or all. target empty: at any moment.
  void kill_workers(const std::string& target, Rng& rng) {
    if (generation_ == kKillsOfAJob) {
      ASSERT_NO_FATAL_FAILURE(replace_job(rng));
    }
    ASSERT_NO_FATAL_FAILURE(wait_for_start());
    const auto ranks = static_cast<std::size_t>(GetParam().ranks);
    const std::vector<JobWorker> workers = workers_of(mark_, ranks);
    ASSERT_EQ(workers.size(), ranks) << job_->err();
    const std::size_t whom = rng.below(ranks + 1);  // one rank, or all of them
    const bool all = whom == ranks;
    const std::size_t watched = target == kWriting ? 0 : whom % ranks;
    const PhaseSlot& slot = phases_->slot(generation_, watched);
    if (target == "start-up") {
      let_pass(up_to(milliseconds(300), rng));
    } else {
      const auto steps = static_cast<std::int64_t>(1 + rng.below(kStepsForAKill - 16));
      ASSERT_TRUE(eventually([&] { return slot.steps >= steps; }, kAllowed)) << job_->err();
      ASSERT_NO_FATAL_FAILURE(wait_for_target(target, slot, rng));
    }
    for (const JobWorker& worker : workers)
      if (all || worker.rank() == watched) worker.kill();
    for (const JobWorker& worker : workers) {
      if (!all && worker.rank() != watched) continue;
      ASSERT_TRUE(worker.wait(kAllowed));
      count_hit(worker.rank());
    }
    ++generation_;
    ++kills_;
  }

  // Kills the process that the user started (kill -9), and runs the same command again. After
  // failures in quick succession ddprun pauses, each time twice as long as before. A new job
  // begins without a pause.
  void replace_job(Rng& rng) {
    ASSERT_NO_FATAL_FAILURE(wait_for_start());
    if (rng.chance(0.3)) {
      let_pass(up_to(milliseconds(300), rng));
    } else {
      const auto steps = static_cast<std::int64_t>(1 + rng.below(8));
      ASSERT_TRUE(
          eventually([&] { return phases_->slot(generation_, 0).steps >= steps; }, kAllowed))
          << job_->err();
    }
    job_->signal(SIGKILL);
    ASSERT_TRUE(eventually([&] { return left_behind().empty(); }, kAllowed))
        << "workers outlived it";
    ++hits_["the whole job"];
    ASSERT_NO_FATAL_FAILURE(start_job());
  }

  // A phase that ends within microseconds may be missed. The place of death is what counts.
  void wait_for_target(const std::string& target, const PhaseSlot& slot, Rng& rng) const {
    if (target.empty()) return let_pass(up_to(milliseconds(40), rng));
    const TimePoint deadline = in(kAllowed);
    while (target == kWriting ? !is_writing("killed", slot) : target_of(slot.phase) != target) {
      ASSERT_LT(BootClock::now(), deadline) << "no moment of '" << target << "' was seen";
      let_pass(microseconds(10));
    }
  }

  void count_hit(std::size_t rank) {
    const PhaseSlot& slot = phases_->slot(generation_, rank);
    ++hits_[target_of(slot.phase)];
    if (rank == 0 && is_writing("killed", slot)) ++hits_[kWriting];
  }

  void expect_every_target_hit(Rng& rng) {
    for (std::size_t more = 0; more < kMoreKills; ++more) {
      const auto missed = std::ranges::find_if(
          kTargets, [&](const std::string& target) { return hits_[target] == 0; });
      if (missed == kTargets.end()) return;
      ASSERT_NO_FATAL_FAILURE(kill_workers(*missed, rng));
    }
    for (const std::string& target : kTargets) EXPECT_GT(hits_[target], 0) << target;
  }

  std::string hits_text() const {
    std::string text = std::to_string(kills_) + " kills hit";
    for (const auto& [target, hits] : hits_) text += " " + target + " " + std::to_string(hits);
    return text;
  }

  static constexpr std::size_t kMoreKills = 10, kKillsOfAJob = 2;
  std::unique_ptr<ChildProcess> job_;
  std::size_t generation_ = 0;  // of the current job
  std::size_t kills_ = 0;       // number of killed workers, in all jobs
  std::map<std::string, int> hits_;
};

TEST_P(WorkerKills, EndWithTheBitsOfAnUndisturbedTraining) {
  const std::uint64_t seed =
      test_seed(GetParam().ranks + (GetParam().optimizer == "adam" ? 10u : 0u));
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  ASSERT_NO_FATAL_FAILURE(train_undisturbed(GetParam()));

  ASSERT_NO_FATAL_FAILURE(start_job());
  // Half of the kills are at any moment. The others are aimed at each target in turn.
  while (kills_ < planned_) {
    const std::string target = kills_ % 2 == 0 ? "" : kTargets[kills_ / 2 % kTargets.size()];
    ASSERT_NO_FATAL_FAILURE(kill_workers(target, rng)) << hits_text();
  }
  ASSERT_NO_FATAL_FAILURE(expect_every_target_hit(rng)) << hits_text();
  ASSERT_EQ(job_->wait(kAllowed), 0) << job_->err();
  std::cout << hits_text() << std::endl;

  EXPECT_EQ(digest("killed"), digest("undisturbed")) << hits_text();
  EXPECT_THAT(job_->err(),
              HasSubstr("succeeded after " + std::to_string(generation_) + " of 3 restarts"));
  EXPECT_EQ(listing(checkpoints("killed")).size(), 6u)
      << "two checkpoints, whose the directory is, and nothing of killed saves";
}

INSTANTIATE_TEST_SUITE_P(Of, WorkerKills,
                         testing::Values(Setting{2, "sgd"}, Setting{3, "sgd"}, Setting{2, "adam"},
                                         Setting{3, "adam"}),
                         [](const auto& one) {
                           return std::to_string(one.param.ranks) + "RanksWith" +
                                  (one.param.optimizer == "sgd" ? "MomentumSgd" : "Adam");
                         });

// --- leaving on request --------------------------------------------------------------------------

TEST_F(SameBits, AskedToSaveAndLeaveTwiceATrainingEndsWithTheBitsOfAnUndisturbedOne) {
  const Setting setting{3, "sgd"};
  const std::uint64_t seed = test_seed(8);
  SCOPED_TRACE(seed_text(seed));
  Rng rng(seed);
  ASSERT_NO_FATAL_FAILURE(train_undisturbed(setting));
  for (int requests = 0; requests < 2; ++requests) {
    auto job = start_training(setting, "stopped", {"--checkpoint-signal=USR1"});
    const auto steps = static_cast<std::int64_t>(1 + rng.below(60));
    ASSERT_TRUE(eventually([&] { return phases_->slot(0, 0).steps >= steps; }, kAllowed));
    job->signal(SIGUSR1);
    ASSERT_EQ(job->wait(kAllowed), 75) << job->err();
  }
  auto job = start_training(setting, "stopped", {});
  ASSERT_EQ(job->wait(kAllowed), 0) << job->err();
  EXPECT_THAT(job->out(), HasSubstr("resumed at step "));
  EXPECT_EQ(digest("stopped"), digest("undisturbed"));
}

}  // namespace
}  // namespace ddprun::testing_support
