// The classic net for MNIST, data-parallel: two convolutions, two linear layers, dropout, and
// Adadelta with a learning rate that falls by a factor with each epoch.
//
//   ddprun --standalone --nproc-per-node=2 mnist_convnet
//   ddprun --standalone --nproc-per-node=2 mnist_convnet --data=mnist --epochs=14 --gamma=0.7
//
// --data names a folder with the files of MNIST, FashionMNIST or others of that format, gzip or
// not. Without it the small digits that come with the source are used. Every epoch ends with a line
// of metrics over all test images; each worker evaluates its share. The line before the SHA-256 of
// the weights is the speed-up over one worker that runs alone. Each worker has the same number of
// images in both cases.
#include <chrono>
#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"
#include "examples/epoch_report.h"

namespace {

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 40, .lr = 1.0} {}
  double gamma = 0.95;
  std::string checkpoint_dir;
  std::string metrics;
};

// Net: MNIST's images lose two pixels in each convolution. Smaller images are padded and lose none.
struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t height, std::int64_t width)
      : padding(std::min(height, width) < 20 ? 1 : 0),
        conv1(register_module("conv1", conv(1, 32))),
        conv2(register_module("conv2", conv(32, 64))),
        dropout1(register_module("dropout1", torch::nn::Dropout(0.25))),
        dropout2(register_module("dropout2", torch::nn::Dropout(0.5))),
        fc1(register_module("fc1", torch::nn::Linear(64 * pooled(height) * pooled(width), 128))),
        fc2(register_module("fc2", torch::nn::Linear(128, 10))) {}

  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(conv2(torch::relu(conv1(x))));
    x = dropout1(torch::max_pool2d(x, 2)).flatten(1);
    x = dropout2(torch::relu(fc1(x)));
    return torch::log_softmax(fc2(x), 1);
  }

  torch::nn::Conv2d conv(std::int64_t from, std::int64_t to) const {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(padding));
  }
  std::int64_t pooled(std::int64_t pixels) const { return (pixels - 4 + 4 * padding) / 2; }

  std::int64_t padding;
  torch::nn::Conv2d conv1, conv2;
  torch::nn::Dropout dropout1, dropout2;
  torch::nn::Linear fc1, fc2;
};
TORCH_MODULE(Net);

Net make_net(const examples::Digits& digits) {
  const std::int64_t height = digits.images().size(2), width = digits.images().size(3);
  if (height < 2 || width < 2)
    throw std::runtime_error("images of " + std::to_string(height) + " x " + std::to_string(width) +
                             " pixels are too small for this net");
  return Net(height, width);
}

