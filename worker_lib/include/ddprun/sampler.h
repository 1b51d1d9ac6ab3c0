// DistributedSampler: divides the samples of a dataset among the ranks, as PyTorch's does.
//
//   ddprun::DistributedSampler sampler(*dataset.size(), ctx.group(), {.seed = 7});
//   auto loader = torch::data::make_data_loader(dataset, sampler, 32);
//   for (int epoch = 0; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) train(batch);
//   }
//
// For the same size, world, seed, epoch, shuffle and drop_last the indices are those of
// torch.utils.data.DistributedSampler in PyTorch 2.11. The list is padded with its own start
// until it divides by the world size, or cut with drop_last. So every rank gets the same number
// of samples.
//
// The position in the epoch counts samples of the whole world. So another number of ranks can
// continue from it: the remaining samples are divided among them.
//
// A loader copies its sampler. All copies share one state, so set_epoch(), state() and
// load_state() on any of them affect all of them. The thread that iterates over the loader owns
// it.
//
// A loader with worker threads requests samples before the training loop gets them. The loaders
// of torch::data::make_data_loader() tell the sampler which batches the loop has got
// (sampler_loader.h), so that the position is the loop's.
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
  // The loop calls delivered() after each batch, and only this moves the position. It is for the
  // program's own loaders that call next() ahead of the loop. make_data_loader()'s loaders do
  // not need it.
  bool prefetched = false;
  // Taken from the group if one is given.
  int rank = 0;
  int world_size = 1;
};

class DistributedSampler : public torch::data::samplers::Sampler<std::vector<std::size_t>> {
 public:
  // dataset_size: at least 1. Throws kInvalidArgument for a dataset without samples, and for a
  // rank outside the world.
  DistributedSampler(std::size_t dataset_size, const DistributedSamplerOptions& options);
  DistributedSampler(std::size_t dataset_size, const ProcessGroup& group,
                     DistributedSamplerOptions options = {});

  // Chooses the epoch's order, from the next begin() of the loader on. Without it every pass over
  // the loader has the same order. A checkpoint between two passes cannot tell then which pass is
  // to continue: the first one (with nothing, at its end), or the second. So call it also if
  // nothing is shuffled.
  //
  // DistributedDataParallel compares the epochs of the ranks in each synchronised pass, and
  // throws kInvalidArgument on every rank if they differ. It does so for samplers that were made
  // with its group, and for those of the same rank and world size. It also does so for those whose
  // position a CheckpointManager with its group has saved or restored.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const;

  // Returns the number of samples that this rank gets in a whole epoch.
  std::size_t size() const;

  // Reports, with `prefetched`, that the training loop has got the next `samples` samples of
  // this rank. Throws kInvalidArgument without `prefetched`, and for more samples than were
  // handed out.
  void delivered(std::size_t samples);

  // Returns the position in the epoch: epoch, position (samples that the whole world has got),
  // and the values that the order depends on. It includes a rank's batch size if a loader of
  // make_data_loader() or a DistributedBatchSampler has set it. It is part of a checkpoint. It
  // is the same on every rank after the same steps.
  //
  // Throws kUnsupported from the first next() of a pass until a new pass begins, or set_epoch()
  // chooses another epoch, where no position describes what the loop has got:
  // - if another thread than the caller's called next(), without a loader of make_data_loader()
  //   and without the option `prefetched`;
  // - with a loader that has several worker threads and enforce_ordering(false), until all
  //   requested batches have arrived.
  nlohmann::json state() const;

  // Continues from a state(): the next pass over the loader begins with the sample after the
  // last one, if it is a pass over the same epoch. The world may have another size. Then the
  // rest of the epoch is divided among it, and padded or cut until it divides by the new size.
  // Throws kInvalidArgument if `state` is damaged or belongs to another dataset size, seed,
  // shuffle or drop_last.
  void load_state(const nlohmann::json& state);

  // Serve loaders. reset() begins a pass; a size replaces the dataset's. next() returns at most
  // `batch_size` indices, nullopt at the end of the epoch.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 protected:
  struct State;
  explicit DistributedSampler(std::shared_ptr<State> state);
  // Returns the number of samples that next() can still hand out in this pass.
  std::size_t left();
  // Makes the ranks of this group, too, compare their epochs from now on.
  void follow_group(const ProcessGroup& group);
  // Records the number of samples in a batch of this rank, for state(). Warns once if the loaded
  // state was saved with another global batch.
  void note_batch_size(std::size_t samples);

