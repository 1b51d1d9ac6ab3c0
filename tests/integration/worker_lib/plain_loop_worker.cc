// A training as third parties write it, after pytorch/examples' cpp/mnist: a plain loop over
// epochs that begins at 1, and LibTorch's data loader with worker threads. Lines that were
// added for ddprun are marked with (*). The switches add mistakes that such programs make when
// they are converted.
//
//   ddprun --standalone --nproc-per-node=2 plain_loop_worker --checkpoint-dir=run1
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"

namespace {

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 3, .lr = 0.1} {}
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 10;
  std::size_t loader_workers = 0;
  std::int64_t kill_step = -1;
  int stop_rank = -1;
  std::int64_t stop_epoch = 2;
  double stop_accuracy = 0.05;
  bool own_epoch = false;
  std::int64_t read_ms = 0;
  std::int64_t statistics_every = 0;

  void add_to(examples::CommandLine& line) {
    TrainingOptions::add_to(line);
    line.add_option("--checkpoint-dir", checkpoint_dir).required();
    line.add_option("--checkpoint-every", checkpoint_every, "steps; 0: at the end of each epoch");
    line.add_option("--loader-workers", loader_workers, "threads of the data loader");
    line.add_option("--kill-step", kill_step, "rank 1 kills itself after it, in generation 0");
    line.add_option("--stop-rank", stop_rank, "this rank leaves its loop over batches early");
    line.add_option("--stop-epoch", stop_epoch, "first epoch in which --stop-rank may leave");
    line.add_option("--stop-accuracy", stop_accuracy, "of a batch, above which --stop-rank leaves");
    line.add_option("--read-ms", read_ms, "for how long each image is decoded");
    line.add_option("--statistics-every", statistics_every, "of DistributedDataParallel");
    line.add_flag("--own-epoch", own_epoch, "counts epochs in a variable of its own");
  }
};

// One digit at a time, like LibTorch's MNIST.
class Images : public torch::data::Dataset<Images> {
 public:
  Images(const examples::Digits& digits, std::int64_t read_ms)
      : digits_(digits), read_time_(read_ms) {}
  torch::data::Example<> get(std::size_t index) override {
    // As long as an image takes that has to be decoded.
    const auto end = std::chrono::steady_clock::now() + read_time_;
    while (std::chrono::steady_clock::now() < end) continue;
    return {digits_.images()[static_cast<std::int64_t>(index)],
            digits_.labels()[static_cast<std::int64_t>(index)]};
  }
  std::optional<std::size_t> size() const override { return digits_.size(); }

 private:
  examples::Digits digits_;
  std::chrono::milliseconds read_time_;
};

struct NetImpl : torch::nn::Module {
  explicit NetImpl(std::int64_t pixels) {
    fc1 = register_module("fc1", torch::nn::Linear(pixels, 64));
    fc2 = register_module("fc2", torch::nn::Linear(64, 10));
  }
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(fc1->forward(x.flatten(1)));
    x = torch::dropout(x, /*p=*/0.2, /*train=*/is_training());
    return torch::log_softmax(fc2->forward(x), /*dim=*/1);
  }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
};
TORCH_MODULE(Net);

// Returns the share of the batch that the net classified correctly.
double accuracy_of(const torch::Tensor& output, const torch::Tensor& target) {
  return output.argmax(1).eq(target).to(torch::kFloat64).mean().item<double>();
}

void train(const Options& options) {
  // Each rank prints its own error, although ddprun ends the others after the first.
  if (options.stop_rank >= 0) signal(SIGTERM, SIG_IGN);
  torch::manual_seed(options.seed);
  auto ctx = ddprun::init();  // (*)
  const examples::Digits digits(options.data, "train");
  const std::size_t images = *digits.size();
  Net net(digits.images()[0].numel());
  ddprun::DistributedDataParallel<Net> model(  // (*)
      net, ctx.group(), {.statistics_every = options.statistics_every});
  ddprun::DistributedSampler sampler(images, ctx.group(), {.seed = options.seed});  // (*)
  ctx.manual_seed(options.seed);                                                    // (*)
  torch::optim::SGD optimizer(net->parameters(),
                              torch::optim::SGDOptions(options.lr).momentum(0.5));

  ddprun::TrainingState state{.model = net.get(), .optimizer = &optimizer, .sampler = &sampler};
  if (!options.own_epoch) state.epoch = 1;  // (*) counts epochs
  ddprun::CheckpointManager checkpoints(    // (*)
      ctx, {.directory = options.checkpoint_dir,
            .keep_last = 100,
            .asynchronous = false,
            .every_steps = options.checkpoint_every});
  std::int64_t step = 0;
  if (const auto restored = checkpoints.restore(state)) {  // (*)
    step = restored.step;
    if (ctx.rank() == 0) std::printf("resumed at step %lld\n", static_cast<long long>(step));
  }

  std::int64_t own_epoch = 1;
  for (auto& epoch = options.own_epoch ? own_epoch : state.epoch; epoch <= options.epochs;
       ++epoch) {
    sampler.set_epoch(epoch);  // (*)
    // A loader for each epoch: LibTorch's loader refuses a second loop after one that was left
    // early.
    auto loader = torch::data::make_data_loader(
        Images(digits, options.read_ms)
            .map(torch::data::transforms::Normalize<>(0.3, 0.35))
            .map(torch::data::transforms::Stack<>()),
        sampler,
        torch::data::DataLoaderOptions(options.batch_size).workers(options.loader_workers));
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      const torch::Tensor output = model(batch.data);
      torch::nll_loss(output, batch.target).backward();
      optimizer.step();
      ctx.report_progress(++step);  // (*)
      if (step == options.kill_step && ctx.rank() == 1 && ctx.generation() == 0)
        kill(getpid(), SIGKILL);
      if (checkpoints.maybe_save(step, state).leave) return;  // (*)
      if (ctx.rank() == options.stop_rank && epoch >= options.stop_epoch &&
          accuracy_of(output, batch.target) > options.stop_accuracy) {
        std::printf("left its loop after step %lld\n", static_cast<long long>(step));
        std::fflush(stdout);
        break;
      }
    }
    if (options.checkpoint_every == 0) checkpoints.save(step, state);
  }
  checkpoints.wait();  // (*)
  if (ctx.rank() == 0)
    std::printf("steps %lld sha256 %s\n", static_cast<long long>(step),
                ddprun::digest_of(*net).c_str());
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line("Trains a small net on handwritten digits in a plain loop.",
                             "plain_loop_worker");
  options.add_to(line);
  return line.run(argc, argv, [&] { train(options); });
}
