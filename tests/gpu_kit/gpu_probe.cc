// A rank of the GPU kit's measurements and comparisons (docs/reference/testing.md). Without a GPU
// it runs on the CPU.
//
//   gpu_probe sync_batch_norm   compares SyncBatchNorm over the ranks' halves with batch norm over
//                               the whole batch
//   gpu_probe checkpoint DIR    checks that a restore brings back the state of the random
//                               generators of the CPU and the GPU
//   gpu_probe ddp FILE          trains a net on synthetic data, as ddp_twin.py does with PyTorch;
//                               rank 0 writes FILE
//   gpu_probe late_checks       checks what a failed pass leaves, and which pass reports it
//   gpu_probe overhead          measures what DistributedDataParallel adds to a step
//   gpu_probe calls             measures small all_reduces, and counts the threads meanwhile
//
// The last line of rank 0 is JSON: {"device": "cuda:0", "ranks": 2, ...}. Exit code 1: the
// compared values differ.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <ddprun/ddprun.hpp>
#include <filesystem>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using nlohmann::json;
using torch::Tensor;

// Returns the same numbers as formula() in ddp_twin.py, without a random generator.
Tensor formula(double phase, std::vector<std::int64_t> sizes, torch::Device device) {
  const Tensor numbers =
      torch::arange(c10::multiply_integers(sizes), torch::kFloat64).mul(0.7).add(phase).sin();
  return numbers.to(torch::kFloat32).reshape(sizes).to(device);
}

// Returns the largest difference, relative to the largest value of b.
double distance(const Tensor& a, const Tensor& b) {
  const Tensor difference = (a.to(torch::kFloat64) - b.to(torch::kFloat64)).abs().max();
  return difference.item<double>() / std::max(b.abs().max().item<double>(), 1e-30);
}

json sync_batch_norm(ddprun::Context& ctx) {
  constexpr std::int64_t kChannels = 8, kOfRank = 4;
  const auto statistics = ctx.group().split(0, 0, {.name = "batch norm"});
  ddprun::SyncBatchNorm2d layer(kChannels, *statistics);
  torch::nn::BatchNorm2d plain(kChannels);
  layer->to(ctx.device());
  plain->to(ctx.device());
  const Tensor all = formula(1, {kOfRank * ctx.world_size(), kChannels, 5, 5}, ctx.device());
  const Tensor weights = formula(2, all.sizes().vec(), ctx.device());
  const auto of_rank = [&](const Tensor& t) { return t.narrow(0, kOfRank * ctx.rank(), kOfRank); };
  const Tensor own = of_rank(all).clone().requires_grad_();
  const Tensor whole = all.clone().requires_grad_();
  const Tensor output = layer(own);
  const Tensor expected = plain(whole);
  (output * of_rank(weights)).sum().backward();
  (expected * weights).sum().backward();
  double apart = distance(output, of_rank(expected));
  apart = std::max(apart, distance(own.grad(), of_rank(whole.grad())));
  apart = std::max(apart, distance(layer->running_var, plain->running_var));
  return {{"apart", apart}, {"good", apart < 1e-4}};
}

json checkpoint(ddprun::Context& ctx, const std::string& directory) {
  torch::manual_seed(17 + ctx.rank());
  torch::nn::Linear net(4, 4);
  net->to(ctx.device());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  const ddprun::TrainingState state{.model = net.get(), .optimizer = &optimizer};
  const auto draw = [&] {
    return torch::cat({torch::rand({100}), torch::rand({100}, ctx.device()).cpu()});
  };
  draw();
  Tensor drawn;
  {
    ddprun::CheckpointManager checkpoints(ctx, {.directory = directory});
    checkpoints.save(1, state);
    checkpoints.wait();
    drawn = draw();
  }
  ddprun::CheckpointManager checkpoints(ctx, {.directory = directory});
  ddprun::TrainingState again = state;
  const bool restored = checkpoints.restore(again).step == 1;
  const bool same = torch::equal(drawn, draw());
  const bool differs_later = !torch::equal(drawn, draw());
  return {
      {"restored", restored}, {"same_numbers", same}, {"good", restored && same && differs_later}};
}

torch::nn::Sequential make_net(torch::Device device) {
  torch::nn::Sequential net{torch::nn::Linear(16, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                            torch::nn::ReLU(), torch::nn::Linear(64, 4)};
  const torch::NoGradGuard no_grad;
  double phase = 0;
  for (Tensor& parameter : net->parameters())
    parameter.copy_(formula(phase++, parameter.sizes().vec(), torch::kCPU) * 0.2);
  net->to(device);
  return net;
}

json ddp(ddprun::Context& ctx, const std::string& file) {
  constexpr int kSteps = 50;
  torch::nn::Sequential net = make_net(ctx.device());
  ddprun::DistributedDataParallel model(net, ctx.group());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < kSteps; ++step) {
    const double phase = 100 * step + 10 * ctx.rank();
    optimizer.zero_grad();
    torch::mse_loss(model(formula(phase, {8, 16}, ctx.device())),
                    formula(phase + 1, {8, 4}, ctx.device()))
        .backward();
    optimizer.step();
  }
  if (ctx.rank() == 0) ddprun::save_state_dict(file, *net);
  return {{"steps", kSteps}, {"good", true}};
}

