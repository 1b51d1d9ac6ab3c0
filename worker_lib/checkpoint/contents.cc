#include "worker_lib/checkpoint/contents.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <type_traits>
#include <utility>

#include "base/parse_number.h"
#include "worker_lib/checkpoint/rank_state.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/serialization/optimizer_state.h"
#include "worker_lib/util/error_bridge.h"
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
void expect_same(const c10::IValue& top, const char* key, const std::string& own, const char* noun,
                 const std::string& file) {
  const std::string saved = as_text(entry_of(top, key, file), key, file);
  if (saved != own)
    refuse("restore " + file + ": it holds the state of " + saved + ", this " + noun + " is " +
           own);
}

void expect_same_data(const c10::IValue& top, const std::string& own, const std::string& file) {
  const auto data = find_entry(top, "data");  // files of earlier versions have no such entry
  if (!data || own.empty()) return;
  const std::string saved = as_text(*data, "data", file);
  if (!saved.empty() && saved != own)
    refuse("restore " + file + ": it was trained on the data '" + saved + "', but this run uses '" +
           own + "'");
}

void fill_generators(const c10::IValue& top, const std::string& file, const ProcessGroup& group,
                     std::vector<std::string>& remarks) {
  const std::vector<c10::IValue> rng = as_list(entry_of(top, "rng", file), "rng", file);
  if (rng.empty()) refuse("restore " + file + ": it has no random generators");
  for (const RankGenerator& own : generators_of(group)) {
    std::vector<torch::Tensor> saved;
    for (const c10::IValue& of_rank : rng)
      if (const auto state_there = find_entry(of_rank, own.key))
        saved.push_back(as_tensor(*state_there, own.key, file));
    if (saved.empty()) {  // ranks without a GPU saved it
      remarks.push_back(file + " has no " + own.key + " generators: those stay as they are");
      continue;
    }
    set_state_of(own.generator, generator_of_rank(saved, static_cast<std::size_t>(group.rank())));
  }
}

// Fills a communication hook. It is not an error if only one side has one: compression may begin
// or end in the middle of a training.
void fill_hook(TrainingState& state, const c10::IValue& top, const RankView& view,
               const std::string& file, std::vector<std::string>& remarks) {
  const auto saved = find_entry(top, "comm_hook");
  const std::string saved_name = saved ? as_text(entry_of(*saved, "name", file), "name", file) : "";
  if (!saved && state.hook)
    remarks.push_back(file + " has no state of a communication hook: '" + state.hook->name() +
                      "' starts without state");
  if (saved && !state.hook)
    remarks.push_back(file + " has the state of the communication hook '" + saved_name +
                      "', which is not restored");
  if (!saved || !state.hook) return;
  expect_same(*saved, "name", state.hook->name(), "communication hook", file);
  if (!state.model) refuse("restore " + file + ": a hook's state needs TrainingState::model");
  HookState own{.values = to_json(entry_of(*saved, "values", file), file), .tensors = {}};
  const auto of_rank_0 = as_dict(entry_of(*saved, "tensors", file), "tensors", file);
  for (const auto& entry : view.averaged_section("comm_hook", of_rank_0))
    own.tensors.emplace(as_text(entry.key(), "comm_hook", file),
                        as_tensor(entry.value(), "comm_hook", file));
  with_dist_errors("restore " + file, [&] { state.hook->load_state(own, *state.model); });
}

