#include "worker_lib/checkpoint/contents.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <type_traits>
#include <utility>

#include "base/concat.h"
#include "base/parse_number.h"
#include "worker_lib/checkpoint/rank_state.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/serialization/optimizer_state.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

void set_state_of(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

PickleDict to_dict(const HookState& state, const std::string& name) {
  PickleDict dict = make_string_dict();
  dict.insert("name", name);
  dict.insert("values", from_json(state.values));
  dict.insert("tensors", tensors_for_file(state.tensors));
  return dict;
}

// Throws if the file's entry differs from this run's text.
void expect_same(const SavedValue& top, const std::string& key, const std::string& own,
                 const char* noun) {
  const std::string saved = top.at(key).text();
  if (saved != own) top.refuse("it holds the state of ", saved, ", this ", noun, " is ", own);
}

void expect_same_data(const SavedValue& top, const std::string& own) {
  const auto data = top.find("data");  // files of earlier versions have no such entry
  if (!data || own.empty()) return;
  const std::string saved = data->text();
  if (!saved.empty() && saved != own)
    top.refuse("it was trained on the data '", saved, "', but this run uses '", own, "'");
}

void fill_generators(const SavedValue& top, const ProcessGroup& group,
                     std::vector<std::string>& remarks) {
  const std::vector<c10::IValue> rng = top.at("rng").list();
  if (rng.empty()) top.refuse("it has no random generators");
  for (const RankGenerator& own : generators_of(group)) {
    std::vector<torch::Tensor> saved;
    for (const c10::IValue& of_rank : rng)
      if (const auto state_there = SavedValue{of_rank, top.file}.find(own.key))
        saved.push_back(state_there->tensor());
    if (saved.empty()) {  // ranks without a GPU saved it
      remarks.push_back(
          concat(top.file, " has no ", own.key, " generators: those stay as they are"));
      continue;
    }
    set_state_of(own.generator, generator_of_rank(saved, static_cast<std::size_t>(group.rank())));
  }
}

// Fills a communication hook. It is not an error if only one side has one: compression may begin
// or end in the middle of a training.
void fill_hook(TrainingState& state, const SavedValue& top, const RankView& view,
               std::vector<std::string>& remarks) {
  const auto saved = top.find("comm_hook");
  const std::string saved_name = saved ? saved->at("name").text() : "";
  if (!saved && state.hook)
    remarks.push_back(concat(top.file, " has no state of a communication hook: '",
                             state.hook->name(), "' starts without state"));
  if (saved && !state.hook)
    remarks.push_back(concat(top.file, " has the state of the communication hook '", saved_name,
                             "', which is not restored"));
  if (!saved || !state.hook) return;
  expect_same(*saved, "name", state.hook->name(), "communication hook");
  if (!state.model) top.refuse("a hook's state needs TrainingState::model");
  HookState own{.values = saved->at("values").json(), .tensors = {}};
  for (const auto& entry : view.averaged_section("comm_hook", saved->at("tensors").dict()))
    own.tensors.emplace(SavedValue{entry.key(), top.file, "comm_hook"}.text(),
                        SavedValue{entry.value(), top.file, "comm_hook"}.tensor());
  with_dist_errors("restore " + top.file, [&] { state.hook->load_state(own, *state.model); });
}

void fill_averager(TrainingState& state, const SavedValue& top, std::vector<std::string>& remarks) {
  if (!state.averager) return;
  if (const auto saved = top.find("averager"))
    with_dist_errors("restore " + top.file, [&] { state.averager->load_state(saved->json()); });
  else
    remarks.push_back(top.file +
                      " has no state of a PeriodicModelAverager: it starts without state");
}

}  // namespace

torch::Tensor state_of(at::Generator generator) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  return generator.get_state();
}

std::vector<RankGenerator> generators_of(const ProcessGroup& group) {
  std::vector<RankGenerator> result{{"cpu", at::detail::getDefaultCPUGenerator()}};
  if (group.device().is_cuda())
    result.push_back({"cuda", at::globalContext().defaultGenerator(group.device())});
  return result;
}

