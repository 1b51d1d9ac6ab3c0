// Ranks without a launcher: the program starts them itself, as torch.multiprocessing.spawn does.
//
//   spawn --ranks=2
//   spawn --ranks=2 --fail-rank=1
//
// Each rank is a fork: it sees the options that were parsed before, trains as under ddprun, and
// ends. If a rank fails, the others are ended, and spawn() throws one exception that names the
// rank. No thread may be started before spawn(), so the ranks make all tensors. Other functions of
// a launcher are missing: several hosts, restarts, logs (docs/how-to/start_by_hand.md).
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

struct Options : examples::TrainingOptions {
  int ranks = 2;
  int fail_rank = -1;
};

void train(const Options& options) {
  ddprun::Context ctx = ddprun::init();
  torch::manual_seed(options.seed);
  const examples::Digits digits(options.data, "train");
  torch::nn::Sequential net = examples::small_net(digits);
  ddprun::DistributedDataParallel model(net, ctx.group());
  torch::optim::SGD optimizer(net->parameters(), options.lr);
  ddprun::DistributedSampler sampler(*digits.size(), ctx.group(), {.seed = options.seed});
  auto loader = torch::data::make_data_loader(digits, sampler, options.batch_size);
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    ddprun::MetricAccumulator of_epoch;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::Tensor loss = torch::cross_entropy_loss(model(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      of_epoch.add_mean("loss", loss.item<double>(), static_cast<double>(batch.data.size(0)));
    }
    const double loss = of_epoch.merged(ctx.group()).mean("loss");
    if (ctx.rank() == 0)
      std::printf("epoch %2lld  loss %.4f\n", static_cast<long long>(epoch + 1), loss);
    if (ctx.rank() == options.fail_rank) throw std::runtime_error("failed as requested");
  }
  std::printf("rank %d  sha256 %s\n", ctx.rank(), ddprun::digest_of(*net).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Starts its own ranks, without a launcher, and trains data-parallel.\n"
      "Example: spawn --ranks=2",
      "spawn");
  options.add_to(line);
  line.add_option("--ranks", options.ranks, "processes to start").range(1, 1024);
  line.show_defaults(false);
  line.add_option("--fail-rank", options.fail_rank, "this rank throws after its first epoch")
      .not_negative();
  return line.run(argc, argv, [&] {
    ddprun::spawn([&](int) { train(options); }, options.ranks);
    std::printf("all %d ranks have ended well\n", options.ranks);
  });
}
