#include "ddprun/lr_scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using Kind = DistError::Kind;
using Rates = std::vector<double>;

torch::optim::SGD make_optimizer(const Rates& rates) {
  std::vector<torch::optim::OptimizerParamGroup> groups;
  for (const double rate : rates)
    groups.emplace_back(std::vector<torch::Tensor>{torch::zeros(1).requires_grad_()},
                        std::make_unique<torch::optim::SGDOptions>(rate));
  return torch::optim::SGD(groups, torch::optim::SGDOptions(1));
}

Rates rates_of(const torch::optim::Optimizer& optimizer) {
  Rates rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// --- what is refused

TEST(LRScheduler, ARuleThatCannotBeMeantIsRefusedAndTheRatesAreLeftAlone) {
  auto optimizer = make_optimizer({0.1});
  EXPECT_DIST_ERROR(LRScheduler(optimizer, StepLR{.step_size = 0}), Kind::kInvalidArgument,
                    HasSubstr("StepLR: 'step_size' is 0, it must be at least 1"));
  EXPECT_DIST_ERROR(LRScheduler(optimizer, LinearWarmup{.total_iters = 0}), Kind::kInvalidArgument,
                    HasSubstr("LinearLR: 'total_iters' is 0"));
  EXPECT_DIST_ERROR(LRScheduler(optimizer, SequentialLR{}), Kind::kInvalidArgument,
                    HasSubstr("SequentialLR: 'schedules' has 0 rules"));
  EXPECT_DIST_ERROR(ReduceLROnPlateau(optimizer, {.factor = 2}), Kind::kInvalidArgument,
                    HasSubstr("ReduceLROnPlateau: 'factor' is 2"));
  EXPECT_DIST_ERROR(ReduceLROnPlateau(optimizer, {.min_lr = {0, 0}}), Kind::kInvalidArgument,
                    HasSubstr("'min_lr' has 2 rates, the optimizer has 1 parameter groups"));
  EXPECT_THAT(rates_of(optimizer), ElementsAre(0.1));
}

TEST(LRScheduler, AGroupAddedLaterIsRefusedAtTheNextStep) {
  auto optimizer = make_optimizer({0.1});
  LRScheduler schedule(optimizer, StepLR{});
  optimizer.add_param_group(std::vector<torch::Tensor>{torch::zeros(1).requires_grad_()});
  EXPECT_DIST_ERROR(schedule.step(), Kind::kInvalidArgument,
                    HasSubstr("step of StepLR: it is for 1 parameter groups, the optimizer has 2"));
}

TEST(LRScheduler, AStateThatDoesNotFitIsRefusedAndChangesNothing) {
  auto optimizer = make_optimizer({0.1, 0.2}), other = make_optimizer({0.1});
  LRScheduler schedule(optimizer, StepLR{.step_size = 2});
  schedule.step();
  const json before = schedule.state();
  const auto expect_refused = [&](const json& state, const char* words) {
    EXPECT_DIST_ERROR(schedule.load_state(state), Kind::kInvalidArgument, HasSubstr(words));
    EXPECT_EQ(schedule.state(), before);
  };
  expect_refused(LRScheduler(other, CosineAnnealingLR{.t_max = 3}).state(),
                 "load the state of StepLR: it has no 'step_size'; is it that of another class?");
  expect_refused(LRScheduler(other, StepLR{}).state(),
                 "it is for 1 parameter groups, the optimizer has 2");
  expect_refused("text", "it has no 'step_size'");
  for (const char* key : {"gamma", "base_lrs", "last_epoch", "_step_count", "_last_lr"}) {
    json state = before;
    state.erase(key);
    expect_refused(state, key);
    state[key] = "much";
    expect_refused(state, (std::string("'") + key + "' is \"much\"").c_str());
  }
  json state = before;
  state["step_size"] = -3;
  expect_refused(state, "'step_size' is -3, it must be at least 1");
}

TEST(LRScheduler, ASequenceOfOtherRulesIsRefused) {
  auto optimizer = make_optimizer({0.1});
  LRScheduler schedule(optimizer, SequentialLR{{LinearWarmup{}, StepLR{}}, {3}});
  const LRScheduler longer(optimizer, SequentialLR{{StepLR{}, StepLR{}, StepLR{}}, {3, 4}});
  const LRScheduler different(optimizer, SequentialLR{{StepLR{}, StepLR{}}, {3}});
  EXPECT_DIST_ERROR(schedule.load_state(longer.state()), Kind::kInvalidArgument,
                    HasSubstr("it has 3 schedules, this one 2"));
  EXPECT_DIST_ERROR(schedule.load_state(different.state()), Kind::kInvalidArgument,
                    HasSubstr("load the state of LinearLR: it has no 'start_factor'"));
}

TEST(ReduceLROnPlateau, AStateThatDoesNotFitIsRefusedAndChangesNothing) {
  auto optimizer = make_optimizer({0.1});
  ReduceLROnPlateau plateau(optimizer, {.patience = 1});
  plateau.step(3);
  const json before = plateau.state();
  json state = before;
  state["mode"] = "middle";
  EXPECT_DIST_ERROR(plateau.load_state(state), Kind::kInvalidArgument,
                    HasSubstr("'mode' is 'middle', it must be 'min' or 'max'"));
  for (const auto& [key, value] : before.items()) {
    if (key == "mode_worse") continue;  // follows from the mode
    state = before;
    state.erase(key);
    EXPECT_DIST_ERROR(plateau.load_state(state), Kind::kInvalidArgument, HasSubstr(key));
  }
  EXPECT_EQ(plateau.state(), before);
}

// --- PyTorch's values

LRRule rule_of(const json& rule) {
  const std::string name = rule.at("class");
  if (name == "StepLR") return StepLR{rule.at("step_size"), rule.at("gamma")};
  if (name == "MultiStepLR")
    return MultiStepLR{rule.at("milestones").get<std::vector<std::int64_t>>(), rule.at("gamma")};
  if (name == "CosineAnnealingLR") return CosineAnnealingLR{rule.at("T_max"), rule.at("eta_min")};
  return LinearWarmup{rule.at("start_factor"), rule.at("end_factor"), rule.at("total_iters")};
}

ReduceLROnPlateauOptions plateau_of(const json& rule) {
  using Options = ReduceLROnPlateauOptions;
  const json& min_lr = rule.at("min_lr");
  return {.mode = rule.at("mode") == "min" ? Options::Mode::kMin : Options::Mode::kMax,
          .factor = rule.at("factor"),
          .patience = rule.at("patience"),
          .threshold = rule.at("threshold"),
          .threshold_mode = rule.at("threshold_mode") == "rel" ? Options::ThresholdMode::kRelative
                                                               : Options::ThresholdMode::kAbsolute,
          .cooldown = rule.at("cooldown"),
          .min_lr = min_lr.is_array() ? min_lr.get<Rates>() : Rates{min_lr.get<double>()},
          .eps = rule.at("eps")};
}

// Scheduler: a scheduler of either kind.
struct Scheduler {
  Scheduler(torch::optim::Optimizer& optimizer, const json& one) {
    const json& rule = one.at("rule");
    if (rule.at("class") == "ReduceLROnPlateau") {
      auto plateau = std::make_unique<ReduceLROnPlateau>(optimizer, plateau_of(rule));
      step = [p = plateau.get()](double metric) { p->step(metric); };
      any = std::move(plateau);
      return;
    }
    std::unique_ptr<LRScheduler> schedule;
    if (rule.at("class") == "SequentialLR") {
      SequentialLR rules{{}, rule.at("milestones").get<std::vector<std::int64_t>>()};
      for (const json& part : rule.at("schedules")) rules.schedules.push_back(rule_of(part));
      schedule = std::make_unique<LRScheduler>(optimizer, rules);
    } else {
      schedule = std::make_unique<LRScheduler>(optimizer, rule_of(rule));
    }
    step = [s = schedule.get()](double) { s->step(); };
    any = std::move(schedule);
  }
  std::unique_ptr<SavedScheduler> any;
  std::function<void(double metric)> step;
};

class LRVectors : public testing::Test {
 protected:
  static json vectors() {
    std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/lr-vectors.json");
    return json::parse(file);
  }

  // Runs epochs `first` to `last` of a case. All rates must be PyTorch's, bit for bit.
  static void expect_rates(const json& one, torch::optim::Optimizer& optimizer,
                           Scheduler& scheduler, std::size_t first, std::size_t last) {
    for (std::size_t epoch = first; epoch <= last; ++epoch) {
      if (epoch > 0)
        scheduler.step(one.at("metrics").is_null() ? 0 : one["metrics"][epoch - 1].get<double>());
      EXPECT_EQ(rates_of(optimizer), one.at("rates")[epoch].get<Rates>())
          << one.at("name") << " epoch " << epoch;
      EXPECT_EQ(scheduler.any->last_lr(), rates_of(optimizer));
      const json& by_hand = one.at("by_hand");
      if (!by_hand.is_null() && by_hand[0] == epoch)
        for (std::size_t i = 0; i < 2; ++i)
          optimizer.param_groups()[i].options().set_lr(by_hand[1][i]);
    }
  }

  // Returns the state in the form that lr_vectors.py writes.
  static json plain(json state) {
    state.erase("milestone_list");
    if (state.contains("_schedulers"))
      for (json& part : state["_schedulers"]) part.erase("milestone_list");
    return json::parse(state.dump());  // infinities become null
  }
};

TEST_F(LRVectors, RatesHavePyTorchsBitsAtEveryEpoch) {
  const json all = vectors();
  ASSERT_GE(all.at("cases").size(), 18u);
  for (const json& one : all.at("cases")) {
    auto optimizer = make_optimizer(all.at("initial"));
    Scheduler scheduler(optimizer, one);
    EXPECT_EQ(scheduler.any->class_name(), one.at("rule").at("class"));
    expect_rates(one, optimizer, scheduler, 0, one.at("rates").size() - 1);
  }
}

TEST_F(LRVectors, TheStateInTheMiddleIsPyTorchsStateDict) {
  const json all = vectors();
  for (const json& one : all.at("cases")) {
    auto optimizer = make_optimizer(all.at("initial"));
    Scheduler scheduler(optimizer, one);
    expect_rates(one, optimizer, scheduler, 0, (one.at("rates").size() - 1) / 2);
    EXPECT_EQ(plain(scheduler.any->state()), one.at("state")) << one.at("name");
  }
}

// The state goes through text into a scheduler with other fields, and the state's fields
// replace them.
TEST_F(LRVectors, ARestoredSchedulerGoesOnWithTheSameBits) {
  const json all = vectors();
  for (const json& one : all.at("cases")) {
    const std::size_t last = one.at("rates").size() - 1;
    auto before = make_optimizer(all.at("initial")), after = make_optimizer({3, 4});
    Scheduler saved(before, one);
    expect_rates(one, before, saved, 0, last / 2);
    const std::string text = saved.any->state().dump();

    json changed = one;
    json& rule = changed["rule"];
    if (rule.contains("schedules"))
      for (json& part : rule["schedules"])
        for (const char* key : {"gamma", "start_factor"})
          if (part.contains(key)) part[key] = 0.77;
    for (const char* key : {"gamma", "start_factor", "factor"})
      if (rule.contains(key)) rule[key] = 0.77;
    Scheduler restored(after, changed);
    restored.any->load_state(json::parse(text));
    EXPECT_EQ(restored.any->last_lr(), saved.any->last_lr());
    const Rates rates = rates_of(before);
    for (std::size_t i = 0; i < 2; ++i) after.param_groups()[i].options().set_lr(rates[i]);
    expect_rates(one, after, restored, last / 2 + 1, last);
  }
}

TEST(LRScheduler, CountsItsSteps) {
  auto optimizer = make_optimizer({0.1});
  LRScheduler schedule(optimizer, SequentialLR{{LinearWarmup{}, StepLR{}}, {3}});
  for (int epoch = 0; epoch < 5; ++epoch) {
    EXPECT_EQ(schedule.last_epoch(), epoch);
    schedule.step();
  }
}

}  // namespace
}  // namespace ddprun
