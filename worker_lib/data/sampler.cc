#include "ddprun/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <thread>

#include "base/clock.h"
#include "base/concat.h"
#include "worker_lib/data/core/shard_order.h"
#include "worker_lib/data/epoch_notes.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/util/error_bridge.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

template <class... Parts>
[[noreturn]] void refuse_sampler(const Parts&... what) {
  refuse(concat("DistributedSampler: ", what...));
}

Shard checked_shard(std::size_t dataset_size, const DistributedSamplerOptions& options) {
  if (dataset_size == 0) refuse_sampler("the dataset has 0 samples; at least 1 is needed");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size)
    refuse_sampler("rank ", options.rank, " is not in a world of ", options.world_size);
  return {.dataset_size = dataset_size,
          .world_size = static_cast<std::size_t>(options.world_size),
          .rank = static_cast<std::size_t>(options.rank),
          .drop_last = options.drop_last};
}

template <class Options>
Options in_group(Options options, const ProcessGroup& group) {
  options.rank = group.rank();
  options.world_size = group.size();
  return options;
}

const nlohmann::json& entry(const nlohmann::json& state, const std::string& key) {
  const auto found = state.find(key);
  if (found == state.end()) refuse_sampler("the saved state has no '", key, "'");
  return *found;
}

std::size_t count(const nlohmann::json& state, const char* key) {
  const nlohmann::json& value = entry(state, key);
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
    refuse_sampler("the saved state has ", key, " ", value.dump(), ", not a count");
  return value.get<std::size_t>();
}

at::Generator generator_of(std::int64_t seed, std::int64_t epoch) {
  return at::detail::createCPUGenerator(static_cast<std::uint64_t>(seed) +
                                        static_cast<std::uint64_t>(epoch));
}

}  // namespace

// The list of an epoch is the result of `order`, or the dataset in its own order. Positions are
// list entries of the whole world.
struct DistributedSampler::State {
  DistributedSamplerOptions options;
  Shard whole;                   // an epoch from its beginning
  nlohmann::json identity = {};  // what the list depends on, except the epoch
  std::function<torch::Tensor(std::int64_t epoch, std::size_t size)> order = {};

  // The choice of set_epoch() or load_state(); reset() makes a pass of it.
  std::int64_t epoch = 0;
  std::size_t start = 0;
  // The pass from which loaders draw.
  enum class Pass { kNone, kOfAnotherEpoch, kOfThisEpoch } pass = Pass::kNone;
  ShardOrder shard = ShardOrder(whole);
  torch::Tensor list = {};     // undefined: the dataset's own order
  std::size_t handed_out = 0;  // of this rank, by next()
  std::size_t reached = 0;     // of this rank: those that the loop has got
  // Facts about the loader of this pass.
  bool is_ahead = false;  // requests samples before the loop wants them
  bool is_in_order = true;
  bool is_announced = false;      // by a loader, whose reset() comes next
  bool has_loader = false;        // of make_data_loader()
  std::size_t requested = 0;      // handed out up to the loader's last request ahead of the loop
  std::size_t last_batch = 0;     // handed out by the last next()
  std::size_t missed = 0;         // of it, because the dataset failed to make the batch
  std::thread::id drawn_by = {};  // the last caller of next() in this pass
  bool has_several_drawers = false;
  // Samples in a rank's batch, and in the global batch of the loaded state; 0: not known.
  std::size_t batch_size = 0;
  std::size_t saved_global_batch = 0;

  std::vector<std::shared_ptr<detail::GroupNotes>> groups = {};  // see follow_group()
  std::shared_ptr<const detail::EpochNote> note = {};            // null: no epoch was chosen

  std::size_t position() const {
    if (pass != Pass::kOfThisEpoch) return start;
    return shard.dealt(options.prefetched || is_ahead ? reached : handed_out - missed);
  }

  void note_epoch() {
    detail::replace_note(note, {.choice = {.epoch = epoch, .sampler = identity.dump()},
                                .rank = options.rank,
                                .world_size = options.world_size,
                                .groups = groups});
  }

