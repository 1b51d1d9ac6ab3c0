#include "worker_lib/serialization/optimizer_state.h"

#include <torch/optim.h>
#include <torch/types.h>

#include <algorithm>
#include <map>

#include "base/concat.h"
#include "ddprun/adadelta.h"
#include "ddprun/zero_optimizer.h"
#include "worker_lib/serialization/refilled_dict.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using torch::optim::Optimizer;

// A count that is an integer in Python, too. Other counts are tensors there.
struct Count {
  std::int64_t& value;
};
// Tensors of LBFGS, which treats all parameters as one vector: kFlat is such a vector, kNumber a
// single number. Value is a tensor, or a list of them.
using Tensors = std::deque<torch::Tensor>;
enum class Form { kFlat, kNumber };
template <class Value>
struct OfLbfgs {
  Form form;
  Value& value;
};

template <class... Parts>
[[noreturn]] void refuse_restore(const std::string& file, const Parts&... what) {
  refuse(concat("restore the optimizer from ", file, ": ", what...));
}

// Each optimizer's fields under Python's names, once for both directions: the visitor gets a
// name and a reference.
template <class OfClass, class ItsOptions, class ItsState>
struct OptimizerFields {
  using Class = OfClass;
  using Options = ItsOptions;
  using State = ItsState;
};

