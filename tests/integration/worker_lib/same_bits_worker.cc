// A training in which everything depends on the past: a shuffled order, images moved at
// random, dropout, batch norm, clipped gradients, momentum or Adam's averages, a cosine
// schedule, and a running mean of the loss that the program keeps itself. If a restart forgets
// or repeats anything, the digest differs.
//
//   same_bits_worker OPTIMIZER EPOCHS DIGEST_FILE PHASES [CHECKPOINTS [PAUSE_MS]]
//
// OPTIMIZER: sgd or adam. With adam the batches come from a loader with a thread. DIGEST_FILE:
// rank 0 writes the digest to it at the end. PHASES: the file in which the worker writes its
// phase (training_phases.h). CHECKPOINTS: the directory of checkpoints; without it nothing is
// saved. PAUSE_MS: the time to pause after each step, so that a training lasts for some time.
#include <cmath>
#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <fstream>

#include "base/worker_env.h"
#include "examples/digits.h"
#include "tests/integration/worker_lib/training_phases.h"
#include "tests/support/eventually.h"

namespace {

using ddprun::testing_support::Phase;
using ddprun::testing_support::PhaseFile;
using ddprun::testing_support::PhaseSlot;

constexpr std::int64_t kImages = 720;  // with a global batch of 24: 30 steps in an epoch
constexpr std::int64_t kGlobalBatch = 24;
constexpr std::int64_t kEverySteps = 7;  // divides neither an epoch nor the whole training

// The numbers of channels and features are odd: gradients begin at odd offsets in DDP's
// buckets.
torch::nn::Sequential make_net() {
  using namespace torch::nn;
  return Sequential(Conv2d(Conv2dOptions(1, 7, 3).padding(1)), BatchNorm2d(7), ReLU(), MaxPool2d(2),
                    Dropout(0.2), Flatten(), Linear(7 * 4 * 4, 37), BatchNorm1d(37), ReLU(),
                    Dropout(0.3), Linear(37, 10));
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(bool is_adam,
                                                        std::vector<torch::Tensor> parameters) {
  if (is_adam)
    return std::make_unique<torch::optim::Adam>(std::move(parameters),
                                                torch::optim::AdamOptions(3e-3));
  return std::make_unique<torch::optim::SGD>(
      std::move(parameters), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
}

class Training {
 public:
  Training(ddprun::Context& ctx, bool is_adam, std::int64_t epochs, ddprun::Duration pause,
           PhaseSlot& place)
      : ctx_(ctx),
        place_(place),
        pause_(pause),
        is_adam_(is_adam),
        epochs_(epochs),
        digits_(examples::shipped_digits(), "train"),
        model_(net_, ctx.group()),
        optimizer_(make_optimizer(is_adam, net_->parameters())),
        schedule_(*optimizer_, ddprun::CosineAnnealingLR{.t_max = epochs * kImages / kGlobalBatch}),
        sampler_(kImages, ctx.group(), {.seed = 11, .prefetched = is_adam}),
        state_{.model = net_.ptr().get(),
               .optimizer = optimizer_.get(),
               .scheduler = &schedule_,
               .sampler = &sampler_} {
    torch::manual_seed(100 + ctx.rank());
  }

  void restore(const std::string& checkpoints) {
    ddprun::CheckpointOptions options{
        .directory = checkpoints, .keep_last = 2, .every_steps = kEverySteps};
    if (is_adam_) options.write_together_from = 0;
    checkpoints_.emplace(ctx_, options);
    const ddprun::Restored restored = checkpoints_->restore(state_);
    if (!restored) return;
    step_ = restored.step;
    mean_loss_ = state_.extra.at("mean_loss");
    if (ctx_.rank() == 0) std::printf("resumed at step %lld\n", static_cast<long long>(step_));
  }

  // Returns whether the training came to its end, and was not asked to leave.
  bool run() {
    const auto loader = torch::data::make_data_loader(
        digits_, sampler_, torch::data::DataLoaderOptions(per_rank()).workers(is_adam_ ? 1 : 0));
    for (; state_.epoch < epochs_; ++state_.epoch) {
      sampler_.set_epoch(state_.epoch);
      for (auto& batch : *loader) {
        take_step(batch);
        ddprun::testing_support::let_pass(pause_);
        if (checkpoints_ && save_or_leave()) return false;
        place_.phase = Phase::kForward;  // the loader makes the next batch
      }
    }
    place_.phase = Phase::kEnding;
    if (checkpoints_) checkpoints_->wait();
    return true;
  }

  std::string digest() const {
    char mean[64];
    std::snprintf(mean, sizeof mean, " %a", mean_loss_);
    return ddprun::digest_of(*net_) + mean;
  }

 private:
  std::size_t per_rank() const { return ddprun::per_rank(kGlobalBatch, ctx_.world_size()); }

  // Returns whether ddprun asks the job to leave.
  bool save_or_leave() {
    if (step_ % kEverySteps == 0) {
      place_.saved_step = step_;
      place_.phase = Phase::kSaving;
    }
    state_.extra = {{"mean_loss", mean_loss_}};
    return checkpoints_->maybe_save(step_, state_).leave;
  }

  void take_step(const torch::data::Example<>& batch) {
    place_.phase = Phase::kForward;
    optimizer_->zero_grad();
    const torch::Tensor images = examples::jittered(batch.data);
    const torch::Tensor loss =
        torch::cross_entropy_loss(model_(images + 0.1 * torch::randn_like(images)), batch.target);
    place_.phase = Phase::kBackward;
    loss.backward();
    place_.phase = Phase::kOptimizer;
    model_.clip_grad_norm_(1.0);
    optimizer_->step();
    schedule_.step();
    place_.phase = Phase::kCollective;
    const torch::Tensor mean = loss.detach().to(torch::kFloat64);
    ctx_.group().all_reduce(mean, {.op = ddprun::ReduceOp::kAvg});
    mean_loss_ += 0.02 * (mean.item<double>() - mean_loss_);
    if (is_adam_) sampler_.delivered(static_cast<std::size_t>(batch.data.size(0)));
    ctx_.report_progress(++step_);
    ++place_.steps;
  }

  ddprun::Context& ctx_;
  PhaseSlot& place_;
  const ddprun::Duration pause_;
  const bool is_adam_;
  const std::int64_t epochs_;
  examples::Digits digits_;
  torch::nn::Sequential net_ = make_net();
  ddprun::DistributedDataParallel<torch::nn::Sequential> model_;
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
  ddprun::LRScheduler schedule_;
  ddprun::DistributedSampler sampler_;
  ddprun::TrainingState state_;
  std::optional<ddprun::CheckpointManager> checkpoints_;
  double mean_loss_ = 0;
  std::int64_t step_ = 0;
};

void work(int argc, char** argv) {
  const auto env = ddprun::read_worker_env(ddprun::environment_variable);
  if (!env || !*env) throw std::runtime_error("there is no RANK");
  const PhaseFile phases(argv[4]);
  PhaseSlot& place = phases.slot(static_cast<std::size_t>((*env)->generation.value),
                                 static_cast<std::size_t>((*env)->rank.value));
  place.phase = Phase::kJoining;
  torch::manual_seed(1);
  ddprun::Context ctx = ddprun::init();
  const std::chrono::milliseconds pause(argc > 6 ? std::stol(argv[6]) : 0);
  Training training(ctx, argv[1] == std::string("adam"), std::stol(argv[2]), pause, place);
  place.phase = Phase::kRestoring;
  if (argc > 5) training.restore(argv[5]);
  if (!training.run()) return;
  if (ctx.rank() != 0) return;
  std::ofstream file(argv[3]);
  file << training.digest() << std::endl;
  if (!file) throw std::runtime_error(std::string("cannot write ") + argv[3]);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 5 || argc > 7) return 2;
  try {
    work(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "same_bits_worker: %s\n", error.what());
    return 1;
  }
  return 0;
}