  // Returns whether next() ran on another thread than this one, which may be ahead of the loop.
  bool is_drawn_elsewhere() const {
    return pass == Pass::kOfThisEpoch && !has_loader && !options.prefetched &&
           (has_several_drawers ||
            (drawn_by != std::thread::id() && drawn_by != std::this_thread::get_id()));
  }

  void choose(std::int64_t chosen_epoch, std::size_t chosen_start) {
    epoch = chosen_epoch;
    start = chosen_start;
    if (pass == Pass::kOfThisEpoch) pass = Pass::kOfAnotherEpoch;
  }

  std::size_t sample(std::size_t i) const {
    return list.defined() ? list.const_data_ptr<std::int64_t>()[shard[i]] : shard[i];
  }
};

DistributedSampler::DistributedSampler(std::shared_ptr<State> state) : state_(std::move(state)) {}

DistributedSampler::DistributedSampler(std::size_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : state_(std::make_shared<State>(State{.options = options,
                                           .whole = checked_shard(dataset_size, options),
                                           .identity = {{"dataset_size", dataset_size},
                                                        {"seed", options.seed},
                                                        {"shuffle", options.shuffle},
                                                        {"drop_last", options.drop_last}}})) {
  if (!options.shuffle) return;
  state_->order = [seed = options.seed](std::int64_t epoch, std::size_t size) {
    return torch::randperm(static_cast<std::int64_t>(size), generator_of(seed, epoch),
                           torch::kInt64);
  };
}

DistributedSampler::DistributedSampler(std::size_t dataset_size, const ProcessGroup& group,
                                       DistributedSamplerOptions options)
    : DistributedSampler(dataset_size, in_group(options, group)) {
  follow_group(group);
}

void DistributedSampler::follow_group(const ProcessGroup& group) {
  State& s = *state_;
  if (std::ranges::count(s.groups, group.notes()) > 0) return;
  s.groups.push_back(group.notes());
  if (s.note) s.note_epoch();
}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) refuse_sampler("epoch ", epoch, " is negative");
  if (epoch != state_->epoch) state_->choose(epoch, 0);
  state_->note_epoch();
}

std::int64_t DistributedSampler::epoch() const { return state_->epoch; }

std::size_t DistributedSampler::size() const { return ShardOrder(state_->whole).size(); }

void DistributedSampler::delivered(std::size_t samples) {
  State& s = *state_;
  if (!s.options.prefetched)
    refuse_sampler("delivered() is for samplers with the option 'prefetched'");
  if (samples > s.handed_out - s.reached)
    refuse_sampler("delivered(", samples, ") after only ", s.handed_out - s.reached,
                   " more samples were handed out");
  s.reached += samples;
}

void DistributedSampler::begin_loader_pass(bool is_ahead, bool is_in_order) {
  state_->is_ahead = is_ahead;
  state_->is_in_order = is_in_order;
  state_->is_announced = true;
}

std::size_t DistributedSampler::note_request() { return state_->requested = state_->handed_out; }

void DistributedSampler::reach_loop(std::size_t samples) {
  State& s = *state_;
  if (!s.options.prefetched) s.reached = std::min(samples, s.handed_out);
}

void DistributedSampler::miss_batch() { state_->missed = state_->last_batch; }

std::int64_t DistributedSampler::begin_wait() const {
  const bool is_timed = std::ranges::any_of(
      state_->groups, [](const auto& group) { return group->times_loading.load(); });
  return is_timed ? BootClock::now().time_since_epoch().count() : 0;
}

void DistributedSampler::end_wait(std::int64_t begun) {
  if (begun == 0) return;
  const std::int64_t waited = BootClock::now().time_since_epoch().count() - begun;
  for (const auto& group : state_->groups) group->loading_ns += waited;
}

