#include "ddprun/lr_scheduler.h"

#include <algorithm>

#include "base/concat.h"
#include "worker_lib/optim/core/lr_formulas.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using nlohmann::json;
using torch::optim::Optimizer;

std::vector<double> rates_of(const Optimizer& optimizer) {
  std::vector<double> rates;
  for (const auto& group : optimizer.param_groups()) rates.push_back(group.options().get_lr());
  return rates;
}

// Replaces each group's rate by change(rate, index of the group). Returns the new rates.
template <class Change>
std::vector<double> change_rates(Optimizer& optimizer, Change change) {
  for (std::size_t i = 0; i < optimizer.param_groups().size(); ++i) {
    auto& options = optimizer.param_groups()[i].options();
    options.set_lr(change(options.get_lr(), i));
  }
  return rates_of(optimizer);
}

void expect_no_fault(const std::string& name, const std::string& fault) {
  if (!fault.empty()) refuse(name + ": " + fault);
}

void expect_groups(const std::string& doing, std::size_t expected, const Optimizer& optimizer) {
  const std::size_t groups = optimizer.param_groups().size();
  if (groups != expected)
    refuse(
        concat(doing, ": it is for ", expected, " parameter groups, the optimizer has ", groups));
}

// Reader: reads a saved state; its errors name what is missing or wrong.
class Reader {
 public:
  Reader(const json& state, std::string class_name)
      : state_(state), doing_("load the state of " + std::move(class_name)) {}

  template <class T>
  T get(const char* key) const {
    try {
      return at(key).get<T>();
    } catch (const json::exception&) {
      refuse("'", key, "' is ", at(key).dump());
    }
  }
  // Returns one rate for each group of the optimizer.
  std::vector<double> rates(const char* key, const Optimizer& optimizer) const {
    auto rates = get<std::vector<double>>(key);
    expect_groups(doing_, rates.size(), optimizer);
    return rates;
  }
  const json& at(const char* key) const {
    if (!state_.is_object() || !state_.contains(key))
      refuse("it has no '", key, "'; is it that of another class?");
    return state_.at(key);
  }
  void expect_no_fault(const std::string& fault) const { ddprun::expect_no_fault(doing_, fault); }
  template <class... Parts>
  [[noreturn]] void refuse(const Parts&... why) const {
    ddprun::refuse(concat(doing_, ": ", why...));
  }

 private:
  const json& state_;
  const std::string doing_;
};

// The names of PyTorch's classes.
std::string name_of(const LRRule& rule) {
  static constexpr const char* kNames[] = {"StepLR", "MultiStepLR", "CosineAnnealingLR",
                                           "LinearLR"};
  static_assert(std::size(kNames) == std::variant_size_v<LRRule>);
  return kNames[rule.index()];
}

// Each rule's fields, once for both directions: the visitor gets a name and a reference.
template <class Visit>
void visit_fields(StepLR& rule, Visit visit) {
  visit("step_size", rule.step_size);
  visit("gamma", rule.gamma);
}
// Not "milestones", which is a Counter in Python. JSON cannot hold a Counter.
template <class Visit>
void visit_fields(MultiStepLR& rule, Visit visit) {
  visit("milestone_list", rule.milestones);
  visit("gamma", rule.gamma);
}
template <class Visit>
void visit_fields(CosineAnnealingLR& rule, Visit visit) {
  visit("T_max", rule.t_max);
  visit("eta_min", rule.eta_min);
}
template <class Visit>
void visit_fields(LinearWarmup& rule, Visit visit) {
  visit("start_factor", rule.start_factor);
  visit("end_factor", rule.end_factor);
  visit("total_iters", rule.total_iters);
}
template <class Visit>
void visit_fields(LRRule& rule, Visit visit) {
  std::visit([&](auto& one) { visit_fields(one, visit); }, rule);
}

}  // namespace

struct LRScheduler::Impl {
  // One rule and its position.
  struct Part {
    LRRule rule;
    std::int64_t last_epoch = 0;  // -1: it has not begun
    std::int64_t step_count = 1;  // Python's, which also counts the constructor
    std::vector<double> last_lr = {};
  };

  Optimizer& optimizer;
  std::vector<double> base_lrs;
  std::vector<Part> parts;
  bool is_sequential = false;
  std::vector<std::int64_t> milestones = {};
  std::int64_t last_epoch = 0;
  std::vector<double> last_lr = {};

  void begin(Part& part) const {
    part.last_lr =
        change_rates(optimizer, [&](double lr, std::size_t) { return first_lr(part.rule, lr); });
  }
  void advance(Part& part) const {
    ++part.last_epoch;
    ++part.step_count;
    part.last_lr = change_rates(optimizer, [&](double lr, std::size_t i) {
      return next_lr(part.rule, part.last_epoch, lr, base_lrs[i]);
    });
  }
  void restart(Part& part) const {
    part.last_epoch = 0;
    part.last_lr = change_rates(
        optimizer, [&](double, std::size_t i) { return restarted_lr(part.rule, base_lrs[i]); });
  }

