#include "worker_lib/optimizer_state.h"

#include <torch/torch.h>

#include <algorithm>

#include "worker_lib/error_bridge.h"

namespace ddprun {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// Each optimizer's fields under Python's names, once, for both directions: the visitor gets a name
// and a reference.
template <class Options, class Visitor>
void visit_adam_options(Options& o, Visitor&& visit) {
  visit("lr", o.lr());
  visit("betas", o.betas());
  visit("eps", o.eps());
  visit("weight_decay", o.weight_decay());
  visit("amsgrad", o.amsgrad());
}

template <class State, class Visitor>
void visit_adam_state(State& s, Visitor&& visit) {
  visit("step", s.step());
  visit("exp_avg", s.exp_avg());
  visit("exp_avg_sq", s.exp_avg_sq());
  visit("max_exp_avg_sq", s.max_exp_avg_sq());
}

struct Sgd {
  using Class = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";
  template <class Visitor>
  static void visit_options(Options& o, Visitor&& visit) {
    visit("lr", o.lr());
    visit("momentum", o.momentum());
    visit("dampening", o.dampening());
    visit("weight_decay", o.weight_decay());
    visit("nesterov", o.nesterov());
  }
  template <class Visitor>
  static void visit_state(State& s, Visitor&& visit) {
    visit("momentum_buffer", s.momentum_buffer());
  }
};

struct Adam {
  using Class = torch::optim::Adam;
  using Options = torch::optim::AdamOptions;
  using State = torch::optim::AdamParamState;
  static constexpr const char* kName = "Adam";
  template <class Visitor>
  static void visit_options(Options& o, Visitor&& visit) {
    visit_adam_options(o, visit);
  }
  template <class Visitor>
  static void visit_state(State& s, Visitor&& visit) {
    visit_adam_state(s, visit);
  }
};

struct AdamW {
  using Class = torch::optim::AdamW;
  using Options = torch::optim::AdamWOptions;
  using State = torch::optim::AdamWParamState;
  static constexpr const char* kName = "AdamW";
  template <class Visitor>
  static void visit_options(Options& o, Visitor&& visit) {
    visit_adam_options(o, visit);
  }
  template <class Visitor>
  static void visit_state(State& s, Visitor&& visit) {
    visit_adam_state(s, visit);
  }
};

struct RmsProp {
  using Class = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";
  template <class Visitor>
  static void visit_options(Options& o, Visitor&& visit) {
    visit("lr", o.lr());
    visit("alpha", o.alpha());
    visit("eps", o.eps());
    visit("weight_decay", o.weight_decay());
    visit("momentum", o.momentum());
    visit("centered", o.centered());
  }
  template <class Visitor>
  static void visit_state(State& s, Visitor&& visit) {
    visit("step", s.step());
    visit("square_avg", s.square_avg());
    visit("momentum_buffer", s.momentum_buffer());
    visit("grad_avg", s.grad_avg());
  }
};

struct Adagrad {
  using Class = torch::optim::Adagrad;
  using Options = torch::optim::AdagradOptions;
  using State = torch::optim::AdagradParamState;
  static constexpr const char* kName = "Adagrad";
  template <class Visitor>
  static void visit_options(Options& o, Visitor&& visit) {
    visit("lr", o.lr());
    visit("lr_decay", o.lr_decay());
    visit("weight_decay", o.weight_decay());
    visit("initial_accumulator_value", o.initial_accumulator_value());
    visit("eps", o.eps());
  }
  template <class Visitor>
  static void visit_state(State& s, Visitor&& visit) {
    visit("step", s.step());
    visit("sum", s.sum());
  }
};

// Calls `use` with the description of the optimizer's class. AdamW is not derived from Adam in C++.
template <class Use>
auto with_description(const Optimizer& optimizer, Use&& use) {
  if (dynamic_cast<const Sgd::Class*>(&optimizer)) return use(Sgd());
  if (dynamic_cast<const Adam::Class*>(&optimizer)) return use(Adam());
  if (dynamic_cast<const AdamW::Class*>(&optimizer)) return use(AdamW());
  if (dynamic_cast<const RmsProp::Class*>(&optimizer)) return use(RmsProp());
  if (dynamic_cast<const Adagrad::Class*>(&optimizer)) return use(Adagrad());
  const std::string name = c10::demangle(typeid(optimizer).name());
  refuse("checkpoint of optimizer " + name +
             ": only SGD, Adam, AdamW, RMSprop and Adagrad can be saved",
         DistError::Kind::kUnsupported);
}

// Writes fields into a dict.
struct Writer {
  PickleDict dict = make_string_dict();

