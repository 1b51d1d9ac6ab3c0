// worker_probe optimizers DIRECTORY: trains a small net with each pair of an optimizer and a
// learning-rate schedule. It writes a checkpoint of the middle and of the end of each
// training. optimizers_test.py continues from the middle with PyTorch's. Both sides compute
// weights and data by the same formula.
#include <torch/torch.h>

#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <functional>
#include <string>

#include "tests/integration/worker_lib/probes.h"

namespace optimizers_probe {
namespace {

constexpr int kMiddle = 6, kEnd = 12;

// Returns the numbers of formula() in optimizers_test.py, without a random generator.
torch::Tensor formula(double phase, std::vector<std::int64_t> sizes) {
  const torch::Tensor numbers =
      torch::arange(c10::multiply_integers(sizes), torch::kFloat64).mul(0.7).add(phase).sin();
  return numbers.to(torch::kFloat32).reshape(sizes);
}

struct Training {
  torch::nn::Sequential net{torch::nn::Linear(6, 16), torch::nn::Tanh(), torch::nn::Linear(16, 3)};
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::unique_ptr<ddprun::SavedScheduler> scheduler;
  std::function<void(double loss)> next_epoch;

  explicit Training(bool with_lbfgs) {
    torch::NoGradGuard no_grad;
    double phase = 0;
    for (torch::Tensor& parameter : net->parameters())
      parameter.copy_(formula(phase++, parameter.sizes().vec()) * 0.3);
    if (with_lbfgs)
      optimizer = std::make_unique<torch::optim::LBFGS>(
          net->parameters(), torch::optim::LBFGSOptions(0.5).max_iter(4).history_size(5));
    else
      optimizer = std::make_unique<ddprun::Adadelta>(
          net->parameters(), ddprun::AdadeltaOptions(0.7).rho(0.8).weight_decay(0.01));
  }

  template <class Rule>
  void schedule(const Rule& rule) {
    auto made = std::make_unique<ddprun::LRScheduler>(*optimizer, rule);
    next_epoch = [s = made.get()](double) { s->step(); };
    scheduler = std::move(made);
  }
  void plateau(const ddprun::ReduceLROnPlateauOptions& options) {
    auto made = std::make_unique<ddprun::ReduceLROnPlateau>(*optimizer, options);
    next_epoch = [p = made.get()](double loss) { p->step(loss); };
    scheduler = std::move(made);
  }

  void steps(int first, int last) {
    for (int step = first; step < last; ++step) {
      const double phase = 100 * step;
      const torch::Tensor loss = optimizer->step([&] {
        optimizer->zero_grad();
        torch::Tensor value =
            torch::mse_loss(net->forward(formula(phase, {4, 6})), formula(phase + 1, {4, 3}));
        value.backward();
        return value;
      });
      next_epoch(loss.item<double>());
    }
  }
};

void run(ddprun::Context& context, const std::string& directory, Training training) {
  ddprun::CheckpointManager checkpoints(context, {.directory = directory});
  const ddprun::TrainingState state{.model = training.net.get(),
                                    .optimizer = training.optimizer.get(),
                                    .scheduler = training.scheduler.get()};
  training.steps(0, kMiddle);
  checkpoints.save(kMiddle, state);
  training.steps(kMiddle, kEnd);
  checkpoints.save(kEnd, state);
}

template <class Rule>
Training scheduled(const Rule& rule, bool with_lbfgs = false) {
  Training training(with_lbfgs);
  training.schedule(rule);
  return training;
}

Training with_plateau() {
  Training training(false);
  training.plateau({.factor = 0.5, .patience = 1, .threshold = 0.1});
  return training;
}

}  // namespace

int run(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: worker_probe optimizers DIRECTORY\n");
    return 2;
  }
  using namespace ddprun;
  torch::set_num_threads(1);
  auto context = init();
  const std::string directory = std::string(argv[1]) + "/";
  run(context, directory + "StepLR", scheduled(StepLR{.step_size = 4, .gamma = 0.3}));
  run(context, directory + "MultiStepLR",
      scheduled(MultiStepLR{.milestones = {3, 8, 8}, .gamma = 0.3}));
  run(context, directory + "CosineAnnealingLR",
      scheduled(CosineAnnealingLR{.t_max = 9, .eta_min = 0.01}));
  run(context, directory + "LinearLR", scheduled(LinearWarmup{.total_iters = 8}, true));
  run(context, directory + "SequentialLR",
      scheduled(SequentialLR{
          {LinearWarmup{.start_factor = 0.1, .total_iters = 4}, CosineAnnealingLR{.t_max = 8}},
          {4}}));
  run(context, directory + "ReduceLROnPlateau", with_plateau());
  return 0;
}

}  // namespace optimizers_probe
