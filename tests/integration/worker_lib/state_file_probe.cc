// The C++ side of state_file_test.py:
//
//   worker_probe state_file VERB ARGUMENT...
//     begin DIR      trains each case for kBegun steps, writes DIR/CASE/step-...pt
//     go-on DIR      loads DIR/CASE.pt, trains on, prints "CASE LOSS" for each step
//     write DIR      writes DIR/CASE.pt, a state dict
//     read FILE...   prints what load_state_dict() returns for each, or its error
//
// A case is a model and an optimizer. Both sides compute weights and data by the same formula.
#include <torch/torch.h>

#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "tests/integration/worker_lib/probes.h"

namespace state_file_probe {
namespace {

constexpr int kBegun = 10;
constexpr int kMore = 20;

// Returns the numbers of formula() in state_file_test.py, without a random generator.
torch::Tensor formula(double phase, std::vector<std::int64_t> sizes) {
  const torch::Tensor numbers =
      torch::arange(c10::multiply_integers(sizes), torch::kFloat64).mul(0.7).add(phase).sin();
  return numbers.to(torch::kFloat32).reshape(sizes);
}

torch::Tensor tokens(int phase) {
  return (torch::arange(12) * 7 + phase).remainder(10).view({4, 3});
}

struct Case {
  std::string name;
  torch::nn::Sequential net;
  std::function<torch::Tensor(int)> input;
  std::unique_ptr<torch::optim::Optimizer> optimizer;

  torch::Tensor step(int number) {
    const torch::Tensor loss =
        torch::mse_loss(net->forward(input(number)), formula(number + 0.5, {4, 3}));
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    return loss;
  }
};

struct Model {
  torch::nn::Sequential net;
  std::function<torch::Tensor(int)> input;
};

Model make_model(const std::string& name) {
  using namespace torch::nn;
  if (name == "mlp")
    return {Sequential{Linear(6, 32), Tanh(), Linear(32, 3)}, [](int phase) {
              return formula(phase, {4, 6});
            }};
  if (name == "conv")
    return {Sequential{Conv2d(Conv2dOptions(2, 4, 3).padding(1)), BatchNorm2d(4), ReLU(), Flatten(),
                       Linear(64, 3)},
            [](int phase) {
              return formula(phase, {4, 2, 4, 4});
            }};
  return {Sequential{Embedding(10, 5), Flatten(), Linear(15, 3)}, tokens};
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& name,
                                                        std::vector<torch::Tensor> parameters) {
  using namespace torch::optim;
  if (name == "sgd") return std::make_unique<SGD>(parameters, SGDOptions(0.05));
  if (name == "momentum")
    return std::make_unique<SGD>(parameters,
                                 SGDOptions(0.05).momentum(0.9).weight_decay(0.01).nesterov(true));
  if (name == "adam") return std::make_unique<Adam>(parameters, AdamOptions(0.01));
  if (name == "amsgrad") return std::make_unique<Adam>(parameters, AdamOptions(0.01).amsgrad(true));
  if (name == "adamw") return std::make_unique<AdamW>(parameters, AdamWOptions(0.01));
  if (name == "rmsprop")
    return std::make_unique<RMSprop>(parameters, RMSpropOptions(0.01).momentum(0.5).centered(true));
  return std::make_unique<Adagrad>(parameters, AdagradOptions(0.05));
}

std::vector<Case> make_cases() {
  std::vector<Case> cases;
  for (const auto& [model_name, optimizer_names] : std::map<std::string, std::vector<std::string>>{
           {"mlp", {"sgd", "momentum", "adam", "amsgrad", "adamw", "rmsprop", "adagrad"}},
           {"conv", {"momentum", "adam"}},
           {"embedding", {"momentum", "adagrad"}}})
    for (const std::string& optimizer_name : optimizer_names) {
      Model model = make_model(model_name);
      torch::NoGradGuard no_grad;
      double phase = 0;
      for (torch::Tensor& parameter : model.net->parameters())
        parameter.copy_(formula(phase++, parameter.sizes().vec()) * 0.3);
      cases.push_back({model_name + "-" + optimizer_name, model.net, model.input,
                       make_optimizer(optimizer_name, model.net->parameters())});
    }
  return cases;
}

void begin(const std::string& directory, bool sharded) {
  auto ctx = ddprun::init();
  for (Case& one : make_cases()) {
    for (int step = 0; step < kBegun; ++step) one.step(step);
    ddprun::CheckpointManager(ctx, {.directory = directory + "/" + one.name, .sharded = sharded})
        .save(kBegun, {.model = one.net.get(), .optimizer = one.optimizer.get(), .epoch = 1});
  }
}

void go_on(const std::string& directory) {
  for (Case& one : make_cases()) {
    const std::string file = directory + "/" + one.name + ".pt";
    ddprun::load_into(*one.net, ddprun::load_state_dict(file));
    ddprun::load_optimizer_state_dict(file, *one.optimizer);
    for (int step = kBegun; step < kBegun + kMore; ++step)
      std::printf("%s %.9g\n", one.name.c_str(), one.step(step).item<double>());
  }
}

// Prints "name dtype sizes strides storage bytes". The name of the first tensor in a storage
// names it.
void show(const std::string& file) try {
  const ddprun::StateDict state = ddprun::load_state_dict(file);
  std::map<const void*, std::string> first;
  for (const auto& item : state) {
    const torch::Tensor& tensor = item.value();
    std::string line = item.key() + " " + std::string(c10::toString(tensor.scalar_type()));
    for (const auto& list : {tensor.sizes(), tensor.strides()}) {
      line += " [";
      for (const std::int64_t number : list) line += std::to_string(number) + ",";
      line += "]";
    }
    line += " " + first.try_emplace(tensor.storage().data(), item.key()).first->second + " ";
    const torch::Tensor plain = tensor.detach().contiguous();
    for (std::size_t i = 0; i < plain.nbytes(); ++i) {
      char hex[3];
      std::snprintf(hex, sizeof hex, "%02x",
                    static_cast<const unsigned char*>(plain.data_ptr())[i]);
      line += hex;
    }
    std::puts(line.c_str());
  }
} catch (const ddprun::DistError& error) {
  std::printf("error: %s\n", error.what());
}

}  // namespace

int run(int argc, char** argv) {
  const std::string verb = argc > 2 ? argv[1] : "";
  torch::set_num_threads(1);
  if (verb == "begin" || verb == "begin-shards") {
    begin(argv[2], verb == "begin-shards");
  } else if (verb == "go-on") {
    go_on(argv[2]);
  } else if (verb == "write") {
    for (Case& one : make_cases())
      ddprun::save_state_dict(argv[2] + ("/" + one.name) + ".pt", *one.net);
  } else if (verb == "read") {
    for (int i = 2; i < argc; ++i) {
      std::printf("== %s\n", argv[i]);
      show(argv[i]);
    }
  } else {
    std::fprintf(
        stderr,
        "usage: worker_probe state_file begin|begin-shards|go-on|write DIR, read FILE...\n");
    return 2;
  }
  return 0;
}

}  // namespace state_file_probe
