// Compares two ways to use several GPUs: one process for all of them, and one process for each.
//
// LibTorch has the first way, as torch::nn::parallel::data_parallel. In every forward pass it
// splits the batch, copies the weights to every GPU, runs a thread for each, and gathers the
// outputs. DistributedDataParallel has a process for each GPU. Only gradients travel, while the
// backward pass still runs.
//
//   ddprun --standalone --nproc-per-node=2 data_parallel
//
// Rank 0 first trains alone with data_parallel on all GPUs of the host, with the batches of all
// ranks together. Then all ranks train with DistributedDataParallel from the same weights. Both
// take the same images in each step, so the final weights differ only by rounding. Without a GPU
// data_parallel has one device, the CPU, and is a plain forward pass.
#include <torch/nn/parallel/data_parallel.h>

#include <chrono>
#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "examples/command_line.h"

namespace {

using Rows = std::vector<std::size_t>;
using Clock = std::chrono::steady_clock;

std::vector<torch::Device> all_devices() {
  std::vector<torch::Device> devices;
  for (int gpu = 0; gpu < static_cast<int>(torch::cuda::device_count()); ++gpu)
    devices.emplace_back(torch::kCUDA, static_cast<torch::DeviceIndex>(gpu));
  if (devices.empty()) devices.emplace_back(torch::kCPU);
  return devices;
}

std::string names_of(const std::vector<torch::Device>& devices) {
  std::string text;
  for (const torch::Device& device : devices) text += (text.empty() ? "" : ", ") + device.str();
  return text;
}

// Trained: the result of one way of training.
struct Trained {
  torch::nn::Sequential net;
  double loss = 0;  // of the last epoch
  double images_per_second = 0;
};

// Dealer: gives out the images of some ranks, step by step. Each rank has its own images.
class Dealer {
 public:
  Dealer(std::size_t images, const std::vector<int>& ranks, int world_size, std::int64_t seed) {
    for (const int rank : ranks)
      samplers_.emplace_back(images, ddprun::DistributedSamplerOptions{
                                         .seed = seed, .rank = rank, .world_size = world_size});
  }
  void begin_epoch(std::int64_t epoch) {
    for (ddprun::DistributedSampler& sampler : samplers_) {
      sampler.set_epoch(epoch);
      sampler.reset();
    }
  }
  // Returns the next `of_each` images of each of the ranks. Empty: the epoch is over.
  Rows next(std::int64_t of_each) {
    Rows rows;
    for (ddprun::DistributedSampler& sampler : samplers_)
      if (const auto some = sampler.next(static_cast<std::size_t>(of_each)))
        rows.insert(rows.end(), some->begin(), some->end());
    return rows;
  }

 private:
  std::vector<ddprun::DistributedSampler> samplers_;
};

// Trains `net`. forward: computes the output of a batch that is on the CPU; the output is on
// `device`.
template <class Forward>
Trained train(const examples::TrainingOptions& options, examples::Digits digits,
              torch::nn::Sequential net, Dealer dealer, const torch::Device& device,
              const Forward& forward) {
  torch::optim::SGD optimizer(net->parameters(), options.lr);
  Trained trained{.net = net};
  const Clock::time_point start = Clock::now();
  double images = 0;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    dealer.begin_epoch(epoch);
    ddprun::MetricAccumulator of_epoch;
    for (Rows rows = dealer.next(options.batch_size); !rows.empty();
         rows = dealer.next(options.batch_size)) {
      const auto batch = digits.get_batch(rows);
      optimizer.zero_grad();
      torch::Tensor loss = torch::cross_entropy_loss(forward(batch.data), batch.target.to(device));
      loss.backward();
      optimizer.step();
      images += static_cast<double>(rows.size());
      of_epoch.add_mean("loss", loss.item<double>(), static_cast<double>(rows.size()));
    }
    trained.loss = of_epoch.mean("loss");
  }
  trained.images_per_second = images / std::chrono::duration<double>(Clock::now() - start).count();
  return trained;
}

torch::nn::Sequential same_net(const examples::TrainingOptions& options,
                               const examples::Digits& digits) {
  torch::manual_seed(options.seed);
  return examples::small_net(digits);
}

Trained train_alone(const examples::TrainingOptions& options, const examples::Digits& digits,
                    int world_size) {
  const std::vector<torch::Device> devices = all_devices();
  torch::nn::Sequential net = same_net(options, digits);
  net->to(devices.front());
  std::vector<int> all_ranks(static_cast<std::size_t>(world_size));
  std::iota(all_ranks.begin(), all_ranks.end(), 0);
  const Trained trained =
      train(options, digits, net, Dealer(*digits.size(), all_ranks, world_size, options.seed),
            devices.front(), [&](const torch::Tensor& input) {
              return torch::nn::parallel::data_parallel(net, input.to(devices.front()), devices);
            });
  std::printf("data_parallel            1 process on %s  loss %.4f  %.0f images/s\n",
              names_of(devices).c_str(), trained.loss, trained.images_per_second);
  return trained;
}

Trained train_together(const examples::TrainingOptions& options, const examples::Digits& digits,
                       ddprun::Context& ctx) {
  torch::nn::Sequential net = same_net(options, digits);
  net->to(ctx.device());
  ddprun::DistributedDataParallel model(net, ctx.group());
  Trained trained = train(
      options, digits, net, Dealer(*digits.size(), {ctx.rank()}, ctx.world_size(), options.seed),
      ctx.device(), [&](const torch::Tensor& input) { return model(input.to(ctx.device())); });
  ddprun::MetricAccumulator all;
  all.add("loss", trained.loss);
  all.add("images per second", trained.images_per_second);
  all = all.merged(ctx.group());
  trained.loss = all.mean("loss");
  if (ctx.rank() == 0)
    std::printf("DistributedDataParallel  %d process%s on %s  loss %.4f  %.0f images/s\n",
                ctx.world_size(), ctx.world_size() == 1 ? "" : "es", ctx.device().str().c_str(),
                trained.loss, all.sum("images per second"));
  return trained;
}

double largest_difference(const torch::nn::Sequential& a, const torch::nn::Sequential& b) {
  double largest = 0;
  for (std::size_t i = 0; i < a->parameters().size(); ++i) {
    const torch::Tensor of_b = b->parameters()[i].to(a->parameters()[i].device());
    largest = std::max(largest, (a->parameters()[i] - of_b).abs().max().item<double>());
  }
  return largest;
}

void compare(const examples::TrainingOptions& options) {
  ddprun::Context ctx = ddprun::init();
  const examples::Digits digits(options.data, "train");
  std::optional<Trained> alone;
  if (ctx.rank() == 0) alone = train_alone(options, digits, ctx.world_size());
  ctx.group().barrier();  // the other ranks have left the host to rank 0
  const Trained together = train_together(options, digits, ctx);
  if (!alone) return;
  std::printf("largest difference of a weight %.1e\n",
              largest_difference(alone->net, together.net));
  std::printf(
      "data_parallel is for a program that must stay one process on one host.\n"
      "DistributedDataParallel is for all else.\n");
}

}  // namespace

int main(int argc, char** argv) {
  examples::TrainingOptions options;
  examples::CommandLine line(
      "Trains with LibTorch's data_parallel in one process, then with DistributedDataParallel in "
      "all, and compares.\n"
      "Example: ddprun --standalone --nproc-per-node=2 data_parallel",
      "data_parallel");
  options.add_to(line);
  return line.run(argc, argv, [&] { compare(options); });
}
