#include "ddprun/data_parallel.h"

#include <torch/nn/modules/embedding.h>
#include <torch/types.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/assert.h"
#include "base/concat.h"
#include "base/counted.h"
#include "base/joined.h"
#include "ddprun/clip_grad_norm.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/ddp/consistency_guard.h"
#include "worker_lib/ddp/reducer.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/group/verification.h"
#include "worker_lib/serialization/optimizer_state.h"
#include "worker_lib/util/error_bridge.h"
#include "worker_lib/util/sha256.h"

namespace ddprun::detail {
namespace {

using nlohmann::json;

constexpr const char* kConstruct = "construct DistributedDataParallel";
constexpr const char* kForward = "forward of DistributedDataParallel";
constexpr const char* kJoin = "join() of DistributedDataParallel";
constexpr std::uint64_t kBroadcastChunkBytes = 250 << 20;

[[noreturn]] void refuse_to_construct(const std::string& what) {
  refuse(concat(kConstruct, ": ", what));
}

using NamedTensors = std::vector<std::pair<std::string, torch::Tensor>>;

std::vector<torch::Tensor> without_names(const NamedTensors& tensors) {
  std::vector<torch::Tensor> result;
  for (const auto& [name, tensor] : tensors) result.push_back(tensor);
  return result;
}

std::string on_or_off(const char* option, bool is_on) {
  return concat("option '", option, is_on ? "' on" : "' off");
}

// Returns the first difference between rank 0's lines and another rank's; empty if there is
// none. kind: "parameter".
std::string difference_in(const char* kind, const std::vector<json>& of_ranks) {
  std::size_t most = 0;
  for (const json& lines : of_ranks) most = std::max(most, lines.size());
  const auto line = [&](std::size_t rank, std::size_t i) {
    const json& lines = of_ranks[rank];
    return i < lines.size() ? lines[i].get<std::string>() : "only " + counted(lines.size(), kind);
  };
  for (std::size_t i = 0; i < most; ++i)
    for (std::size_t rank = 1; rank < of_ranks.size(); ++rank)
      if (line(rank, i) != line(0, i))
        return concat("rank 0 has ", line(0, i), " where rank ", rank, " has ", line(rank, i));
  return "";
}

// Throws if the ranks' descriptions differ: objects with the lines of each kind. All ranks
// exchange a digest; only if it differs, they exchange the descriptions.
void expect_same_everywhere(const json& own, ProcessGroup& group, std::optional<Timeout> timeout) {
  const auto digests = group.all_gather_object(sha256_hex(own.dump()), timeout);
  if (std::ranges::all_of(digests, [&](const json& digest) { return digest == digests[0]; }))
    return;
  const auto all = group.all_gather_object(own, timeout);
  for (const char* kind : {"parameter", "buffer", "option"}) {
    std::vector<json> of_ranks;
    for (const json& one : all) of_ranks.push_back(one.at(kind));
    const std::string difference = difference_in(kind, of_ranks);
    if (!difference.empty()) refuse_to_construct("the ranks have different modules: " + difference);
  }
  DDPRUN_ASSERT(false, "texts with different digests differ");
}

// Returns the weights whose layers have sparse gradients.
std::set<const void*> sparse_weights(const torch::nn::Module& module) {
  std::set<const void*> result;
  const auto look_at = [&](const auto* layer) {
    if (layer && layer->options.sparse()) result.insert(layer->weight.unsafeGetTensorImpl());
  };
  for (const auto& child : module.modules(/*include_self=*/false)) {
    look_at(child->template as<torch::nn::Embedding>());
    look_at(child->template as<torch::nn::EmbeddingBag>());
  }
  look_at(module.as<torch::nn::Embedding>());
  look_at(module.as<torch::nn::EmbeddingBag>());
  return result;
}

// A rank's report about the forward that it begins, inside join().
struct Step {
  bool is_training = false;
  bool synchronises = false;
  bool broadcasts = false;
};

std::vector<int> training_ranks(const std::vector<Step>& steps) {
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < steps.size(); ++rank)
    if (steps[rank].is_training) ranks.push_back(rank);
  return ranks;
}

}  // namespace

