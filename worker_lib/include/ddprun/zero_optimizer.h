// ZeroRedundancyOptimizer: SGD, Adam or AdamW whose state is divided among the ranks.
//
//   ddprun::ZeroRedundancyOptimizer<torch::optim::AdamW> optimizer(
//       context.group(), net->parameters(), torch::optim::AdamWOptions(1e-3));
//
// Every rank keeps the state (momenta, averages) of its share of the parameters only. Adam needs
// 8 bytes of state for each float of the model; here this is divided by the number of ranks. In
// step() each rank updates its own parameters and sends them to the others. If gradients are
// equal on all ranks, as DDP leaves them, the parameters have the same bits as with the plain
// optimizer.
//
// Otherwise it behaves as that optimizer. param_groups() has all parameters on every rank, so
// schedules, options per group, zero_grad(), clipping and add_param_group() work as usual.
// CheckpointManager collects the state: its files are those of the plain optimizer. They restore
// in a world of another size, and into a plain optimizer. torch::save() would write only this
// rank's share, and is refused.
//
// Method: stage 1 of Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion
// Parameter Models", 2020. Parameters are assigned to ranks as in PyTorch's class of this name.
//
// The thread that trains owns it. The constructor, step() and saving are collective. The group
// must outlive it.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {
namespace detail {

// ZeroShards: the part that is the same for all classes of optimizers.
class ZeroShards {
 public:
  explicit ZeroShards(ProcessGroup& group);
  ~ZeroShards();
  ZeroShards(const ZeroShards&) = delete;
  ZeroShards& operator=(const ZeroShards&) = delete;

  // Assigns the parameters that are new since the last call, if there are any, and compares them
  // across the ranks.
  void deal_out(const torch::optim::Optimizer& optimizer);
  // Steps the optimizer. While step_of_own runs, only this rank's parameters have gradients.
  torch::Tensor step(torch::optim::Optimizer& optimizer,
                     const torch::optim::Optimizer::LossClosure& closure,
                     const std::function<void()>& step_of_own);

  ProcessGroup& group() const;
  // Returns the rank that owns a parameter. index: over all groups in order.
  int owner_of(std::size_t index) const;
  [[noreturn]] static void refuse_archive();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// ShardedOptimizer: an optimizer that holds part of the state.
class ShardedOptimizer {
 public:
  virtual ~ShardedOptimizer() = default;
  virtual const ZeroShards& shards() const = 0;
};

template <class Optimizer>
struct OptionsOf;
template <>
struct OptionsOf<torch::optim::SGD> {
  using Type = torch::optim::SGDOptions;
};
template <>
struct OptionsOf<torch::optim::Adam> {
  using Type = torch::optim::AdamOptions;
};
template <>
struct OptionsOf<torch::optim::AdamW> {
  using Type = torch::optim::AdamWOptions;
};

}  // namespace detail

// Base: torch::optim::SGD, Adam or AdamW.
template <class Base>
class ZeroRedundancyOptimizer final : public Base, public detail::ShardedOptimizer {
 public:
  using Options = typename detail::OptionsOf<Base>::Type;

  // Throws kInvalidArgument on every rank if the ranks' parameters differ in number, shape,
  // dtype or group. Throws it also for a parameter whose memory has gaps.
  ZeroRedundancyOptimizer(ProcessGroup& group,
                          const std::vector<torch::optim::OptimizerParamGroup>& parameter_groups,
                          const Options& defaults)
      : Base(parameter_groups, defaults), shards_(group) {
    shards_.deal_out(*this);
  }
  ZeroRedundancyOptimizer(ProcessGroup& group, std::vector<torch::Tensor> parameters,
                          const Options& defaults)
      : ZeroRedundancyOptimizer(group, {torch::optim::OptimizerParamGroup(std::move(parameters))},
                                defaults) {}

  // Steps all parameters; every rank calls it. closure: computes the loss, with gradients,
  // before the step; step() returns its result. Parameters without a gradient stay unchanged.
  // Throws what the group's broadcast throws. This rank's parameters may have been updated then.
  torch::Tensor step(torch::optim::Optimizer::LossClosure closure = nullptr) override {
    return shards_.step(*this, closure, [this] { Base::step(); });
  }

  // Throw kUnsupported.
  void save(torch::serialize::OutputArchive&) const override { shards_.refuse_archive(); }
  void load(torch::serialize::InputArchive&) override { shards_.refuse_archive(); }

  const detail::ZeroShards& shards() const override { return shards_; }

 private:
  detail::ZeroShards shards_;
};

}  // namespace ddprun
