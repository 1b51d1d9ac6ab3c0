#include "worker_lib/optim/core/lr_formulas.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <numbers>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using Plateau = ReduceLROnPlateauOptions;

TEST(LRRules, WhatCannotBeMeantIsNamed) {
  EXPECT_EQ(fault_of(StepLR{.step_size = 0}), "'step_size' is 0, it must be at least 1");
  EXPECT_EQ(fault_of(MultiStepLR{.milestones = {4, 2}}), "'milestones' must be ascending");
  EXPECT_THAT(fault_of(MultiStepLR{.milestones = {-1, 2}}), HasSubstr("'milestones' is -1"));
  EXPECT_THAT(fault_of(CosineAnnealingLR{.t_max = 0}), HasSubstr("'t_max' is 0"));
  EXPECT_THAT(fault_of(LinearWarmup{.start_factor = 0}), HasSubstr("'start_factor' is 0"));
  EXPECT_THAT(fault_of(LinearWarmup{.start_factor = 1.5}), HasSubstr("'start_factor' is 1.5"));
  EXPECT_THAT(fault_of(LinearWarmup{.end_factor = -0.5}), HasSubstr("'end_factor' is -0.5"));
  EXPECT_THAT(fault_of(LinearWarmup{.total_iters = 0}), HasSubstr("'total_iters' is 0"));
  EXPECT_THAT(fault_of(LinearWarmup{.start_factor = std::nan("")}), HasSubstr("is nan"));
}

TEST(LRRules, SequencesThatCannotBeMeantAreNamed) {
  EXPECT_EQ(fault_of(SequentialLR{}),
            "'schedules' has 0 rules and 'milestones' 0; it must be one less");
  EXPECT_THAT(fault_of(SequentialLR{{StepLR{}, StepLR{}}, {}}), HasSubstr("it must be one less"));
  EXPECT_THAT(fault_of(SequentialLR{{StepLR{}, StepLR{}}, {0}}), HasSubstr("'milestones' is 0"));
  EXPECT_THAT(fault_of(SequentialLR{{StepLR{}, StepLR{}, StepLR{}}, {3, 3}}),
              HasSubstr("'milestones' must be ascending"));
  EXPECT_THAT(fault_of(SequentialLR{{StepLR{}, StepLR{.step_size = -1}}, {3}}),
              HasSubstr("'step_size' is -1"));
}

TEST(LRRules, PlateausThatCannotBeMeantAreNamed) {
  EXPECT_THAT(fault_of(Plateau{.factor = 1}), HasSubstr("'factor' is 1"));
  EXPECT_THAT(fault_of(Plateau{.patience = -1}), HasSubstr("'patience' is -1"));
  EXPECT_THAT(fault_of(Plateau{.cooldown = -1}), HasSubstr("'cooldown' is -1"));
}

TEST(LRRules, WhatCanBeMeantHasNoFault) {
  EXPECT_EQ(fault_of(StepLR{}), "");
  EXPECT_EQ(fault_of(MultiStepLR{.milestones = {0, 2, 2}}), "");
  EXPECT_EQ(fault_of(SequentialLR{{LinearWarmup{}, CosineAnnealingLR{}}, {5}}), "");
  EXPECT_EQ(fault_of(Plateau{}), "");
}

// Expects that stepping from epoch to epoch gives the rate of the closed form.
void expect_closed_form(const LRRule& rule, const std::function<double(double epoch)>& factor) {
  constexpr double kBase = 0.1;
  double lr = first_lr(rule, kBase);
  EXPECT_NEAR(lr, kBase * factor(0), 1e-15);
  EXPECT_NEAR(restarted_lr(rule, kBase), kBase * factor(0), 1e-15);
  for (int epoch = 1; epoch < 100; ++epoch) {
    lr = next_lr(rule, epoch, lr, kBase);
    EXPECT_NEAR(lr, kBase * factor(epoch), 1e-13) << "epoch " << epoch;
  }
}

