// Data-parallel training by hand, with only three collectives:
//
//   ddprun --standalone --nproc-per-node=2 average_gradients
//
//   1. broadcast: every worker begins with rank 0's weights
//   2. all_reduce: every worker takes its step with the average of all gradients
//   3. all_reduce: the loss of the epoch is that of all workers' images
//
// So all workers have the same weights at all times, and print the same SHA-256 of them at the end.
// DistributedDataParallel does 1 and 2 by itself. It does 2 while the backward pass still runs (see
// train_digits.cc).
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

void average_gradients(torch::nn::Sequential& net, ddprun::ProcessGroup& group) {
  std::vector<torch::Tensor> gradients;
  for (const torch::Tensor& parameter : net->parameters()) gradients.push_back(parameter.grad());
  group.all_reduce_coalesced(gradients, {.op = ddprun::ReduceOp::kAvg});  // (2)
}

void train(const examples::TrainingOptions& options) {
  ddprun::Context ctx = ddprun::init();
  ctx.manual_seed(options.seed);  // own weights of each rank; the broadcast replaces them
  const examples::Digits digits(options.data, "train");
  torch::nn::Sequential net = examples::small_net(digits);
  ctx.group().broadcast_coalesced(net->parameters());  // (1)

  torch::optim::SGD optimizer(net->parameters(), options.lr);
  ddprun::DistributedSampler sampler(*digits.size(), ctx.group(), {.seed = options.seed});
  auto loader = torch::data::make_data_loader(digits, sampler, options.batch_size);
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    torch::Tensor sums = torch::zeros(2, torch::kFloat64);  // of the losses and of the images
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::Tensor loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      loss.backward();
      average_gradients(net, ctx.group());
      optimizer.step();
      const auto images = static_cast<double>(batch.data.size(0));
      sums += torch::tensor({loss.item<double>() * images, images}, torch::kFloat64);
    }
    ctx.group().all_reduce(sums);  // (3)
    if (ctx.rank() == 0)
      std::printf("epoch %2lld  loss %.4f\n", static_cast<long long>(epoch + 1),
                  sums[0].item<double>() / sums[1].item<double>());
  }
  std::printf("rank %d  sha256 %s\n", ctx.rank(), ddprun::digest_of(*net).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  examples::TrainingOptions options;
  examples::CommandLine line(
      "Trains data-parallel with broadcast and all_reduce alone.\n"
      "Example: ddprun --standalone --nproc-per-node=2 average_gradients",
      "average_gradients");
  options.add_to(line);
  return line.run(argc, argv, [&] { train(options); });
}
