// A training whose world changes while it runs:
//
//   ddprun --nnodes=1:3 --rdzv-endpoint=localhost:29400 --on-join=checkpoint --max-restarts=3
//       elastic --checkpoint-dir=run1 --pause=0.05
//
// The same line in a second and a third terminal adds nodes; Ctrl-C or kill removes them again.
// ddprun starts the workers again each time. Three things make the training continue as if nothing
// had happened:
//
//   the position  restore() brings back weights, optimizer and the sampler. The sampler's position
//                 is a number of images of the whole world: the rest of the epoch is divided among
//                 the workers of the new world
//   the step      --batch-size is that of all workers together. So a step is the same for any
//                 number of workers, and the learning rate stays. With a fixed batch for each
//                 worker the rate would have to grow with the world, and warm up after every change
//   new nodes     wait for the next checkpoint (--on-join=checkpoint), so they cost no work. A
//                 worker that is killed costs the steps since the last checkpoint
//
// To show that each epoch takes every image once, the workers count which images were given out. No
// other program needs that.
#include <chrono>
#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <thread>

#include "examples/command_line.h"

namespace {

struct Options : examples::TrainingOptions {
  Options() : TrainingOptions{.epochs = 20, .batch_size = 48, .lr = 0.1} {}
  std::string checkpoint_dir;
  std::int64_t checkpoint_every = 10;
  double pause = 0;

  void add_to(examples::CommandLine& line);
};

void Options::add_to(examples::CommandLine& line) {
  TrainingOptions::add_to(line);
  line.option("--batch-size")
      .describe("images of all workers together in a step; their number must divide it");
  line.add_option("--checkpoint-every", checkpoint_every, "steps between checkpoints").positive();
  line.add_option("--pause", pause, "seconds after each step: time to start and to kill nodes")
      .not_negative();
  line.add_option("--checkpoint-dir", checkpoint_dir,
                  "directory to save checkpoints to and to resume from")
      .hide_default()
      .required();
}

class Training {
 public:
  Training(const Options& options, ddprun::Context& ctx)
      : options_(options),
        ctx_(ctx),
        train_(options.data, "train"),
        test_(options.data, "t10k"),
        net_(examples::small_net(train_)),
        model_(net_, ctx.group()),
        optimizer_(net_->parameters(), torch::optim::SGDOptions(options.lr).momentum(0.9)),
        sampler_(*train_.size(), ctx.group(), {.seed = options.seed}),
        checkpoints_(
            ctx, {.directory = options.checkpoint_dir, .every_steps = options.checkpoint_every}),
        of_each_(ddprun::per_rank(static_cast<std::size_t>(options.batch_size), ctx.world_size())),
        dealt_(torch::zeros(train_.labels().size(0), torch::kInt32)),
        state_{.model = net_.get(), .optimizer = &optimizer_, .sampler = &sampler_} {
    go_on();
  }

  void run() {
    for (; state_.epoch < options_.epochs; ++state_.epoch) {
      sampler_.set_epoch(state_.epoch);
      sampler_.reset();  // a resumed epoch begins at the restored position
      while (const auto rows = sampler_.next(of_each_)) {
        take_step(*rows);
        if (save_if_it_is_time()) return;
      }
      report();
      dealt_.zero_();
    }
    checkpoints_.wait();
  }

 private:
  void go_on() {
    const ddprun::Restored restored = checkpoints_.restore(state_);
    const std::string now = "world of " + std::to_string(ctx_.world_size());
    if (!restored) return say(now + ": begins");
    step_ = restored.step;
    dealt_ = torch::tensor(state_.extra["dealt"].get<std::vector<int>>(), torch::kInt32);
    say(now + " (was " + std::to_string(state_.extra["world_size"].get<int>()) +
        "): continues with step " + std::to_string(step_) + " in epoch " +
        std::to_string(state_.epoch + 1));
  }

  void take_step(const std::vector<std::size_t>& rows) {
    const auto batch = train_.get_batch(rows);
    optimizer_.zero_grad();
    torch::cross_entropy_loss(model_(batch.data), batch.target).backward();
    optimizer_.step();
    ctx_.report_progress(++step_);
    count(rows);
    std::this_thread::sleep_for(std::chrono::duration<double>(options_.pause));
  }

  void count(const std::vector<std::size_t>& rows) {
    torch::Tensor here = torch::zeros_like(dealt_);
    const torch::Tensor images = torch::tensor(std::vector<std::int64_t>(rows.begin(), rows.end()));
    here.index_add_(0, images, torch::ones_like(images, torch::kInt32));
    ctx_.group().all_reduce(here);
    dealt_ += here;
  }

  // Saves a checkpoint if it is time. Returns whether ddprun asks the job to leave.
  bool save_if_it_is_time() {
    state_.extra = {{"world_size", ctx_.world_size()},
                    {"dealt", std::vector<int>(dealt_.data_ptr<int>(),
                                               dealt_.data_ptr<int>() + dealt_.numel())}};
    return checkpoints_.maybe_save(step_, state_).leave;
  }

  void report() {
    char line[128];
    std::snprintf(line, sizeof line,
                  "epoch %2lld  world %d  test accuracy %.2f %%  %lld of %lld images, %lld twice",
                  static_cast<long long>(state_.epoch + 1), ctx_.world_size(),
                  100 * examples::accuracy(net_, test_),
                  static_cast<long long>(dealt_.gt(0).sum().item<std::int64_t>()),
                  static_cast<long long>(dealt_.numel()),
                  static_cast<long long>(dealt_.sub(1).clamp_min(0).sum().item<std::int64_t>()));
    say(line);
  }

  void say(const std::string& line) const {
    if (ctx_.rank() != 0) return;
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  const Options& options_;
  ddprun::Context& ctx_;
  examples::Digits train_, test_;
  torch::nn::Sequential net_;
  ddprun::DistributedDataParallel<torch::nn::Sequential> model_;
  torch::optim::SGD optimizer_;
  ddprun::DistributedSampler sampler_;
  ddprun::CheckpointManager checkpoints_;
  std::size_t of_each_;  // images of this worker in a step
  torch::Tensor dealt_;  // how often the world was given each image in this epoch
  ddprun::TrainingState state_;
  std::int64_t step_ = 0;
};

}  // namespace

int main(int argc, char** argv) {
  Options options;
  examples::CommandLine line(
      "Trains with a number of workers that changes while it runs.\n"
      "Example: ddprun --nnodes=1:3 --rdzv-endpoint=localhost:29400 --on-join=checkpoint\n"
      "             --max-restarts=3 elastic --checkpoint-dir=run1 --pause=0.05",
      "elastic");
  options.add_to(line);
  return line.run(argc, argv, [&] {
    torch::manual_seed(options.seed);
    auto ctx = ddprun::init();
    Training(options, ctx).run();
  });
}