void DistributedSampler::note_batch_size(std::size_t samples) {
  State& s = *state_;
  s.batch_size = samples;
  const std::size_t saved = std::exchange(s.saved_global_batch, 0);
  const std::size_t own = samples * s.whole.world_size;
  if (saved != 0 && saved != own && s.whole.rank == 0)
    TORCH_WARN("DistributedSampler: the saved state is of batches of ", saved,
               " samples over all ranks, this loader makes ", own,
               ": steps and learning rates that depend on the batch size have another meaning");
}

nlohmann::json DistributedSampler::state() const {
  const State& s = *state_;
  if (s.is_drawn_elsewhere())
    refuse(
        "DistributedSampler: another thread called next() in this pass, so the position may be "
        "ahead of the training loop; use the loader of make_data_loader(), or the option "
        "'prefetched' and delivered(), or save after set_epoch() of the next epoch",
        DistError::Kind::kUnsupported);
  if (!s.is_in_order && s.pass == State::Pass::kOfThisEpoch && s.reached != s.requested)
    refuse(concat("DistributedSampler: the loader has ", s.requested - s.reached,
                  " samples in progress and enforce_ordering(false): no position says which ones "
                  "the training loop has received; use enforce_ordering(true), or save between "
                  "epochs"),
           DistError::Kind::kUnsupported);
  nlohmann::json state = s.identity;
  state["epoch"] = s.epoch;
  state["position"] = s.position();
  state["world_size"] = s.options.world_size;
  if (s.batch_size > 0) state["batch_size"] = s.batch_size;
  return state;
}

void DistributedSampler::load_state(const nlohmann::json& saved) {
  State& s = *state_;
  for (const auto& [key, own] : s.identity.items())
    if (const nlohmann::json& value = entry(saved, key); value != own)
      refuse_sampler("the saved state has ", key, " ", value.dump(), ", this sampler has ",
                     own.dump());
  const std::size_t epoch = count(saved, "epoch");
  const std::size_t world_size = count(saved, "world_size");
  const std::size_t position = count(saved, "position");
  const std::size_t entries = s.whole.dataset_size;
  // The last samples of an epoch may be its first ones again, at most once for each rank.
  if (position >= entries + std::max<std::size_t>(world_size, 1))
    refuse_sampler("the saved state has position ", position, "; a world of ", world_size,
                   " deals ", entries, " samples, and some again to fill up");
  if (s.batch_size == 0 && saved.contains("batch_size"))  // else restore() has added a remark
    s.saved_global_batch = count(saved, "batch_size") * world_size;
  const bool is_other_world = world_size != s.whole.world_size;
  s.choose(static_cast<std::int64_t>(epoch),
           is_other_world ? std::min(position, entries) : position);
  s.note_epoch();
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  State& s = *state_;
  if (new_size && *new_size != s.whole.dataset_size) {
    if (!s.identity.contains("dataset_size"))
      refuse_sampler("its size is that of the weights, and cannot be changed");
    s.whole = checked_shard(*new_size, s.options);
    s.identity["dataset_size"] = *new_size;
    s.start = 0;
  }
  Shard rest = s.whole;
  // A second pass over the same epoch begins at its beginning.
  rest.begin = std::exchange(s.start, 0);
  s.shard = ShardOrder(rest);
  s.handed_out = s.reached = s.requested = s.missed = 0;
  s.drawn_by = {};
  s.has_several_drawers = false;
  s.has_loader = std::exchange(s.is_announced, false);
  if (!s.has_loader) {
    s.is_ahead = false;
    s.is_in_order = true;
  }
  s.pass = State::Pass::kOfThisEpoch;
  s.list = s.order ? s.order(s.epoch, s.whole.dataset_size) : torch::Tensor();
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  State& s = *state_;
  if (s.pass == State::Pass::kNone) reset();
  const auto here = std::this_thread::get_id();
  s.has_several_drawers |= s.drawn_by != std::thread::id() && s.drawn_by != here;
  s.drawn_by = here;
  const std::size_t end = std::min(s.handed_out + batch_size, s.shard.size());
  if (s.handed_out == end) return std::nullopt;
  std::vector<std::size_t> indices;
  s.last_batch = end - s.handed_out;
  s.missed = 0;
  indices.reserve(s.last_batch);
  for (; s.handed_out < end; ++s.handed_out) indices.push_back(s.sample(s.handed_out));
  return indices;
}

