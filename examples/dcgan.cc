// A generative adversarial network on handwritten digits, after pytorch/examples' dcgan. One
// checkpoint has two networks, an optimizer for each, and noise that stays the same.
//
//   ddprun --standalone --nproc-per-node=2 --max-restarts=3 dcgan --checkpoint-dir=run1
//
// (*) marks what makes an ordinary LibTorch program a data-parallel, fault-tolerant one.
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <ddprun/ddprun.hpp>

#include "examples/command_line.h"
#include "examples/digits.h"

namespace {

namespace nn = torch::nn;

constexpr std::int64_t kNoise = 16;    // numbers from which the generator makes an image
constexpr std::int64_t kFeatures = 8;  // channels of the layers next to the image

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 5, .batch_size = 32, .lr = 0.0002} {}
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 10;
  int crash_rank = -1;
  std::int64_t crash_step = -1;

  void add_to(examples::CommandLine& line) {
    TrainingOptions::add_to(line);
    line.add_option("--checkpoint-dir", checkpoint_dir, "directory of checkpoints; empty: none");
    line.add_option("--checkpoint-every", checkpoint_every, "steps between checkpoints").positive();
    line.show_defaults(false);
    line.add_option("--crash-rank", crash_rank, "this rank kills itself, in generation 0 only")
        .not_negative();
    line.add_option("--crash-step", crash_step, "number of steps after which it does").positive();
  }
};

auto up(std::int64_t from, std::int64_t to, std::int64_t stride, std::int64_t padding) {
  return nn::ConvTranspose2d(
      nn::ConvTranspose2dOptions(from, to, 4).stride(stride).padding(padding).bias(false));
}

auto down(std::int64_t from, std::int64_t to, std::int64_t stride, std::int64_t padding) {
  return nn::Conv2d(nn::Conv2dOptions(from, to, 4).stride(stride).padding(padding).bias(false));
}

nn::LeakyReLU leaky() { return nn::LeakyReLU(nn::LeakyReLUOptions().negative_slope(0.2)); }

// Returns a net from noise, batch x kNoise x 1 x 1, to images, batch x 1 x 8 x 8, with values
// between -1 and 1.
nn::Sequential make_generator() {
  return nn::Sequential(up(kNoise, 2 * kFeatures, 1, 0), nn::BatchNorm2d(2 * kFeatures), nn::ReLU(),
                        up(2 * kFeatures, 1, 2, 1), nn::Tanh());
}

// Returns a net from images to the probabilities that they are real: a vector with one number for
// each image of the batch.
nn::Sequential make_discriminator() {
  return nn::Sequential(down(1, kFeatures, 2, 1), leaky(), nn::Conv2d(kFeatures, kFeatures, 1),
                        nn::BatchNorm2d(kFeatures), leaky(), down(kFeatures, 1, 1, 0),
                        nn::Sigmoid(), nn::Flatten(nn::FlattenOptions().start_dim(0)));
}

// Draws the weights as in the paper.
void initialize(nn::Module& net) {
  const torch::NoGradGuard no_grad;
  for (const auto& module : net.modules(/*include_self=*/false)) {
    if (auto* norm = module->as<nn::BatchNorm2d>()) norm->weight.normal_(1.0, 0.02);
    if (auto* conv = module->as<nn::Conv2d>()) conv->weight.normal_(0.0, 0.02);
    if (auto* conv = module->as<nn::ConvTranspose2d>()) conv->weight.normal_(0.0, 0.02);
  }
}

torch::optim::Adam make_adam(nn::Sequential& net, double lr) {
  return torch::optim::Adam(net->parameters(), torch::optim::AdamOptions(lr).betas({0.5, 0.999}));
}

class Training {
 public:
  Training(const Options& options, ddprun::Context& ctx)
      : options_(options), ctx_(ctx), digits_(options.data, "train") {
    initialize(*generator_);
    initialize(*discriminator_);
    generator_model_.emplace(generator_, ctx.group());          // (*) averages gradients
    discriminator_model_.emplace(discriminator_, ctx.group());  // (*)
    ctx.manual_seed(options.seed);                              // for noise, which differs by rank
    if (options.checkpoint_dir.empty()) return;
    checkpoints_.emplace(ctx, ddprun::CheckpointOptions{// (*)
                                                        .directory = options.checkpoint_dir,
                                                        .every_steps = options.checkpoint_every});
    const ddprun::Restored restored = checkpoints_->restore(state_);  // (*)
    step_ = restored.step;
    if (restored && ctx.rank() == 0)
      std::printf("resumed at step %lld from %s\n", static_cast<long long>(step_),
                  restored.file.c_str());
  }