json overhead(ddprun::Context& ctx) {
  constexpr int kRounds = 5;
  const int warmup = ctx.device().is_cuda() ? 5 : 1;
  const int steps = ctx.device().is_cuda() ? 40 : 2;
  constexpr std::int64_t kWidth = 512;
  torch::nn::Sequential net;
  for (int layer = 0; layer < 7; ++layer) net->push_back(torch::nn::Linear(kWidth, kWidth));
  net->to(ctx.device());
  const Tensor input = formula(1, {16, kWidth}, ctx.device());
  torch::optim::SGD optimizer(net->parameters(), 1e-3);
  const auto settle = [&] {
    if (ctx.device().is_cuda()) torch::cuda::synchronize();
  };
  const auto us_of_step = [&](auto& model) {
    const auto step = [&] {
      optimizer.zero_grad();
      model->forward(input).square().mean().backward();
      optimizer.step();
    };
    for (int i = 0; i < warmup; ++i) step();
    settle();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < steps; ++i) step();
    settle();
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    return took.count() / steps;
  };
  // In `waiting`, each pass waits for the device.
  std::vector<double> plain, with, waiting;
  for (int round = 0; round < kRounds; ++round) {
    plain.push_back(us_of_step(net));
    for (auto* took : {&with, &waiting}) {
      ddprun::DistributedDataParallel model(net, ctx.group(), {.check_passes_late = took == &with});
      auto* const wrapped = &model;
      took->push_back(us_of_step(wrapped));
    }
  }
  for (auto* took : {&plain, &with, &waiting}) std::ranges::sort(*took);
  return {{"plain_us", plain[kRounds / 2]},
          {"ddp_us", with[kRounds / 2]},
          {"ddp_waiting_us", waiting[kRounds / 2]},
          {"good", true}};
}

json calls(ddprun::Context& ctx) {
  constexpr int kRounds = 5;
  const int calls = ctx.device().is_cuda() ? 2000 : 20;
  const auto threads = [] {
    return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                         std::filesystem::directory_iterator());
  };
  Tensor value = torch::ones({1}, ctx.device());
  std::vector<double> issued, ended;
  auto most_threads = threads();
  for (int round = 0; round <= kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    const auto us_of_call = [&] {
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      return took.count() / calls;
    };
    for (int call = 0; call < calls; ++call) {
      ctx.group().all_reduce(value, {.op = ddprun::ReduceOp::kMax});
      if (round == 0) most_threads = std::max(most_threads, threads());
    }
    const double us = us_of_call();
    if (ctx.device().is_cuda()) torch::cuda::synchronize();
    if (round == 0) continue;  // this one warms up and counts threads
    issued.push_back(us);
    ended.push_back(us_of_call());
  }
  for (auto* took : {&issued, &ended}) std::ranges::sort(*took);
  return {{"issue_us", issued[kRounds / 2]},
          {"call_us", ended[kRounds / 2]},
          {"most_threads", most_threads},
          {"good", value.item<float>() == 1}};
}

// Makes a pass in which the last rank has no gradient for a layer, and then another pass. The CPU
// must report the error in the first one, a GPU in the second one.
json late_checks(ddprun::Context& ctx) {
  torch::nn::Sequential net{torch::nn::Linear(4, 4), torch::nn::Linear(4, 4)};
  net->to(ctx.device());
  ddprun::DistributedDataParallel model(net, ctx.group());
  const Tensor input = formula(1, {2, 4}, ctx.device());
  const auto pass = [&] { model(input).sum().backward(); };
  const auto throws = [](const auto& action) {
    try {
      action();
      return false;
    } catch (const ddprun::DistError&) {
      return true;
    }
  };
  for (int step = 0; step < 3; ++step) pass();
  net->zero_grad();
  const bool is_first_told = throws([&] {
    if (ctx.rank() + 1 < ctx.world_size()) return pass();
    net[0]->as<torch::nn::Linear>()->forward(input).sum().backward();
  });
  bool are_all_nan = true;
  for (const Tensor& p : net->parameters())
    are_all_nan &= p.grad().defined() && p.grad().isnan().any().item<bool>();
  const bool is_second_told = throws(pass);
  net->zero_grad();
  pass();
  bool is_finite = true;
  for (const Tensor& p : net->parameters()) is_finite &= p.grad().isfinite().all().item<bool>();
  const bool is_as_promised = ctx.device().is_cuda()
                                  ? !is_first_told && are_all_nan && is_second_told
                                  : is_first_told && !is_second_told;
  return {{"told_late", is_second_told}, {"good", is_as_promised && is_finite}};
}

int run(const std::vector<std::string>& words) {
  auto ctx = ddprun::init();
  json found;
  if (words == std::vector<std::string>{"sync_batch_norm"}) {
    found = sync_batch_norm(ctx);
  } else if (words.size() == 2 && words[0] == "checkpoint") {
    found = checkpoint(ctx, words[1]);
  } else if (words.size() == 2 && words[0] == "ddp") {
    found = ddp(ctx, words[1]);
  } else if (words == std::vector<std::string>{"overhead"}) {
    found = overhead(ctx);
  } else if (words == std::vector<std::string>{"calls"}) {
    found = calls(ctx);
  } else if (words == std::vector<std::string>{"late_checks"}) {
    found = late_checks(ctx);
  } else {
    std::fprintf(stderr,
                 "usage: gpu_probe sync_batch_norm | checkpoint DIR | ddp FILE | late_checks | "
                 "overhead | calls\n");
    return 2;
  }
  found["device"] = ctx.device().str();
  found["ranks"] = ctx.world_size();
  const bool is_good = found.at("good").get<bool>();
  if (ctx.rank() == 0 || !is_good) std::printf("%s\n", found.dump().c_str());
  return is_good ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) { return run({argv + 1, argv + argc}); }