void fill_averager(TrainingState& state, const c10::IValue& top, const std::string& file,
                   std::vector<std::string>& remarks) {
  if (!state.averager) return;
  if (const auto saved = find_entry(top, "averager"))
    with_dist_errors("restore " + file, [&] { state.averager->load_state(to_json(*saved, file)); });
  else
    remarks.push_back(file + " has no state of a PeriodicModelAverager: it starts without state");
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

// For shards 1, 2 ... this is all.
PickleDict tensors_of_share(const TrainingState& state, const ShardAssignment* share) {
  PickleDict top = make_string_dict();
  if (state.model)
    top.insert("model", module_state(*state.model, [&](const std::string& name) {
                 return !share || share->has_tensor(name);
               }));
  if (state.optimizer)
    top.insert("optimizer", optimizer_state(*state.optimizer, [&](std::size_t index) {
                 return !share || share->has_optimizer_state(index);
               }));
  return top;
}

// Adds the named objects of TrainingState, by name. With shards all of them are in shard 0.
void add_named_parts(PickleDict& top, const TrainingState& state, const CheckpointFacts& facts) {
  PickleDict models = make_string_dict(), optimizers = make_string_dict(),
             classes = make_string_dict(), schedules = make_string_dict(),
             schedule_classes = make_string_dict();
  for (const auto& [name, model] : state.models) models.insert(name, module_state(*model));
  for (const auto& [name, optimizer] : state.optimizers) {
    PickleDict its_state = optimizer_state(*optimizer);
    if (const auto all = facts.named_optimizer_states.find(name);
        all != facts.named_optimizer_states.end())
      its_state.insert_or_assign("state", all->second);
    optimizers.insert(name, its_state);
    classes.insert(name, optimizer_class(*optimizer));
  }
  for (const auto& [name, scheduler] : state.schedulers) {
    schedules.insert(name, from_json(scheduler->state()));
    schedule_classes.insert(name, scheduler->class_name());
  }
  for (const auto& [key, parts] : {std::pair<const char*, PickleDict>{"models", models},
                                   {"optimizers", optimizers},
                                   {"optimizer_classes", classes},
                                   {"lr_schedulers", schedules},
                                   {"lr_scheduler_classes", schedule_classes},
                                   {"tensors", tensors_for_file(state.tensors)}})
    if (!parts.empty()) top.insert(key, parts);
}

PickleDict whole_contents(const TrainingState& state, const CheckpointFacts& facts,
                          const ShardAssignment* share) {
  PickleDict top = tensors_of_share(state, share);
  if (state.optimizer) {
    PickleDict optimizer = top.at("optimizer").toGenericDict();
    if (facts.optimizer_states) optimizer.insert_or_assign("state", *facts.optimizer_states);
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
  return top;
}

template <class Part>
void expect_sound(const char* list, const std::map<std::string, Part>& parts) {
  for (const auto& [name, part] : parts) {
    const std::string text = std::string("TrainingState::") + list + ": ";
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
  for (const auto& [name, model] : state.models) hash += " " + name + " " + model_hash(*model);
  return state.models.empty() ? hash : sha256_hex(hash).substr(0, 16);
}

PickleDict contents_of(const TrainingState& state, const CheckpointFacts& facts) {
  return whole_contents(state, facts, nullptr);
}

PickleDict shard_of(const TrainingState& state, const CheckpointFacts& facts,
                    const ShardAssignment& share, const PickleDict& own) {
  PickleDict top =
      share.rank() == 0 ? whole_contents(state, facts, &share) : tensors_of_share(state, &share);
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

PickleDict list_in(const c10::IValue& top, const char* key, const std::string& file) {
  const auto found = find_entry(top, key);
  return found ? as_dict(*found, key, file) : make_string_dict();
}

// Compares the names of one list of TrainingState with the file's. Names that only the file has
// are refused, or added to `extra`.
template <class Part>
void expect_same_names(const c10::IValue& top, const char* key,
                       const std::map<std::string, Part>& own, const std::string& file,
                       std::string* extra) {
  const PickleDict saved = list_in(top, key, file);
  std::string missing, unexpected;
  for (const auto& [name, part] : own)
    if (!saved.contains(name)) missing += " '" + name + "'";
  for (const auto& entry : saved)
    if (const std::string name = as_text(entry.key(), key, file); !own.contains(name))
      unexpected += " '" + name + "'";
  if (extra && !unexpected.empty())
    *extra += (extra->empty() ? "" : ", ") + std::string(key) + std::exchange(unexpected, "");
  if (!missing.empty() || !unexpected.empty())
    refuse("restore " + file + ": of '" + key + "'" +
           (missing.empty() ? "" : " it has no" + missing) +
           (!missing.empty() && !unexpected.empty() ? ", and" : "") +
           (unexpected.empty() ? ""
                               : " this training has no" + unexpected +
                                     " (to restore some of the names, set "
                                     "CheckpointOptions::read_only)"));
}

// Refuses the state of another training, as far as names and classes show it.
void expect_fitting(const TrainingState& state, const c10::IValue& top, const std::string& file,
                    ExtraNames extra, std::vector<std::string>& remarks) {
  if (state.optimizer)
    expect_same(top, "optimizer_class", optimizer_class(*state.optimizer), "optimizer", file);
  if (state.scheduler)
    expect_same(top, "lr_scheduler_class", state.scheduler->class_name(), "schedule", file);
  for (const auto& [key, is_needed] : {std::pair<const char*, bool>{"model", state.model},
                                       {"optimizer", state.optimizer},
                                       {"lr_scheduler", state.scheduler},
                                       {"sampler", state.sampler}})
    if (is_needed) (void)entry_of(top, key, file);
  std::string only_in_file;
  std::string* const list = extra == ExtraNames::kRemark ? &only_in_file : nullptr;
  expect_same_names(top, "models", state.models, file, list);
  expect_same_names(top, "optimizers", state.optimizers, file, list);
  expect_same_names(top, "lr_schedulers", state.schedulers, file, list);
  expect_same_names(top, "tensors", state.tensors, file, list);
  if (!only_in_file.empty())
    remarks.push_back(file + " also holds " + only_in_file + ", which are not restored");
  const PickleDict classes = list_in(top, "optimizer_classes", file);
  for (const auto& [name, optimizer] : state.optimizers)
    expect_same(classes, name.c_str(), optimizer_class(*optimizer), "optimizer", file);
  const PickleDict schedule_classes = list_in(top, "lr_scheduler_classes", file);
  for (const auto& [name, scheduler] : state.schedulers)
    expect_same(schedule_classes, name.c_str(), scheduler->class_name(), "schedule", file);
  expect_same_data(top, state.data, file);
}

void fill_named_tensors(TrainingState& state, const c10::IValue& top, const RankView& view,
                        const std::string& file) {
  const PickleDict tensors = view.section("tensors", list_in(top, "tensors", file));
  const torch::NoGradGuard no_grad;
  for (auto& [name, own] : state.tensors) {
    const torch::Tensor saved = as_tensor(entry_of(tensors, name, file), name, file);
    if (!own.defined()) {
      own = saved.clone();
      continue;
    }
    if (saved.sizes() != own.sizes() || saved.dtype() != own.dtype())
      refuse("restore " + file + ": the tensor '" + name + "' is " + dtype_and_shape(saved) +
             " in the file, " + dtype_and_shape(own) + " in this training");
    own.copy_(saved);
  }
}

void fill_named_parts(TrainingState& state, const c10::IValue& top, const RankView& view,
                      const std::string& file) {
  const PickleDict models = list_in(top, "models", file);
  const PickleDict optimizers = list_in(top, "optimizers", file);
  const PickleDict schedules = list_in(top, "lr_schedulers", file);
  PickleDict of_models = make_string_dict(), of_optimizers = make_string_dict();
  for (const auto& [name, model] : state.models)
    add_named(of_models, name, as_dict(models.at(name), name, file));
  for (const auto& [name, optimizer] : state.optimizers)
    add_named(of_optimizers, name,
              as_dict(entry_of(optimizers.at(name), "state", file), "state", file));
  of_models = view.section("models", of_models);
  of_optimizers = view.section("optimizers", of_optimizers);
  for (const auto& [name, model] : state.models)
    load_module_state(*model, part_named(of_models, name), file + ", model '" + name + "'");
  for (const auto& [name, optimizer] : state.optimizers) {
    PickleDict by_index = make_int_dict();
    for (const auto& entry : part_named(of_optimizers, name))
      if (const auto index = parse_number<std::int64_t>(entry.key().toStringRef()))
        by_index.insert(*index, entry.value());
    PickleDict its_state = as_dict(optimizers.at(name), name, file).copy();
    its_state.insert_or_assign("state", by_index);
    load_optimizer_state(*optimizer, its_state, file + ", optimizer '" + name + "'");
  }
  for (const auto& [name, scheduler] : state.schedulers)
    scheduler->load_state(to_json(schedules.at(name), file));
  fill_named_tensors(state, top, view, file);
}

void fill_gradients(TrainingState& state, const c10::IValue& top, const RankView& view,
                    const std::string& file) {
  const auto saved = find_entry(top, "gradients");
  state.gradients = saved.has_value();
  if (!saved) return;
  const PickleDict gradients =
      view.averaged_section("gradients", as_dict(*saved, "gradients", file));
  if (state.model) load_gradients(*state.model, gradients, file);
  for (const auto& [name, model] : state.models)
    load_gradients(*model, part_named(gradients, name), file);
}

void remark_on_threads(const c10::IValue& top, const std::string& file,
                       std::vector<std::string>& remarks) {
  if (const auto threads = find_entry(top, "threads");
      threads && as_integer(*threads, "threads", file) != torch::get_num_threads())
    remarks.push_back(file + " was saved by workers of " + std::to_string(threads->toInt()) +
                      " threads, these have " + std::to_string(torch::get_num_threads()) +
                      ": sums may be rounded otherwise");
}

// REQUIRES: the sampler's state is loaded.
void remark_on_batches(const TrainingState& state, const c10::IValue& top, const std::string& file,
                       std::vector<std::string>& remarks) {
  const auto remark = [&](std::uint64_t saved, std::uint64_t own, const char* where) {
    if (saved == 0 || own == 0 || saved == own) return;
    remarks.push_back(file + " was saved with batches of " + std::to_string(saved) + " samples" +
                      where + ", these have " + std::to_string(own) +
                      ": steps and learning rates that depend on the batch have another meaning");
  };
  const auto batch = find_entry(top, "batch_size");
  if (batch && state.batch_size > 0)
    return remark(static_cast<std::uint64_t>(as_integer(*batch, "batch_size", file)),
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
  remark(over_all_ranks(to_json(entry_of(top, "sampler", file), file)),
         over_all_ranks(state.sampler->state()), " over all ranks");
}

}  // namespace

void fill(TrainingState& state, const c10::IValue& top, const std::string& file,
          const ProcessGroup& group, ExtraNames extra, std::vector<std::string>& remarks) {
  expect_fitting(state, top, file, extra, remarks);
  remark_on_threads(top, file, remarks);
  const RankView view(top, group.rank(), group.size(), file);
  if (view.has_own() && !view.is_same_world())
    remarks.push_back(file +
                      " has a state of its own for each rank: here all ranks take rank 0's buffers "
                      "and parameters, and the average of gradients and hook states");
  if (state.model) {
    const PickleDict model = as_dict(entry_of(top, "model", file), "model", file);
    load_module_state(*state.model, view.section("model", model), file);
  }
  if (state.optimizer) {
    PickleDict optimizer = as_dict(entry_of(top, "optimizer", file), "optimizer", file).copy();
    const auto of_rank_0 = as_dict(entry_of(optimizer, "state", file), "state", file);
    optimizer.insert_or_assign("state", view.section("optimizer", of_rank_0));
    load_optimizer_state(*state.optimizer, optimizer, file);
  }
  if (state.scheduler)
    state.scheduler->load_state(to_json(entry_of(top, "lr_scheduler", file), file));
  if (state.sampler) state.sampler->load_state(to_json(entry_of(top, "sampler", file), file));
  remark_on_batches(state, top, file, remarks);
  fill_named_parts(state, top, view, file);
  fill_hook(state, top, view, file, remarks);
  fill_averager(state, top, file, remarks);
  fill_gradients(state, top, view, file);
  state.epoch = as_integer(entry_of(top, "epoch", file), "epoch", file);
  state.extra = to_json(entry_of(top, "extra", file), file);
  fill_generators(top, file, group, remarks);
}

}  // namespace ddprun