  void run() {
    auto loader = torch::data::make_data_loader(digits_, sampler_, options_.batch_size);
    for (std::int64_t& epoch = state_.epoch; epoch < options_.epochs; ++epoch) {
      sampler_.set_epoch(epoch);  // (*) another order in each epoch
      double of_discriminator = 0, of_generator = 0;
      for (auto& batch : *loader) {
        const torch::Tensor real = batch.data * 2 - 1;
        const torch::Tensor fake = generator_model_->forward(noise_for(real.size(0)));
        of_discriminator = train_discriminator(real, fake.detach());
        of_generator = train_generator(fake);
        ctx_.report_progress(++step_);
        if (ctx_.rank() == options_.crash_rank && step_ == options_.crash_step &&
            ctx_.generation() == 0)
          kill(getpid(), SIGKILL);
        if (checkpoints_ && checkpoints_->maybe_save(step_, state_).leave) return;  // (*)
      }
      if (ctx_.rank() == 0)
        std::printf("epoch %2lld  loss of the discriminator %.4f  of the generator %.4f\n",
                    static_cast<long long>(epoch + 1), of_discriminator, of_generator);
    }
    if (checkpoints_) checkpoints_->wait();
    if (ctx_.rank() == 0) finish();
  }

 private:
  static torch::Tensor noise_for(std::int64_t images) {
    return torch::randn({images, kNoise, 1, 1});
  }

  // Train one network each, and return its loss.
  double train_discriminator(const torch::Tensor& real, const torch::Tensor& fake) {
    discriminator_adam_.zero_grad();
    const torch::Tensor of_real = discriminator_model_->forward(real);
    torch::Tensor loss = torch::binary_cross_entropy(of_real, torch::ones_like(of_real));
    loss.backward();
    const double loss_of_real = loss.item<double>();
    const torch::Tensor of_fake = discriminator_model_->forward(fake);
    loss = torch::binary_cross_entropy(of_fake, torch::zeros_like(of_fake));
    loss.backward();
    discriminator_adam_.step();
    return loss_of_real + loss.item<double>();
  }

  double train_generator(const torch::Tensor& fake) {
    generator_adam_.zero_grad();
    const torch::Tensor of_fake = discriminator_model_->forward(fake);
    const torch::Tensor loss = torch::binary_cross_entropy(of_fake, torch::ones_like(of_fake));
    loss.backward();
    generator_adam_.step();
    return loss.item<double>();
  }

  // Prints the image that the generator makes of the first fixed noise, and the digest of both
  // networks.
  void finish() {
    const torch::NoGradGuard no_grad;
    const torch::Tensor image = generator_->forward(fixed_noise_)[0][0];
    for (std::int64_t y = 0; y < image.size(0); ++y) {
      for (std::int64_t x = 0; x < image.size(1); ++x)
        std::putchar(" .:-=+*#%@"[static_cast<int>((image[y][x].item<double>() + 1) * 4.99)]);
      std::putchar('\n');
    }
    std::printf("sha256 %s%s\n", ddprun::digest_of(*generator_).c_str(),
                ddprun::digest_of(*discriminator_).substr(0, 8).c_str());
  }

  const Options& options_;
  ddprun::Context& ctx_;
  examples::Digits digits_;
  nn::Sequential generator_ = make_generator(), discriminator_ = make_discriminator();
  std::optional<ddprun::DistributedDataParallel<nn::Sequential>> generator_model_,
      discriminator_model_;
  torch::optim::Adam generator_adam_ = make_adam(generator_, options_.lr);
  torch::optim::Adam discriminator_adam_ = make_adam(discriminator_, options_.lr);
  torch::Tensor fixed_noise_ = noise_for(4);
  ddprun::DistributedSampler sampler_{
      *digits_.size(), ctx_.group(), {.seed = options_.seed}};  // (*) divides the images
  ddprun::TrainingState state_{
      // (*)
      .sampler = &sampler_,
      .models = {{"generator", generator_.get()}, {"discriminator", discriminator_.get()}},
      .optimizers = {{"generator", &generator_adam_}, {"discriminator", &discriminator_adam_}},
      .tensors = {{"fixed_noise", fixed_noise_}},
      .batch_size = options_.batch_size};
  std::optional<ddprun::CheckpointManager> checkpoints_;
  std::int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains a generator of handwritten digits against a discriminator.\n"
      "Example: ddprun --standalone --nproc-per-node=2 dcgan --checkpoint-dir=run1",
      "dcgan");
  options.add_to(line);
  return line.run(argc, argv, [&] {
    torch::manual_seed(options.seed);
    auto ctx = ddprun::init();  // (*)
    Training(options, ctx).run();
  });
}
