// DistributedSampler: deals the samples of a dataset to the ranks, as PyTorch's does.
//
//   ddprun::DistributedSampler sampler(*dataset.size(), ctx.group(), {.seed = 7});
//   auto loader = torch::data::make_data_loader(dataset, sampler, 32);
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) train(batch);
//   }
//
// For the same size, world, seed, epoch, shuffle and drop_last the indices are those of
// torch.utils.data.DistributedSampler in PyTorch 2.11. The list is padded with its own start until
// it divides by the world size, or cut with drop_last; every rank gets the same number of samples.
//
// The epoch's position is a number of samples of the whole world, so another number of ranks can go
// on there: what is left is dealt to them.
//
// A loader takes a copy of its sampler. All copies share one state, so set_epoch(), state() and
// load_state() on any of them mean all of them. The thread that iterates over the loader owns it.
//
// A loader with worker threads asks for samples before the training loop gets them. The loaders of
// torch::data::make_data_loader() tell the sampler which batches the loop has got (sampler_loader.h), so
// that the position is the loop's.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "ddprun/process_group.h"

namespace torch::data {
template <typename Dataset, typename Sampler>
class StatelessDataLoader;
}

namespace ddprun {

struct DistributedSamplerOptions {
  std::int64_t seed = 0;  // the same on every rank; only its low 32 bits count, as in PyTorch
  bool shuffle = true;
  bool drop_last = false;
  // The loop calls delivered() after each batch, and only this moves the position. For loaders of the
  // program's own that call next() ahead of the loop; make_data_loader()'s do not need it.
  bool prefetched = false;
  // Taken from the group where one is given.
  int rank = 0;
  int world_size = 1;
};

class DistributedSampler : public torch::data::samplers::Sampler<std::vector<std::size_t>> {
 public:
  // dataset_size: at least 1. Throws kInvalidArgument for a dataset without samples, or a rank
  // outside of the world.
  DistributedSampler(std::size_t dataset_size, const DistributedSamplerOptions& options);
  DistributedSampler(std::size_t dataset_size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // Chooses the epoch's order, from the next begin() of the loader on. Without it every pass over
  // the loader has the same order, and a checkpoint that is made between two passes cannot tell
  // whether the first one is to go on (with nothing, at its end) or the second to begin: call it
  // also where nothing is shuffled.
  // Of a sampler that was made with a group: DistributedDataParallel over this group compares the epochs of
  // the ranks in each synchronised pass, and throws kInvalidArgument on every rank where they differ.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const;

  // Samples that this rank gets in an epoch that is dealt from its beginning.
  std::size_t size() const;

  // With `prefetched`: the training loop has got the next `samples` samples of this rank. Throws
  // kInvalidArgument without `prefetched`, or for more samples than were handed out.
  void delivered(std::size_t samples);

  // Where the epoch stands: epoch, position (samples that the whole world has got in it), what the
  // order depends on, and the batch size of a rank if a loader of make_data_loader() or a
  // DistributedBatchSampler has set it. Part of a checkpoint; the same on every rank after the same
  // steps. Throws kUnsupported in the middle of a pass of a loader with several worker threads and
  // enforce_ordering(false): the loop gets batches in any order, so that no position says which.
  nlohmann::json state() const;

  // Continues where state() was taken: the next pass over the loader begins with the sample after
  // the last one, if it is a pass over the same epoch. The world may have another size: then what
  // is left of the epoch is dealt to it, and filled up, or cut, until it divides by the new size.
  // Throws kInvalidArgument if `state` is damaged or belongs to another dataset size, seed, shuffle
  // or drop_last.
  void load_state(const nlohmann::json& state);

  // What loaders call. reset() begins a pass; a size replaces the dataset's. next() hands out at
  // most `batch_size` indices, nullopt at the end of the epoch.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  struct State;
  explicit DistributedSampler(std::shared_ptr<State> state);
  // Samples that next() can still hand out in this pass.
  std::size_t left();
  // From now on the ranks of this group compare their epochs.
  void follow_group(const ProcessGroup& group);
  // Notes how many samples a batch of this rank has, for state(). Warns once if a state was loaded
  // that was saved with another global batch.
  void note_batch_size(std::size_t samples);

 private:
  template <typename Dataset, typename Sampler>
  friend class torch::data::StatelessDataLoader;

  // What make_data_loader()'s loader says. A pass begins, in which it asks for samples ahead of the loop or not,
  // and gives batches in order or not.
  void begin_loader_pass(bool is_ahead, bool is_in_order);
  // It has asked for a batch ahead of the loop. Returns how many samples of this pass next() has handed out.
  std::size_t note_request();
  // So many of them have reached the loop.
  void reach_loop(std::size_t samples);
  // The batch that next() has handed out last was not made: the dataset has thrown.
  void miss_batch();

  std::shared_ptr<State> state_;
};

struct DistributedWeightedSamplerOptions {
  std::int64_t seed = 0;    // the same on every rank
  bool replacement = true;  // the same sample may be drawn again
  bool drop_last = false;
  bool prefetched = false;  // as DistributedSamplerOptions's
  int rank = 0;
  int world_size = 1;
};

// Draws samples with probabilities, and deals what was drawn as DistributedSampler does. What an
// epoch draws is what torch.utils.data.WeightedRandomSampler draws in PyTorch 2.11 with a generator
// of seed + epoch.
class DistributedWeightedSampler final : public DistributedSampler {
 public:
  // weights: one for each sample of the dataset, at least 0, the same on every rank; they need not
  // add up to 1. samples: of an epoch, over the whole world. Throws kInvalidArgument for weights
  // that are negative, not finite (nor is their sum) or all 0, no samples, and without replacement
  // for more samples than weights that are not 0.
  DistributedWeightedSampler(std::vector<double> weights, std::size_t samples,
                             const DistributedWeightedSamplerOptions& options);
  DistributedWeightedSampler(std::vector<double> weights, std::size_t samples,
                             const ProcessGroup& group,
                             DistributedWeightedSamplerOptions options = {});
};

struct DistributedBatchSamplerOptions {
  std::size_t batch_size = 1;    // of each rank
  bool drop_last_batch = false;  // where it is smaller than the others
  DistributedSamplerOptions of_samples = {};
};

// A DistributedSampler that decides on the batches: every next() is one, whatever size the loader
// asks for, and every rank gets as many. (PyTorch: BatchSampler over a DistributedSampler.)
class DistributedBatchSampler final : public DistributedSampler {
 public:
  // Throws kInvalidArgument also for batches of 0.
  DistributedBatchSampler(std::size_t dataset_size, const DistributedBatchSamplerOptions& options);
  DistributedBatchSampler(std::size_t dataset_size, const ProcessGroup& group,
                          DistributedBatchSamplerOptions options);

