// Gradient accumulation: a batch that is too large for memory passes through the net in parts. Only
// the last part's backward pass communicates with the other workers:
//
//   ddprun --standalone --nproc-per-node=2 accumulate --parts=4
//
// The program trains twice from the same weights on the same batches, whole and in parts. At the
// end it prints how far the weights are apart. They differ by rounding, because the parts are added
// in another order.
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

struct Options : examples::TrainingOptions {
  std::int64_t parts = 4;
};

using Model = ddprun::DistributedDataParallel<torch::nn::Sequential>;

// Computes the gradients of the batch, averaged over the workers. Returns the loss of this worker's
// batch.
double backward_in_parts(Model& model, const torch::data::Example<>& batch, std::int64_t parts) {
  const std::vector<torch::Tensor> images = batch.data.chunk(parts);
  const std::vector<torch::Tensor> labels = batch.target.chunk(parts);
  double sum = 0;
  for (std::size_t i = 0; i < images.size(); ++i) {
    std::optional<ddprun::NoSync> quiet;
    if (i + 1 < images.size()) quiet.emplace(model.no_sync());
    // The mean over the part is weighted by the part's share of the batch.
    const double share =
        static_cast<double>(images[i].size(0)) / static_cast<double>(batch.data.size(0));
    torch::Tensor loss = torch::cross_entropy_loss(model(images[i]), labels[i]) * share;
    loss.backward();
    sum += loss.item<double>();
  }
  return sum;
}

torch::nn::Sequential train(const Options& options, std::int64_t parts, ddprun::Context& ctx) {
  torch::manual_seed(options.seed);
  const examples::Digits digits(options.data, "train");
  torch::nn::Sequential net = examples::small_net(digits);
  Model model(net, ctx.group());
  torch::optim::SGD optimizer(net->parameters(), options.lr);
  ddprun::DistributedSampler sampler(*digits.size(), ctx.group(), {.seed = options.seed});
  auto loader = torch::data::make_data_loader(digits, sampler, options.batch_size);
  ddprun::MetricAccumulator of_epoch;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    sampler.set_epoch(epoch);
    of_epoch.clear();
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const double loss = backward_in_parts(model, batch, parts);
      optimizer.step();
      of_epoch.add_mean("loss", loss, static_cast<double>(batch.data.size(0)));
    }
  }
  const double loss = of_epoch.merged(ctx.group()).mean("loss");
  if (ctx.rank() == 0)
    std::printf("parts %lld  loss %.4f  sha256 %s\n", static_cast<long long>(parts), loss,
                ddprun::digest_of(*net).c_str());
  return net;
}

double largest_difference(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a->parameters().size(); ++i)
    largest =
        std::max(largest, (a->parameters()[i] - b->parameters()[i]).abs().max().item<double>());
  return largest;
}

void compare(const Options& options) {
  ddprun::Context ctx = ddprun::init();
  const torch::nn::Sequential whole = train(options, 1, ctx);
  const torch::nn::Sequential in_parts = train(options, options.parts, ctx);
  if (ctx.rank() == 0)
    std::printf("largest difference of a weight %.1e\n", largest_difference(whole, in_parts));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains with whole batches and with accumulated parts of them, and compares the weights.\n"
      "Example: ddprun --standalone --nproc-per-node=2 accumulate --parts=4",
      "accumulate");
  options.add_to(line);
  line.add_option("--parts", options.parts, "of each batch").positive();
  return line.run(argc, argv, [&] { compare(options); });
}
