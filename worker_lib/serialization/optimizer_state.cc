#include "worker_lib/serialization/optimizer_state.h"

#include <torch/optim.h>
#include <torch/types.h>

#include <algorithm>
#include <map>

#include "ddprun/adadelta.h"
#include "ddprun/zero_optimizer.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using torch::optim::Optimizer;
using torch::optim::OptimizerOptions;
using torch::optim::OptimizerParamState;

// A count that is an integer in Python, too. Other counts are tensors there.
struct Count {
  std::int64_t& value;
};
// Tensors of LBFGS, which treats all parameters as one vector: Flat is such a vector, Number a
// single number. Value is a tensor, or a list of them.
using Tensors = std::deque<torch::Tensor>;
template <class Value>
struct Flat {
  Value& value;
};
template <class Value>
struct Number {
  Value& value;
};

[[noreturn]] void refuse_restore(const std::string& file, const std::string& what) {
  refuse("restore the optimizer from " + file + ": " + what);
}

// Each optimizer's fields under Python's names, once for both directions: the visitor gets a
// name and a reference.
struct Sgd {
  using Class = torch::optim::SGD;
  using Options = torch::optim::SGDOptions;
  using State = torch::optim::SGDParamState;
  static constexpr const char* kName = "SGD";
  static void visit_options(Options& o, auto&& visit) {
    visit("lr", o.lr());
    visit("momentum", o.momentum());
    visit("dampening", o.dampening());
    visit("weight_decay", o.weight_decay());
    visit("nesterov", o.nesterov());
  }
  static void visit_state(State& s, auto&& visit) { visit("momentum_buffer", s.momentum_buffer()); }
};

template <class OfClass, class ItsOptions, class ItsState>
struct AdamFields {
  using Class = OfClass;
  using Options = ItsOptions;
  using State = ItsState;
  static void visit_options(Options& o, auto&& visit) {
    visit("lr", o.lr());
    visit("betas", o.betas());
    visit("eps", o.eps());
    visit("weight_decay", o.weight_decay());
    visit("amsgrad", o.amsgrad());
  }
  static void visit_state(State& s, auto&& visit) {
    visit("step", s.step());
    visit("exp_avg", s.exp_avg());
    visit("exp_avg_sq", s.exp_avg_sq());
    visit("max_exp_avg_sq", s.max_exp_avg_sq());
  }
};

struct Adam
    : AdamFields<torch::optim::Adam, torch::optim::AdamOptions, torch::optim::AdamParamState> {
  static constexpr const char* kName = "Adam";
};

struct AdamW
    : AdamFields<torch::optim::AdamW, torch::optim::AdamWOptions, torch::optim::AdamWParamState> {
  static constexpr const char* kName = "AdamW";
};

