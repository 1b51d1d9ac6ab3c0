// A training that C++ begins and Python continues:
//
//   resume_in_python --checkpoint-dir=run1
//   python3 examples/resume_in_python.py run1
//
// After --switch-after epochs this program saves a checkpoint, and continues to the end itself. The
// Python program has the same net. It takes weights, optimizer, epoch, order of the images and
// random numbers (for dropout) from the checkpoint. For the epochs after the checkpoint it prints
// the same lines, to the last digit. The Python program does not use ddprun.
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 6, .lr = 0.1} {}
  std::string checkpoint_dir;
  std::int64_t switch_after = 3;
};

// Returns the net. make_net() of resume_in_python.py makes the same one.
torch::nn::Sequential make_net(const examples::Digits& digits) {
  const std::int64_t pixels = digits.images()[0].numel();
  return torch::nn::Sequential(torch::nn::Flatten(), torch::nn::Linear(pixels, 64),
                               torch::nn::ReLU(), torch::nn::Dropout(0.25),
                               torch::nn::Linear(64, 10));
}

void train(const Options& options) {
  ddprun::Context ctx = ddprun::init();
  if (ctx.world_size() != 1) throw std::runtime_error("it is for one worker");
  torch::manual_seed(options.seed);
  examples::Digits digits(options.data, "train");
  const examples::Digits test(options.data, "t10k");
  torch::nn::Sequential net = make_net(digits);
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(options.lr).momentum(0.9));
  ddprun::DistributedSampler sampler(*digits.size(), ctx.group(), {.seed = options.seed});
  ddprun::CheckpointManager checkpoints(ctx, {.directory = options.checkpoint_dir});
  auto loader = torch::data::make_data_loader(digits, sampler, options.batch_size);
  std::int64_t step = 0;
  for (std::int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    if (epoch == options.switch_after) {
      checkpoints.save(step,
                       {.model = net.get(),
                        .optimizer = &optimizer,
                        .sampler = &sampler,
                        .epoch = epoch,
                        .extra = {{"epochs", options.epochs}, {"batch_size", options.batch_size}}});
      checkpoints.wait();
      std::printf("saved in %s\n", options.checkpoint_dir.c_str());
    }
    sampler.set_epoch(epoch);
    double sum = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      torch::Tensor loss = torch::cross_entropy_loss(net->forward(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      sum += loss.item<double>() * static_cast<double>(batch.data.size(0));
      ++step;
    }
    std::printf("epoch %2lld  loss %.9f  test accuracy %.2f %%\n",
                static_cast<long long>(epoch + 1), sum / static_cast<double>(*digits.size()),
                100 * examples::accuracy(net, test));
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains, and saves a checkpoint that resume_in_python.py resumes from.\n"
      "Example: resume_in_python --checkpoint-dir=run1",
      "resume_in_python");
  options.add_to(line);
  line.add_option("--checkpoint-dir", options.checkpoint_dir, "directory of the checkpoint")
      .hide_default()
      .required();
  line.add_option("--switch-after", options.switch_after, "epochs before the checkpoint")
      .not_negative();
  return line.run(argc, argv, [&] { train(options); });
}
