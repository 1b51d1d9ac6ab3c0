// Trains a net to tell on which of two spirals a point lies. before.cc is an ordinary training.
// after.cc runs with any number of workers and survives their loss. README.md shows the
// difference.
#include <torch/torch.h>

#include <cmath>
#include <ddprun/ddprun.hpp>
#include <iostream>

struct Spirals : torch::data::datasets::Dataset<Spirals> {
  torch::data::Example<> get(std::size_t i) override {
    const float angle = 0.01F * static_cast<float>(i / 2), side = i % 2 == 0 ? 1 : -1;
    return {torch::tensor({side * angle * std::cos(angle), side * angle * std::sin(angle)}),
            torch::tensor(static_cast<std::int64_t>(i % 2))};
  }
  std::optional<std::size_t> size() const override { return 2000; }
};

int main() {
  auto ctx = ddprun::init();
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                            torch::nn::ReLU(), torch::nn::Linear(64, 2));
  ddprun::DistributedDataParallel model(net, ctx.group());
  torch::optim::SGD optimizer(net->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  auto dataset = Spirals().map(torch::data::transforms::Stack<>());
  ddprun::DistributedSampler sampler(*dataset.size(), ctx.group());
  auto loader = torch::data::make_data_loader(dataset, sampler, 50);
  ddprun::CheckpointManager checkpoints(ctx, {.directory = "run1", .every_steps = 30});
  ddprun::TrainingState state{.model = net.get(), .optimizer = &optimizer, .sampler = &sampler};
  std::int64_t step = checkpoints.restore(state).step;
  for (std::int64_t& epoch = state.epoch; epoch < 40; ++epoch) {
    sampler.set_epoch(epoch);
    double loss_sum = 0;
    for (auto& batch : *loader) {
      optimizer.zero_grad();
      auto loss = torch::cross_entropy_loss(model(batch.data), batch.target);
      loss.backward();
      optimizer.step();
      if (checkpoints.maybe_save(++step, state).leave) return 0;
      loss_sum += loss.item<double>();
    }
    std::cout << "epoch " << epoch << "  sum of losses " << loss_sum << std::endl;
  }
  if (ctx.rank() == 0) torch::save(net, "net.pt");
}
