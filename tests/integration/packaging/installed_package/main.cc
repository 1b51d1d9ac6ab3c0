// A user's program: a world of one without a launcher, any number of ranks under ddprun.
#include <torch/nn/modules/linear.h>
#include <ddprun/ddprun.hpp>

#include <iostream>

int main() {
  auto ctx = ddprun::init();
  const torch::Tensor x = torch::ones({3}, ctx.device());
  ctx.group().all_reduce(x);
  torch::nn::Linear net(3, 1);
  net->to(ctx.device());
  ddprun::DistributedDataParallel model(net, ctx.group());
  model(x).sum().backward();
  std::cout << "digest " << ddprun::digest_of(*net) << "\n";
  const ddprun::PendingWork call;  // the answer of a backend that the user wrote
  call.complete();
  call.work().wait();
  std::cout << "sum " << x.sum().item<int>() << " over " << ctx.world_size() << " rank(s)\n";
}
