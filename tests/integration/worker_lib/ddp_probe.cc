// worker_probe ddp DIRECTORY: trains small nets on synthetic data, and writes the state of each as
// a checkpoint to DIRECTORY/OPTIMIZER/NET. ddp_equality_test.py does the same with PyTorch's
// DistributedDataParallel. Both sides compute weights and data by the same formula.
#include <torch/torch.h>

#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <filesystem>

#include "tests/integration/worker_lib/probes.h"

namespace ddp_probe {
namespace {

constexpr int kSteps = 50;

// Returns the numbers of formula() in ddp_equality_test.py, without a random generator.
torch::Tensor formula(double phase, std::vector<std::int64_t> sizes) {
  const torch::Tensor numbers =
      torch::arange(c10::multiply_integers(sizes), torch::kFloat64).mul(0.7).add(phase).sin();
  return numbers.to(torch::kFloat32).reshape(sizes);
}

// A rank's part of the data of a step.
struct Place {
  int step;
  int rank;
  int part;
  double phase() const { return 100 * step + 10 * rank + part; }
};

struct Net : torch::nn::Module {
  virtual torch::Tensor forward(Place place) = 0;
};

struct Mlp final : Net {
  Mlp() { register_module("layers", layers); }
  torch::Tensor forward(Place place) override {
    return layers->forward(formula(place.phase(), {4, 6}));
  }
  torch::nn::Sequential layers{torch::nn::Linear(6, 32), torch::nn::Tanh(),
                               torch::nn::Linear(32, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 3)};
};

// The convolutions in front of batch norms have no biases: their gradients would be rounding
// errors.
struct ConvNet final : Net {
  ConvNet() { register_module("layers", layers); }
  static torch::nn::Conv2d conv(int from, int to) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(from, to, 3).bias(false));
  }
  torch::Tensor forward(Place place) override {
    return layers->forward(formula(place.phase(), {4, 1, 8, 8}));
  }
  torch::nn::Sequential layers{conv(1, 4),           torch::nn::BatchNorm2d(4), torch::nn::ReLU(),
                               conv(4, 8),           torch::nn::BatchNorm2d(8), torch::nn::ReLU(),
                               torch::nn::Flatten(), torch::nn::Linear(128, 3)};
};

struct Words final : Net {
  explicit Words(bool sparse)
      : words(torch::nn::EmbeddingOptions(20, 8).sparse(sparse)), out(8, 3) {
    register_module("words", words);
    register_module("out", out);
  }
  torch::Tensor forward(Place place) override {
    const torch::Tensor indices = (torch::arange(12) * 7 + place.step * 3 + place.rank * 5) % 20;
    return out(words(indices.reshape({4, 3})).mean(1));
  }
  torch::nn::Embedding words;
  torch::nn::Linear out;
};

// In each step every rank uses one of the branches.
struct Branches final : Net {
  Branches() {
    register_module("trunk", trunk);
    register_module("branches", branches);
  }
  torch::Tensor forward(Place place) override {
    const torch::Tensor x = torch::tanh(trunk(formula(place.phase(), {4, 6})));
    const auto index = static_cast<std::size_t>((place.step + place.rank) % 3);
    return branches[index]->as<torch::nn::Linear>()->forward(x);
  }
  torch::nn::Linear trunk{6, 16};
  torch::nn::ModuleList branches{torch::nn::Linear(16, 3), torch::nn::Linear(16, 3),
                                 torch::nn::Linear(16, 3)};
};

struct Case {
  std::string name;
  std::shared_ptr<Net> net;
  int parts = 1;  // passes (forward and backward) in a step; all but the last in no_sync()
  bool find_unused = false;
  bool is_sparse = false;
};

std::vector<Case> cases() {
  return {{"mlp", std::make_shared<Mlp>()},
          {"accumulation", std::make_shared<Mlp>(), 3},
          {"convnet", std::make_shared<ConvNet>()},
          {"embedding", std::make_shared<Words>(false)},
          {"sparse", std::make_shared<Words>(true), 1, false, true},
          {"unused", std::make_shared<Branches>(), 1, true}};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name, const Case& of) {
  if (name == "AdamW")
    return std::make_unique<torch::optim::AdamW>(of.net->parameters(),
                                                 torch::optim::AdamWOptions(1e-3));
  return std::make_unique<torch::optim::SGD>(
      of.net->parameters(), torch::optim::SGDOptions(0.05).momentum(of.is_sparse ? 0 : 0.9));
}

void train(ddprun::Context& ctx, const Case& of, const std::string& optimizer_name,
           const std::filesystem::path& directory) {
  {
    const torch::NoGradGuard no_grad;
    double phase = 0;
    for (torch::Tensor& parameter : of.net->parameters())
      parameter.copy_(formula(phase++, parameter.sizes().vec()) * 0.3);
  }
  // The buckets are small, so that there are several. This must not change the bits.
  ddprun::DistributedDataParallel model(
      of.net, ctx.group(),
      {.first_bucket_bytes = 256, .bucket_bytes = 1024, .find_unused_parameters = of.find_unused});
  const auto optimizer = make_optimizer(optimizer_name, of);
  for (int step = 0; step < kSteps; ++step) {
    const auto loss = [&](int part) {
      const Place place{step, ctx.rank(), part};
      return torch::mse_loss(model(place), formula(place.phase() + 1, {4, 3}));
    };
    optimizer->zero_grad();
    for (int part = 1; part < of.parts; ++part) {
      const ddprun::NoSync quiet = model.no_sync();
      loss(part).backward();
    }
    loss(0).backward();
    optimizer->step();
  }
  ddprun::CheckpointManager(ctx, {.directory = directory.string()})
      .save(kSteps,
            {.model = of.net.get(), .optimizer = optimizer.get(), .extra = {{"loss", "mse"}}});
}

}  // namespace

int run(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: worker_probe ddp DIRECTORY\n");
    return 2;
  }
  torch::set_num_threads(1);
  auto ctx = ddprun::init();
  for (const std::string optimizer : {"SGD", "AdamW"})
    for (const Case& of : cases()) {
      if (of.is_sparse && optimizer == "AdamW") continue;  // AdamW does not support it
      const auto directory = std::filesystem::path(argv[1]) / optimizer / of.name;
      if (ctx.rank() == 0) std::filesystem::create_directories(directory);
      train(ctx, of, optimizer, directory);
    }
  return 0;
}

}  // namespace ddp_probe
