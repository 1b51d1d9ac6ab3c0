// What DistributedDataParallel is at heart, by hand, twice, to be read beside each other; resnet18
// --compare says what they cost. Both begin with rank 0's weights and give every rank the average
// of all gradients, with DistributedDataParallel's bits. They are short because of what they leave
// out: buckets that many small gradients share, gradients that are computed where they are sent
// from, unused parameters, accumulation, sparse gradients; and where a rank's backward pass throws,
// or visits the parameters in another order, the others get a timeout or an error about shapes, and
// not one that names it.
#pragma once

#include <ddprun/process_group.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace examples {

// 1. After the backward pass: one exchange of all gradients, which nothing overlaps.
class AverageAfterwards {
 public:
  // Collective. The net and the group must outlive it.
  AverageAfterwards(const torch::nn::Module& net, ddprun::ProcessGroup& group)
      : parameters_(net.parameters()), group_(group) {
    group_.broadcast_coalesced(parameters_);
    group_.broadcast_coalesced(net.buffers());
  }

  // Collective; after loss.backward(), which has left each parameter its gradient.
  void average() {
    std::vector<torch::Tensor> gradients;
    for (const torch::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    group_.all_reduce_coalesced(gradients, {.op = ddprun::ReduceOp::kAvg});
  }

 private:
  std::vector<torch::Tensor> parameters_;
  ddprun::ProcessGroup& group_;
};

// 2. In hooks: each gradient is sent as soon as it is there, while the backward pass goes on to the
// layers before.
class AverageInHooks {
 public:
  // Collective. The net must end first, because it keeps the hooks; the group must outlive both.
  AverageInHooks(const torch::nn::Module& net, ddprun::ProcessGroup& group) : group_(group) {
    group_.broadcast_coalesced(net.parameters());
    group_.broadcast_coalesced(net.buffers());
    for (const torch::Tensor& parameter : net.parameters())
      torch::autograd::impl::set_post_acc_grad_hooks(parameter, std::make_unique<Send>(*this));
  }
  AverageInHooks(const AverageInHooks&) = delete;
  AverageInHooks& operator=(const AverageInHooks&) = delete;

  // After loss.backward(): returns when all gradients are averages.
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