 private:
  friend class CheckpointManager;
  template <typename Dataset, typename Sampler>
  friend class torch::data::StatelessDataLoader;

  // Begins a pass. The loader of make_data_loader() calls this and the functions below. is_ahead:
  // it requests samples ahead of the loop. is_in_order: it returns batches in order.
  void begin_loader_pass(bool is_ahead, bool is_in_order);
  // Records a request for a batch ahead of the loop. Returns how many samples of this pass
  // next() has handed out.
  std::size_t note_request();
  // Records that this number of them has reached the loop.
  void reach_loop(std::size_t samples);
  // Records that the last batch that next() handed out was not made, because the dataset threw.
  void miss_batch();
  // Mark the beginning and the end of the loop's wait for a batch. begin_wait() returns what
  // end_wait() takes. Without the option 'statistics_every' of DistributedDataParallel they do
  // nothing.
  std::int64_t begin_wait() const;
  void end_wait(std::int64_t begun);

  std::shared_ptr<State> state_;
};

struct DistributedWeightedSamplerOptions {
  std::int64_t seed = 0;    // the same on every rank
  bool replacement = true;  // the same sample may be drawn again
  bool drop_last = false;
  bool prefetched = false;  // as in DistributedSamplerOptions
  int rank = 0;
  int world_size = 1;
};

// DistributedWeightedSampler: draws samples with probabilities, and divides them as
// DistributedSampler does. An epoch draws the same samples as
// torch.utils.data.WeightedRandomSampler in PyTorch 2.11 with a generator of seed + epoch.
class DistributedWeightedSampler final : public DistributedSampler {
 public:
  // weights: one for each sample of the dataset, at least 0, the same on every rank. They need
  // not add up to 1. samples: number in an epoch, over the whole world. Throws kInvalidArgument
  // for weights that are negative, not finite (or whose sum is not), or all 0, and for zero
  // samples. Without replacement it throws also if there are more samples than weights above 0.
  DistributedWeightedSampler(std::vector<double> weights, std::size_t samples,
                             const DistributedWeightedSamplerOptions& options);
  DistributedWeightedSampler(std::vector<double> weights, std::size_t samples,
                             const ProcessGroup& group,
                             DistributedWeightedSamplerOptions options = {});
};

struct DistributedBatchSamplerOptions {
  std::size_t batch_size = 1;    // of each rank
  bool drop_last_batch = false;  // a last batch that is smaller than the others
  DistributedSamplerOptions of_samples = {};
};

// DistributedBatchSampler: a DistributedSampler that sets the batches. Every next() returns one
// batch, whatever size the loader asks for, and every rank gets the same number. (PyTorch:
// BatchSampler over a DistributedSampler.)
class DistributedBatchSampler final : public DistributedSampler {
 public:
  // Throws kInvalidArgument also for a batch size of 0.
  DistributedBatchSampler(std::size_t dataset_size, const DistributedBatchSamplerOptions& options);
  DistributedBatchSampler(std::size_t dataset_size, const ProcessGroup& group,
                          DistributedBatchSamplerOptions options);

  // Returns the number of batches of each rank in a whole epoch.
  std::size_t batches() const;

  std::optional<std::vector<std::size_t>> next(std::size_t ignored = 0) override;

 private:
  std::size_t batch_size_;
  bool drop_last_batch_;
};

// DistributedEvalSampler: for evaluation; gives every sample exactly once, in order. So ranks
// may differ by one sample, and by one batch. Do not call a collective for each of them.
// MetricAccumulator merges the metrics of the ranks.
class DistributedEvalSampler final
    : public torch::data::samplers::Sampler<std::vector<std::size_t>> {
 public:
  // dataset_size: may be smaller than the world, and 0. Throws kInvalidArgument for a rank
  // outside the world.
  DistributedEvalSampler(std::size_t dataset_size, int rank, int world_size);
  DistributedEvalSampler(std::size_t dataset_size, const ProcessGroup& group)
      : DistributedEvalSampler(dataset_size, group.rank(), group.size()) {}

  // Returns the number of samples of this rank.
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

// Returns each rank's part of a global batch. Throws kInvalidArgument if the batch does not
// divide by the world size.
std::size_t per_rank(std::size_t batch_size, int world_size);

}  // namespace ddprun

#include "ddprun/sampler_loader.h"
