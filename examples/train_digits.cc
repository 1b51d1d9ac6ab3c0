// Trains a small network on handwritten digits with any number of workers. If the job is killed and
// started again, it continues from its newest checkpoint:
//
//   ddprun --standalone --nproc-per-node=2 --max-restarts=3 train_digits --checkpoint-dir=run1
//
// (*) marks what makes an ordinary LibTorch program a data-parallel, fault-tolerant one.
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ddprun/ddprun.hpp>
#include <fstream>

#include "examples/command_line.h"
#include "examples/epoch_report.h"

namespace {

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 15, .lr = 0.05} {}
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 20;
  std::string digest_file;
  std::string metrics;
  int crash_rank = -1;
  std::int64_t crash_step = -1;

  void add_to(examples::CommandLine& line);
};

void Options::add_to(examples::CommandLine& line) {
  TrainingOptions::add_to(line);
  line.add_option("--checkpoint-dir", checkpoint_dir,
                  "directory to save checkpoints to and to resume from; empty: none");
  line.add_option("--checkpoint-every", checkpoint_every, "steps between checkpoints").positive();
  line.add_option("--digest-file", digest_file,
                  "where rank 0 writes the SHA-256 of the final weights");
  line.add_option("--metrics", metrics,
                  "file to which a line of JSON is added for each epoch; empty: none");
  line.show_defaults(false);
  auto with_rank =
      line.add_option("--crash-rank", crash_rank, "this rank kills itself, in generation 0 only")
          .not_negative();
  with_rank.needs(line.add_option("--crash-step", crash_step, "number of steps after which it does")
                      .positive()
                      .needs(with_rank));
}

struct NetImpl : torch::nn::Module {
  NetImpl(std::int64_t height, std::int64_t width)
      : features(register_module(
            "features",
            torch::nn::Sequential{conv(1, 16), torch::nn::BatchNorm2d(16), torch::nn::ReLU(),
                                  conv(16, 32), torch::nn::BatchNorm2d(32), torch::nn::ReLU(),
                                  torch::nn::MaxPool2d(2), torch::nn::Flatten(),
                                  torch::nn::Dropout(0.25)})),
        classify(
            register_module("classify", torch::nn::Linear(32 * (height / 2) * (width / 2), 10))) {}
  torch::Tensor forward(const torch::Tensor& images) { return classify(features->forward(images)); }

  static torch::nn::Conv2d conv(std::int64_t from, std::int64_t to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).padding(1).bias(false));
  }
  torch::nn::Sequential features;
  torch::nn::Linear classify;
};
TORCH_MODULE(Net);

Net on_device(Net net, torch::Device device) {
  net->to(device);
  return net;
}

// ExecutedSteps: counts the steps that were really executed, over all restarts of the job. A kill
// loses the steps after the last checkpoint, and they are executed again. The count is in a file,
// so it survives SIGKILL. One write of fixed width replaces the whole count.
class ExecutedSteps {
 public:
  void keep_in(const std::string& folder) {
    file_ = open((folder + "/executed-steps").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file_ < 0)
      throw std::runtime_error("cannot open " + folder + "/executed-steps: " + strerror(errno));
    char text[kWidth + 1] = {};
    if (pread(file_, text, kWidth, 0) == kWidth) count_ = std::atoll(text);
  }
  ~ExecutedSteps() {
    if (file_ >= 0) close(file_);
  }
  void add_one() {
    char text[kWidth + 1];
    std::snprintf(text, sizeof text, "%020lld\n", static_cast<long long>(++count_));
    if (file_ >= 0 && pwrite(file_, text, kWidth, 0) != kWidth)
      throw std::runtime_error("cannot write the file executed-steps");
  }
  std::int64_t count() const { return count_; }

 private:
  static constexpr int kWidth = 21;  // any count, and a newline
  int file_ = -1;
  std::int64_t count_ = 0;
};