std::size_t DistributedSampler::left() {
  State& s = *state_;
  if (s.pass == State::Pass::kNone) reset();
  return s.shard.size() - s.handed_out;
}

void DistributedSampler::save(torch::serialize::OutputArchive& archive) const {
  archive.write("state", c10::IValue(state().dump()));
}

void DistributedSampler::load(torch::serialize::InputArchive& archive) {
  with_dist_errors("load the state of a sampler", [&] {
    c10::IValue text;
    archive.read("state", text);
    load_state(nlohmann::json::parse(text.toStringRef()));
  });
}

// --- weighted samples ---

namespace {

template <class... Parts>
[[noreturn]] void refuse_weights(const Parts&... what) {
  refuse(concat("DistributedWeightedSampler: ", what...));
}

torch::Tensor checked_weights(const std::vector<double>& weights, std::size_t samples,
                              bool replacement) {
  constexpr std::size_t kMostWeights = std::size_t{1} << 24;  // the limit of torch::multinomial
  if (weights.size() > kMostWeights)
    refuse_weights(weights.size(), " weights; at most 2^24 are possible");
  double sum = 0;
  std::size_t possible = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (!std::isfinite(weights[i]) || weights[i] < 0)
      refuse_weights("weight ", i, " is ", std::to_string(weights[i]),
                     "; weights are finite and at least 0");
    possible += weights[i] > 0;
    sum += weights[i];
  }
  if (!std::isfinite(sum)) refuse_weights("the weights add up to more than a double holds");
  if (possible == 0) refuse_weights("no weight is above 0");
  if (samples == 0) refuse_weights("an epoch of 0 samples; at least 1 is needed");
  if (!replacement && samples > possible)
    refuse_weights("an epoch of ", samples, " samples without replacement from ", possible,
                   " whose weights are above 0");
  return torch::tensor(weights, torch::kFloat64);
}

DistributedSamplerOptions as_dealt(const DistributedWeightedSamplerOptions& options) {
  return {.seed = options.seed,
          .drop_last = options.drop_last,
          .prefetched = options.prefetched,
          .rank = options.rank,
          .world_size = options.world_size};
}

}  // namespace

DistributedWeightedSampler::DistributedWeightedSampler(
    std::vector<double> weights, std::size_t samples,
    const DistributedWeightedSamplerOptions& options)
    : DistributedSampler([&] {
        const torch::Tensor checked = checked_weights(weights, samples, options.replacement);
        const std::string digest = sha256_hex(std::string_view(
            reinterpret_cast<const char*>(weights.data()), weights.size() * sizeof(double)));
        auto state =
            std::make_shared<State>(State{.options = as_dealt(options),
                                          .whole = checked_shard(samples, as_dealt(options)),
                                          .identity = {{"samples", samples},
                                                       {"weights_sha256", digest},
                                                       {"replacement", options.replacement},
                                                       {"seed", options.seed},
                                                       {"drop_last", options.drop_last}}});
        state->order = [checked, seed = options.seed, replacement = options.replacement](
                           std::int64_t epoch, std::size_t size) {
          return torch::multinomial(checked, static_cast<std::int64_t>(size), replacement,
                                    generator_of(seed, epoch));
        };
        return state;
      }()) {}

DistributedWeightedSampler::DistributedWeightedSampler(std::vector<double> weights,
                                                       std::size_t samples,
                                                       const ProcessGroup& group,
                                                       DistributedWeightedSamplerOptions options)
    : DistributedWeightedSampler(std::move(weights), samples, in_group(options, group)) {
  follow_group(group);
}

// --- whole batches ---

namespace {

DistributedBatchSamplerOptions in_group(DistributedBatchSamplerOptions options,
                                        const ProcessGroup& group) {
  options.of_samples = in_group(options.of_samples, group);
  return options;
}

}  // namespace