struct DataParallelCore::Impl {
  std::shared_ptr<torch::nn::Module> module;
  ProcessGroup& group;
  DataParallelOptions options;
  std::shared_ptr<Reducer> reducer = {};
  ConsistencyGuard guard{group, options.check_consistency_every, options.timeout};
  const torch::optim::Optimizer* watched = nullptr;
  int no_sync_depth = 0;
  bool broadcast_due = true;
  std::optional<JoinOptions> join = {};
  int last_to_train = 0;  // in this join(); of several ranks in the last round, the highest

  // --- tensors that the ranks share: all but ignored_names ---

  template <class Tensors>
  NamedTensors shared_of(const Tensors& tensors) const {
    NamedTensors result;
    for (const auto& item : tensors)
      if (!std::ranges::count(options.ignored_names, item.key()))
        result.emplace_back(item.key(), item.value());
    return result;
  }
  NamedTensors shared_parameters() const { return shared_of(module->named_parameters()); }
  NamedTensors shared_buffers() const { return shared_of(module->named_buffers()); }

  std::vector<torch::Tensor> shared_state() const {
    std::vector<torch::Tensor> state = without_names(shared_parameters());
    std::ranges::copy(without_names(shared_buffers()), std::back_inserter(state));
    return state;
  }

  // Makes the tensors equal to the root's, through one flat block of bytes.
  void broadcast_block(std::span<const torch::Tensor> tensors, std::uint64_t bytes, int root) {
    const auto flat = torch::empty({static_cast<std::int64_t>(bytes)},
                                   torch::dtype(torch::kUInt8).device(group.device()));
    const auto place = [&, offset = std::uint64_t{0}](const torch::Tensor& tensor) mutable {
      const auto part = flat.narrow(0, offset, tensor.nbytes());
      offset += slot_aligned(tensor.nbytes());
      return part.view(tensor.scalar_type()).view(tensor.sizes());
    };
    if (group.rank() == root)
      for (auto to = place; const torch::Tensor& tensor : tensors) to(tensor).copy_(tensor);
    group.broadcast(flat, {.root = root, .timeout = options.timeout});
    if (group.rank() != root)
      for (auto from = place; torch::Tensor tensor : tensors) tensor.copy_(from(tensor));
  }

  void broadcast_from(int root, const std::vector<torch::Tensor>& tensors) {
    torch::NoGradGuard no_grad;
    for (std::size_t first = 0; first < tensors.size();) {
      std::uint64_t bytes = 0;
      std::size_t last = first;
      while (last < tensors.size() && (bytes == 0 || bytes < kBroadcastChunkBytes))
        bytes += slot_aligned(tensors[last++].nbytes());
      broadcast_block({&tensors[first], last - first}, bytes, root);
      first = last;
    }
  }

  void broadcast_buffers_from(int root) {
    if (!options.broadcast_buffers || group.size() == 1) return;
    broadcast_from(root, without_names(shared_buffers()));
  }

  // --- construction ---

  void expect_supported() const {
    if (!module) refuse_to_construct("there is no module");
    if (options.find_unused_parameters && options.static_graph)
      refuse_to_construct(
          "the options 'find_unused_parameters' and 'static_graph' exclude each other; a static "
          "graph may have unused parameters");
    if (options.first_bucket_bytes == 0 || options.bucket_bytes == 0)
      refuse_to_construct(
          "a bucket of 0 bytes holds nothing; the options 'first_bucket_bytes' and "
          "'bucket_bytes' are at least 1");
    const auto expect_steps = [](const char* option, std::int64_t value, const char* nothing) {
      if (value < 0)
        refuse_to_construct(concat("the option '", option, "' is ", value,
                                   " (expected a number of steps, or 0 for ", nothing, ")"));
    };
    expect_steps("check_consistency_every", options.check_consistency_every, "no checks");
    expect_steps("statistics_every", options.statistics_every, "no statistics");
  }

