#include "worker_lib/checkpoint/restore_targets.h"

#include <c10/util/intrusive_ptr.h>
#include <c10/util/SmallVector.h>
#include <sys/mman.h>
#include <torch/types.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <new>
#include <optional>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/parse_number.h"
#include "worker_lib/checkpoint/core/shards.h"
#include "worker_lib/checkpoint/rank_state.h"
#include "worker_lib/serialization/optimizer_state.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

c10::Storage storage_of(std::size_t bytes, c10::DataPtr memory) {
  return {c10::Storage::use_byte_size_t(), bytes, std::move(memory), c10::GetAllocator(c10::kCPU),
          /*resizable=*/true};
}

template <class Use>
void for_each_tensor(const c10::IValue& value, const Use& use) {
  if (value.isTensor()) return use(value.toTensor());
  if (value.isGenericDict())
    for (const auto& entry : value.toGenericDict()) for_each_tensor(entry.value(), use);
  if (value.isList())
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, use);
  if (value.isTuple())
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, use);
}

// Uses: how a restore uses a storage of the file. Most storages have one tensor.
struct Uses {
  c10::SmallVector<const c10::TensorImpl*, 1> needed;  // the file's tensors that this rank reads
  c10::SmallVector<torch::Tensor, 1> live;  // the training's tensors that get a copy of all of it

  bool is_needed() const { return !needed.empty(); }
  // Returns whether the bytes may be read into the live tensor, because nothing else needs them.
  bool is_copied_to_one() {
    if (needed.size() > 1) {
      std::ranges::sort(needed);
      needed.erase(std::ranges::unique(needed).begin(), needed.end());
    }
    return is_needed() && live.size() == needed.size() &&
           std::ranges::all_of(live, [&](const torch::Tensor& tensor) {
             return tensor.const_data_ptr() == live[0].const_data_ptr();
           });
  }
};

void keep(void*) {}  // the deleter of what belongs to another owner

// UsesOfStorages: the uses of the file's storages, which have no memory yet. The empty DataPtr of
// each refers to its uses, so that no map of them is needed.
class UsesOfStorages {
 public:
  explicit UsesOfStorages(std::size_t storages) : uses_(storages) {}

  // Begins to note the uses of a storage. number: of this storage, from 0.
  void begin(const c10::Storage& storage, std::size_t number) {
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, &uses_[number], keep, c10::kCPU});
  }
  Uses& operator[](std::size_t number) { return uses_[number]; }

  // Notes that this rank reads the tensors in `value`.
  void needed(const c10::IValue& value) {
    for_each_tensor(value, [&](const torch::Tensor& tensor) {
      if (Uses* const uses = of(tensor)) uses->needed.push_back(tensor.unsafeGetTensorImpl());
    });
  }
  // Notes that the restore copies `saved` to `own`, if that copies the whole storage as it is. The
  // memory of a conjugate or negative view has other values than the view.
  void filled(const torch::Tensor& own, const torch::Tensor& saved) {
    if (!own.defined() || own.layout() != torch::kStrided || own.is_conj() || own.is_neg()) return;
    const bool is_whole = saved.storage_offset() == 0 && own.nbytes() == saved.storage().nbytes();
    if (!is_whole || own.dtype() != saved.dtype() || own.sizes() != saved.sizes() ||
        own.strides() != saved.strides() || !own.is_non_overlapping_and_dense())
      return;
    if (Uses* const uses = of(saved)) uses->live.push_back(own);
  }
  void filled(const std::vector<std::pair<std::string, torch::Tensor>>& own,
              const PickleDict& saved) {
    auto next = saved.begin();  // the order is usually the same
    for (const auto& [name, tensor] : own) {
      const bool is_next =
          next != saved.end() && next->key().isString() && next->key().toStringRef() == name;
      const auto found = is_next ? next : saved.find(name);
      if (found != saved.end() && found->value().isTensor())
        filled(tensor, found->value().toTensor());
      if (is_next) ++next;
    }
  }

  // Forgets live tensors that overlap, so that the bytes of none are read into them. The restore
  // then copies to one after the other.
  void drop_overlapping() {
    struct Place {
      const char* begin;
      const char* end;
      Uses* uses;
    };
    std::vector<Place> places;
    for (Uses& uses : uses_) {
      if (!uses.is_copied_to_one()) continue;
      const auto* begin = static_cast<const char*>(uses.live[0].const_data_ptr());
      places.push_back({begin, begin + uses.live[0].nbytes(), &uses});
    }
    std::ranges::sort(places, {}, &Place::begin);
    for (std::size_t i = 1; i < places.size(); ++i)
      if (places[i - 1].end > places[i].begin) {
        places[i - 1].uses->live.clear();
        places[i].uses->live.clear();
        places[i].end = std::max(places[i].end, places[i - 1].end);
      }
  }

 private:
  static Uses* of(const torch::Tensor& tensor) {
    return tensor.storage().data_ptr().cast_context<Uses>(keep);
  }

  std::vector<Uses> uses_;
};