DistributedBatchSampler::DistributedBatchSampler(std::size_t dataset_size,
                                                 const DistributedBatchSamplerOptions& options)
    : DistributedSampler(dataset_size, options.of_samples),
      batch_size_(options.batch_size),
      drop_last_batch_(options.drop_last_batch) {
  if (batch_size_ == 0)
    refuse("DistributedBatchSampler: a batch of 0 samples; at least 1 is needed");
  note_batch_size(batch_size_);
}

DistributedBatchSampler::DistributedBatchSampler(std::size_t dataset_size,
                                                 const ProcessGroup& group,
                                                 DistributedBatchSamplerOptions options)
    : DistributedBatchSampler(dataset_size, in_group(options, group)) {
  follow_group(group);
}

std::size_t DistributedBatchSampler::batches() const {
  return drop_last_batch_ ? size() / batch_size_ : (size() + batch_size_ - 1) / batch_size_;
}

std::optional<std::vector<std::size_t>> DistributedBatchSampler::next(std::size_t) {
  if (drop_last_batch_ && left() < batch_size_) return std::nullopt;
  return DistributedSampler::next(batch_size_);
}

// --- every sample once ---

DistributedEvalSampler::DistributedEvalSampler(std::size_t dataset_size, int rank, int world_size)
    : dataset_size_(dataset_size),
      rank_(static_cast<std::size_t>(rank)),
      world_size_(static_cast<std::size_t>(world_size)),
      next_(rank_) {
  if (world_size < 1 || rank < 0 || rank >= world_size)
    refuse(concat("DistributedEvalSampler: rank ", rank, " is not in a world of ", world_size));
}

std::size_t DistributedEvalSampler::size() const {
  return dataset_size_ / world_size_ + (rank_ < dataset_size_ % world_size_ ? 1 : 0);
}

void DistributedEvalSampler::reset(std::optional<std::size_t> new_size) {
  dataset_size_ = new_size.value_or(dataset_size_);
  next_ = rank_;
}

std::optional<std::vector<std::size_t>> DistributedEvalSampler::next(std::size_t batch_size) {
  std::vector<std::size_t> indices;
  for (; next_ < dataset_size_ && indices.size() < batch_size; next_ += world_size_)
    indices.push_back(next_);
  if (indices.empty()) return std::nullopt;
  return indices;
}

void DistributedEvalSampler::save(torch::serialize::OutputArchive& archive) const {
  for (const auto& [name, value] : {std::pair{"dataset_size", dataset_size_},
                                    {"rank", rank_},
                                    {"world_size", world_size_},
                                    {"next", next_}})
    archive.write(name, c10::IValue(static_cast<std::int64_t>(value)));
}

void DistributedEvalSampler::load(torch::serialize::InputArchive& archive) {
  with_dist_errors("load the state of a sampler", [&] {
    const auto saved = [&](const char* name) {
      c10::IValue value;
      archive.read(name, value);
      return static_cast<std::size_t>(value.toInt());
    };
    for (const auto& [name, own] :
         {std::pair{"dataset_size", dataset_size_}, {"rank", rank_}, {"world_size", world_size_}})
      if (saved(name) != own)
        refuse(concat("DistributedEvalSampler: the saved state has ", name, " ", saved(name),
                      ", this sampler has ", own));
    next_ = saved("next");
  });
}

std::size_t per_rank(std::size_t batch_size, int world_size) {
  const auto ranks = static_cast<std::size_t>(std::max(world_size, 1));
  if (world_size < 1) refuse(concat("per_rank: a world of ", world_size, " ranks"));
  if (batch_size == 0 || batch_size % ranks != 0)
    refuse(concat("per_rank: a batch of ", batch_size, " does not divide among ", ranks, " ranks; ",
                  batch_size > ranks ? concat(batch_size / ranks * ranks, " and ") : "",
                  (batch_size / ranks + 1) * ranks, " do"));
  return batch_size / ranks;
}

}  // namespace ddprun