  void expect_known_names() const {
    for (const std::string& name : options.ignored_names)
      if (!module->named_parameters().contains(name) && !module->named_buffers().contains(name))
        refuse_to_construct("the option 'ignored_names' has '" + name +
                            "', which is neither a parameter nor a buffer of the module");
  }

  // Returns everything that must be the same on every rank: the lines of each kind, in order.
  json describe() const {
    std::vector<std::string> parameters, buffers;
    for (const auto& [name, p] : shared_parameters())
      parameters.push_back(concat("parameter '", name, "' ", dtype_and_shape(p), " strides ",
                                  text_of(p.strides()), " on ",
                                  c10::DeviceTypeName(p.device().type(), true),
                                  p.requires_grad() ? " requires grad" : " requires no grad"));
    for (const auto& [name, buffer] : shared_buffers())
      buffers.push_back(concat("buffer '", name, "' ", dtype_and_shape(buffer)));
    const std::vector<std::string> chosen{
        concat("option 'first_bucket_bytes' ", options.first_bucket_bytes),
        concat("option 'bucket_bytes' ", options.bucket_bytes),
        on_or_off("broadcast_buffers", options.broadcast_buffers),
        on_or_off("find_unused_parameters", options.find_unused_parameters),
        on_or_off("static_graph", options.static_graph),
        on_or_off("check_passes_late", options.check_passes_late),
        concat("option 'check_consistency_every' ", options.check_consistency_every)};
    return {{"parameter", parameters}, {"buffer", buffers}, {"option", chosen}};
  }

  void expect_on_device() const {
    const torch::Device device = group.device();
    const auto expect = [device](const char* what, const NamedTensors& tensors) {
      for (const auto& [name, tensor] : tensors)
        if (tensor.device() != device)
          refuse_to_construct(concat(what, " '", name, "' is on ", tensor.device().str(),
                                     ", the group works on ", device.str(),
                                     "; move the module first"));
    };
    expect("parameter", shared_parameters());
    expect("buffer", shared_buffers());
  }

  // Returns each trainable parameter once, under its first name.
  std::vector<Reducer::Parameter> trainable() const {
    const std::set<const void*> sparse = sparse_weights(*module);
    std::vector<Reducer::Parameter> result;
    std::set<const void*> seen;
    for (const auto& [name, tensor] : shared_parameters()) {
      const void* identity = tensor.unsafeGetTensorImpl();
      if (tensor.requires_grad() && seen.insert(identity).second)
        result.push_back({name, tensor, sparse.contains(identity)});
    }
    return result;
  }

  // --- consistency checks ---

  // Returns hashes of the state that all ranks should share. Each tensor once, under its first
  // name.
  std::vector<NamedHash> own_hashes(bool has_fresh_buffers) const {
    std::vector<NamedHash> result;
    std::map<const void*, std::string> parameters;
    for (const auto& [name, tensor] : shared_parameters()) {
      const std::string described = "parameter '" + name + "'";
      if (parameters.emplace(tensor.unsafeGetTensorImpl(), described).second)
        result.push_back({described, hash_of(tensor)});
    }
    if (has_fresh_buffers)
      for (const auto& [name, tensor] : shared_buffers())
        result.push_back({"buffer '" + name + "'", hash_of(tensor)});
    if (watched) std::ranges::move(hashes_of(*watched, parameters), std::back_inserter(result));
    return result;
  }

  void check_consistency(bool is_training, bool has_fresh_buffers) {
    const std::int64_t passes = reducer->passes();
    guard.settle(passes);
    if (!guard.is_due(passes)) return;
    guard.begin(passes, is_training ? HashTable(own_hashes(has_fresh_buffers)) : std::nullopt);
  }

  // --- join ---

