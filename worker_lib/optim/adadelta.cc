#include "ddprun/adadelta.h"

#include <torch/optim/serialize.h>
#include <torch/types.h>

#include "base/concat.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using torch::Tensor;
using torch::optim::OptimizerParamGroup;

void expect_range(const char* option, double value, double low, double high, const char* range) {
  if (!(value >= low && value <= high))
    refuse(concat("Adadelta: '", option, "' is ", std::to_string(value), ", it must be ", range));
}

void expect_in_range(const AdadeltaOptions& options) {
  constexpr double kAny = std::numeric_limits<double>::infinity();
  expect_range("lr", options.lr(), 0, kAny, "0 or more");
  expect_range("rho", options.rho(), 0, 1, "0 to 1");
  expect_range("eps", options.eps(), 0, kAny, "0 or more");
  expect_range("weight_decay", options.weight_decay(), 0, kAny, "0 or more");
}

AdadeltaOptions& options_of(OptimizerParamGroup& group) {
  return static_cast<AdadeltaOptions&>(group.options());
}

// Makes the operations of PyTorch's loop over single tensors, in its order. Other,
// mathematically equal operations would round differently.
void update(Tensor parameter, AdadeltaParamState& state, const AdadeltaOptions& options) {
  Tensor gradient = parameter.grad();
  Tensor square_avg = state.square_avg(), acc_delta = state.acc_delta();
  if (options.maximize()) gradient = -gradient;
  if (options.weight_decay() != 0) gradient = gradient.add(parameter, options.weight_decay());
  if (parameter.is_complex()) {
    square_avg = torch::view_as_real(square_avg);
    acc_delta = torch::view_as_real(acc_delta);
    gradient = torch::view_as_real(gradient);
  }
  square_avg.mul_(options.rho()).addcmul_(gradient, gradient, 1 - options.rho());
  const Tensor deviation = square_avg.add(options.eps()).sqrt_();
  Tensor delta = acc_delta.add(options.eps()).sqrt_();
  delta.div_(deviation).mul_(gradient);
  acc_delta.mul_(options.rho()).addcmul_(delta, delta, 1 - options.rho());
  if (parameter.is_complex()) delta = torch::view_as_complex(delta);
  parameter.add_(delta, -options.lr());
}

}  // namespace

AdadeltaOptions::AdadeltaOptions(double lr) : lr_(lr) {}

// LibTorch's macros need LibTorch's own includes and names.
void AdadeltaOptions::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(lr);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(rho);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(eps);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(weight_decay);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(maximize);
}

void AdadeltaOptions::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, lr);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, rho);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, eps);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(double, weight_decay);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(bool, maximize);
}

double AdadeltaOptions::get_lr() const { return lr(); }
void AdadeltaOptions::set_lr(double lr) { this->lr(lr); }

void AdadeltaParamState::serialize(torch::serialize::OutputArchive& archive) const {
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(step);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(square_avg);
  _TORCH_OPTIM_SERIALIZE_TORCH_ARG(acc_delta);
}

void AdadeltaParamState::serialize(torch::serialize::InputArchive& archive) {
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(std::int64_t, step);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, square_avg);
  _TORCH_OPTIM_DESERIALIZE_TORCH_ARG(Tensor, acc_delta);
}

Adadelta::Adadelta(const std::vector<OptimizerParamGroup>& groups, const AdadeltaOptions& defaults)
    : Optimizer(groups, std::make_unique<AdadeltaOptions>(defaults)) {
  expect_in_range(defaults);
  for (OptimizerParamGroup& group : param_groups_) expect_in_range(options_of(group));
}

Adadelta::Adadelta(std::vector<Tensor> parameters, const AdadeltaOptions& defaults)
    : Adadelta({OptimizerParamGroup(std::move(parameters))}, defaults) {}

Tensor Adadelta::step(LossClosure closure) {
  const torch::NoGradGuard no_grad;
  Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  for (OptimizerParamGroup& group : param_groups_)
    for (const Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (parameter.grad().is_sparse())
        refuse(
            "step of Adadelta: sparse gradients are not supported; make the layer with "
            "sparse(false)",
            DistError::Kind::kUnsupported);
      auto& slot = state_[parameter.unsafeGetTensorImpl()];
      if (!slot) {
        auto fresh = std::make_unique<AdadeltaParamState>();
        fresh->square_avg(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
        fresh->acc_delta(torch::zeros_like(parameter, torch::MemoryFormat::Preserve));
        slot = std::move(fresh);
      }
      auto& state = static_cast<AdadeltaParamState&>(*slot);
      state.step(state.step() + 1);
      update(parameter, state, options_of(group));
    }
  return loss;
}

void Adadelta::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
}

void Adadelta::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<AdadeltaParamState, AdadeltaOptions>(archive, *this);
}

}  // namespace ddprun