namespace {

// For shards 1, 2 ... this is all. share: null for everything.
PickleDict tensors_of_share(const TrainingState& state, const ShardAssignment* share,
                            const TensorForFile& for_file = tensor_for_file,
                            StateSnapshot::Dicts old = {}) {
  PickleDict top = make_string_dict();
  std::function<bool(const std::string&)> keeps_tensor;
  std::function<bool(std::size_t)> keeps_state;
  if (share) {
    keeps_tensor = [share](const std::string& name) { return share->has_tensor(name); };
    keeps_state = [share](std::size_t index) { return share->has_optimizer_state(index); };
  }
  if (state.model)
    top.insert("model", module_state(*state.model, keeps_tensor, for_file, std::move(old.model)));
  if (state.optimizer)
    top.insert("optimizer",  // a sharded one's state is replaced by that of all ranks
               optimizer_state(*state.optimizer, keeps_state,
                               is_sharded(*state.optimizer) ? tensor_for_file : for_file,
                               std::move(old.optimizer_states)));
  return top;
}

// Adds the named objects of TrainingState, by name. With shards all of them are in shard 0.
void add_named_parts(PickleDict& top, const TrainingState& state, const CheckpointFacts& facts) {
  const auto add = [&top](const char* key, const auto& parts, const auto& saved) {
    PickleDict dict = make_string_dict();
    for (const auto& [name, part] : parts) dict.insert(name, saved(name, *part));
    if (!dict.empty()) top.insert(key, dict);
  };
  add("models", state.models, [](auto&, auto& model) { return module_state(model); });
  add("optimizers", state.optimizers, [&](auto& name, auto& optimizer) {
    PickleDict its_state = optimizer_state(optimizer);
    if (const auto all = facts.named_optimizer_states.find(name);
        all != facts.named_optimizer_states.end())
      its_state.insert_or_assign("state", all->second);
    return its_state;
  });
  add("optimizer_classes", state.optimizers,
      [](auto&, auto& optimizer) { return optimizer_class(optimizer); });
  add("lr_schedulers", state.schedulers,
      [](auto&, auto& scheduler) { return from_json(scheduler.state()); });
  add("lr_scheduler_classes", state.schedulers,
      [](auto&, auto& scheduler) { return scheduler.class_name(); });
  const PickleDict tensors = tensors_for_file(state.tensors);
  if (!tensors.empty()) top.insert("tensors", tensors);
}

template <class Part>
void expect_sound(const char* list, const std::map<std::string, Part>& parts) {
  for (const auto& [name, part] : parts) {
    const std::string text = concat("TrainingState::", list, ": ");
    if (name.empty()) refuse(text + "a name is empty");
    if (name.find('/') != std::string::npos) refuse(text + "the name '" + name + "' holds a '/'");
    if constexpr (std::is_pointer_v<Part>)
      if (!part) refuse(text + "'" + name + "' is null");
  }
}

}  // namespace

void expect_sound_names(const TrainingState& state) {
  expect_sound("models", state.models);
  expect_sound("optimizers", state.optimizers);
  expect_sound("schedulers", state.schedulers);
  expect_sound("tensors", state.tensors);
}

std::string hash_of_models(const TrainingState& state) {
  std::string hash = state.model ? model_hash(*state.model) : "";
  for (const auto& [name, model] : state.models) hash += concat(" ", name, " ", model_hash(*model));
  return state.models.empty() ? hash : sha256_hex(hash).substr(0, 16);
}

std::string hash_of_models(const PickleDict& contents) {
  const auto model = contents.find("model"), models = contents.find("models");
  std::string hash = model == contents.end() ? "" : model_hash(model->value().toGenericDict());
  if (models == contents.end()) return hash;
  for (const auto& entry : models->value().toGenericDict())
    hash += concat(" ", entry.key().toStringRef(), " ", model_hash(entry.value().toGenericDict()));
  return sha256_hex(hash).substr(0, 16);
}