  std::vector<Step> exchange_steps(const Step& own) {
    const auto mine = torch::tensor({std::int64_t{own.is_training}, std::int64_t{own.synchronises},
                                     std::int64_t{own.broadcasts}})
                          .to(group.device());
    torch::Tensor all = torch::empty({group.size(), 3}, mine.options());
    group.all_gather_into_tensor(all, mine, {.timeout = options.timeout});
    all = all.cpu();
    std::vector<Step> steps;
    for (int rank = 0; rank < group.size(); ++rank) {
      const auto* words = all[rank].const_data_ptr<std::int64_t>();
      steps.push_back({words[0] != 0, words[1] != 0, words[2] != 0});
    }
    return steps;
  }

  void expect_all_training(const std::vector<Step>& steps) const {
    if (!join->throw_on_early_termination || training_ranks(steps).empty()) return;
    std::vector<std::string> ended;
    for (std::size_t rank = 0; rank < steps.size(); ++rank)
      if (!steps[rank].is_training) ended.push_back(name_rank(rank));
    if (ended.empty()) return;
    refuse(concat(kJoin, ": no inputs are left on ", joined(ended)), DistError::Kind::kStopped);
  }

  void follow_round(const std::vector<Step>& steps) {
    const std::vector<int> training = training_ranks(steps);
    last_to_train = training.back();
    if (!join->divide_by_initial_world_size) reducer->set_divisor(training.size());
  }

  void begin_joined_forward(const Step& own) {
    const std::vector<Step> steps = exchange_steps(own);
    expect_all_training(steps);
    follow_round(steps);
    if (own.broadcasts) broadcast_buffers_from(last_to_train);
  }
};

DataParallelCore::DataParallelCore(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
                                   const DataParallelOptions& options)
    : impl_(new Impl{std::move(module), group, options}) {
  with_dist_errors(kConstruct, [&] {
    impl_->expect_supported();
    impl_->expect_known_names();
    expect_same_everywhere(impl_->describe(), group, options.timeout);
    impl_->expect_on_device();
    std::vector<Reducer::Parameter> parameters = impl_->trainable();
    if (parameters.empty()) refuse_to_construct("no parameter of the module requires a gradient");
    impl_->broadcast_from(0, impl_->shared_state());
    DataParallelOptions of_reducer = options;
    of_reducer.check_passes_late &= !group.device().is_cpu();
    impl_->reducer = Reducer::make(std::move(parameters), group, of_reducer);
  });
}

DataParallelCore::~DataParallelCore() = default;

void DataParallelCore::before_forward() {
  Impl& i = *impl_;
  i.group.report_activity();
  if (at::GradMode::is_enabled()) i.reducer->forward_begins();
  const bool synchronise = at::GradMode::is_enabled() && i.no_sync_depth == 0;
  with_dist_errors(kForward, [&] {
    if (i.join)
      i.begin_joined_forward({true, synchronise, i.broadcast_due});
    else if (i.broadcast_due)
      i.broadcast_buffers_from(0);
    if (synchronise)
      i.check_consistency(/*is_training=*/true, i.broadcast_due && i.options.broadcast_buffers);
  });
  i.broadcast_due = synchronise;
  if (!at::GradMode::is_enabled()) return;
  i.reducer->set_require_sync(synchronise);
  i.reducer->module_begins();
}

void DataParallelCore::after_forward(const std::vector<torch::Tensor>& outputs) {
  if (at::GradMode::is_enabled()) impl_->reducer->prepare_for_backward(outputs);
}

void DataParallelCore::abandon_forward() noexcept {
  if (at::GradMode::is_enabled()) impl_->reducer->cancel_forward();
}

DataParallelStatistics DataParallelCore::statistics() const {
  const Impl& i = *impl_;
  DataParallelStatistics result{.rank = i.group.rank(),
                                .world_size = i.group.size(),
                                .backend = i.group.backend_name(),
                                .module = i.module->name(),
                                .first_bucket_bytes = i.options.first_bucket_bytes,
                                .bucket_bytes = i.options.bucket_bytes,
                                .broadcast_buffers = i.options.broadcast_buffers,
                                .gradient_as_bucket_view = i.options.gradient_as_bucket_view,
                                .find_unused_parameters = i.options.find_unused_parameters,
                                .static_graph = i.options.static_graph,
                                .statistics_every = i.options.statistics_every};
  i.reducer->describe(result);
  return result;
}

