// A user's program: a world of one without a launcher, any number of ranks under ddprun.
#include <ddprun/context.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto ctx = ddprun::init();
  const torch::Tensor x = torch::ones({3}, ctx.device());
  ctx.group().all_reduce(x);
  std::cout << "sum " << x.sum().item<int>() << " over " << ctx.world_size() << " rank(s)\n";
}
