// ddp_probe DIRECTORY: trains a small net on made-up data, and leaves its state as a checkpoint,
// for ddp_equality_test.py, which does the same with PyTorch's DistributedDataParallel. Both sides
// compute weights and data by the same formula.
#include <torch/torch.h>

#include <cstdio>
#include <ddprun/ddprun.hpp>

namespace {

constexpr int kSteps = 12;

// The same numbers as formula() in ddp_equality_test.py, without a random generator.
torch::Tensor formula(double phase, std::vector<std::int64_t> sizes) {
  const torch::Tensor numbers =
      torch::arange(c10::multiply_integers(sizes), torch::kFloat64).mul(0.7).add(phase).sin();
  return numbers.to(torch::kFloat32).reshape(sizes);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: ddp_probe DIRECTORY\n");
    return 2;
  }
  torch::set_num_threads(1);
  auto ctx = ddprun::init();
  torch::nn::Sequential net{torch::nn::Linear(6, 32), torch::nn::BatchNorm1d(32),
                            torch::nn::Tanh(),        torch::nn::Linear(32, 32),
                            torch::nn::ReLU(),        torch::nn::Linear(32, 3)};
  {
    torch::NoGradGuard no_grad;
    double phase = 0;
    for (torch::Tensor& parameter : net->parameters())
      parameter.copy_(formula(phase++, parameter.sizes().vec()) * 0.3);
  }
  // Small buckets, so that there are several; they must not show in the bits.
  ddprun::DistributedDataParallel model(net, ctx.group(),
                                        {.first_bucket_bytes = 256, .bucket_bytes = 1024});
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = [&](int part) {
      const double phase = 100 * step + 10 * ctx.rank() + part;
      return torch::mse_loss(model(formula(phase, {4, 6})), formula(phase + 1, {4, 3}));
    };
    optimizer.zero_grad();
    if (step % 3 == 2) {  // accumulates over two batches
      const ddprun::NoSync quiet = model.no_sync();
      loss(2).backward();
    }
    loss(0).backward();
    optimizer.step();
  }
  ddprun::CheckpointManager(ctx, {.directory = argv[1]})
      .save(kSteps, {.model = net.get(), .optimizer = &optimizer, .extra = {{"loss", "mse"}}});
}