void DataParallelCore::enter_no_sync() {
  if (impl_->no_sync_depth++ == 0) impl_->reducer->set_local(true);
}

void DataParallelCore::leave_no_sync() noexcept {
  if (--impl_->no_sync_depth == 0) impl_->reducer->set_local(false);
}

void DataParallelCore::watch_optimizer(const torch::optim::Optimizer* optimizer) {
  with_dist_errors("watch_optimizer() of DistributedDataParallel", [&] {
    if (optimizer) (void)optimizer_class(*optimizer);  // refuses unsupported classes
    impl_->watched = optimizer;
  });
}

torch::Tensor DataParallelCore::clip_grad_norm_(double max_norm, double norm_type,
                                                bool error_if_nonfinite) {
  if (impl_->reducer->was_local())
    refuse(
        "clip_grad_norm_ of DistributedDataParallel: the last backward pass was in no_sync(), so "
        "each rank has gradients of its own; clip after the pass that averages them");
  return ddprun::clip_grad_norm_(impl_->module->parameters(), max_norm, norm_type,
                                 error_if_nonfinite);
}

void DataParallelCore::register_comm_hook(std::shared_ptr<CommHook> hook) {
  constexpr const char* kRegister = "register_comm_hook() of DistributedDataParallel";
  Impl& i = *impl_;
  with_dist_errors(kRegister, [&] {
    const auto refuse_hook = [&](const std::string& what) {
      refuse(concat(kRegister, ": ", what));
    };
    if (!hook) refuse_hook("there is no hook");
    if (i.reducer->has_hook()) refuse_hook("there is one already");
    if (i.reducer->has_begun()) refuse_hook("it is too late after the first synchronised pass");
    const auto names = i.group.all_gather_object(hook->name(), i.options.timeout);
    for (std::size_t rank = 1; rank < names.size(); ++rank)
      if (names[rank] != names[0])
        refuse_hook(concat("rank 0 has ", names[0].get<std::string>(), ", rank ", rank, " has ",
                           names[rank].get<std::string>()));
    i.reducer->set_hook(std::move(hook));
  });
}

void DataParallelCore::begin_join(const JoinOptions& options) {
  Impl& i = *impl_;
  const auto refuse_join = [](const char* what) {
    refuse(concat(kJoin, ": ", what), DistError::Kind::kUnsupported);
  };
  if (i.join) refuse_join("it cannot be inside another one");
  if (!options.divide_by_initial_world_size && i.reducer->has_hook())
    refuse_join(
        "communication hooks average over all ranks; they need "
        "'divide_by_initial_world_size'");
  i.join = options;
  i.last_to_train = 0;
  i.reducer->compare_epochs(false);  // a rank with fewer inputs may be an epoch ahead
}

// Every round is one forward of the ranks that have inputs left.
void DataParallelCore::shadow_others() {
  Impl& i = *impl_;
  with_dist_errors(kJoin, [&] {
    for (;;) {
      const std::vector<Step> steps = i.exchange_steps({});
      i.expect_all_training(steps);
      if (training_ranks(steps).empty()) break;
      i.follow_round(steps);
      const Step& theirs = steps[i.last_to_train];
      if (theirs.broadcasts) i.broadcast_buffers_from(i.last_to_train);
      if (theirs.synchronises) {
        i.check_consistency(/*is_training=*/false, /*has_fresh_buffers=*/false);
        i.reducer->shadow_pass();
      }
      i.group.report_activity();
    }
    i.broadcast_from(i.last_to_train, i.shared_state());
  });
}

void DataParallelCore::end_join() noexcept {
  impl_->join.reset();
  impl_->reducer->set_divisor(std::nullopt);
  impl_->reducer->compare_epochs(true);
}

}  // namespace ddprun::detail
