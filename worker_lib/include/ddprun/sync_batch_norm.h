// SyncBatchNorm1d, 2d, 3d: batch normalization over the batches of all ranks. Declare them in
// place of torch::nn::BatchNorm1d, 2d, 3d. They have the same options, parameters, buffers and
// names, so files of one load into the other.
//
//   auto ctx = ddprun::init();
//   auto statistics = ctx.group().split(0, 0, {.name = "batch norm"});  // one for all layers
//   torch::nn::Sequential net{torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3)),
//                             ddprun::SyncBatchNorm2d(64, *statistics), torch::nn::ReLU()};
//
// In training, every rank normalizes its own batch by the mean and variance of all ranks'
// batches. The batches may have different sizes, and may be empty on some ranks (which must
// still run forward and backward). Running statistics are updated once for a step, to the same
// bits on every rank. The gradients of weight and bias are this rank's share;
// DistributedDataParallel averages them like any other. The gradient of the input includes the
// terms of the other ranks' losses. In eval mode, and in a group of one rank, the layer is
// torch::nn::BatchNorm, bit for bit.
//
// Formulas and semantics: torch.nn.SyncBatchNorm of PyTorch 2.11. That one serves CUDA tensors
// only; this one serves the devices of its group. Batch normalization: Ioffe and Szegedy, 2015.
// Merging of the ranks' variances: Chan, Golub and LeVeque, 1979.
//
// On a CPU all sums and all values between the ranks are float64. Output and input gradients are
// computed in float64 and rounded once. On a GPU all of it is float32 (float64 for float64 inputs),
// as in PyTorch. No call waits for the work that it has launched. So errors that the ranks find
// together (below) are thrown in the layer's next forward in training. Until then the output is
// NaN, and running statistics stay unchanged.
//
// A forward in training is one collective on the group (2C + 2 values of each rank). A backward
// is one more (2C + 1 values) if the input of any rank requires a gradient, and always on a GPU.
// So all ranks must call the layers in the same order. The group:
//   - The group of DistributedDataParallel is right only if each rank's backward pass visits the
//     same layers in the same order, because its buckets are sent from the same pass. A layer then
//     waits until the buckets before it are reduced.
//   - A separate group, as above, is always right, is not slowed down by buckets, and serves all
//     layers of a model. This is the recommended choice.
//
// The thread that trains owns a layer. A backward pass uses the group from its own thread. A
// forward in training and a backward pass throw kStopped when the group has ended. The group
// must not end while one of them runs.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <memory>
#include <ostream>
#include <string>

#include "ddprun/error.h"
#include "ddprun/process_group.h"

namespace ddprun {

namespace detail {

class LateChecks;

// GroupOfLayers: a reference to a group that may end before its layers.
class GroupOfLayers {
 public:
  explicit GroupOfLayers(ProcessGroup& group) : group_(&group), notes_(group.notes()) {}
  // Returns the group. Throws kStopped when it has ended. doing: for the error.
  ProcessGroup& get(const std::string& doing) const;

 private:
  ProcessGroup* group_;
  std::shared_ptr<GroupNotes> notes_;
};

// BatchNormParts: what a layer lends for a call. The last five tensors are undefined if the
// options leave them out.
struct BatchNormParts {
  std::string name;
  GroupOfLayers group;
  const torch::nn::BatchNormOptions& options;
  torch::Tensor weight, bias;
  torch::Tensor running_mean, running_var, num_batches_tracked;
  // The layer's checks that run one forward late, as on a GPU. Null: they run at once, as on a
  // CPU.
  std::shared_ptr<LateChecks> checks;
};

// Makes the late checks for a layer of this group. A checkpoint waits for their results.
std::shared_ptr<LateChecks> make_late_checks(const ProcessGroup& group);

// Runs a forward in training over all ranks' batches.
torch::Tensor sync_batch_norm(const torch::Tensor& input, const BatchNormParts& parts);

// Throws kInvalidArgument if the input has other dimensions than a D-dimensional layer takes.
void expect_dimensions(std::size_t d, const torch::Tensor& input);

}  // namespace detail

template <std::size_t D, class Derived>
class SyncBatchNormImplBase : public torch::nn::BatchNormImplBase<D, Derived> {
  using Base = torch::nn::BatchNormImplBase<D, Derived>;

