// The loader that torch::data::make_data_loader() makes for a DistributedSampler: LibTorch's, which tells the
// sampler, too, which batches the training loop has got. sampler.h includes it.
//
// With worker threads a pass begins with as many requests as jobs may wait (max_jobs). Then each batch that the
// loop gets is followed by one request, and it is the oldest batch that was asked for. Without worker threads
// there is one request for each batch, when the loop wants it.
//
// The thread that iterates over the loader owns it.
#pragma once

#include <torch/data/dataloader/stateless.h>

#include <concepts>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

#include "ddprun/sampler.h"

namespace torch::data {

template <typename Dataset, std::derived_from<ddprun::DistributedSampler> Sampler>
class StatelessDataLoader<Dataset, Sampler>
    : public DataLoaderBase<Dataset, typename Dataset::BatchType,
                            typename Sampler::BatchRequestType> {
 public:
  using super =
      DataLoaderBase<Dataset, typename Dataset::BatchType, typename Sampler::BatchRequestType>;
  using typename super::BatchRequestType;

  StatelessDataLoader(Dataset dataset, Sampler sampler, DataLoaderOptions options)
      : super(options), sampler_(std::move(sampler)) {
    for (std::size_t i = 0; i < this->options_.workers; ++i)
      this->workers_.emplace_back([this, dataset]() mutable { this->worker_thread(dataset); });
    if (this->options_.workers == 0)
      this->main_thread_dataset_ = std::make_unique<Dataset>(std::move(dataset));
  }

 private:
  bool is_ahead() const { return this->options_.workers > 0; }
  ddprun::DistributedSampler& position() { return sampler_; }

  void reset() override {
    position().begin_loader_pass(
        is_ahead(), this->options_.enforce_ordering || this->options_.workers <= 1);
    sampler_.reset();
    requested_.clear();
    is_filling_ = true;
    super::reset();
    is_filling_ = false;
  }

  std::optional<BatchRequestType> get_batch_request() override {
    if (!is_filling_ && !requested_.empty()) {
      position().reach_loop(requested_.front());
      requested_.pop_front();
    }
    auto indices = sampler_.next(this->options_.batch_size);
    if (!indices || (indices->size() < this->options_.batch_size && this->options_.drop_last))
      return std::nullopt;
    TORCH_INTERNAL_ASSERT(!indices->empty());
    if (is_ahead()) requested_.push_back(position().note_request());
    return indices;
  }

  Sampler sampler_;
  std::deque<std::size_t> requested_;  // samples up to each batch that the loop has not got yet
  bool is_filling_ = false;            // these are the requests of a pass's beginning
};

}  // namespace torch::data
