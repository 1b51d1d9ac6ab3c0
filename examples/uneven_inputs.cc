// Workers with different numbers of batches:
//
//   ddprun --standalone --nproc-per-node=2 uneven_inputs
//
// Rank r has r + 1 shares of the images, as if each worker read its own files. In join() a worker
// that has finished its batches answers the collectives of the others until all have finished.
// Without join() the first backward pass that some worker does not make would end in an error.
// Afterwards all workers have the weights of those that trained longest.
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

// Returns this rank's images: r + 1 of the world's 1 + 2 + ... + size shares.
torch::data::Example<> own_images(const examples::Digits& digits,
                                  const ddprun::ProcessGroup& group) {
  const auto images = static_cast<std::int64_t>(*digits.size());
  const std::int64_t rank = group.rank(), size = group.size();
  const std::int64_t shares = size * (size + 1) / 2;
  const std::int64_t begin = images * (rank * (rank + 1) / 2) / shares;
  const std::int64_t end = images * ((rank + 1) * (rank + 2) / 2) / shares;
  return {digits.images().slice(0, begin, end), digits.labels().slice(0, begin, end)};
}

void train(const examples::TrainingOptions& options) {
  ddprun::Context ctx = ddprun::init();
  torch::manual_seed(options.seed);
  const examples::Digits digits(options.data, "train");
  torch::nn::Sequential net = examples::small_net(digits);
  ddprun::DistributedDataParallel model(net, ctx.group());
  torch::optim::SGD optimizer(net->parameters(), options.lr);

  const torch::data::Example<> own = own_images(digits, ctx.group());
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const torch::Tensor order = torch::randperm(own.data.size(0), torch::kInt64);
    std::int64_t batches = 0;
    ddprun::MetricAccumulator of_epoch;
    model.join([&] {
      for (const torch::Tensor& rows : order.split(options.batch_size)) {
        optimizer.zero_grad();
        torch::Tensor loss = torch::cross_entropy_loss(model(own.data.index_select(0, rows)),
                                                       own.target.index_select(0, rows));
        loss.backward();
        optimizer.step();
        of_epoch.add_mean("loss", loss.item<double>(), static_cast<double>(rows.size(0)));
        ++batches;
      }
    });
    if (epoch == 0)
      std::printf("rank %d  %lld batches in an epoch\n", ctx.rank(),
                  static_cast<long long>(batches));
    const double loss = of_epoch.merged(ctx.group()).mean("loss");
    if (ctx.rank() == 0)
      std::printf("epoch %2lld  loss %.4f\n", static_cast<long long>(epoch + 1), loss);
  }
  if (ctx.rank() == 0)
    std::printf("test accuracy %.2f %%\n",
                100 * examples::accuracy(net, examples::Digits(options.data, "t10k")));
  std::printf("rank %d  sha256 %s\n", ctx.rank(), ddprun::digest_of(*net).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  examples::TrainingOptions options;
  examples::CommandLine line(
      "Trains on workers that have different numbers of batches.\n"
      "Example: ddprun --standalone --nproc-per-node=2 uneven_inputs",
      "uneven_inputs");
  options.add_to(line);
  return line.run(argc, argv, [&] { train(options); });
}
