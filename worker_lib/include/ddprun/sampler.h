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
// A loader takes a copy of its sampler. All copies share one state, so set_epoch(), state() and
// load_state() on any of them mean all of them. The thread that iterates over the loader owns it.
#pragma once

#include <torch/data/samplers/base.h>

#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

struct DistributedSamplerOptions {
  std::int64_t seed = 0;  // the same on every rank; only its low 32 bits count, as in PyTorch
  bool shuffle = true;
  bool drop_last = false;
  // The loader has worker threads, and so asks for samples before the training loop gets them. The
  // loop then has to call delivered() after each batch, else the position would be ahead of it.
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
  // the loader has the same order.
  void set_epoch(std::int64_t epoch);
  std::int64_t epoch() const;

  // Samples that this rank gets in a whole epoch.
  std::size_t size() const;

  // With `prefetched`: the training loop has got the next `samples` samples of this rank. Throws
  // kInvalidArgument without `prefetched`, or for more samples than were handed out.
  void delivered(std::size_t samples);

  // Where the epoch stands: epoch, position (samples that the whole world has got in it) and what
  // the order depends on. Part of a checkpoint; the same on every rank that has done the same
  // steps.
  nlohmann::json state() const;

  // Continues where state() was taken: the next pass over the loader begins with the sample after
  // the last one, if it is a pass over the same epoch. Throws kInvalidArgument if `state` is
  // damaged or belongs to another dataset size, seed, shuffle or drop_last, kUnsupported if it
  // belongs to another world size.
  void load_state(const nlohmann::json& state);

  // What loaders call. reset() begins a pass; a size replaces the dataset's. next() hands out at
  // most `batch_size` indices, nullopt at the end of the epoch.
  void reset(std::optional<std::size_t> new_size = std::nullopt) override;
  std::optional<std::vector<std::size_t>> next(std::size_t batch_size) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace ddprun