struct RmsProp {
  using Class = torch::optim::RMSprop;
  using Options = torch::optim::RMSpropOptions;
  using State = torch::optim::RMSpropParamState;
  static constexpr const char* kName = "RMSprop";
  static void visit_options(Options& o, auto&& visit) {
    visit("lr", o.lr());
    visit("alpha", o.alpha());
    visit("eps", o.eps());
    visit("weight_decay", o.weight_decay());
    visit("momentum", o.momentum());
    visit("centered", o.centered());
  }
  static void visit_state(State& s, auto&& visit) {
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
  static void visit_options(Options& o, auto&& visit) {
    visit("lr", o.lr());
    visit("lr_decay", o.lr_decay());
    visit("weight_decay", o.weight_decay());
    visit("initial_accumulator_value", o.initial_accumulator_value());
    visit("eps", o.eps());
  }
  static void visit_state(State& s, auto&& visit) {
    visit("step", s.step());
    visit("sum", s.sum());
  }
};

struct OfAdadelta {
  using Class = Adadelta;
  using Options = AdadeltaOptions;
  using State = AdadeltaParamState;
  static constexpr const char* kName = "Adadelta";
  static void visit_options(Options& o, auto&& visit) {
    visit("lr", o.lr());
    visit("rho", o.rho());
    visit("eps", o.eps());
    visit("weight_decay", o.weight_decay());
    visit("maximize", o.maximize());
  }
  static void visit_state(State& s, auto&& visit) {
    visit("step", s.step());
    visit("square_avg", s.square_avg());
    visit("acc_delta", s.acc_delta());
  }
};

// LBFGS's state belongs to the first parameter, in Python and in C++. "al" is left out: both
// fill it before they read it, and create it if it is missing.
struct Lbfgs {
  using Class = torch::optim::LBFGS;
  using Options = torch::optim::LBFGSOptions;
  using State = torch::optim::LBFGSParamState;
  static constexpr const char* kName = "LBFGS";
  static void visit_options(Options& o, auto&& visit) {
    visit("lr", o.lr());
    visit("max_iter", Count{o.max_iter()});
    visit("max_eval", o.max_eval());
    visit("tolerance_grad", o.tolerance_grad());
    visit("tolerance_change", o.tolerance_change());
    visit("history_size", Count{o.history_size()});
    visit("line_search_fn", o.line_search_fn());
  }
  static void visit_state(State& s, auto&& visit) {
    visit("func_evals", Count{s.func_evals()});
    visit("n_iter", Count{s.n_iter()});
    if (s.n_iter() == 0) return;  // Python has no more fields then
    visit("t", s.t());
    visit("prev_loss", s.prev_loss());
    visit("d", Flat{s.d()});
    visit("H_diag", Number{s.H_diag()});
    visit("prev_flat_grad", Flat{s.prev_flat_grad()});
    visit("old_dirs", Flat{s.old_dirs()});
    visit("old_stps", Flat{s.old_stps()});
    visit("ro", Number{s.ro()});
  }
  // LibTorch's loop over the history trusts these lengths.
  static void expect_whole(const State& s, const Options& o, const std::string& file) {
    const std::size_t size = s.ro().size();
    if (s.old_dirs().size() != size || s.old_stps().size() != size ||
        static_cast<std::int64_t>(size) > o.history_size())
      refuse_restore(
          file, "'old_dirs', 'old_stps' and 'ro' have " + std::to_string(s.old_dirs().size()) +
                    ", " + std::to_string(s.old_stps().size()) + " and " + std::to_string(size) +
                    " entries, of a history of " + std::to_string(o.history_size()));
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
  if (dynamic_cast<const OfAdadelta::Class*>(&optimizer)) return use(OfAdadelta());
  if (dynamic_cast<const Lbfgs::Class*>(&optimizer)) return use(Lbfgs());
  const std::string name = c10::demangle(typeid(optimizer).name());
  refuse("the state of optimizer " + name +
             ": only that of SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta and LBFGS can be read",
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
  // Python counts steps in a float32 tensor. Beyond 2^24 steps the count is rounded, but there
  // Adam's bias correction has long been 1.
  void operator()(const char* key, std::int64_t value) {
    dict.insert(key, torch::tensor(static_cast<float>(value)));
  }
  void operator()(const char* key, const torch::Tensor& value) {
    if (value.defined()) dict.insert(key, tensor_for_file(value));
  }
  void operator()(const char* key, Count count) { dict.insert(key, count.value); }
  template <class Value>
  void operator()(const char* key, const std::optional<Value>& value) {
    dict.insert(key, value ? c10::IValue(*value) : c10::IValue());
  }
  template <class Value>
  void operator()(const char* key, Flat<Value> flat) {
    (*this)(key, flat.value);
  }
  template <class Value>
  void operator()(const char* key, Number<Value> number) {
    (*this)(key, number.value);
  }
  void operator()(const char* key, const Tensors& tensors) {
    auto list = make_list();
    for (const torch::Tensor& tensor : tensors) list.push_back(tensor_for_file(tensor));
    dict.insert(key, list);
  }
};

// Reads fields from a dict.
struct Reader {
  const c10::IValue& dict;
  const std::string& file;
  torch::Tensor parameter;        // that the state tensors belong to
  std::int64_t all_elements = 0;  // of all the optimizer's parameters

  c10::IValue operator[](const char* key) const { return entry_of(dict, key, file); }

  // Python's number may also be a tensor of one element: a count of steps usually is, a learning
  // rate can be.
  double number(const char* key) const {
    const c10::IValue found = (*this)[key];
    const bool is_tensor = found.isTensor() && found.toTensor().numel() == 1;
    expect_type(is_tensor || found.isInt() || found.isDouble() || found.isBool(), found, key,
                "a number", file);
    return is_tensor ? found.toTensor().item<double>() : found.toScalar().toDouble();
  }

  void operator()(const char* key, double& value) const { value = number(key); }
  void operator()(const char* key, bool& value) const {
    const c10::IValue found = (*this)[key];
    expect_type(found.isBool(), found, key, "a truth value", file);
    value = found.toBool();
  }
  void operator()(const char* key, std::tuple<double, double>& value) const {
    const c10::IValue found = (*this)[key];
    const bool is_pair = found.isTuple() && found.toTupleRef().elements().size() == 2 &&
                         found.toTupleRef().elements()[0].isDouble() &&
                         found.toTupleRef().elements()[1].isDouble();
    expect_type(is_pair, found, key, "a pair of numbers", file);
    const auto& pair = found.toTupleRef().elements();
    value = {pair[0].toDouble(), pair[1].toDouble()};
  }
  void operator()(const char* key, std::int64_t& value) const {
    value = static_cast<std::int64_t>(number(key));
  }
  void operator()(const char* key, torch::Tensor& value) const {
    value.reset();
    if (!as_dict(dict, "state", file).contains(key)) return;  // amsgrad and similar options are off
    if ((*this)[key].isNone()) return;                        // Python's SGD has no value yet
    const torch::Tensor saved = as_tensor((*this)[key], key, file);
    if (saved.sizes() != parameter.sizes())
      refuse_entry(key, "does not have the shape of its parameter");
    value = saved.to(parameter.device());
  }
  void operator()(const char* key, Count count) const {
    count.value = as_integer((*this)[key], key, file);
  }
  void operator()(const char* key, std::optional<std::int64_t>& value) const {
    const c10::IValue found = (*this)[key];
    value.reset();
    if (!found.isNone()) value = as_integer(found, key, file);
  }
  void operator()(const char* key, std::optional<std::string>& value) const {
    const c10::IValue found = (*this)[key];
    value.reset();
    if (!found.isNone()) value = as_text(found, key, file);
  }
  void operator()(const char* key, Flat<torch::Tensor> flat) const {
    flat.value = flat_of(key, (*this)[key]);
  }
  void operator()(const char* key, Number<torch::Tensor> number) const {
    number.value = number_of(key, (*this)[key]);
  }
  void operator()(const char* key, Flat<Tensors> flats) const {
    for (const c10::IValue& saved : list_of(key)) flats.value.push_back(flat_of(key, saved));
  }
  void operator()(const char* key, Number<Tensors> numbers) const {
    for (const c10::IValue& saved : list_of(key)) numbers.value.push_back(number_of(key, saved));
  }

 private:
  [[noreturn]] void refuse_entry(const char* key, const char* what) const {
    refuse_restore(file, std::string("'") + key + "' " + what);
  }
  torch::Tensor flat_of(const char* key, const c10::IValue& saved) const {
    const torch::Tensor tensor = as_tensor(saved, key, file);
    if (tensor.dim() != 1 || tensor.numel() != all_elements)
      refuse_entry(key, "is not a vector over all parameters");
    return tensor.to(parameter.device());
  }
  torch::Tensor number_of(const char* key, const c10::IValue& saved) const {
    expect_type(saved.isTensor() || saved.isInt() || saved.isDouble(), saved, key, "a number",
                file);
    if (!saved.isTensor()) return torch::scalar_tensor(saved.toScalar(), parameter.options());
    if (saved.toTensor().dim() != 0) refuse_entry(key, "is not a number");
    return saved.toTensor().to(parameter.device());
  }
  std::vector<c10::IValue> list_of(const char* key) const {
    return as_list((*this)[key], key, file);
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
PickleDict saved_state(const Optimizer& optimizer, const std::function<bool(std::size_t)>& keeps) {
  PickleDict result = make_int_dict();
  std::int64_t index = -1;
  for (const auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) {
      ++index;
      if (keeps && !keeps(static_cast<std::size_t>(index))) continue;
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;  // the parameter had no gradient yet
      Writer writer;
      D::visit_state(static_cast<typename D::State&>(*found->second), writer);
      if (writer.dict.size() > 0) result.insert(index, writer.dict);
    }
  return result;
}

template <class D>
void load_groups(Optimizer& optimizer, const c10::IValue& saved, const std::string& file) {
  const auto groups = as_list(entry_of(saved, "param_groups", file), "param_groups", file);
  auto& own = optimizer.param_groups();
  if (groups.size() != own.size())
    refuse_restore(file, "it has " + std::to_string(groups.size()) +
                             " parameter groups, this optimizer has " + std::to_string(own.size()));
  for (std::size_t g = 0; g < own.size(); ++g) {
    const c10::IValue& group = groups[g];
    const std::size_t params = as_list(entry_of(group, "params", file), "params", file).size();
    if (params != own[g].params().size())
      refuse_restore(file, "group " + std::to_string(g) + " has " + std::to_string(params) +
                               " parameters, this optimizer's has " +
                               std::to_string(own[g].params().size()));
    D::visit_options(static_cast<typename D::Options&>(own[g].options()), Reader{group, file, {}});
  }
}

// Returns null if the state is not sharded over the ranks.
const detail::ZeroShards* shards_of(const Optimizer& optimizer) {
  const auto* sharded = dynamic_cast<const detail::ShardedOptimizer*>(&optimizer);
  return sharded ? &sharded->shards() : nullptr;
}

// Returns whether this rank keeps the state of a parameter.
bool is_own(const Optimizer& optimizer, std::size_t index) {
  const auto* shards = shards_of(optimizer);
  return !shards || shards->owner_of(index) == shards->group().rank();
}

template <class D>
void load_states(Optimizer& optimizer, const c10::IValue& saved, const std::string& file) {
  const auto states = as_dict(entry_of(saved, "state", file), "state", file);
  std::int64_t index = -1;
  std::int64_t all_elements = 0;
  for (const auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) all_elements += parameter.numel();
  for (auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) {
      void* key = parameter.unsafeGetTensorImpl();
      optimizer.state().erase(key);
      const auto found = states.find(++index);
      if (found == states.end() || !is_own(optimizer, static_cast<std::size_t>(index))) continue;
      auto state = std::make_unique<typename D::State>();
      D::visit_state(*state, Reader{found->value(), file, parameter, all_elements});
      if constexpr (std::is_same_v<D, Lbfgs>)
        D::expect_whole(*state, static_cast<const typename D::Options&>(group.options()), file);
      optimizer.state()[key] = std::move(state);
    }
}

}  // namespace

std::string optimizer_class(const Optimizer& optimizer) {
  return with_description(
      optimizer, [](auto description) { return std::string(decltype(description)::kName); });
}

PickleDict optimizer_state(const Optimizer& optimizer,
                           const std::function<bool(std::size_t)>& keeps) {
  return with_description(optimizer, [&](auto description) {
    using D = decltype(description);
    PickleDict dict = make_string_dict();
    dict.insert("state", saved_state<D>(optimizer, keeps));
    dict.insert("param_groups", saved_groups<D>(optimizer));
    return dict;
  });
}

std::optional<std::vector<int>> owners_of_states(const Optimizer& optimizer) {
  const auto* shards = shards_of(optimizer);
  if (!shards) return std::nullopt;
  std::vector<int> owners;
  for (const auto& group : optimizer.param_groups())
    for (std::size_t i = 0; i < group.params().size(); ++i)
      owners.push_back(shards->owner_of(owners.size()));
  return owners;
}

std::optional<PickleDict> gather_optimizer_states(const Optimizer& optimizer) {
  const auto* shards = shards_of(optimizer);
  if (!shards) return std::nullopt;
  ProcessGroup& group = shards->group();
  const PickleDict own = optimizer_state(optimizer).at("state").toGenericDict();
  const auto all = gather_values(group, own, "the optimizer's state");
  if (group.rank() != 0) return own;
  std::map<std::int64_t, c10::IValue> in_order;  // as in a plain optimizer
  for (const c10::IValue& theirs : all)
    for (const auto& entry : theirs.toGenericDict())
      in_order.emplace(entry.key().toInt(), entry.value());
  PickleDict whole = make_int_dict();
  for (const auto& [index, state_of_one] : in_order) whole.insert(index, state_of_one);
  return whole;
}

void load_optimizer_state(Optimizer& optimizer, const c10::IValue& state, const std::string& file) {
  with_description(optimizer, [&](auto description) {
    using D = decltype(description);
    load_groups<D>(optimizer, state, file);
    load_states<D>(optimizer, state, file);
  });
}

}  // namespace ddprun
