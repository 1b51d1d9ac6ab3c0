#include "ddprun/sampler.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <algorithm>

#include "worker_lib/core/shard_order.h"
#include "worker_lib/error_bridge.h"

namespace ddprun {
namespace {

[[noreturn]] void refuse_sampler(const std::string& what,
                                 DistError::Kind kind = DistError::Kind::kInvalidArgument) {
  refuse("DistributedSampler: " + what, kind);
}

Shard checked_shard(std::size_t dataset_size, const DistributedSamplerOptions& options) {
  if (dataset_size == 0) refuse_sampler("the dataset has 0 samples; at least 1 is needed");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size)
    refuse_sampler("rank " + std::to_string(options.rank) + " is not in a world of " +
                   std::to_string(options.world_size));
  return {.dataset_size = dataset_size,
          .world_size = static_cast<std::size_t>(options.world_size),
          .rank = static_cast<std::size_t>(options.rank),
          .drop_last = options.drop_last};
}

DistributedSamplerOptions in_group(DistributedSamplerOptions options, const ProcessGroup& group) {
  options.rank = group.rank();
  options.world_size = group.size();
  return options;
}

const nlohmann::json& entry(const nlohmann::json& state, const char* key) {
  const auto found = state.find(key);
  if (found == state.end()) refuse_sampler("the saved state has no '" + std::string(key) + "'");
  return *found;
}

void expect_same(const nlohmann::json& saved, const nlohmann::json& own, const char* key,
                 DistError::Kind kind = DistError::Kind::kInvalidArgument) {
  const nlohmann::json& value = entry(saved, key);
  if (value != own.at(key))
    refuse_sampler("the saved state has " + std::string(key) + " " + value.dump() +
                       ", this sampler has " + own.at(key).dump(),
                   kind);
}

std::int64_t count(const nlohmann::json& state, const char* key) {
  const nlohmann::json& value = entry(state, key);
  if (!value.is_number_integer() || value.get<std::int64_t>() < 0)
    refuse_sampler("the saved state has " + std::string(key) + " " + value.dump() +
                   ", not a count");
  return value.get<std::int64_t>();
}

}  // namespace

// Positions count this rank's samples from the beginning of the epoch.
struct DistributedSampler::State {
  DistributedSamplerOptions options;
  std::size_t dataset_size;
  ShardOrder shard;
  // What set_epoch() and load_state() chose; reset() turns it into a pass.
  std::int64_t epoch = 0;
  std::size_t start = 0;
  // The pass that loaders draw from.
  enum class Pass { kNone, kOfAnotherEpoch, kOfThisEpoch } pass = Pass::kNone;
  torch::Tensor permutation;   // undefined: the dataset's own order
  std::size_t handed_out = 0;  // up to here by next()
  std::size_t reported = 0;    // up to here by delivered()

  std::size_t position() const {
    if (pass != Pass::kOfThisEpoch) return start;
    return options.prefetched ? reported : handed_out;
  }

  void choose(std::int64_t chosen_epoch, std::size_t chosen_start) {
    epoch = chosen_epoch;
    start = chosen_start;
    if (pass == Pass::kOfThisEpoch) pass = Pass::kOfAnotherEpoch;
  }

  std::size_t sample(std::size_t i) const {
    return permutation.defined() ? permutation.const_data_ptr<std::int64_t>()[shard[i]] : shard[i];
  }
};

DistributedSampler::DistributedSampler(std::size_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : state_(std::make_shared<State>(
          State{options, dataset_size, ShardOrder(checked_shard(dataset_size, options))})) {}

DistributedSampler::DistributedSampler(std::size_t dataset_size, const ProcessGroup& group,
                                       DistributedSamplerOptions options)
    : DistributedSampler(dataset_size, in_group(options, group)) {}

void DistributedSampler::set_epoch(std::int64_t epoch) {
  if (epoch < 0) refuse_sampler("epoch " + std::to_string(epoch) + " is negative");
  if (epoch != state_->epoch) state_->choose(epoch, 0);
}

std::int64_t DistributedSampler::epoch() const { return state_->epoch; }

std::size_t DistributedSampler::size() const { return state_->shard.size(); }

void DistributedSampler::delivered(std::size_t samples) {
  State& s = *state_;
  if (!s.options.prefetched)
    refuse_sampler("delivered() is for samplers with the option 'prefetched'");
  if (samples > s.handed_out - s.reported)
    refuse_sampler("delivered(" + std::to_string(samples) + ") after only " +
                   std::to_string(s.handed_out - s.reported) + " more samples were handed out");
  s.reported += samples;
}

nlohmann::json DistributedSampler::state() const {
  const State& s = *state_;
  return {{"epoch", s.epoch},
          {"position", s.position() * s.options.world_size},
          {"dataset_size", s.dataset_size},
          {"world_size", s.options.world_size},
          {"seed", s.options.seed},
          {"shuffle", s.options.shuffle},
          {"drop_last", s.options.drop_last}};
}

void DistributedSampler::load_state(const nlohmann::json& saved) {
  State& s = *state_;
  const nlohmann::json own = state();
  for (const char* key : {"dataset_size", "seed", "shuffle", "drop_last"})
    expect_same(saved, own, key);
  expect_same(saved, own, "world_size", DistError::Kind::kUnsupported);
  const std::int64_t epoch = count(saved, "epoch");
  const auto position = static_cast<std::size_t>(count(saved, "position"));
  const std::size_t world = s.options.world_size;
  if (position % world != 0 || position / world > size())
    refuse_sampler("the saved state has position " + std::to_string(position) + "; a world of " +
                   std::to_string(world) + " deals " + std::to_string(size() * world) + " samples");
  s.choose(epoch, position / world);
}

void DistributedSampler::reset(std::optional<std::size_t> new_size) {
  State& s = *state_;
  if (new_size && *new_size != s.dataset_size) {
    s.shard = ShardOrder(checked_shard(*new_size, s.options));
    s.dataset_size = *new_size;
    s.start = 0;
  }
  s.handed_out = s.reported = s.start;
  s.start = 0;  // a second pass over the same epoch begins at its beginning
  s.pass = State::Pass::kOfThisEpoch;
  s.permutation.reset();
  if (!s.options.shuffle) return;
  const auto seed =
      static_cast<std::uint64_t>(s.options.seed) + static_cast<std::uint64_t>(s.epoch);
  s.permutation = torch::randperm(static_cast<std::int64_t>(s.dataset_size),
                                  at::detail::createCPUGenerator(seed), torch::kInt64);
}

std::optional<std::vector<std::size_t>> DistributedSampler::next(std::size_t batch_size) {
  State& s = *state_;
  if (s.pass == State::Pass::kNone) reset();
  const std::size_t end = std::min(s.handed_out + batch_size, s.shard.size());
  if (s.handed_out == end) return std::nullopt;
  std::vector<std::size_t> indices;
  indices.reserve(end - s.handed_out);
  for (; s.handed_out < end; ++s.handed_out) indices.push_back(s.sample(s.handed_out));
  return indices;
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

}  // namespace ddprun
