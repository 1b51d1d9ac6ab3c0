#include "worker_lib/checkpoint_contents.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "worker_lib/error_bridge.h"
#include "worker_lib/optimizer_state.h"
#include "worker_lib/rank_state.h"

namespace ddprun {
namespace {

void set_state_of(at::Generator generator, const torch::Tensor& state) {
  const std::lock_guard<std::mutex> lock(generator.mutex());
  generator.set_state(state);
}

PickleDict to_dict(const HookState& state, const std::string& name) {
  PickleDict dict = make_string_dict(), tensors = make_string_dict();
  for (const auto& [key, tensor] : state.tensors) tensors.insert(key, tensor_for_file(tensor));
  dict.insert("name", name);
  dict.insert("values", from_json(state.values));
  dict.insert("tensors", tensors);
  return dict;
}

// What a rank compares with its own; nothing where both say the same.
void expect_same(const c10::IValue& top, const char* key, const std::string& own, const char* noun,
                 const std::string& file) {
  const std::string saved = entry_of(top, key, file).toStringRef();
  if (saved != own)
    refuse("restore " + file + ": it holds the state of " + saved + ", this " + noun + " is " +
           own);
}

void expect_same_data(const c10::IValue& top, const std::string& own, const std::string& file) {
  const auto data = find_entry(top, "data");  // files of earlier versions have none
  if (!data || own.empty()) return;
  const std::string& saved = data->toStringRef();
  if (!saved.empty() && saved != own)
    refuse("restore " + file + ": it was trained on the data '" + saved + "', this run's is '" +
           own + "'");
}

void fill_generators(const c10::IValue& top, const std::string& file, const ProcessGroup& group,
                     std::vector<std::string>& remarks) {
  const c10::IValue rng = entry_of(top, "rng", file);
  if (rng.toListRef().empty()) refuse("restore " + file + ": it has no random generators");
  for (const RankGenerator& own : generators_of(group)) {
    std::vector<torch::Tensor> saved;
    for (const c10::IValue& of_rank : rng.toListRef())
      if (const auto state_there = find_entry(of_rank, own.key))
        saved.push_back(state_there->toTensor());
    if (saved.empty()) {  // saved by ranks without a GPU
      remarks.push_back(file + " has no " + own.key + " generators: those stay as they are");
      continue;
    }
    set_state_of(own.generator, generator_of_rank(saved, static_cast<std::size_t>(group.rank())));
  }
}

// Of a communication hook. That only one side has one is not an error: compression may begin, or
// end, in the middle of a training.
void fill_hook(TrainingState& state, const c10::IValue& top, const RankView& view,
               const std::string& file, std::vector<std::string>& remarks) {
  const auto saved = find_entry(top, "comm_hook");
  const std::string saved_name = saved ? entry_of(*saved, "name", file).toStringRef() : "";
  if (!saved && state.hook)
    remarks.push_back(file + " has no state of a communication hook: '" + state.hook->name() +
                      "' begins anew");
  if (saved && !state.hook)
    remarks.push_back(file + " has the state of the communication hook '" + saved_name +
                      "', which is not restored");
  if (!saved || !state.hook) return;
  expect_same(*saved, "name", state.hook->name(), "communication hook", file);
  if (!state.model) refuse("restore " + file + ": a hook's state needs TrainingState::model");
  HookState own{.values = to_json(entry_of(*saved, "values", file)), .tensors = {}};
  const auto of_rank_0 = entry_of(*saved, "tensors", file).toGenericDict();
  for (const auto& entry : view.averaged_section("comm_hook", of_rank_0))
    own.tensors.emplace(entry.key().toStringRef(), entry.value().toTensor());
  with_dist_errors("restore " + file, [&] { state.hook->load_state(own, *state.model); });
}

void fill_averager(TrainingState& state, const c10::IValue& top, const std::string& file,
                   std::vector<std::string>& remarks) {
  if (!state.averager) return;
  if (const auto saved = find_entry(top, "averager"))
    with_dist_errors("restore " + file, [&] { state.averager->load_state(to_json(*saved)); });
  else
    remarks.push_back(file + " has no state of a PeriodicModelAverager: it begins anew");
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

// Of shards 1, 2 ... that is all.
PickleDict tensors_of_share(const TrainingState& state, const CheckpointShare* share) {
  PickleDict top = make_string_dict();
  if (state.model)
    top.insert("model", share ? module_state(*state.model,
                                             [&](const std::string& name) {
                                               return share->has_tensor(name);
                                             })
                              : module_state(*state.model));
  if (state.optimizer)
    top.insert("optimizer", share ? optimizer_state(*state.optimizer,
                                                    [&](std::size_t index) {
                                                      return share->has_optimizer_state(index);
                                                    })
                                  : optimizer_state(*state.optimizer));
  return top;
}

PickleDict whole_contents(const TrainingState& state, const CheckpointFacts& facts,
                          const CheckpointShare* share) {
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
  if (state.model && state.gradients) top.insert("gradients", gradients_of(*state.model));
  if (!facts.of_ranks.empty()) {
    auto ranks = make_list();
    for (const c10::IValue& of_rank : facts.of_ranks) ranks.push_back(of_rank);
    top.insert("ranks", ranks);
  }
  return top;
}

}  // namespace

PickleDict contents_of(const TrainingState& state, const CheckpointFacts& facts) {
  return whole_contents(state, facts, nullptr);
}

PickleDict shard_of(const TrainingState& state, const CheckpointFacts& facts,
                    const CheckpointShare& share, const PickleDict& own) {
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

void fill(TrainingState& state, const c10::IValue& top, const std::string& file,
          const ProcessGroup& group, std::vector<std::string>& remarks) {
  if (state.optimizer)
    expect_same(top, "optimizer_class", optimizer_class(*state.optimizer), "optimizer", file);
  if (state.scheduler)
    expect_same(top, "lr_scheduler_class", state.scheduler->class_name(), "schedule", file);
  expect_same_data(top, state.data, file);
  if (const auto threads = find_entry(top, "threads");
      threads && threads->toInt() != torch::get_num_threads())
    remarks.push_back(file + " was saved by workers of " + std::to_string(threads->toInt()) +
                      " threads, these have " + std::to_string(torch::get_num_threads()) +
                      ": sums may be rounded otherwise");
  const RankView view(top, group.rank(), group.size(), file);
  if (view.has_own() && !view.is_same_world())
    remarks.push_back(file +
                      " has what each rank had of its own: here all take rank 0's buffers and "
                      "parameters, and of gradients and what a hook carries the average");
  if (state.model) {
    const auto model = entry_of(top, "model", file);
    load_module_state(*state.model, view.section("model", model.toGenericDict()), file);
  }
  if (state.optimizer) {
    PickleDict optimizer = entry_of(top, "optimizer", file).toGenericDict().copy();
    const auto of_rank_0 = entry_of(optimizer, "state", file).toGenericDict();
    optimizer.insert_or_assign("state", view.section("optimizer", of_rank_0));
    load_optimizer_state(*state.optimizer, optimizer, file);
  }
  if (state.scheduler) state.scheduler->load_state(to_json(entry_of(top, "lr_scheduler", file)));
  if (state.sampler) state.sampler->load_state(to_json(entry_of(top, "sampler", file)));
  fill_hook(state, top, view, file, remarks);
  fill_averager(state, top, file, remarks);
  const auto gradients = find_entry(top, "gradients");
  state.gradients = gradients.has_value();
  if (state.model && gradients)
    load_gradients(*state.model, view.averaged_section("gradients", gradients->toGenericDict()),
                   file);
  state.epoch = entry_of(top, "epoch", file).toInt();
  state.extra = to_json(entry_of(top, "extra", file));
  fill_generators(top, file, group, remarks);
}

}  // namespace ddprun