  json state_of(const Part& part) const {
    json state{{"base_lrs", base_lrs},
               {"last_epoch", part.last_epoch},
               {"_step_count", part.step_count},
               {"_is_initial", false},
               {"_get_lr_called_within_step", false},
               {"_last_lr", part.last_lr}};
    LRRule rule = part.rule;
    visit_fields(rule, [&](const char* key, const auto& value) { state[key] = value; });
    return state;
  }
  void load_part(Part& part, const json& state) {
    const Reader from(state, name_of(part.rule));
    visit_fields(part.rule, [&]<class T>(const char* key, T& value) { value = from.get<T>(key); });
    from.expect_no_fault(fault_of(part.rule));
    base_lrs = from.rates("base_lrs", optimizer);
    part.last_epoch = from.get<std::int64_t>("last_epoch");
    part.step_count = from.get<std::int64_t>("_step_count");
    part.last_lr = from.rates("_last_lr", optimizer);
  }
  void load_sequence(const json& state) {
    const Reader from(state, "SequentialLR");
    const json& schedules = from.at("_schedulers");
    if (!schedules.is_array() || schedules.size() != parts.size())
      from.refuse("it has ", schedules.is_array() ? std::to_string(schedules.size()) : "no list of",
                  " schedules, this one ", parts.size());
    for (std::size_t i = 0; i < parts.size(); ++i) load_part(parts[i], schedules[i]);
    SequentialLR rules{.schedules = {},
                       .milestones = from.get<std::vector<std::int64_t>>("_milestones")};
    for (const Part& part : parts) rules.schedules.push_back(part.rule);
    from.expect_no_fault(fault_of(rules));
    milestones = rules.milestones;
    last_epoch = from.get<std::int64_t>("last_epoch");
    last_lr = from.rates("_last_lr", optimizer);
  }
};

LRScheduler::LRScheduler(Optimizer& optimizer, const LRRule& rule)
    : impl_(new Impl{optimizer, rates_of(optimizer), {{rule}}}) {
  expect_no_fault(name_of(rule), fault_of(rule));
  impl_->begin(impl_->parts[0]);
  impl_->last_lr = rates_of(optimizer);
}

LRScheduler::LRScheduler(Optimizer& optimizer, const SequentialLR& rules)
    : impl_(new Impl{optimizer, rates_of(optimizer), {}, true, rules.milestones}) {
  expect_no_fault("SequentialLR", fault_of(rules));
  // As in Python, each schedule is constructed on the result of the previous one, and then only
  // the first begins. The state shows the others as constructed until they begin.
  for (const LRRule& rule : rules.schedules)
    impl_->begin(impl_->parts.emplace_back(Impl::Part{.rule = rule, .last_epoch = -1}));
  (void)change_rates(optimizer, [&](double, std::size_t i) { return impl_->base_lrs[i]; });
  impl_->parts[0].last_epoch = 0;
  impl_->begin(impl_->parts[0]);
  impl_->last_lr = rates_of(optimizer);
}

LRScheduler::~LRScheduler() = default;

void LRScheduler::step() {
  Impl& i = *impl_;
  expect_groups("step of " + class_name(), i.base_lrs.size(), i.optimizer);
  ++i.last_epoch;
  const auto next = std::ranges::upper_bound(i.milestones, i.last_epoch);
  const auto index = static_cast<std::size_t>(next - i.milestones.begin());
  Impl::Part& part = i.parts[index];
  if (index > 0 && i.milestones[index - 1] == i.last_epoch)
    i.restart(part);
  else
    i.advance(part);
  i.last_lr = part.last_lr;
}

std::int64_t LRScheduler::last_epoch() const { return impl_->last_epoch; }
std::vector<double> LRScheduler::last_lr() const { return impl_->last_lr; }

std::string LRScheduler::class_name() const {
  return impl_->is_sequential ? "SequentialLR" : name_of(impl_->parts[0].rule);
}

json LRScheduler::state() const {
  const Impl& i = *impl_;
  if (!i.is_sequential) return i.state_of(i.parts[0]);
  json schedules = json::array();
  for (const Impl::Part& part : i.parts) schedules.push_back(i.state_of(part));
  return {{"_milestones", i.milestones},
          {"last_epoch", i.last_epoch},
          {"_last_lr", i.last_lr},
          {"_schedulers", schedules}};
}

void LRScheduler::load_state(const json& state) {
  auto loaded = std::make_unique<Impl>(*impl_);
  if (loaded->is_sequential) {
    loaded->load_sequence(state);
  } else {
    Impl::Part& part = loaded->parts[0];
    loaded->load_part(part, state);
    loaded->last_epoch = part.last_epoch;
    loaded->last_lr = part.last_lr;
  }
  impl_ = std::move(loaded);
}

