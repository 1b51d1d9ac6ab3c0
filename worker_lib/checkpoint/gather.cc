#include "worker_lib/checkpoint/gather.h"

#include <torch/types.h>

#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "worker_lib/checkpoint/rank_state.h"
#include "worker_lib/ddp/consistency_guard.h"
#include "worker_lib/group/every_rank.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/serialization/optimizer_state.h"

namespace ddprun {
namespace {

using nlohmann::json;

std::optional<SamplerPosition> position_of(const DistributedSampler* sampler) {
  if (!sampler) return std::nullopt;
  const json state = sampler->state();
  return SamplerPosition{.epoch = state.at("epoch"), .position = state.at("position")};
}

struct Exchanged {
  std::vector<PickleDict> generators;  // of every rank
  bool are_equal = false;              // all ranks, by hash, in the state that may differ
  std::int64_t parameter_bytes = 0;    // of rank 0
};

// Throws on every rank if they are not at the same position, or if one has failed.
Exchanged exchange(ProcessGroup& group, const TrainingPosition& position, std::int64_t own_hash,
                   std::int64_t parameter_bytes, Timeout timeout,
                   const std::optional<DistError>& failure) {
  const std::vector<RankGenerator> generators = generators_of(group);
  constexpr std::int64_t kWordBytes = 7 * 8;
  const SamplerPosition sampler = position.sampler.value_or(SamplerPosition{-1, -1});
  std::vector<torch::Tensor> parts{
      torch::tensor({position.step, position.epoch, sampler.epoch, sampler.position, own_hash,
                     std::int64_t{failure.has_value()}, parameter_bytes},
                    torch::kInt64)
          .view(torch::kUInt8)};
  for (const RankGenerator& one : generators) parts.push_back(state_of(one.generator));
  const torch::Tensor own = torch::cat(parts).to(group.device());
  std::vector<torch::Tensor> all;
  for (int r = 0; r < group.size(); ++r) all.push_back(torch::empty_like(own));
  try {
    group.all_gather(all, own);
  } catch (const DistError& thrown) {
    // After an early exit from a loop the other ranks may be elsewhere, so the message says
    // where this rank is.
    throw within(thrown, concat(kSaving, " of step ", position.step, " in epoch ", position.epoch));
  }
  Exchanged result;
  std::set<std::int64_t> hashes;
  bool has_failed = false;
  std::optional<std::string> difference;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const torch::Tensor theirs = all[rank].cpu();
    const torch::Tensor words = theirs.narrow(0, 0, kWordBytes).view(torch::kInt64);
    const auto word = [&](std::int64_t i) { return words[i].item<std::int64_t>(); };
    TrainingPosition theirs_is{.step = word(0), .epoch = word(1), .sampler = {}};
    if (word(2) >= 0) theirs_is.sampler = SamplerPosition{word(2), word(3)};
    if (const auto differs = difference_between(position, theirs_is); differs && !difference)
      difference = concat(
          kSaving, ": rank ", rank, " ", differs->other, ", rank ", group.rank(), " ", differs->own,
          ": ranks that are apart cannot be restored as one; do the same steps on each");
    hashes.insert(word(4));
    has_failed = has_failed || word(5) != 0;
    if (rank == 0) result.parameter_bytes = word(6);
    PickleDict of_rank = make_string_dict();
    std::int64_t begin = kWordBytes;
    for (std::size_t i = 0; i < generators.size(); ++i) {
      const std::int64_t size = parts[i + 1].size(0);
      of_rank.insert(generators[i].key, theirs.narrow(0, begin, size).clone());
      begin += size;
    }
    result.generators.push_back(of_rank);
  }
  if (has_failed)
    (void)on_every_rank(group, kSaving, timeout, [&]() -> json {
      if (failure) throw *failure;
      return nullptr;
    });
  if (difference) refuse(*difference);
  result.are_equal = hashes.size() == 1;
  return result;
}

std::int64_t parameter_bytes_of(const torch::nn::Module& model) {
  std::int64_t bytes = 0;
  for (const auto& item : model.named_parameters(/*recurse=*/false))
    if (item.value().defined()) bytes += static_cast<std::int64_t>(item.value().nbytes());
  for (const auto& item : model.named_children()) bytes += parameter_bytes_of(*item.value());
  return bytes;
}

}  // namespace

TrainingPosition position_of(const TrainingState& state, std::int64_t step) {
  return {.step = step, .epoch = state.epoch, .sampler = position_of(state.sampler)};
}

GatheredState gather_for_save(ProcessGroup& group, const TrainingState& state,
                              const GatherOptions& options) {
  PickleDict own = make_string_dict();
  std::vector<NamedHash> hashes;
  std::optional<DistError> failure;
  TrainingPosition position{.step = options.step, .epoch = state.epoch, .sampler = {}};
  try {
    // Late checks of the last passes on a device may show that the state is unusable.
    with_dist_errors(kSaving, [&] { group.notes()->late_checks->settle(group.world_ranks()); });
    position = position_of(state, options.step);
    expect_sound_names(state);
    for (const auto& [name, tensor] : state.tensors)
      if (!tensor.defined()) refuse("TrainingState::tensors: '" + name + "' is undefined");
    if (group.size() > 1) own = with_dist_errors(kSaving, [&] { return own_state(state); });
    hashes = hashes_of(own);
  } catch (const DistError& thrown) {
    failure = thrown;
  }
  // Rank 0's count. Alone, it writes everything anyway.
  const std::int64_t parameter_bytes =
      state.model && group.rank() == 0 && group.size() > 1 ? parameter_bytes_of(*state.model) : 0;
  Exchanged exchanged =
      exchange(group, position, combined(hashes), parameter_bytes, options.timeout, failure);
  const bool are_equal = exchanged.are_equal;
  GatheredState result{.facts = {.step = options.step,
                                 .generation = options.generation,
                                 .world_size = group.size(),
                                 .generators = std::move(exchanged.generators)},
                       .is_shared = options.is_shared(exchanged.parameter_bytes),
                       .own = make_string_dict()};
  if (!are_equal) {
    const json of_rank_0 = group.broadcast_object(to_json(HashTable(hashes)));
    result.own = differences(own, *table_of(of_rank_0));
  }
  for (const auto& [name, optimizer] : state.optimizers)
    if (auto all = gather_optimizer_states(*optimizer))
      result.facts.named_optimizer_states.emplace(name, *std::move(all));
  if (result.is_shared) return result;
  if (!are_equal)
    result.facts.of_ranks = gather_values(group, result.own, "the state", options.timeout);
  if (state.optimizer) result.facts.optimizer_states = gather_optimizer_states(*state.optimizer);
  return result;
}

}  // namespace ddprun
