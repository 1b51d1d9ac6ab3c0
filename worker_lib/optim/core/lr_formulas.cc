#include "worker_lib/optim/core/lr_formulas.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>

#include "base/concat.h"

namespace ddprun {
namespace {

constexpr double kPi = std::numbers::pi;

template <class Number>
std::string needs(const char* field, Number value, const char* range) {
  return concat("'", field, "' is ", std::to_string(value), ", it must be ", range);
}

// Finds the fault of each rule.
struct Fault {
  std::string operator()(const StepLR& rule) const {
    return rule.step_size < 1 ? needs("step_size", rule.step_size, "at least 1") : "";
  }
  std::string operator()(const MultiStepLR& rule) const {
    if (!std::ranges::is_sorted(rule.milestones)) return "'milestones' must be ascending";
    return !rule.milestones.empty() && rule.milestones.front() < 0
               ? needs("milestones", rule.milestones.front(), "0 or more")
               : "";
  }
  std::string operator()(const CosineAnnealingLR& rule) const {
    return rule.t_max < 1 ? needs("t_max", rule.t_max, "at least 1") : "";
  }
  std::string operator()(const LinearWarmup& rule) const {
    if (!(rule.start_factor > 0 && rule.start_factor <= 1))
      return needs("start_factor", rule.start_factor, "above 0 and at most 1");
    if (!(rule.end_factor >= 0 && rule.end_factor <= 1))
      return needs("end_factor", rule.end_factor, "0 to 1");
    return rule.total_iters < 1 ? needs("total_iters", rule.total_iters, "at least 1") : "";
  }
};

double at_milestones(const MultiStepLR& rule, std::int64_t epoch, double lr) {
  const auto times = std::ranges::count(rule.milestones, epoch);
  return times == 0 ? lr : lr * std::pow(rule.gamma, static_cast<double>(times));
}

struct First {
  double lr;
  double operator()(const StepLR&) const { return lr; }
  double operator()(const MultiStepLR& rule) const { return at_milestones(rule, 0, lr); }
  double operator()(const CosineAnnealingLR&) const { return lr; }
  double operator()(const LinearWarmup& rule) const { return lr * rule.start_factor; }
};

struct Next {
  std::int64_t epoch;
  double lr, base_lr;

  double operator()(const StepLR& rule) const {
    return epoch % rule.step_size == 0 ? lr * rule.gamma : lr;
  }
  double operator()(const MultiStepLR& rule) const { return at_milestones(rule, epoch, lr); }
  double operator()(const CosineAnnealingLR& rule) const {
    const auto e = static_cast<double>(epoch), t_max = static_cast<double>(rule.t_max);
    // After a minimum, the quotient below would be 0 / 0.
    if ((epoch - 1 - rule.t_max) % (2 * rule.t_max) == 0)
      return lr + (base_lr - rule.eta_min) * (1 - std::cos(kPi / t_max)) / 2;
    return (1 + std::cos(kPi * e / t_max)) / (1 + std::cos(kPi * (e - 1) / t_max)) *
               (lr - rule.eta_min) +
           rule.eta_min;
  }
  double operator()(const LinearWarmup& rule) const {
    if (epoch > rule.total_iters) return lr;
    const double rise = rule.end_factor - rule.start_factor;
    return lr * (1.0 + rise / (static_cast<double>(rule.total_iters) * rule.start_factor +
                               static_cast<double>(epoch - 1) * rise));
  }
};

bool is_better(const ReduceLROnPlateauOptions& options, double metric, double best) {
  using Options = ReduceLROnPlateauOptions;
  const bool relative = options.threshold_mode == Options::ThresholdMode::kRelative;
  if (options.mode == Options::Mode::kMin)
    return metric < (relative ? best * (1.0 - options.threshold) : best - options.threshold);
  return metric > (relative ? best * (options.threshold + 1.0) : best + options.threshold);
}

}  // namespace

std::string fault_of(const LRRule& rule) { return std::visit(Fault(), rule); }

std::string fault_of(const SequentialLR& rules) {
  for (const LRRule& rule : rules.schedules)
    if (const std::string fault = fault_of(rule); !fault.empty()) return fault;
  if (rules.schedules.size() != rules.milestones.size() + 1)
    return concat("'schedules' has ", rules.schedules.size(), " rules and 'milestones' ",
                  rules.milestones.size(), "; it must be one less");
  if (!rules.milestones.empty() && rules.milestones.front() < 1)
    return needs("milestones", rules.milestones.front(), "1 or more");
  if (std::ranges::adjacent_find(rules.milestones, std::greater_equal()) != rules.milestones.end())
    return "'milestones' must be ascending";
  return "";
}

std::string fault_of(const ReduceLROnPlateauOptions& options) {
  if (!(options.factor < 1)) return needs("factor", options.factor, "below 1");
  if (options.patience < 0) return needs("patience", options.patience, "0 or more");
  if (options.cooldown < 0) return needs("cooldown", options.cooldown, "0 or more");
  return "";
}

double first_lr(const LRRule& rule, double lr) { return std::visit(First{lr}, rule); }

double next_lr(const LRRule& rule, std::int64_t epoch, double lr, double base_lr) {
  return std::visit(Next{epoch, lr, base_lr}, rule);
}

double restarted_lr(const LRRule& rule, double base_lr) {
  // PyTorch's formula does not always give base_lr itself.
  if (const auto* cosine = std::get_if<CosineAnnealingLR>(&rule))
    return cosine->eta_min + (base_lr - cosine->eta_min) * 2 / 2;
  return first_lr(rule, base_lr);
}

PlateauWatch::PlateauWatch(const ReduceLROnPlateauOptions& options)
    : best(options.mode == ReduceLROnPlateauOptions::Mode::kMin
               ? std::numeric_limits<double>::infinity()
               : -std::numeric_limits<double>::infinity()) {}

bool PlateauWatch::judge(const ReduceLROnPlateauOptions& options, double metric) {
  if (is_better(options, metric, best)) {
    best = metric;
    num_bad_epochs = 0;
  } else {
    ++num_bad_epochs;
  }
  if (cooldown_counter > 0) {
    --cooldown_counter;
    num_bad_epochs = 0;
  }
  if (num_bad_epochs <= options.patience) return false;
  cooldown_counter = options.cooldown;
  num_bad_epochs = 0;
  return true;
}

double reduced_lr(const ReduceLROnPlateauOptions& options, double lr, double min_lr) {
  const double reduced = std::max(lr * options.factor, min_lr);
  return lr - reduced > options.eps ? reduced : lr;
}

}  // namespace ddprun