PickleDict contents_of(const TrainingState& state, const CheckpointFacts& facts,
                       const ShardAssignment* share, StateSnapshot* snapshot) {
  TensorForFile for_file = tensor_for_file;
  if (snapshot) {
    snapshot->begin();
    for_file = [snapshot](const torch::Tensor& tensor) {
      return snapshot->tensor_for_file(tensor);
    };
  }
  PickleDict top = tensors_of_share(state, share, for_file,
                                    snapshot ? snapshot->take_dicts() : StateSnapshot::Dicts());
  const std::size_t copied = top.size();  // entries
  if (state.optimizer) {
    PickleDict optimizer = top.at("optimizer").toGenericDict();
    if (facts.optimizer_states) optimizer.insert_or_assign("state", *facts.optimizer_states);
    if (snapshot && is_sharded(*state.optimizer)) snapshot->copy(optimizer);
    top.insert("optimizer_class", optimizer_class(*state.optimizer));
  }
  if (state.scheduler) {
    top.insert("lr_scheduler", from_json(state.scheduler->state()));
    top.insert("lr_scheduler_class", state.scheduler->class_name());
  }
  if (state.sampler) top.insert("sampler", from_json(state.sampler->state()));
  top.insert("epoch", state.epoch);
  top.insert("step", facts.step);
  auto rng = make_list();
  for (const PickleDict& of_rank : facts.generators) rng.push_back(of_rank);
  top.insert("rng", rng);
  top.insert("extra", from_json(state.extra));
  top.insert("world_size", facts.world_size);
  top.insert("generation", facts.generation);
  top.insert("threads", torch::get_num_threads());
  top.insert("data", state.data);
  if (state.hook) {
    if (!state.model) refuse("save a checkpoint: a hook's state needs TrainingState::model");
    top.insert("comm_hook", to_dict(state.hook->state(*state.model), state.hook->name()));
  }
  if (state.averager) top.insert("averager", from_json(state.averager->state()));
  if ((state.model || !state.models.empty()) && state.gradients)
    top.insert("gradients", gradients_of(state));
  add_named_parts(top, state, facts);
  if (state.batch_size > 0) top.insert("batch_size", state.batch_size);
  if (!facts.of_ranks.empty()) {
    auto ranks = make_list();
    for (const c10::IValue& of_rank : facts.of_ranks) ranks.push_back(of_rank);
    top.insert("ranks", ranks);
  }
  if (snapshot) {
    std::size_t entries = 0;
    for (const auto& entry : top)
      if (entries++ >= copied) entry.setValue(snapshot->copy(entry.value()));
    snapshot->end();
  }
  return top;
}

PickleDict shard_of(const TrainingState& state, const CheckpointFacts& facts,
                    const ShardAssignment& share, const PickleDict& own) {
  PickleDict top =
      share.rank() == 0 ? contents_of(state, facts, &share) : tensors_of_share(state, &share);
  top.insert("shard", share.rank());
  top.insert("shards", share.world_size());
  top.insert("rank", own);
  if (share.rank() == 0 && state.model) {
    auto names = make_list();
    for (const auto& [name, tensor] : tensors_of(*state.model)) names.push_back(name);
    top.insert("model_names", names);
  }
  return top;
}