// Returns the images per second of one worker alone: rank 0 trains a temporary net, and the others
// wait.
double speed_of_one(const Options& options, const examples::Digits& digits, ddprun::Context& ctx) {
  constexpr int kWarmUp = 5, kSteps = 100;
  torch::Tensor speed = torch::zeros(1, torch::kFloat64);
  if (ctx.rank() == 0) {
    Net net = make_net(digits);
    ddprun::Adadelta optimizer(net->parameters(), options.lr);
    const auto count = std::min(options.batch_size, digits.images().size(0));
    const torch::Tensor images = digits.images().narrow(0, 0, count);
    const torch::Tensor labels = digits.labels().narrow(0, 0, count);
    auto start = std::chrono::steady_clock::now();
    for (int step = -kWarmUp; step < kSteps; ++step) {
      if (step == 0) start = std::chrono::steady_clock::now();
      optimizer.zero_grad();
      torch::nll_loss(net(examples::jittered(images)), labels).backward();
      optimizer.step();
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
    speed[0] = static_cast<double>(count) * kSteps / took.count();
  }
  ctx.group().broadcast(speed);
  return speed.item<double>();
}

class Training {
 public:
  Training(const Options& options, ddprun::Context& ctx)
      : options_(options),
        ctx_(ctx),
        train_(options.data, "train"),
        test_(options.data, "t10k"),
        speed_of_one_(ctx.world_size() > 1 ? speed_of_one(options, train_, ctx) : 0) {
    torch::manual_seed(options.seed);
    net_ = make_net(train_);
    model_.emplace(net_, ctx.group());
    optimizer_.emplace(net_->parameters(), options.lr);
    schedule_.emplace(*optimizer_, ddprun::StepLR{.step_size = 1, .gamma = options.gamma});
    sampler_.emplace(*train_.size(), ctx.group(),
                     ddprun::DistributedSamplerOptions{.seed = options.seed});
    ctx.manual_seed(options.seed);  // for dropout and jitter, which differ by rank
    state_ = {.model = net_.get(),
              .optimizer = &*optimizer_,
              .scheduler = &*schedule_,
              .sampler = &*sampler_};
    if (options.checkpoint_dir.empty()) return;
    checkpoints_.emplace(
        ctx, ddprun::CheckpointOptions{.directory = options.checkpoint_dir, .keep_best = 1});
    const ddprun::Restored restored = checkpoints_->restore(state_);
    if (restored && ctx.rank() == 0)
      std::printf("resumed after epoch %lld from %s\n", static_cast<long long>(state_.epoch),
                  restored.file.c_str());
    step_ = restored ? restored.step : 0;
  }

  void run() {
    examples::EpochReport report(options_.metrics, ctx_.rank() == 0, ctx_.world_size());
    auto loader = torch::data::make_data_loader(train_, *sampler_, options_.batch_size);
    const auto images = static_cast<std::int64_t>(sampler_->size());
    const std::int64_t steps = (images + options_.batch_size - 1) / options_.batch_size;
    double speed = 0;
    while (state_.epoch < options_.epochs) {
      sampler_->set_epoch(state_.epoch);
      report.begin_epoch(state_.epoch + 1, steps);
      ddprun::MetricAccumulator metrics;
      for (auto& batch : *loader) {
        optimizer_->zero_grad();
        const torch::Tensor loss =
            torch::nll_loss((*model_)(examples::jittered(batch.data)), batch.target);
        loss.backward();
        optimizer_->step();
        ctx_.report_progress(++step_);
        const std::int64_t count = batch.data.size(0);
        metrics.add_mean("loss", loss.item<double>(), static_cast<double>(count));
        report.step(loss.item<double>(), count);
      }
      speed = std::max(speed, report.samples_per_second());
      schedule_->step();
      evaluate(metrics);
      const ddprun::MetricAccumulator all = metrics.merged(ctx_.group());
      report.end_epoch(step_, {{"loss", all.mean("loss")},
                               {"test_loss", all.mean("test_loss")},
                               {"accuracy", all.mean("accuracy")}});
      ++state_.epoch;
      if (!checkpoints_) continue;
      state_.metric = all.mean("test_loss");
      checkpoints_->save(step_, state_);
    }
    if (checkpoints_) checkpoints_->wait();
    if (ctx_.rank() != 0) return;
    if (speed_of_one_ > 0 && speed > 0)
      std::printf("speed-up of %d workers over 1: %.2f\n", ctx_.world_size(),
                  speed / speed_of_one_);
    std::printf("sha256 %s\n", ddprun::digest_of(*net_).c_str());
  }

 private:
  // Evaluates the net on the test images. Each worker computes its share.
  void evaluate(ddprun::MetricAccumulator& metrics) {
    const torch::NoGradGuard no_grad;
    net_->eval();
    auto loader = torch::data::make_data_loader(
        test_, ddprun::DistributedEvalSampler(*test_.size(), ctx_.group()), 1000);
    for (auto& batch : *loader) {
      const torch::Tensor output = net_(batch.data);
      const auto count = static_cast<double>(batch.data.size(0));
      metrics.add_mean("test_loss", torch::nll_loss(output, batch.target).item<double>(), count);
      metrics.add("accuracy", output.argmax(1).eq(batch.target).sum().item<double>(), count);
    }
    net_->train();
  }

  const Options& options_;
  ddprun::Context& ctx_;
  examples::Digits train_, test_;
  double speed_of_one_;
  Net net_{nullptr};
  std::optional<ddprun::DistributedDataParallel<Net>> model_;
  std::optional<ddprun::Adadelta> optimizer_;
  std::optional<ddprun::LRScheduler> schedule_;
  std::optional<ddprun::DistributedSampler> sampler_;
  ddprun::TrainingState state_;
  std::optional<ddprun::CheckpointManager> checkpoints_;
  std::int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains the classic convolutional net for MNIST with any number of workers.\n"
      "Example: ddprun --standalone --nproc-per-node=2 mnist_convnet",
      "mnist_convnet");
  options.add_to(line);
  line.add_option("--gamma", options.gamma, "factor of the learning rate from epoch to epoch")
      .positive();
  line.add_option(
      "--checkpoint-dir", options.checkpoint_dir,
      "directory to save checkpoints to, one for each epoch, and to resume from; empty: none");
  line.add_option("--metrics", options.metrics,
                  "file to which a line of JSON is added for each epoch; empty: none");
  return line.run(argc, argv, [&] {
    ddprun::Context ctx = ddprun::init();
    Training(options, ctx).run();
  });
}