struct Sgd
    : OptimizerFields<torch::optim::SGD, torch::optim::SGDOptions, torch::optim::SGDParamState> {
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

template <class Class, class Options, class State>
struct AdamFields : OptimizerFields<Class, Options, State> {
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

struct RmsProp : OptimizerFields<torch::optim::RMSprop, torch::optim::RMSpropOptions,
                                 torch::optim::RMSpropParamState> {
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

struct Adagrad : OptimizerFields<torch::optim::Adagrad, torch::optim::AdagradOptions,
                                 torch::optim::AdagradParamState> {
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

struct OfAdadelta : OptimizerFields<Adadelta, AdadeltaOptions, AdadeltaParamState> {
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
struct Lbfgs : OptimizerFields<torch::optim::LBFGS, torch::optim::LBFGSOptions,
                               torch::optim::LBFGSParamState> {
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
    visit("d", OfLbfgs{Form::kFlat, s.d()});
    visit("H_diag", OfLbfgs{Form::kNumber, s.H_diag()});
    visit("prev_flat_grad", OfLbfgs{Form::kFlat, s.prev_flat_grad()});
    visit("old_dirs", OfLbfgs{Form::kFlat, s.old_dirs()});
    visit("old_stps", OfLbfgs{Form::kFlat, s.old_stps()});
    visit("ro", OfLbfgs{Form::kNumber, s.ro()});
  }
  // LibTorch's loop over the history trusts these lengths.
  static void expect_whole(const State& s, const Options& o, const std::string& file) {
    const std::size_t size = s.ro().size();
    if (s.old_dirs().size() != size || s.old_stps().size() != size ||
        static_cast<std::int64_t>(size) > o.history_size())
      refuse_restore(file, "'old_dirs', 'old_stps' and 'ro' have ", s.old_dirs().size(), ", ",
                     s.old_stps().size(), " and ", size, " entries, of a history of ",
                     o.history_size());
  }
};

// Calls `use` with the description of the optimizer's class. AdamW is not derived from Adam in C++.
template <class Use>
auto with_description(const Optimizer& optimizer, Use&& use) {
  const auto is = [&]<class D>(D) {
    return dynamic_cast<const typename D::Class*>(&optimizer) != nullptr;
  };
  if (is(Sgd())) return use(Sgd());
  if (is(Adam())) return use(Adam());
  if (is(AdamW())) return use(AdamW());
  if (is(RmsProp())) return use(RmsProp());
  if (is(Adagrad())) return use(Adagrad());
  if (is(OfAdadelta())) return use(OfAdadelta());
  if (is(Lbfgs())) return use(Lbfgs());
  const std::string name = c10::demangle(typeid(optimizer).name());
  refuse("the state of optimizer " + name +
             ": only that of SGD, Adam, AdamW, RMSprop, Adagrad, Adadelta and LBFGS can be read",
         DistError::Kind::kUnsupported);
}

// Writes fields into a dict. The texts of their keys outlive it.
struct Writer {
  const TensorForFile& for_file;
  RefilledDict dict{std::nullopt, make_string_dict};
  // The keys so far. Every parameter has the same ones.
  std::vector<std::pair<const char*, c10::IValue>> keys = {};

  void add(const char* key, c10::IValue value) {
    auto known = std::ranges::find(keys, key, &std::pair<const char*, c10::IValue>::first);
    if (known == keys.end()) known = keys.insert(known, {key, key});
    dict.add(known->second, std::move(value));
  }

  void operator()(const char* key, double value) { add(key, value); }
  void operator()(const char* key, bool value) { add(key, value); }
  void operator()(const char* key, const std::tuple<double, double>& value) {
    add(key, c10::ivalue::Tuple::create(std::get<0>(value), std::get<1>(value)));
  }
  // Python counts steps in a float32 tensor. Beyond 2^24 steps the count is rounded, but there
  // Adam's bias correction has long been 1.
  void operator()(const char* key, std::int64_t value) {
    add(key, torch::tensor(static_cast<float>(value)));
  }
  void operator()(const char* key, const torch::Tensor& value) {
    if (value.defined()) add(key, for_file(value));
  }
  void operator()(const char* key, Count count) { add(key, count.value); }
  template <class Value>
  void operator()(const char* key, const std::optional<Value>& value) {
    add(key, value ? c10::IValue(*value) : c10::IValue());
  }
  template <class Value>
  void operator()(const char* key, OfLbfgs<Value> field) {
    (*this)(key, field.value);
  }
  void operator()(const char* key, const Tensors& tensors) {
    auto list = make_list();
    for (const torch::Tensor& tensor : tensors) list.push_back(for_file(tensor));
    add(key, list);
  }
};

// Reads fields from a dict.
struct Reader {
  SavedValue saved;
  torch::Tensor parameter;        // that the state tensors belong to
  std::int64_t all_elements = 0;  // of all the optimizer's parameters

  // Python's number may also be a tensor of one element: a count of steps usually is, a learning
  // rate can be.
  double number(const char* key) const {
    const SavedValue found = saved.at(key);
    const c10::IValue& value = found.value;
    const bool is_tensor = value.isTensor() && value.toTensor().numel() == 1;
    found.expect(is_tensor || value.isInt() || value.isDouble() || value.isBool(), "a number");
    return is_tensor ? found.tensor().item<double>() : value.toScalar().toDouble();
  }

  void operator()(const char* key, double& value) const { value = number(key); }
  void operator()(const char* key, bool& value) const {
    const SavedValue found = saved.at(key);
    found.expect(found.value.isBool(), "a truth value");
    value = found.value.toBool();
  }
  void operator()(const char* key, std::tuple<double, double>& value) const {
    const SavedValue found = saved.at(key);
    const auto is_double = [](const c10::IValue& element) { return element.isDouble(); };
    found.expect(found.value.isTuple() && found.value.toTupleRef().elements().size() == 2 &&
                     std::ranges::all_of(found.value.toTupleRef().elements(), is_double),
                 "a pair of numbers");
    const auto& pair = found.value.toTupleRef().elements();
    value = {pair[0].toDouble(), pair[1].toDouble()};
  }
  void operator()(const char* key, std::int64_t& value) const {
    value = static_cast<std::int64_t>(number(key));
  }
  void operator()(const char* key, torch::Tensor& value) const {
    value.reset();
    const PickleDict entries = saved.dict();
    // Its few keys are compared faster than a text for find() is made.
    const auto found = std::find_if(entries.begin(), entries.end(), [key](const auto& entry) {
      return entry.key().isString() && entry.key().toStringRef() == key;
    });
    if (found == entries.end()) return;   // amsgrad and similar options are off
    if (found->value().isNone()) return;  // Python's SGD has no value yet
    if (!found->value().isTensor()) (void)saved.at(key).tensor();  // throws
    const torch::Tensor& tensor = found->value().toTensor();
    expect_memory(tensor);
    if (tensor.sizes() != parameter.sizes())
      refuse_entry(key, "does not have the shape of its parameter");
    value = tensor.device() == parameter.device() ? tensor : tensor.to(parameter.device());
  }
  void operator()(const char* key, Count count) const { count.value = saved.at(key).integer(); }
  template <class Value>
  void operator()(const char* key, std::optional<Value>& value) const {
    const SavedValue found = saved.at(key);
    value.reset();
    if (found.value.isNone()) return;
    if constexpr (std::is_same_v<Value, std::string>)
      value = found.text();
    else
      value = found.integer();
  }
  void operator()(const char* key, OfLbfgs<torch::Tensor> field) const {
    field.value = tensor_of(field.form, saved.at(key));
  }
  void operator()(const char* key, OfLbfgs<Tensors> field) const {
    for (const c10::IValue& element : saved.at(key).list())
      field.value.push_back(tensor_of(field.form, {element, saved.file, key}));
  }

 private:
  [[noreturn]] void refuse_entry(const std::string& key, const char* what) const {
    refuse_restore(saved.file, "'", key, "' ", what);
  }
  torch::Tensor tensor_of(Form form, const SavedValue& found) const {
    const c10::IValue& value = found.value;
    if (form == Form::kNumber) {
      found.expect(value.isTensor() || value.isInt() || value.isDouble(), "a number");
      if (!value.isTensor()) return torch::scalar_tensor(value.toScalar(), parameter.options());
      if (value.toTensor().dim() != 0) refuse_entry(found.name, "is not a number");
    } else if (found.tensor().dim() != 1 || value.toTensor().numel() != all_elements) {
      refuse_entry(found.name, "is not a vector over all parameters");
    }
    return found.tensor().to(parameter.device());
  }
};

template <class D>
c10::impl::GenericList saved_groups(const Optimizer& optimizer, const TensorForFile& for_file) {
  auto groups = make_list();
  std::int64_t index = 0;
  for (const auto& group : optimizer.param_groups()) {
    auto params = make_list();
    params.reserve(group.params().size());
    for (std::size_t i = 0; i < group.params().size(); ++i) params.push_back(index++);
    Writer writer{for_file};
    const auto options = group.options().clone();
    D::visit_options(static_cast<typename D::Options&>(*options), writer);
    writer.add("params", params);
    groups.push_back(writer.dict.finish());
  }
  return groups;
}

template <class D>
PickleDict saved_state(const Optimizer& optimizer, const std::function<bool(std::size_t)>& keeps,
                       const TensorForFile& for_file, std::optional<PickleDict> old) {
  RefilledDict result(std::move(old), make_int_dict);
  if (!keeps) result.reserve(optimizer.state().size());
  std::int64_t index = -1;
  Writer writer{for_file};
  for (const auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) {
      ++index;
      if (keeps && !keeps(static_cast<std::size_t>(index))) continue;
      const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (found == optimizer.state().end()) continue;  // the parameter had no gradient yet
      writer.dict = RefilledDict(result.old_dict(index), make_string_dict);
      D::visit_state(static_cast<typename D::State&>(*found->second), writer);
      if (PickleDict dict = writer.dict.finish(); !dict.empty()) result.add(index, std::move(dict));
    }
  return result.finish();
}

template <class D>
void load_groups(Optimizer& optimizer, const SavedValue& saved) {
  const auto groups = saved.at("param_groups").list();
  auto& own = optimizer.param_groups();
  if (groups.size() != own.size())
    refuse_restore(saved.file, "it has ", groups.size(), " parameter groups, this optimizer has ",
                   own.size());
  for (std::size_t g = 0; g < own.size(); ++g) {
    const SavedValue group{groups[g], saved.file};
    const std::size_t params = group.at("params").list().size();
    if (params != own[g].params().size())
      refuse_restore(saved.file, "group ", g, " has ", params, " parameters, this optimizer's has ",
                     own[g].params().size());
    D::visit_options(static_cast<typename D::Options&>(own[g].options()), Reader{group, {}});
  }
}

// Returns null if the state is not sharded over the ranks.
const detail::ZeroShards* shards_of(const Optimizer& optimizer) {
  const auto* sharded = dynamic_cast<const detail::ShardedOptimizer*>(&optimizer);
  return sharded ? &sharded->shards() : nullptr;
}

// Returns whether this rank keeps the state of a parameter.
bool is_own(const detail::ZeroShards* shards, std::size_t index) {
  return !shards || shards->owner_of(index) == shards->group().rank();
}

template <class D>
void load_states(Optimizer& optimizer, const SavedValue& saved) {
  const PickleDict states = saved.at("state").dict();
  const auto* shards = shards_of(optimizer);
  std::int64_t index = -1;
  std::int64_t all_elements = 0;
  for (const auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) all_elements += parameter.numel();
  Reader reader{{{}, saved.file, "state"}, {}, all_elements};
  for (auto& group : optimizer.param_groups())
    for (const torch::Tensor& parameter : group.params()) {
      void* key = parameter.unsafeGetTensorImpl();
      optimizer.state().erase(key);
      const auto found = states.find(++index);
      if (found == states.end() || !is_own(shards, static_cast<std::size_t>(index))) continue;
      auto state = std::make_unique<typename D::State>();
      reader.saved.value = found->value();
      reader.parameter = parameter;
      D::visit_state(*state, reader);
      if constexpr (std::is_same_v<D, Lbfgs>)
        D::expect_whole(*state, static_cast<const typename D::Options&>(group.options()),
                        saved.file);
      optimizer.state()[key] = std::move(state);
    }
}

}  // namespace

std::string optimizer_class(const Optimizer& optimizer) {
  return with_description(
      optimizer, [](auto description) { return std::string(decltype(description)::kName); });
}

PickleDict optimizer_state(const Optimizer& optimizer,
                           const std::function<bool(std::size_t)>& keeps,
                           const TensorForFile& for_file, std::optional<PickleDict> old) {
  return with_description(optimizer, [&](auto description) {
    using D = decltype(description);
    PickleDict dict = make_string_dict();
    dict.insert("state", saved_state<D>(optimizer, keeps, for_file, std::move(old)));
    dict.insert("param_groups", saved_groups<D>(optimizer, for_file));
    return dict;
  });
}

bool is_sharded(const Optimizer& optimizer) { return shards_of(optimizer) != nullptr; }

bool has_shard(const Optimizer& optimizer, int world_rank) {
  const auto* shards = shards_of(optimizer);
  if (!shards) return true;
  const std::vector<int>& ranks = shards->group().world_ranks();
  return ranks.empty() || std::ranges::find(ranks, world_rank) != ranks.end();
}

std::vector<bool> keeps_states(const Optimizer& optimizer) {
  std::vector<bool> keeps;
  const auto* shards = shards_of(optimizer);
  for (const auto& group : optimizer.param_groups())
    for (std::size_t i = 0; i < group.params().size(); ++i)
      keeps.push_back(is_own(shards, keeps.size()));
  return keeps;
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
    load_groups<D>(optimizer, {state, file});
    load_states<D>(optimizer, {state, file});
  });
}

}  // namespace ddprun