TEST(LRFormulas, StepsAddUpToTheClosedForm) {
  expect_closed_form(StepLR{.step_size = 7, .gamma = 0.5},
                     [](double epoch) { return std::pow(0.5, std::floor(epoch / 7)); });
  expect_closed_form(MultiStepLR{.milestones = {0, 3, 3, 50}, .gamma = 0.5}, [](double epoch) {
    return epoch < 3 ? 0.5 : epoch < 50 ? 0.125 : 0.0625;
  });
  for (const int t_max : {1, 2, 10, 33})
    expect_closed_form(CosineAnnealingLR{.t_max = t_max, .eta_min = 0.01}, [&](double epoch) {
      return 0.1 + 0.9 * (1 + std::cos(std::numbers::pi * epoch / t_max)) / 2;
    });
  expect_closed_form(LinearWarmup{.start_factor = 0.2, .end_factor = 0.9, .total_iters = 20},
                     [](double epoch) { return 0.2 + 0.7 * std::min(epoch, 20.0) / 20; });
}

// Returns the epochs, counted from 1, at which the watch asks for a reduction.
std::vector<int> reductions(const Plateau& options, const std::vector<double>& metrics) {
  PlateauWatch watch(options);
  std::vector<int> result;
  for (std::size_t i = 0; i < metrics.size(); ++i)
    if (watch.judge(options, metrics[i])) result.push_back(static_cast<int>(i) + 1);
  return result;
}

TEST(PlateauWatch, ReducesAfterMoreBadEpochsThanItIsPatient) {
  EXPECT_THAT(reductions({.patience = 2}, {1, 1, 1, 1, 1, 1, 1}), ElementsAre(4, 7));
  EXPECT_THAT(reductions({.patience = 0}, {3, 2, 1, 1, 0.5}), ElementsAre(4));
}

TEST(PlateauWatch, ImprovementsWithinTheThresholdDoNotCount) {
  const std::vector<double> falling = {1, 0.95, 0.9, 0.85};  // by 5 % of the first value each time
  EXPECT_THAT(reductions({.patience = 1, .threshold = 0.2}, falling), ElementsAre(3));
  EXPECT_THAT(reductions({.patience = 1, .threshold = 0.01}, falling), ElementsAre());
  EXPECT_THAT(
      reductions(
          {.patience = 1, .threshold = 0.2, .threshold_mode = Plateau::ThresholdMode::kAbsolute},
          {1, 0.9, 0.85, 0.6}),
      ElementsAre(3));
}

TEST(PlateauWatch, EpochsOfTheCooldownAreNotJudged) {
  EXPECT_THAT(reductions({.patience = 0, .cooldown = 3}, {1, 1, 1, 1, 1, 1, 1}), ElementsAre(2, 6));
}

TEST(PlateauWatch, ALargerMetricIsBetterInModeMax) {
  const Plateau options{.mode = Plateau::Mode::kMax, .patience = 0};
  EXPECT_THAT(reductions(options, {1, 2, 3, 2, 4}), ElementsAre(4));
}

TEST(PlateauWatch, NoNumberIsNoImprovement) {
  EXPECT_THAT(reductions({.patience = 0}, {std::nan(""), 1, std::nan("")}), ElementsAre(1, 3));
}

TEST(LRFormulas, ReductionsStopAtTheLeastRateAndWhereTheyAreTooSmall) {
  const Plateau options{.factor = 0.5, .eps = 1e-3};
  EXPECT_EQ(reduced_lr(options, 0.1, 0), 0.05);
  EXPECT_EQ(reduced_lr(options, 0.1, 0.08), 0.08);
  EXPECT_EQ(reduced_lr(options, 0.1, 0.0995), 0.1);
  EXPECT_EQ(reduced_lr(options, 0.0015, 0), 0.0015);
}

}  // namespace
}  // namespace ddprun
