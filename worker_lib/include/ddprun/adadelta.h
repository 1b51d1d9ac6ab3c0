// Adadelta: the one optimizer of PyTorch's list that LibTorch lacks.
//
//   ddprun::Adadelta optimizer(net->parameters(), ddprun::AdadeltaOptions(1.0).rho(0.9));
//
// Weights after each step are those of torch.optim.Adadelta(foreach=False) of PyTorch 2.11, bit
// for bit on the CPU. It is used like LibTorch's own optimizers: parameter groups, zero_grad(),
// closures, torch::save(), and CheckpointManager. Method: Zeiler, "ADADELTA: An Adaptive
// Learning Rate Method", 2012.
//
// The thread that trains owns it.
#pragma once

#include <torch/arg.h>
#include <torch/optim/optimizer.h>
#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace ddprun {

struct AdadeltaOptions : torch::optim::OptimizerCloneableOptions<AdadeltaOptions> {
  AdadeltaOptions(double lr = 1.0);     // NOLINT: implicit from a number, as in LibTorch
  TORCH_ARG(double, lr) = 1.0;          // not negative; scales the step
  TORCH_ARG(double, rho) = 0.9;         // 0 to 1: how slowly the averages of squares change
  TORCH_ARG(double, eps) = 1e-6;        // not negative
  TORCH_ARG(double, weight_decay) = 0;  // not negative; an L2 penalty
  TORCH_ARG(bool, maximize) = false;

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
  double get_lr() const override;
  void set_lr(double lr) override;
};

// The state of each parameter, from its first gradient on.
struct AdadeltaParamState : torch::optim::OptimizerCloneableParamState<AdadeltaParamState> {
  TORCH_ARG(std::int64_t, step) = 0;
  TORCH_ARG(torch::Tensor, square_avg);  // running average of squared gradients
  TORCH_ARG(torch::Tensor, acc_delta);   // running average of squared steps

 public:
  void serialize(torch::serialize::InputArchive& archive) override;
  void serialize(torch::serialize::OutputArchive& archive) const override;
};

class Adadelta : public torch::optim::Optimizer {
 public:
  // Throws kInvalidArgument for options outside of their ranges.
  explicit Adadelta(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                    const AdadeltaOptions& defaults = {});
  explicit Adadelta(std::vector<torch::Tensor> parameters, const AdadeltaOptions& defaults = {});

  // Steps every parameter that has a gradient. closure: computes the loss, with gradients,
  // before the step; step() returns its result. Throws kUnsupported for sparse gradients.
  torch::Tensor step(LossClosure closure = nullptr) override;
  void save(torch::serialize::OutputArchive& archive) const override;
  void load(torch::serialize::InputArchive& archive) override;
};

}  // namespace ddprun
