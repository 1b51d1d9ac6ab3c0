// A training for checkpoint_memory_test.py, whose memory is its state and little more. All ranks
// have the same state: parameters of 4 MiB, and a momentum of the same size. The parameters share
// one gradient.
//
// It saves after step 2. In the first generation the last rank kills itself after step 3. Rank 0
// prints "resumed at step N" and, at the end, a digest of the parameters.
//
//   worker_probe checkpoint_memory MIB STEPS [DIRECTORY]
//
//   MIB        of the state, a multiple of 8
//   DIRECTORY  of the checkpoints. Without one it neither saves nor dies
#include <signal.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <ddprun/ddprun.hpp>
#include <optional>
#include <string>

#include "tests/integration/worker_lib/probes.h"

namespace checkpoint_memory_probe {

int run(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::int64_t layers = std::atoll(argv[1]) / 8, steps = std::atoll(argv[2]);
  torch::set_num_threads(1);
  ddprun::Context context = ddprun::init();
  torch::nn::Sequential net;
  const torch::NoGradGuard no_grad;
  for (std::int64_t i = 0; i < layers; ++i)
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1024, 1024).bias(false)));
  double value = 0;
  for (torch::Tensor parameter : net->parameters()) parameter.fill_(value += 1);
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  ddprun::TrainingState state{
      .model = net.ptr().get(), .optimizer = &optimizer, .has_position = false};

  std::int64_t step = 0;
  std::optional<ddprun::CheckpointManager> checkpoints;
  if (argc > 3) {
    // A background save needs memory for a copy of the state.
    checkpoints.emplace(context,
                        ddprun::CheckpointOptions{.directory = argv[3], .asynchronous = false});
    if (const auto restored = checkpoints->restore(state)) step = restored.step;
  }
  if (step > 0 && context.rank() == 0)
    std::printf("resumed at step %lld\n", static_cast<long long>(step));
  const torch::Tensor gradient = torch::empty({1024, 1024});
  for (torch::Tensor parameter : net->parameters()) parameter.mutable_grad() = gradient;
  while (step < steps) {
    gradient.fill_(static_cast<double>(++step));
    optimizer.step();
    if (checkpoints && step == 2) checkpoints->save(step, state);
    const bool is_last = context.rank() == context.world_size() - 1;
    if (checkpoints && step == 3 && context.restart_count() == 0 && is_last) ::raise(SIGKILL);
    context.group().barrier();
  }
  if (context.rank() == 0) std::printf("digest %s\n", ddprun::digest_of(*net).c_str());
  return 0;
}

}  // namespace checkpoint_memory_probe
