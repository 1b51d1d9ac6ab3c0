// Communication hooks: another way to average gradients than by reducing whole buckets.
//
//   model.register_comm_hook(std::make_shared<ddprun::Bf16Compress>());
//
// PyTorch's torch.distributed.algorithms.ddp_comm_hooks, with one difference: the second half of a
// hook runs at the end of the backward pass, in the order of the buckets, so that a hook may call
// collectives there without a thought for order.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ddprun/process_group.h"

namespace torch::nn {
class Module;
}

namespace ddprun {

// A bucket that is complete on this rank, with this rank's own gradients, which nobody has divided.
struct GradBucket {
  int index = 0;  // in the order in which buckets are sent
  bool is_last = false;
  // The whole of it, one dimension. Gradients lie one behind the other; what lies between them is
  // zero, and may be overwritten.
  torch::Tensor buffer;
  // Views of the buffer, each with its parameter's shape, and the parameters.
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> parameters;
};

// What a hook carries from one pass to the next.
struct HookState {
  nlohmann::json values = {};  // the same on every rank; null: nothing
  // This rank's, under names of the hook's own. A checkpoint that is restored in a world of another
  // size gives each rank the average over the ranks that there were.
  std::map<std::string, torch::Tensor> tensors = {};
};

// start() is called by the thread of the backward pass, the others between passes; no two calls at
// a time. A hook belongs to one model.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // The same on every rank: with which name, and with what that matters.
  virtual std::string name() const = 0;

  // Begins to average the bucket. Called for each bucket once a pass, in the order of the buckets,
  // while the backward pass may still compute other gradients; so it should not wait. What it
  // returns is called once, at the end of the pass, in the order of the buckets: it waits, and
  // leaves the average in bucket.buffer. It is not called if the pass fails on some rank. Both may
  // call collectives of the group, the same on every rank.
  virtual std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) = 0;

  // What CheckpointManager saves, by the names of the model's parameters where it belongs to them;
  // the tensors may be the hook's own. By default there is nothing.
  virtual HookState state(const torch::nn::Module& model) const;
  // What state() of a hook of the same name gave. Throws kInvalidArgument if it does not fit.
  virtual void load_state(const HookState& state, const torch::nn::Module& model);
  // Whether the ranks have the same parameters after each step. Where they have not, a checkpoint
  // holds those of each rank.
  virtual bool keeps_ranks_equal() const { return true; }
};

// What happens without a hook.
class AllReduceHook final : public CommHook {
 public:
  std::string name() const override { return "all_reduce"; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
};

// Gradients travel in 16 bits; the cpu backend sums them in f32 and rounds once.
class Fp16Compress final : public CommHook {
 public:
  std::string name() const override { return "fp16_compress"; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
};
class Bf16Compress final : public CommHook {
 public:
  std::string name() const override { return "bf16_compress"; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
};

// Nothing travels, and gradients stay local: for measuring what communication costs. The ranks
// drift apart.
class NoopHook final : public CommHook {
 public:
  std::string name() const override { return "noop"; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
  bool keeps_ranks_equal() const override { return false; }
};

struct PowerSgdOptions {
  int rank = 1;  // of the approximation, at least 1
  // Passes that are all_reduced whole before; at least 2, because buckets are laid out after the
  // first.
  std::int64_t start_iteration = 1000;
  // A gradient, as a matrix of n times m, is compressed if (n + m) * rank * min_compression_rate <
  // n * m.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  // what the approximation lost is added to the next gradient
  bool warm_start = true;          // begins with the last pass's Q
  std::uint64_t seed = 0;          // the same on every rank
};

// Gradients as products of two thin matrices: Vogels, Karimireddy, Jaggi, "PowerSGD: Practical
// Low-Rank Gradient Compression for Distributed Optimization", NeurIPS 2019, algorithm 1, as
// PyTorch's powerSGD_hook does it. Takes the memory of the compressed gradients twice more, for the
// error and while it works. Throws kInvalidArgument for options that cannot be meant.
class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options = {});
  ~PowerSgd() override;
  std::string name() const override;
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
  // Passes, errors and Qs, all by parameter: buckets may be others after a restart.
  HookState state(const torch::nn::Module& model) const override;
  void load_state(const HookState& state, const torch::nn::Module& model) override;

  // Of all buckets so far: bytes of the gradients, and bytes that were reduced in their place.
  struct Compression {
    std::uint64_t before = 0;
    std::uint64_t after = 0;
  };
  Compression compression() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// Averages over all ranks in the first `start_iteration` passes, then only within `subgroup` (as a
// rule the ranks of a node), or not at all where that is null. Parameters are then averaged now and
// then, by PeriodicModelAverager. Lin, Stich, Patel, Jaggi, "Don't Use Large Mini-Batches, Use
// Local SGD", ICLR 2020. The subgroup must outlive it.
class PostLocalSgd final : public CommHook {
 public:
  PostLocalSgd(std::int64_t start_iteration, ProcessGroup* subgroup);
  std::string name() const override;
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
  HookState state(const torch::nn::Module& model) const override;  // passes
  void load_state(const HookState& state, const torch::nn::Module& model) override;
  bool keeps_ranks_equal() const override { return false; }

 private:
  const std::int64_t start_iteration_;
  ProcessGroup* const subgroup_;
  std::int64_t passes_ = 0;
};

// Averages parameters over the ranks in every `period`th call, from call `warmup_steps` on; call it
// after each step of the optimizer. Throws kInvalidArgument for a period below 1 or negative
// warm-up.
class PeriodicModelAverager {
 public:
  PeriodicModelAverager(std::int64_t period, std::int64_t warmup_steps = 0);
  // Collective in those calls. The parameters, of one dtype, have the same bits on every rank after
  // it. Throws as all_reduce_coalesced.
  void average_parameters(const std::vector<torch::Tensor>& parameters, ProcessGroup& group);

  // How many calls there were, for CheckpointManager.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  const std::int64_t period_;
  const std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

}  // namespace ddprun
