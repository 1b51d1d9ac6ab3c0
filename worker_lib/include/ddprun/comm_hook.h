// Communication hooks: average gradients in another way than by reducing whole buckets.
//
//   model.register_comm_hook(std::make_shared<ddprun::Bf16Compress>());
//
// They are PyTorch's torch.distributed.algorithms.ddp_comm_hooks with one difference. The second
// half of a hook runs at the end of the backward pass, in the order of the buckets. So it may
// call collectives without care for their order.
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

// GradBucket: a bucket that is complete on this rank. It has this rank's own gradients, not
// divided.
struct GradBucket {
  int index = 0;  // in the order in which buckets are sent
  bool is_last = false;
  // The whole bucket, of one dimension. Gradients lie one after the other. Gaps between them are
  // zero and may be overwritten.
  torch::Tensor buffer;
  // Views of the buffer, each with its parameter's shape; and the parameters.
  std::vector<torch::Tensor> gradients;
  std::vector<torch::Tensor> parameters;
};

// HookState: the data that a hook keeps from one pass to the next.
struct HookState {
  nlohmann::json values = {};  // the same on every rank; null: nothing
  // This rank's tensors, under names that the hook chooses. If a checkpoint is restored in a
  // world of another size, each rank gets the average over the ranks that saved it.
  std::map<std::string, torch::Tensor> tensors = {};
};

// CommHook: averages the gradients of one model. The thread of the backward pass calls start().
// The other functions are called between passes. Calls never overlap.
class CommHook {
 public:
  virtual ~CommHook() = default;

  // Returns the hook's name with all settings that matter. Must be the same on every rank.
  virtual std::string name() const = 0;

  // Begins to average the bucket. Called for each bucket once a pass, in the order of the
  // buckets. The backward pass may still compute other gradients then, so it should not wait.
  // The returned function is called once, at the end of the pass, in the order of the buckets.
  // It waits, and leaves the average in bucket.buffer. It is not called if the pass fails on
  // some rank. Both may call collectives of the group, the same ones on every rank.
  virtual std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) = 0;

  // Returns the state that CheckpointManager saves. Entries that belong to parameters have the
  // names of the model's parameters. The tensors may be the hook's own. The default is an empty
  // state.
  virtual HookState state(const torch::nn::Module& model) const;
  // Restores the result of state() of a hook of the same name. Throws kInvalidArgument if it
  // does not fit.
  virtual void load_state(const HookState& state, const torch::nn::Module& model);
  // Returns whether the ranks have the same parameters after each step. If not, a checkpoint
  // holds those of each rank.
  virtual bool keeps_ranks_equal() const { return true; }
};

// AllReduceHook: does the same as no hook.
class AllReduceHook final : public CommHook {
 public:
  std::string name() const override { return "all_reduce"; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
};

// Fp16Compress, Bf16Compress: send gradients in 16 bits. The cpu backend sums them in float32
// and rounds once.
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

// NoopHook: sends nothing and leaves gradients local, to measure the cost of communication. The
// ranks drift apart.
class NoopHook final : public CommHook {
 public:
  std::string name() const override { return "noop"; }
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
  bool keeps_ranks_equal() const override { return false; }
};

struct PowerSgdOptions {
  int rank = 1;  // of the approximation, at least 1
  // Number of first passes that all_reduce the gradients uncompressed; at least 2, because
  // buckets are laid out after the first pass.
  std::int64_t start_iteration = 1000;
  // A gradient, seen as an n x m matrix, is compressed if (n + m) * rank * min_compression_rate
  // < n * m.
  double min_compression_rate = 2;
  bool use_error_feedback = true;  // adds the error of the approximation to the next gradient
  bool warm_start = true;          // begins with the last pass's Q
  std::uint64_t seed = 0;          // the same on every rank
};

// PowerSgd: sends gradients as products of two thin matrices. Method: Vogels, Karimireddy,
// Jaggi, "PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization",
// NeurIPS 2019, algorithm 1, as in PyTorch's powerSGD_hook. Takes twice the memory of the
// compressed gradients in addition: for the error, and during the work. Throws kInvalidArgument
// for invalid options.
class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options = {});
  ~PowerSgd() override;
  std::string name() const override;
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
  // Returns the passes, errors and Qs, all by parameter, because the buckets may differ after a
  // restart.
  HookState state(const torch::nn::Module& model) const override;
  void load_state(const HookState& state, const torch::nn::Module& model) override;

  // The sums of all buckets so far: bytes of the gradients, and bytes that were reduced instead.
  struct Compression {
    std::uint64_t before = 0;
    std::uint64_t after = 0;
  };
  Compression compression() const;

 private:
  struct State;
  std::shared_ptr<State> state_;
};

// PostLocalSgd: averages over all ranks in the first `start_iteration` passes. Later it averages
// only within `subgroup` (usually the ranks of a node), or not at all if that is null.
// PeriodicModelAverager then averages the parameters from time to time. Method: Lin, Stich,
// Patel, Jaggi, "Don't Use Large Mini-Batches, Use Local SGD", ICLR 2020. The subgroup must
// outlive the hook.
class PostLocalSgd final : public CommHook {
 public:
  PostLocalSgd(std::int64_t start_iteration, ProcessGroup* subgroup);
  std::string name() const override;
  std::function<void()> start(const GradBucket& bucket, ProcessGroup& group) override;
  HookState state(const torch::nn::Module& model) const override;  // the number of passes
  void load_state(const HookState& state, const torch::nn::Module& model) override;
  bool keeps_ranks_equal() const override { return false; }

 private:
  const std::int64_t start_iteration_;
  ProcessGroup* const subgroup_;
  std::int64_t passes_ = 0;
};

// PeriodicModelAverager: averages parameters over the ranks in every `period`th call, from call
// `warmup_steps` on. Call it after each step of the optimizer. Throws kInvalidArgument for a
// period below 1 or a negative warm-up.
class PeriodicModelAverager {
 public:
  PeriodicModelAverager(std::int64_t period, std::int64_t warmup_steps = 0);
  // Counts the call. A call that averages is a collective: the parameters must have one dtype, and
  // have the same bits on every rank afterwards. Throws what all_reduce_coalesced throws.
  void average_parameters(const std::vector<torch::Tensor>& parameters, ProcessGroup& group);

  // Return and restore the number of calls, for CheckpointManager.
  nlohmann::json state() const;
  void load_state(const nlohmann::json& state);

 private:
  const std::int64_t period_;
  const std::int64_t warmup_steps_;
  std::int64_t step_ = 0;
};

}  // namespace ddprun
