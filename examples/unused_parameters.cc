// A net of which each step uses only a part, and a different part on each worker:
//
//   ddprun --standalone --nproc-per-node=2 unused_parameters
//   ddprun --standalone --nproc-per-node=2 unused_parameters --without
//
// A branch that any worker used gets its gradient on all workers. A branch that no worker used gets
// no gradient on any worker, and the optimizer does not change it. Without the option
// find_unused_parameters the first backward pass throws on every worker, and names the unused
// parameters by rank.
#include <array>
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

constexpr std::size_t kBranches = 3;

struct Options : examples::TrainingOptions {
  bool without = false;
};

// Branched: common features, and several branches from them to the result. A forward uses one.
struct BranchedImpl : torch::nn::Module {
  explicit BranchedImpl(std::int64_t pixels)
      : features(register_module("features", torch::nn::Linear(pixels, 32))) {
    for (std::size_t i = 0; i < kBranches; ++i)
      branches[i] = register_module("branch" + std::to_string(i), torch::nn::Linear(32, 10));
  }
  torch::Tensor forward(const torch::Tensor& images, std::size_t branch) {
    return branches[branch]->forward(features->forward(images.flatten(1)).relu());
  }
  torch::nn::Linear features;
  std::array<torch::nn::Linear, kBranches> branches{nullptr, nullptr, nullptr};
};
TORCH_MODULE(Branched);

void train(const Options& options) {
  ddprun::Context ctx = ddprun::init();
  torch::manual_seed(options.seed);
  const examples::Digits digits(options.data, "train");
  Branched net(digits.images()[0].numel());
  ddprun::DistributedDataParallel model(net, ctx.group(),
                                        {.find_unused_parameters = !options.without});
  torch::optim::SGD optimizer(net->parameters(), options.lr);
  ddprun::DistributedSampler sampler(*digits.size(), ctx.group(), {.seed = options.seed});
  auto loader = torch::data::make_data_loader(digits, sampler, options.batch_size);

  std::size_t step = 0;
  std::array<std::size_t, kBranches> with_gradient{};  // steps
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    ddprun::MetricAccumulator of_epoch;
    for (auto& batch : *loader) {
      const std::size_t branch = (step + static_cast<std::size_t>(ctx.rank())) % kBranches;
      optimizer.zero_grad();
      torch::Tensor loss = torch::cross_entropy_loss(model(batch.data, branch), batch.target);
      loss.backward();
      for (std::size_t i = 0; i < kBranches; ++i)
        if (net->branches[i]->weight.grad().defined()) ++with_gradient[i];
      optimizer.step();
      ++step;
      of_epoch.add_mean("loss", loss.item<double>(), static_cast<double>(batch.data.size(0)));
    }
    const double loss = of_epoch.merged(ctx.group()).mean("loss");
    if (ctx.rank() == 0)
      std::printf("epoch %2lld  loss %.4f\n", static_cast<long long>(epoch + 1), loss);
  }
  for (std::size_t i = 0; i < kBranches; ++i)
    std::printf("rank %d  branch %zu  a gradient in %zu of %zu steps\n", ctx.rank(), i,
                with_gradient[i], step);
  std::printf("rank %d  sha256 %s\n", ctx.rank(), ddprun::digest_of(*net).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains a net of which each step uses only a part.\n"
      "Example: ddprun --standalone --nproc-per-node=2 unused_parameters",
      "unused_parameters");
  options.add_to(line);
  line.add_flag("--without", options.without,
                "without find_unused_parameters: shows the error, and ends with exit code 1");
  return line.run(argc, argv, [&] { train(options); });
}