namespace {

// Returns a dict of named objects; empty if the file lacks it.
SavedValue named_in(const SavedValue& top, const char* key) {
  const auto found = top.find(key);
  return {found ? found->dict() : make_string_dict(), top.file, key};
}

// Compares the names of one list of TrainingState with the file's. Names that only the file has
// are refused, or added to `extra`.
template <class Part>
void expect_same_names(const SavedValue& top, const char* key,
                       const std::map<std::string, Part>& own, std::string* extra) {
  const PickleDict saved = named_in(top, key).dict();
  std::string missing, unexpected;
  for (const auto& [name, part] : own)
    if (!saved.contains(name)) missing += " '" + name + "'";
  for (const auto& entry : saved)
    if (const std::string name = SavedValue{entry.key(), top.file, key}.text(); !own.contains(name))
      unexpected += " '" + name + "'";
  if (extra && !unexpected.empty())
    *extra += concat(extra->empty() ? "" : ", ", key, std::exchange(unexpected, ""));
  if (!missing.empty() || !unexpected.empty())
    top.refuse("of '", key, "'", missing.empty() ? "" : " it has no" + missing,
               !missing.empty() && !unexpected.empty() ? ", and" : "",
               unexpected.empty() ? ""
                                  : " this training has no" + unexpected +
                                        " (to restore some of the names, set "
                                        "CheckpointOptions::read_only)");
}

// Refuses the state of another training, as far as names and classes show it.
void expect_fitting(const TrainingState& state, const SavedValue& top, ExtraNames extra,
                    std::vector<std::string>& remarks) {
  if (state.optimizer)
    expect_same(top, "optimizer_class", optimizer_class(*state.optimizer), "optimizer");
  if (state.scheduler)
    expect_same(top, "lr_scheduler_class", state.scheduler->class_name(), "schedule");
  for (const auto& [key, is_needed] : {std::pair<const char*, bool>{"model", state.model},
                                       {"optimizer", state.optimizer},
                                       {"lr_scheduler", state.scheduler},
                                       {"sampler", state.sampler}})
    if (is_needed) (void)top.at(key);
  std::string only_in_file;
  std::string* const list = extra == ExtraNames::kRemark ? &only_in_file : nullptr;
  expect_same_names(top, "models", state.models, list);
  expect_same_names(top, "optimizers", state.optimizers, list);
  expect_same_names(top, "lr_schedulers", state.schedulers, list);
  expect_same_names(top, "tensors", state.tensors, list);
  if (!only_in_file.empty())
    remarks.push_back(concat(top.file, " also holds ", only_in_file, ", which are not restored"));
  const SavedValue classes = named_in(top, "optimizer_classes");
  for (const auto& [name, optimizer] : state.optimizers)
    expect_same(classes, name, optimizer_class(*optimizer), "optimizer");
  const SavedValue schedule_classes = named_in(top, "lr_scheduler_classes");
  for (const auto& [name, scheduler] : state.schedulers)
    expect_same(schedule_classes, name, scheduler->class_name(), "schedule");
  expect_same_data(top, state.data);
}

void fill_named_tensors(TrainingState& state, const SavedValue& top, const RankView& view) {
  const SavedValue tensors{view.section("tensors", named_in(top, "tensors").dict()), top.file};
  const torch::NoGradGuard no_grad;
  for (auto& [name, own] : state.tensors) {
    const torch::Tensor saved = tensors.at(name).tensor();
    if (!own.defined()) {
      own = saved.clone();
      continue;
    }
    if (saved.sizes() != own.sizes() || saved.dtype() != own.dtype())
      top.refuse("the tensor '", name, "' is ", dtype_and_shape(saved), " in the file, ",
                 dtype_and_shape(own), " in this training");
    copy_unless_same(own, saved);
  }
}

// Returns the sections of the named models, as this rank sees them.
PickleDict named_models(const TrainingState& state, const SavedValue& top, const RankView& view) {
  const SavedValue models = named_in(top, "models");
  PickleDict result = make_string_dict();
  for (const auto& [name, model] : state.models)
    add_named(result, name, models.at(name).dict(), top.file);
  return view.section("models", result);
}

void fill_named_parts(TrainingState& state, const SavedValue& top, const RankView& view) {
  const SavedValue optimizers = named_in(top, "optimizers"),
                   schedules = named_in(top, "lr_schedulers");
  const PickleDict of_models = named_models(state, top, view);
  PickleDict of_optimizers = make_string_dict();
  for (const auto& [name, optimizer] : state.optimizers)
    add_named(of_optimizers, name, optimizers.at(name).at("state").dict(), top.file);
  of_optimizers = view.section("optimizers", of_optimizers);
  for (const auto& [name, model] : state.models)
    load_module_state(*model, part_named(of_models, name, top.file),
                      concat(top.file, ", model '", name, "'"));
  for (const auto& [name, optimizer] : state.optimizers) {
    PickleDict by_index = make_int_dict();
    const std::size_t parameters = keeps_states(*optimizer).size();
    for (const auto& entry : part_named(of_optimizers, name, top.file)) {
      const auto index = parse_number<std::int64_t>(entry.key().toStringRef());
      // Others could have one place in the hash table, see expect_places().
      if (index && *index >= 0 && std::cmp_less(*index, parameters))
        by_index.insert(*index, entry.value());
    }
    PickleDict its_state = optimizers.at(name).dict().copy();
    its_state.insert_or_assign("state", by_index);
    load_optimizer_state(*optimizer, its_state, concat(top.file, ", optimizer '", name, "'"));
  }
  for (const auto& [name, scheduler] : state.schedulers)
    scheduler->load_state(schedules.at(name).json());
  fill_named_tensors(state, top, view);
}

void fill_gradients(TrainingState& state, const SavedValue& top, const RankView& view) {
  const auto saved = top.find("gradients");
  state.gradients = saved.has_value();
  if (!saved) return;
  const PickleDict gradients = view.averaged_section("gradients", saved->dict());
  if (state.model) load_gradients(*state.model, gradients, top.file);
  for (const auto& [name, model] : state.models)
    load_gradients(*model, part_named(gradients, name, top.file), top.file);
}

void remark_on_threads(const SavedValue& top, std::vector<std::string>& remarks) {
  if (const auto threads = top.find("threads");
      threads && threads->integer() != torch::get_num_threads())
    remarks.push_back(concat(top.file, " was saved by workers of ", threads->integer(),
                             " threads, these have ", torch::get_num_threads(),
                             ": sums may be rounded otherwise"));
}

// REQUIRES: the sampler's state is loaded.
void remark_on_batches(const TrainingState& state, const SavedValue& top,
                       std::vector<std::string>& remarks) {
  const auto remark = [&](std::uint64_t saved, std::uint64_t own, const char* where) {
    if (saved == 0 || own == 0 || saved == own) return;
    remarks.push_back(
        concat(top.file, " was saved with batches of ", saved, " samples", where, ", these have ",
               own, ": steps and learning rates that depend on the batch have another meaning"));
  };
  const auto batch = top.find("batch_size");
  if (batch && state.batch_size > 0)
    return remark(static_cast<std::uint64_t>(batch->integer()),
                  static_cast<std::uint64_t>(state.batch_size), "");
  if (!state.sampler) return;
  const auto over_all_ranks = [](const nlohmann::json& sampler) {
    const auto number = [&](const char* key) {
      const auto found = sampler.find(key);
      const bool is_there = found != sampler.end() && found->is_number_integer();
      return is_there ? found->get<std::uint64_t>() : std::uint64_t{0};
    };
    return number("batch_size") * number("world_size");
  };
  remark(over_all_ranks(top.at("sampler").json()), over_all_ranks(state.sampler->state()),
         " over all ranks");
}

// Refuses a file of ddprun-ckpt import for a training without a model: it has nothing else.
// Returns whether it is one.
bool is_of_weights(const TrainingState& state, const SavedValue& top) {
  if (!top.find("imported")) return false;
  if (!state.model || !state.models.empty())
    top.refuse("it has only the weights of one model, for TrainingState::model");
  return true;
}

void fill_weights(const TrainingState& state, const SavedValue& top,
                  std::vector<std::string>& remarks) {
  load_module_state(*state.model, top.at("model").dict(), top.file);
  remarks.push_back(concat(top.file, " has only the weights of ", top.at("imported").text(),
                           ": everything else starts as it is"));
}

}  // namespace