  void operator()(const char* key, double value) { dict.insert(key, value); }
  void operator()(const char* key, bool value) { dict.insert(key, value); }
  void operator()(const char* key, const std::tuple<double, double>& value) {
    dict.insert(key, c10::ivalue::Tuple::create(std::get<0>(value), std::get<1>(value)));
  }
  // Python counts steps in a float32 tensor. Past 2^24 steps that is rounded, where Adam's bias
  // correction has long been 1.
  void operator()(const char* key, std::int64_t value) {
    dict.insert(key, torch::tensor(static_cast<float>(value)));
  }
  void operator()(const char* key, const torch::Tensor& value) {
    if (value.defined()) dict.insert(key, tensor_for_file(value));
  }
};

// Reads fields from a dict.
struct Reader {
  const c10::IValue& dict;
  const std::string& file;
  torch::Tensor parameter;  // what state tensors belong to

  c10::IValue operator[](const char* key) const { return entry_of(dict, key, file); }

  void operator()(const char* key, double& value) const {
    value = (*this)[key].toScalar().toDouble();
  }
  void operator()(const char* key, bool& value) const { value = (*this)[key].toBool(); }
  void operator()(const char* key, std::tuple<double, double>& value) const {
    const auto pair = (*this)[key].toTuple();
    value = {pair->elements().at(0).toDouble(), pair->elements().at(1).toDouble()};
  }
  void operator()(const char* key, std::int64_t& value) const {
    value = static_cast<std::int64_t>((*this)[key].toTensor().item<double>());
  }
  void operator()(const char* key, torch::Tensor& value) const {
    value.reset();
    if (!dict.toGenericDict().contains(key)) return;  // amsgrad and the like are off
    const torch::Tensor saved = (*this)[key].toTensor();
    if (saved.sizes() != parameter.sizes())
      refuse("restore the optimizer from " + file + ": '" + key +
             "' has not the shape of its parameter");
    value = saved.to(parameter.device());
  }
};

template <class D>
c10::impl::GenericList saved_groups(const Optimizer& optimizer) {
  auto groups = make_list();
  std::int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    auto params = make_list();
    for (std::size_t i = 0; i < group.params().size(); ++i) params.push_back(index++);
    Writer writer;
    const auto options = group.options().clone();
    D::visit_options(static_cast<typename D::Options&>(*options), writer);
    writer.dict.insert("params", params);
    groups.push_back(writer.dict);
  }
  return groups;
}

template <class D>
PickleDict saved_state(const Optimizer& optimizer) {
  PickleDict result = make_int_dict();
  std::int64_t index = -1;
  for (const auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) {
      ++index;
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;  // it had no gradient yet
      Writer writer;
      D::visit_state(static_cast<typename D::State&>(*found->second), writer);
      if (writer.dict.size() > 0) result.insert(index, writer.dict);
    }
  return result;
}

template <class D>
void load_groups(Optimizer& optimizer, const c10::IValue& saved, const std::string& file) {
  const auto groups = entry_of(saved, "param_groups", file).toList();
  auto& own = optimizer.param_groups();
  if (groups.size() != own.size())
    refuse("restore the optimizer from " + file + ": it has " + std::to_string(groups.size()) +
           " parameter groups, this optimizer has " + std::to_string(own.size()));
  for (std::size_t g = 0; g < own.size(); ++g) {
    const c10::IValue group = groups.get(g);
    const std::size_t params = entry_of(group, "params", file).toListRef().size();
    if (params != own[g].params().size())
      refuse("restore the optimizer from " + file + ": group " + std::to_string(g) + " has " +
             std::to_string(params) + " parameters, this optimizer's has " +
             std::to_string(own[g].params().size()));
    D::visit_options(static_cast<typename D::Options&>(own[g].options()), Reader{group, file, {}});
  }
}

template <class D>
void load_states(Optimizer& optimizer, const c10::IValue& saved, const std::string& file) {
  const auto states = entry_of(saved, "state", file).toGenericDict();
  std::int64_t index = 0;
  for (auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) {
      void* key = parameter.unsafeGetTensorImpl();
      optimizer.state().erase(key);
      const auto found = states.find(index++);
      if (found == states.end()) continue;
      auto state = std::make_unique<typename D::State>();
      D::visit_state(*state, Reader{found->value(), file, parameter});
      optimizer.state()[key] = std::move(state);
    }
}

}  // namespace

std::string optimizer_class(const Optimizer& optimizer) {
  return with_description(
      optimizer, [](auto description) { return std::string(decltype(description)::kName); });
}

PickleDict optimizer_state(const Optimizer& optimizer) {
  return with_description(optimizer, [&](auto description) {
    using D = decltype(description);
    PickleDict dict = make_string_dict();
    dict.insert("state", saved_state<D>(optimizer));
    dict.insert("param_groups", saved_groups<D>(optimizer));
    return dict;
  });
}

void load_optimizer_state(Optimizer& optimizer, const c10::IValue& state, const std::string& file) {
  with_description(optimizer, [&](auto description) {
    using D = decltype(description);
    load_groups<D>(optimizer, state, file);
    load_states<D>(optimizer, state, file);
  });
}

}  // namespace ddprun
