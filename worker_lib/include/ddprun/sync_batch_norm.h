// SyncBatchNorm1d, 2d, 3d: batch normalization over the batches of all ranks, to declare in place of
// torch::nn::BatchNorm1d, 2d, 3d. It has the same options, parameters, buffers and names, so that
// files of one load into the other.
//
//   auto ctx = ddprun::init();
//   auto statistics = ctx.group().split(0, 0, {.name = "batch norm"});  // one for all layers
//   torch::nn::Sequential net{torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 64, 3)),
//                             ddprun::SyncBatchNorm2d(64, *statistics), torch::nn::ReLU()};
//
// In training, every rank normalizes its own batch by the mean and variance of all ranks' batches;
// they may be of unequal sizes, and empty on some ranks (which have to run forward and backward all
// the same). Running statistics are updated once for a step, to the same bits on every rank. The
// gradients of weight and bias are this rank's share, which DistributedDataParallel averages like
// any other; that of the input has what the other ranks' losses say. In eval mode, and in a group of
// one rank, it is torch::nn::BatchNorm, bit for bit.
//
// Formulas and semantics: torch.nn.SyncBatchNorm of PyTorch 2.11, which serves CUDA tensors only;
// this one serves the devices of its group. Batch normalization: Ioffe and Szegedy, 2015. Merging of the
// ranks' variances: Chan, Golub and LeVeque, 1979.
//
// On a CPU everything between the ranks, and all sums, are float64; output and input gradients are computed in
// float64 and rounded once. On a GPU all of it is float32 (float64 for float64 inputs), as PyTorch's, and no
// call waits for what it has just launched. So what the ranks refuse together (below) is thrown in the layer's
// next forward in training. Until then the output is NaN, and running statistics stay as they are.
//
// A forward in training is one collective on the group (2C + 2 values of each rank), a backward one
// more (2C + 1 values) if the input of any rank requires a gradient (on a GPU always). So all ranks call the layers
// in the same order. The group:
//   - That of DistributedDataParallel is right only where each rank's backward pass visits the same
//     layers in the same order, because its buckets are sent from the same pass; and a layer then
//     waits until the buckets in front of it are through.
//   - One of its own, as above, is always right, is not slowed down by buckets, and serves all
//     layers of a model. That is what to use.
//
// The thread that trains owns a layer; a backward pass uses the group from its own thread. A forward in training
// and a backward pass throw kStopped when the group has ended; it must not end while one of them runs.
#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <ostream>
#include <string>

#include "ddprun/error.h"
#include "ddprun/process_group.h"

namespace ddprun {

namespace detail {

class LateChecks;

// A group that may end before its layers.
class GroupOfLayers {
 public:
  explicit GroupOfLayers(ProcessGroup& group) : group_(&group), notes_(group.notes()) {}
  // Throws kStopped when it has ended. doing: for the error.
  ProcessGroup& get(const std::string& doing) const;

 private:
  ProcessGroup* group_;
  std::shared_ptr<GroupNotes> notes_;
};

// What a layer lends for the length of a call. The last five tensors are undefined where the options leave
// them out.
struct BatchNormParts {
  std::string name;
  GroupOfLayers group;
  const torch::nn::BatchNormOptions& options;
  torch::Tensor weight, bias;
  torch::Tensor running_mean, running_var, num_batches_tracked;
  // Of the layer: what is checked one forward late, as on a GPU. Null: at once, as on a CPU.
  std::shared_ptr<LateChecks> checks;
};

// Of a layer of this group. A checkpoint settles them.
std::shared_ptr<LateChecks> make_late_checks(const ProcessGroup& group);

// A forward in training over all ranks' batches.
torch::Tensor sync_batch_norm(const torch::Tensor& input, const BatchNormParts& parts);

// Throws kInvalidArgument for an input of other dimensions than a D-dimensional layer takes.
void expect_dimensions(std::size_t d, const torch::Tensor& input);

}  // namespace detail

template <std::size_t D, class Derived>
class SyncBatchNormImplBase : public torch::nn::BatchNormImplBase<D, Derived> {
  using Base = torch::nn::BatchNormImplBase<D, Derived>;

 public:
  SyncBatchNormImplBase(const torch::nn::BatchNormOptions& options, ProcessGroup& group)
      : Base(options), group_(group), checks_(detail::make_late_checks(group)) {}

  // input: floating-point, [N, C] or [N, C, L] (1d), [N, C, H, W] (2d), [N, C, D, H, W] (3d), of any
  // memory format, which the output has, too. 16-bit inputs with float32 parameters are fine.
  // Throws kInvalidArgument for another shape or dtype, before anything is sent; and in training, on
  // every rank, if all batches together have fewer than 2 values for a channel, or if some ranks
  // record gradients and some do not; as collectives when the group fails. With an output that was
  // recorded, a backward pass throws kUnsupported for create_graph.
  torch::Tensor forward(const torch::Tensor& input) {
    if (!this->is_training() || group().size() == 1) return Base::forward(input);
    _check_input_dim(input);
    return detail::sync_batch_norm(
        input, {kind(), group_, this->options, this->weight, this->bias, this->running_mean,
                this->running_var, this->num_batches_tracked, input.is_cpu() ? nullptr : checks_});
  }

  // As torch::nn::BatchNorm writes itself, under its own name.
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

  // Throws kStopped when it has ended.
  ProcessGroup& group() const { return group_.get(kind()); }

  // Takes over another layer's parameters (the same tensors), the memory of its buffers, and its
  // mode. `other` has the same options.
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

// ModuleHolders: SyncBatchNorm2d bn(64, group), or (torch::nn::BatchNormOptions(64).eps(1e-3), group).
TORCH_MODULE(SyncBatchNorm1d);
TORCH_MODULE(SyncBatchNorm2d);
TORCH_MODULE(SyncBatchNorm3d);

// Puts a SyncBatchNorm in the place of each torch::nn::BatchNorm of `module`, below it at any depth.
// The new layers have the old ones' options, parameters (the same tensors: an optimizer that was made
// before stays right), buffers and mode. Returns how many there were.
//
// C++ can do that where a layer stands in a torch::nn::Sequential, and nowhere else: a member such as
// `torch::nn::BatchNorm2d bn` keeps calling the old layer, whatever is registered in its place. Layers
// that are held otherwise, or `module` being one itself: throws kUnsupported that names them all, and
// nothing is changed; declare those as ddprun::SyncBatchNorm. Not collective. (What
// torch.nn.SyncBatchNorm.convert_sync_batchnorm does in Python.)
std::size_t convert_sync_batchnorm(torch::nn::Module& module, ProcessGroup& group);

}  // namespace ddprun