class Training {
 public:
  Training(const Options& options, ddprun::Context& ctx)
      : options_(options),
        ctx_(ctx),
        train_(options.data, "train"),
        test_(options.data, "t10k"),
        net_(on_device(Net(train_.images().size(2), train_.images().size(3)), ctx.device())),
        model_(net_, ctx.group()),  // (*) averages gradients
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9)),
        sampler_(*train_.size(), ctx.group(), {.seed = options.seed}),  // (*) divides the images
        state_{.model = net_.get(), .optimizer = &optimizer_, .sampler = &sampler_},
        report_(options.metrics, ctx.rank() == 0, ctx.world_size()) {
    ctx.manual_seed(options.seed);  // (*) for dropout and jitter, which differ by rank
    if (!options.checkpoint_dir.empty()) resume();
  }

  void run() {
    auto loader = torch::data::make_data_loader(train_, sampler_, options_.batch_size);
    for (std::int64_t epoch = state_.epoch; epoch < options_.epochs; ++epoch) {
      state_.epoch = epoch;
      sampler_.set_epoch(epoch);  // (*) another order in each epoch
      const std::int64_t steps = steps_left();
      report_.begin_epoch(epoch + 1, steps);
      ddprun::MetricAccumulator metrics;
      for (auto& batch : *loader) {
        take_step(batch, metrics);
        maybe_crash();
        if (save_or_leave()) return say_goodbye();
      }
      if (steps > 0) end_epoch(metrics);
    }
    if (checkpoints_) {
      if (step_ % options_.checkpoint_every != 0) checkpoints_->save(step_, state_);
      checkpoints_->wait();
    }
    finish();
  }

 private:
  void resume() {
    checkpoints_.emplace(  // (*)
        ctx_, ddprun::CheckpointOptions{.directory = options_.checkpoint_dir,
                                        .every_steps = options_.checkpoint_every});
    const ddprun::Restored restored = checkpoints_->restore(state_);  // (*)
    if (restored) step_ = restored.step;
    if (ctx_.rank() != 0) return;
    executed_.keep_in(options_.checkpoint_dir);
    for (const std::string& line : restored.skipped) std::printf("skipped %s\n", line.c_str());
    for (const std::string& line : restored.remarks) std::printf("%s\n", line.c_str());
    if (restored)
      std::printf("resumed at step %lld (epoch %lld) from %s\n", static_cast<long long>(step_),
                  static_cast<long long>(state_.epoch + 1), restored.file.c_str());
    std::fflush(stdout);
  }

  std::int64_t steps_for(std::int64_t images) const {
    const std::int64_t batch = options_.batch_size * ctx_.world_size();
    return (images + batch - 1) / batch;
  }
  // Returns the steps that this epoch still has: all of them, unless it is resumed.
  std::int64_t steps_left() const {
    const auto images = static_cast<std::int64_t>(*train_.size());
    return steps_for(
        std::max<std::int64_t>(images - sampler_.state().at("position").get<std::int64_t>(), 0));
  }

  void take_step(torch::data::Example<>& batch, ddprun::MetricAccumulator& metrics) {
    const std::int64_t all_steps =
        options_.epochs * steps_for(static_cast<std::int64_t>(*train_.size()));
    const double done = static_cast<double>(step_) / static_cast<double>(all_steps);
    optimizer_.param_groups()[0].options().set_lr(options_.lr * (1 - done));
    optimizer_.zero_grad();
    torch::Tensor loss = torch::cross_entropy_loss(
        model_(examples::jittered(batch.data).to(ctx_.device())), batch.target.to(ctx_.device()));
    loss.backward();
    optimizer_.step();
    ctx_.report_progress(++step_, all_steps);
    if (ctx_.rank() == 0) executed_.add_one();
    const std::int64_t images = batch.data.size(0);
    metrics.add_mean("loss", loss.item<double>(), static_cast<double>(images));
    report_.step(loss.item<double>(), images);
  }

  void maybe_crash() const {
    if (ctx_.rank() == options_.crash_rank && step_ == options_.crash_step &&
        ctx_.generation() == 0)
      kill(getpid(), SIGKILL);
  }

  // Saves a checkpoint if it is time. Returns whether ddprun asks the job to leave
  // (--checkpoint-signal).
  bool save_or_leave() {
    if (!checkpoints_) return ctx_.save_requested();
    return checkpoints_->maybe_save(step_, state_).leave;  // (*)
  }

  void say_goodbye() const {
    if (ctx_.rank() != 0) return;
    std::printf("asked to leave: %s at step %lld\n", checkpoints_ ? "saved" : "nothing is saved",
                static_cast<long long>(step_));
  }

  void end_epoch(const ddprun::MetricAccumulator& metrics) {
    const ddprun::MetricAccumulator all = metrics.merged(ctx_.group());  // (*) of all ranks
    if (ctx_.rank() != 0) return;
    report_.end_epoch(step_,
                      {{"loss", all.mean("loss")}, {"accuracy", examples::accuracy(net_, test_)}});
  }

  void finish() {
    if (ctx_.rank() != 0) return;
    const std::string digest = ddprun::digest_of(*net_);
    std::printf("final accuracy %.2f %%\n", 100 * examples::accuracy(net_, test_));
    std::printf("steps %lld, executed in all generations %lld\n", static_cast<long long>(step_),
                static_cast<long long>(executed_.count()));
    std::printf("sha256 %s\n", digest.c_str());
    std::fflush(stdout);
    if (options_.digest_file.empty()) return;
    std::ofstream file(options_.digest_file);
    file << digest << std::endl;
    if (!file) throw std::runtime_error("cannot write the digest file " + options_.digest_file);
  }

  const Options& options_;
  ddprun::Context& ctx_;
  examples::Digits train_, test_;
  Net net_;
  ddprun::DistributedDataParallel<Net> model_;
  torch::optim::SGD optimizer_;
  ddprun::DistributedSampler sampler_;
  ddprun::TrainingState state_;
  std::optional<ddprun::CheckpointManager> checkpoints_;
  ExecutedSteps executed_;
  examples::EpochReport report_;
  std::int64_t step_ = 0;  // steps done of those that lead to the final weights
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains a small network on handwritten digits. The learning rate falls to 0.\n"
      "Example: ddprun --standalone --nproc-per-node=2 train_digits --checkpoint-dir=run1",
      "train_digits");
  options.add_to(line);
  return line.run(argc, argv, [&] {
    torch::manual_seed(options.seed);
    auto ctx = ddprun::init();  // (*)
    Training(options, ctx).run();
  });
}