 public:
  SyncBatchNormImplBase(const torch::nn::BatchNormOptions& options, ProcessGroup& group)
      : Base(options), group_(group), checks_(detail::make_late_checks(group)) {}

  // input: floating-point, [N, C] or [N, C, L] (1d), [N, C, H, W] (2d), [N, C, D, H, W] (3d), of
  // any memory format. The output has the same format. 16-bit inputs with float32 parameters are
  // allowed. Throws kInvalidArgument for another shape or dtype, before anything is sent. In
  // training it throws kInvalidArgument on every rank if all batches together have fewer than 2
  // values for a channel. It also does if only some ranks record gradients. Throws as collectives
  // when the group fails. If the output was recorded, a backward pass throws kUnsupported for
  // create_graph.
  torch::Tensor forward(const torch::Tensor& input) {
    if (!this->is_training() || group().size() == 1) return Base::forward(input);
    _check_input_dim(input);
    return detail::sync_batch_norm(
        input, {kind(), group_, this->options, this->weight, this->bias, this->running_mean,
                this->running_var, this->num_batches_tracked, input.is_cpu() ? nullptr : checks_});
  }

  // Writes the layer as torch::nn::BatchNorm does, under its own name.
  void pretty_print(std::ostream& stream) const override {
    stream << std::boolalpha << "ddprun::" << kind() << "(" << this->options.num_features()
           << ", eps=" << this->options.eps() << ", momentum=";
    if (this->options.momentum())
      stream << *this->options.momentum();
    else
      stream << "None";
    stream << ", affine=" << this->options.affine()
           << ", track_running_stats=" << this->options.track_running_stats() << ")";
  }

  // Returns the group. Throws kStopped when it has ended.
  ProcessGroup& group() const { return group_.get(kind()); }

  // Adopts another layer's parameters (the same tensors), the memory of its buffers, and its
  // mode. `other` must have the same options.
  template <class Other>
  void share(const torch::nn::BatchNormImplBase<D, Other>& other) {
    this->weight = this->parameters_["weight"] = other.weight;
    this->bias = this->parameters_["bias"] = other.bias;
    if (this->running_mean.defined()) {
      this->running_mean.set_data(other.running_mean);
      this->running_var.set_data(other.running_var);
      this->num_batches_tracked.set_data(other.num_batches_tracked);
    }
    this->train(other.is_training());
  }

 protected:
  void _check_input_dim(const torch::Tensor& input) override {
    detail::expect_dimensions(D, input);
  }

 private:
  static std::string kind() { return "SyncBatchNorm" + std::to_string(D) + "d"; }

  detail::GroupOfLayers group_;
  std::shared_ptr<detail::LateChecks> checks_;
};

class SyncBatchNorm1dImpl : public SyncBatchNormImplBase<1, SyncBatchNorm1dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
class SyncBatchNorm2dImpl : public SyncBatchNormImplBase<2, SyncBatchNorm2dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};
class SyncBatchNorm3dImpl : public SyncBatchNormImplBase<3, SyncBatchNorm3dImpl> {
 public:
  using SyncBatchNormImplBase::SyncBatchNormImplBase;
};

// ModuleHolders: SyncBatchNorm2d bn(64, group), or (torch::nn::BatchNormOptions(64).eps(1e-3),
// group).
TORCH_MODULE(SyncBatchNorm1d);
TORCH_MODULE(SyncBatchNorm2d);
TORCH_MODULE(SyncBatchNorm3d);

// Replaces each torch::nn::BatchNorm of `module`, below it at any depth, with a SyncBatchNorm.
// The new layers have the old ones' options, parameters, buffers and mode. The parameters are
// the same tensors, so an optimizer that was made before stays valid. Returns the number of
// replaced layers.
//
// C++ can replace a layer only in a torch::nn::Sequential. A member such as
// `torch::nn::BatchNorm2d bn` keeps calling the old layer, whatever is registered in its place.
// If there are such layers, or if `module` is one itself, it throws kUnsupported that names them
// all, and changes nothing. Declare those as ddprun::SyncBatchNorm. Not collective. (Python has
// torch.nn.SyncBatchNorm.convert_sync_batchnorm for this.)
std::size_t convert_sync_batchnorm(torch::nn::Module& module, ProcessGroup& group);

}  // namespace ddprun
