// The loader that torch::data::make_data_loader() makes for a DistributedSampler. It is
// LibTorch's loader, and in addition it reports to the sampler which batches the training loop
// has got. sampler.h includes it.
//
// With worker threads a pass begins with max_jobs requests. Then, for each batch that the loop
// gets, the loader makes one request. The batch that the loop gets is the oldest one requested.
// Without worker threads there is one request for each batch, when the loop wants it.
//
// If the dataset throws, the batch does not reach the loop, and the position stays before it. If
// the loop catches the exception and continues, the next batch moves the position past both.
//
// The thread that iterates over the loader owns it.
#pragma once

#include <torch/data/dataloader/stateless.h>
#include <torch/data/worker_exception.h>

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
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
    // A DistributedBatchSampler sets the batch size itself.
    if constexpr (!std::same_as<Sampler, ddprun::DistributedBatchSampler>)
      position().note_batch_size(this->options_.batch_size);
    for (std::size_t i = 0; i < this->options_.workers; ++i)
      this->workers_.emplace_back([this, dataset]() mutable { this->worker_thread(dataset); });
    if (this->options_.workers == 0)
      this->main_thread_dataset_ = std::make_unique<Dataset>(std::move(dataset));
  }

  // Hides the base's begin(), to detect batches that were not made.
  Iterator<typename Dataset::BatchType> begin() {
    using Batch = typename Dataset::BatchType;
    (void)super::begin();  // checks that no pass is in progress, and resets
    return Iterator<Batch>(
        std::make_unique<detail::ValidIterator<Batch>>([this] { return next_batch(); }));
  }

 private:
  std::optional<typename Dataset::BatchType> next_batch() {
    const std::int64_t begun = position().begin_wait();
    try {
      auto batch = this->next();
      position().end_wait(begun);
      return batch;
    } catch (const WorkerException&) {
      miss_batch();
      throw;
    } catch (const std::exception&) {  // with threads a timeout: the batch may still come
      if (!is_ahead()) miss_batch();
      throw;
    } catch (...) {
      miss_batch();
      throw;
    }
  }

  void miss_batch() {
    if (!is_ahead()) return position().miss_batch();
    if (!requested_.empty()) requested_.pop_front();
  }

  bool is_ahead() const { return this->options_.workers > 0; }
  ddprun::DistributedSampler& position() { return sampler_; }

  void reset() override {
    position().begin_loader_pass(is_ahead(),
                                 this->options_.enforce_ordering || this->options_.workers <= 1);
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
  // For each batch that the loop has not got yet: samples of the pass up to its end.
  std::deque<std::size_t> requested_;
  bool is_filling_ = false;  // the requests at a pass's beginning are being made
};

}  // namespace torch::data