  // Of each rank, in an epoch that is dealt from its beginning.
  std::size_t batches() const;

  std::optional<std::vector<std::size_t>> next(std::size_t ignored = 0) override;

 private:
  std::size_t batch_size_;
  bool drop_last_batch_;
};

// For evaluation: every sample once, in order, none twice and none left out. So ranks may differ by
// one sample, and by one batch: no collective may be called for each of them. MetricAccumulator
// merges what the ranks have counted.
class DistributedEvalSampler final
    : public torch::data::samplers::Sampler<std::vector<std::size_t>> {
 public:
  // dataset_size: may be smaller than the world, and 0. Throws kInvalidArgument for a rank outside
  // of the world.
  DistributedEvalSampler(std::size_t dataset_size, int rank, int world_size);
  DistributedEvalSampler(std::size_t dataset_size, const ProcessGroup& group)
      : DistributedEvalSampler(dataset_size, group.rank(), group.size()) {}

  // Samples of this rank.
  std::size_t size() const;

  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  std::size_t dataset_size_;
  std::size_t rank_;
  std::size_t world_size_;
  std::size_t next_;  // sample of the dataset
};

// The part of a global batch that each rank gets. Throws kInvalidArgument if it does not divide by
// the world size.
std::size_t per_rank(std::size_t batch_size, int world_size);

}  // namespace ddprun

#include "ddprun/sampler_loader.h"