// --- ReduceLROnPlateau ---

namespace {

constexpr const char* kPlateau = "ReduceLROnPlateau";
using Plateau = ReduceLROnPlateauOptions;

double worst_of(const Plateau& options) { return PlateauWatch(options).best; }

}  // namespace

struct ReduceLROnPlateau::Impl {
  Optimizer& optimizer;
  Plateau options;  // min_lr for each group
  bool has_one_min_lr;
  PlateauWatch watch;
  std::int64_t last_epoch = 0;
  std::vector<double> last_lr = {};

  // The fields that are plain numbers in Python, once for both directions.
  template <class Visit>
  void visit_numbers(Visit visit) {
    visit("factor", options.factor);
    visit("patience", options.patience);
    visit("cooldown", options.cooldown);
    visit("threshold", options.threshold);
    visit("eps", options.eps);
    visit("cooldown_counter", watch.cooldown_counter);
    visit("num_bad_epochs", watch.num_bad_epochs);
    visit("last_epoch", last_epoch);
  }

  void expect_min_lrs(const std::string& doing) {
    const std::size_t groups = optimizer.param_groups().size();
    if (has_one_min_lr) options.min_lr.resize(groups, options.min_lr.front());
    if (options.min_lr.size() != groups)
      refuse(concat(doing, ": 'min_lr' has ", options.min_lr.size(), " rates, the optimizer has ",
                    groups, " parameter groups"));
  }
};

ReduceLROnPlateau::ReduceLROnPlateau(Optimizer& optimizer, const Plateau& options)
    : impl_(new Impl{optimizer, options, options.min_lr.size() == 1, PlateauWatch(options)}) {
  expect_no_fault(kPlateau, fault_of(options));
  impl_->expect_min_lrs(kPlateau);
  impl_->last_lr = rates_of(optimizer);
}

ReduceLROnPlateau::~ReduceLROnPlateau() = default;

void ReduceLROnPlateau::step(double metric) {
  Impl& i = *impl_;
  i.expect_min_lrs(std::string("step of ") + kPlateau);
  ++i.last_epoch;
  if (i.watch.judge(i.options, metric))
    (void)change_rates(i.optimizer, [&](double lr, std::size_t group) {
      return reduced_lr(i.options, lr, i.options.min_lr[group]);
    });
  i.last_lr = rates_of(i.optimizer);
}

std::vector<double> ReduceLROnPlateau::last_lr() const { return impl_->last_lr; }
std::string ReduceLROnPlateau::class_name() const { return kPlateau; }

json ReduceLROnPlateau::state() const {
  Impl& i = *impl_;
  json state{{"default_min_lr", i.has_one_min_lr ? json(i.options.min_lr.front()) : json()},
             {"min_lrs", i.options.min_lr},
             {"_last_lr", i.last_lr},
             {"mode_worse", worst_of(i.options)},
             {"mode", i.options.mode == Plateau::Mode::kMin ? "min" : "max"},
             {"threshold_mode",
              i.options.threshold_mode == Plateau::ThresholdMode::kRelative ? "rel" : "abs"},
             {"best", i.watch.best}};
  i.visit_numbers([&](const char* key, const auto& value) { state[key] = value; });
  return state;
}

void ReduceLROnPlateau::load_state(const json& state) {
  const Reader from(state, kPlateau);
  const auto one_of = [&](const char* key, const char* first, const char* second) {
    const auto word = from.get<std::string>(key);
    if (word != first && word != second)
      from.refuse("'", key, "' is '", word, "', it must be '", first, "' or '", second, "'");
    return word == first;
  };
  auto loaded = std::make_unique<Impl>(*impl_);
  Plateau& options = loaded->options;
  options.mode = one_of("mode", "min", "max") ? Plateau::Mode::kMin : Plateau::Mode::kMax;
  options.threshold_mode = one_of("threshold_mode", "rel", "abs")
                               ? Plateau::ThresholdMode::kRelative
                               : Plateau::ThresholdMode::kAbsolute;
  loaded->visit_numbers([&]<class T>(const char* key, T& value) { value = from.get<T>(key); });
  options.min_lr = from.rates("min_lrs", loaded->optimizer);
  from.expect_no_fault(fault_of(options));
  loaded->has_one_min_lr = !from.at("default_min_lr").is_null();
  // JSON text has no infinite numbers. In such a state "nothing yet" is null.
  loaded->watch.best = from.at("best").is_null() ? worst_of(options) : from.get<double>("best");
  loaded->last_lr = from.rates("_last_lr", loaded->optimizer);
  impl_ = std::move(loaded);
}

}  // namespace ddprun
