#include "rendezvous/protocol/core/job_times.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using std::chrono::hours;
using std::chrono::minutes;
using std::chrono::seconds;
using enum TimeCause;

TEST(JobTimes, TheLineHasTheLargestLossesFirstAndNoTraces) {
  JobTimes times{.generations = 4, .has_steps = true};
  times[kTraining] = minutes(245);
  times[kRecovery] = minutes(2);
  times[kLostWork] = seconds(170);
  times[kCheckpoint] = minutes(2);
  times[kStarting] = times.first_starting = seconds(1);
  EXPECT_EQ(goodput_text(times),
            "goodput 97.3 % of 4 h 11 min: 1.9 % restarts (3), 0.8 % checkpoints");
}

TEST(JobTimes, TheFirstStartIsNoRestart) {
  JobTimes times{.first_starting = seconds(2), .first_loading = seconds(8), .has_steps = true};
  times.generations = 2;
  times[kStarting] = seconds(4);
  times[kLoading] = seconds(16);
  times[kTraining] = seconds(60);
  times[kWaiting] = seconds(20);
  EXPECT_EQ(goodput_text(times),
            "goodput 60.0 % of 1 min 40 s: 20.0 % waiting for nodes, 10.0 % start, "
            "10.0 % restarts (1)");
}

TEST(JobTimes, AFailureWithoutARestartIsNoRestart) {
  JobTimes times{.generations = 1, .has_steps = true};
  times[kTraining] = seconds(99);
  times[kRecovery] = seconds(1);
  EXPECT_EQ(goodput_text(times), "goodput 99.0 % of 1 min 40 s: 1.0 % recovery");
}

TEST(JobTimes, WithoutStepsTheLineSaysThatLostWorkIsNotKnown) {
  JobTimes times{.generations = 1};
  times[kTraining] = hours(49);
  EXPECT_EQ(goodput_text(times), "goodput at most 100.0 % of 2 d 1 h");
  EXPECT_EQ(goodput_text({}), "goodput at most 0.0 % of 0 us");
}

}  // namespace
}  // namespace ddprun