// Allocates the memory of a storage. A large one has huge pages, if the kernel permits it: page
// faults took a tenth of a restore's processor time. Its alignment costs up to kHugePage of
// addresses.
c10::DataPtr allocate(std::size_t bytes) {
  constexpr std::size_t kHugePage = 2 << 20, kLarge = 16 << 20;
  if (bytes < kLarge) return c10::GetAllocator(c10::kCPU)->allocate(bytes);
  void* memory = nullptr;
  if (::posix_memalign(&memory, kHugePage, bytes) != 0) throw std::bad_alloc();
  (void)::madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
  return {memory, memory, std::free, c10::kCPU};
}

// SavedParts: the parts of a checkpoint that belong to the objects of `state`, as this rank sees
// them. A part that the file lacks is empty.
class SavedParts {
 public:
  SavedParts(const TrainingState& state, const SavedValue& top, const RankView& view)
      : state_(state), top_(top), view_(view) {}

  PickleDict model() const { return view_.section("model", dict_in(top_, "model")); }
  // Returns the named models in one dict (part_named()).
  PickleDict models() const {
    const auto saved = top_.find("models");
    PickleDict all = make_string_dict();
    for (const auto& [name, model] : state_.models)
      add_named(all, name, dict_in(saved, name), top_.file);
    return view_.section("models", all);
  }
  // Return the optimizers' states by the number of the parameter, as an integer or as text.
  PickleDict optimizer() const {
    return view_.section("optimizer", dict_in(top_.find("optimizer"), "state"));
  }
  PickleDict optimizers() const {  // of the named ones, in one dict
    const auto saved = top_.find("optimizers");
    PickleDict all = make_string_dict();
    for (const auto& [name, optimizer] : state_.optimizers)
      if (saved) add_named(all, name, dict_in(saved->find(name), "state"), top_.file);
    return view_.section("optimizers", all);
  }
  PickleDict tensors() const { return view_.section("tensors", dict_in(top_, "tensors")); }
  // Return the sections of all ranks whose average this rank needs.
  std::vector<PickleDict> hook() const {
    return view_.averaged_sections("comm_hook", dict_in(top_.find("comm_hook"), "tensors"));
  }
  std::vector<PickleDict> gradients() const {
    return view_.averaged_sections("gradients", dict_in(top_, "gradients"));
  }
  std::optional<SavedValue> generators() const { return top_.find("rng"); }
  const std::string& file() const { return top_.file; }

 private:
  static PickleDict dict_in(const std::optional<SavedValue>& parent, const std::string& key) {
    const auto found = parent ? parent->find(key) : std::nullopt;
    return found ? found->dict() : make_string_dict();
  }

  const TrainingState& state_;
  const SavedValue top_;
  const RankView& view_;
};

// Marks the states of the parameters whose state this rank keeps. Other ranks keep the others
// (ZeroOptimizer).
void mark_optimizer(UsesOfStorages& uses, const torch::optim::Optimizer& optimizer,
                    const PickleDict& states) {
  const std::vector<bool> keeps = keeps_states(optimizer);
  for (const auto& entry : states) {
    const auto index = entry.key().isInt() ? std::optional(entry.key().toInt())
                                           : parse_number<std::int64_t>(entry.key().toStringRef());
    if (index && *index >= 0 && std::cmp_less(*index, keeps.size()) &&
        keeps[static_cast<std::size_t>(*index)])
      uses.needed(entry.value());
  }
}