void expect_loadable(const TrainingState& state, const SavedValue& top, const ProcessGroup& group,
                     ExtraNames extra) {
  if (is_of_weights(state, top))
    return expect_module_state(*state.model, top.at("model").dict(), top.file);
  std::vector<std::string> remarks;
  expect_fitting(state, top, extra, remarks);
  const RankView view(top, group.rank(), group.size());
  if (state.model)
    expect_module_state(*state.model, view.section("model", top.at("model").dict()), top.file);
  const PickleDict of_models = named_models(state, top, view);
  for (const auto& [name, model] : state.models)
    expect_module_state(*model, part_named(of_models, name, top.file),
                        concat(top.file, ", model '", name, "'"));
}

void fill(TrainingState& state, const SavedValue& top, const ProcessGroup& group, ExtraNames extra,
          std::vector<std::string>& remarks) {
  if (is_of_weights(state, top)) return fill_weights(state, top, remarks);
  expect_fitting(state, top, extra, remarks);
  remark_on_threads(top, remarks);
  const RankView view(top, group.rank(), group.size());
  if (view.has_own() && !view.is_same_world())
    remarks.push_back(top.file +
                      " has a state of its own for each rank: here all ranks take rank 0's buffers "
                      "and parameters, and the average of gradients and hook states");
  if (state.model)
    load_module_state(*state.model, view.section("model", top.at("model").dict()), top.file);
  if (state.optimizer) {
    const SavedValue saved = top.at("optimizer");
    PickleDict optimizer = saved.dict().copy();
    optimizer.insert_or_assign("state", view.section("optimizer", saved.at("state").dict()));
    load_optimizer_state(*state.optimizer, optimizer, top.file);
  }
  if (state.scheduler) state.scheduler->load_state(top.at("lr_scheduler").json());
  if (state.sampler) state.sampler->load_state(top.at("sampler").json());
  remark_on_batches(state, top, remarks);
  fill_named_parts(state, top, view);
  fill_hook(state, top, view, remarks);
  fill_averager(state, top, remarks);
  fill_gradients(state, top, view);
  state.epoch = top.at("epoch").integer();
  state.extra = top.at("extra").json();
  fill_generators(top, group, remarks);
}

}  // namespace ddprun
