// Two ways to average gradients by hand: the core of DistributedDataParallel, to compare them.
// resnet18 --compare measures what they cost. Both begin with rank 0's weights. Both give every
// rank the average of all gradients, with DistributedDataParallel's bits.
//
// They are short because they lack much:
// - buckets that many small gradients share;
// - gradients that are computed in the buffer from which they are sent;
// - unused parameters, accumulation, sparse gradients;
// - errors that name a rank. If a rank's backward pass throws, or visits the parameters in another
//   order, the other ranks get a timeout or an error about shapes.
#pragma once

#include <ddprun/process_group.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace examples {

// AverageAfterwards: exchanges all gradients at once, after the backward pass. Nothing overlaps
// the exchange.
class AverageAfterwards {
 public:
  // Collective. The net and the group must outlive it.
  AverageAfterwards(const torch::nn::Module& net, ddprun::ProcessGroup& group)
      : parameters_(net.parameters()), group_(group) {
    group_.broadcast_coalesced(parameters_);
    group_.broadcast_coalesced(net.buffers());
  }

  // Averages the gradients. Collective; call it after loss.backward(), when each parameter has its
  // gradient.
  void average() {
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    group_.all_reduce_coalesced(gradients, {.op = ddprun::ReduceOp::kAvg});
  }

 private:
  std::vector<torch::Tensor> parameters_;
  ddprun::ProcessGroup& group_;
};

// AverageInHooks: sends each gradient in a hook, as soon as it is computed. Meanwhile the backward
// pass continues with the preceding layers.
class AverageInHooks {
 public:
  // Collective. The net owns the hooks, so it must be destroyed before this object. The group must
  // outlive both.
  AverageInHooks(const torch::nn::Module& net, ddprun::ProcessGroup& group) : group_(group) {
    group_.broadcast_coalesced(net.parameters());
    group_.broadcast_coalesced(net.buffers());
    for (const torch::Tensor& parameter : net.parameters())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Send>(*this));
  }
  AverageInHooks(const AverageInHooks&) = delete;
  AverageInHooks& operator=(const AverageInHooks&) = delete;

  // Waits until all gradients are averages. Call it after loss.backward().
  void wait() {
    for (const ddprun::Work& work : sent_) work.wait();
    sent_.clear();
  }

 private:
  struct Send final : torch::autograd::PostAccumulateGradHook {
    explicit Send(AverageInHooks& owner) : owner_(owner) {}
    void operator()(const torch::Tensor& parameter) override {
      owner_.sent_.push_back(owner_.group_.all_reduce(
          parameter.grad(), {.op = ddprun::ReduceOp::kAvg, .async = true}));
    }
    AverageInHooks& owner_;
  };

  ddprun::ProcessGroup& group_;
  std::vector<ddprun::Work> sent_;
};

}  // namespace examples