// Marks what fill() (contents.h) reads. The rest of the file gets no memory: what `state` has no
// object for, other ranks' own state, what this rank's own state replaces, and states of an
// optimizer that other ranks keep.
void mark_needed(UsesOfStorages& uses, const TrainingState& state, const SavedParts& saved) {
  if (state.model) uses.needed(saved.model());
  uses.needed(saved.models());
  if (state.optimizer) mark_optimizer(uses, *state.optimizer, saved.optimizer());
  const PickleDict optimizers = saved.optimizers();
  for (const auto& [name, optimizer] : state.optimizers)
    mark_optimizer(uses, *optimizer, part_named(optimizers, name, saved.file()));
  const PickleDict tensors = saved.tensors();
  for (const auto& [name, tensor] : state.tensors)
    if (const auto found = tensors.find(name); found != tensors.end()) uses.needed(found->value());
  if (state.hook)
    for (const PickleDict& section : saved.hook()) uses.needed(section);
  if (state.model || !state.models.empty())
    for (const PickleDict& section : saved.gradients()) uses.needed(section);
  if (const auto generators = saved.generators()) uses.needed(generators->value);
}

// Marks the live tensors that fill() copies a whole storage to.
void mark_filled(UsesOfStorages& uses, const TrainingState& state, const SavedParts& saved) {
  if (state.model) uses.filled(tensors_of(*state.model), saved.model());
  const PickleDict models = saved.models();
  for (const auto& [name, model] : state.models)
    uses.filled(tensors_of(*model), part_named(models, name, saved.file()));
  uses.filled({state.tensors.begin(), state.tensors.end()}, saved.tensors());
}

}  // namespace

RestoreTargets::RestoreTargets(const CheckpointDirectory& directory,
                               const CheckpointManifest& manifest,
                               const std::vector<FileOutline>& outlines)
    : file_(directory.path_of(manifest.files.front().name)),
      outlines_(outlines),
      is_merged_(is_sharded(manifest)) {
  std::vector<StateArchive> shards;
  if (is_merged_) {
    for (const FileOutline& outline : outlines_) shards.push_back(outline.archive());
    Result<StateArchive> merged = merge_shards(shards);
    if (!merged) throw to_dist_error(Error(merged.error()).within("read " + file_));
    merged_ = *std::move(merged);
  }
  contents_ = make_contents();
}

c10::IValue RestoreTargets::make_contents() {
  storages_.reserve(archive().tree.tensors.size());
  std::size_t next = 0;
  ArchiveTensors tensors([&](std::string_view bytes) {
    if (next == storages_.size())
      storages_.push_back({bytes, storage_of(bytes.size(), {nullptr, c10::kCPU})});
    return storages_[next++].storage;
  });
  return to_ivalue(archive(), archive().tree[archive().tree.top], tensors, file_);
}

std::vector<std::vector<Destination>> RestoreTargets::place(const TrainingState& state, int rank,
                                                            int world_size) {
  UsesOfStorages uses(storages_.size());
  for (std::size_t i = 0; i < storages_.size(); ++i) uses.begin(storages_[i].storage, i);
  const RankView view(top(), rank, world_size);
  const SavedParts parts(state, top(), view);
  mark_needed(uses, state, parts);
  mark_filled(uses, state, parts);
  uses.drop_overlapping();
  bool has_other_devices = false;
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    c10::Storage& storage = storages_[i].storage;
    Uses& use = uses[i];
    if (!use.is_needed()) {
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap({nullptr, c10::kCPU});
      continue;
    }
    const std::size_t bytes = storage.nbytes();
    if (!use.is_copied_to_one()) {
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap(allocate(bytes));
      continue;
    }
    const torch::Tensor& live = use.live[0];
    c10::DataPtr memory(live.data_ptr(), live.device());
    if (live.is_cpu()) {
      storage.unsafeGetStorageImpl()->set_data_ptr_noswap(std::move(memory));
      continue;
    }
    storage = storage_of(bytes, std::move(memory));
    has_other_devices = true;
  }
  if (has_other_devices) contents_ = make_contents();
  return destinations();
}

std::vector<std::vector<Destination>> RestoreTargets::destinations() const {
  std::map<const char*, std::size_t> file_at;  // by the first address of its outline
  for (std::size_t i = 0; i < outlines_.size(); ++i)
    if (outlines_[i].bytes() > 0) file_at[outlines_[i].begin()] = i;
  std::vector<std::vector<Destination>> result(outlines_.size());
  for (const auto& [bytes, storage] : storages_) {
    if (storage.nbytes() == 0 || !storage.data()) continue;
    const std::size_t file = std::prev(file_at.upper_bound(bytes.data()))->second;
    result[file].push_back({.at = outlines_[file].position_of(bytes),
                            .bytes = bytes.size(),
                            .memory = storage.mutable_data(),
                            .device = storage.device()});
  }
  for (auto& of_file : result) std::ranges::sort(of_file, {}, &Destination::at);
  return result;
}

}  // namespace ddprun
