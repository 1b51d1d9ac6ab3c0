// A rank of DistributedDataParallel for benchmarks/data_parallel.py: it takes steps of an MLP of
// equal layers. Its orders are those of round_server.h; their numbers are width, layers and
// samples.
//
//   plain    forward, backward, a step of SGD, without communication
//   ddp      the same with DistributedDataParallel
//   noop     the same with the hooks and buckets of DistributedDataParallel, but nothing is sent
//   reduce   only an all_reduce of the gradients, in memory that the ranks share
//   within   a plain step with such an all_reduce, of other numbers, between backward and SGD
//
// Usage: data_parallel_steps --driver PATH --rank R --ranks N --meet FILE
#include <ddprun/context.h>
#include <ddprun/data_parallel.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "benchmarks/round_server.h"

namespace ddprun::benchmarks {
namespace {

using Sizes = std::vector<std::size_t>;

// Training: a net, its data and its optimizer.
class Training {
 public:
  Training(const Sizes& sizes, int rank) {
    const auto width = static_cast<std::int64_t>(sizes[0]);
    for (std::size_t layer = 0; layer < sizes[1]; ++layer) {
      if (layer > 0) net_->push_back(torch::nn::ReLU());
      net_->push_back(torch::nn::Linear(width, width));
    }
    torch::manual_seed(rank);
    input_ = torch::randn({static_cast<std::int64_t>(sizes[2]), width});
    target_ = torch::randn_like(input_);
    optimizer_ = std::make_unique<torch::optim::SGD>(net_->parameters(), 1e-3);
  }

  torch::nn::Sequential& net() { return net_; }
  std::int64_t elements() const {
    std::int64_t count = 0;
    for (const torch::Tensor& parameter : net_->parameters()) count += parameter.numel();
    return count;
  }

  template <class Model>
  void step(Model& model, const std::function<void()>& before_sgd = {}) {
    optimizer_->zero_grad();
    torch::mse_loss(model->forward(input_), target_).backward();
    if (before_sgd) before_sgd();
    optimizer_->step();
  }

 private:
  torch::nn::Sequential net_;
  torch::Tensor input_, target_;
  std::unique_ptr<torch::optim::SGD> optimizer_;
};

class StepsRank final : public MeasuredSystem {
 public:
  explicit StepsRank(ProcessGroup& group) : group_(group) {}

  std::function<void()> prepare(const Order& order) override {
    if (order.bytes.size() != 3) return nullptr;
    if (order.call == "reduce") return reduction(order.bytes);
    auto& [training, model] = made_[{order.call, order.bytes}];
    if (!training) {
      training = std::make_unique<Training>(order.bytes, group_.rank());
      if (is_wrapped(order.call)) model = std::make_unique<Model>(training->net(), group_);
      if (order.call == "noop") model->register_comm_hook(std::make_shared<NoopHook>());
    }
    if (order.call == "plain") return [one = training.get()] { one->step(one->net()); };
    if (order.call == "within")
      return [one = training.get(), reduce = reduction(order.bytes)] {
        one->step(one->net(), reduce);
      };
    if (is_wrapped(order.call))
      return [one = training.get(), wrapped = model.get()] { one->step(wrapped); };
    return nullptr;
  }

  void barrier() override { group_.barrier(); }

 private:
  static bool is_wrapped(const std::string& call) { return call == "ddp" || call == "noop"; }

  using Model = DistributedDataParallel<torch::nn::Sequential>;
  struct Made {
    std::unique_ptr<Training> training;
    std::unique_ptr<Model> model;
  };

  std::function<void()> reduction(const Sizes& sizes) {
    const torch::Tensor gradients =
        group_.shared_empty({Training(sizes, group_.rank()).elements()}).zero_();
    return [=, this] { group_.all_reduce(gradients, {.op = ReduceOp::kAvg}); };
  }

  ProcessGroup& group_;
  std::map<std::pair<std::string, Sizes>, Made> made_;
};

int benchmark(int argc, char** argv) {
  std::string driver, meet;
  int rank = 0, ranks = 2;
  CLI::App app("A rank of DistributedDataParallel for benchmarks/data_parallel.py");
  app.add_option("--driver", driver, "the driver's Unix socket")->required();
  app.add_option("--rank", rank, "of this process");
  app.add_option("--ranks", ranks, "of the world");
  app.add_option("--meet", meet, "a file that is not there yet")->required();
  CLI11_PARSE(app, argc, argv);

  torch::set_num_threads(1);
  auto ctx = ddprun::init({.device = torch::Device(torch::kCPU),
                           .init_method = "file://" + meet,
                           .rank = rank,
                           .world_size = ranks});
  StepsRank self(ctx.group());
  serve_rounds(driver, rank, self);
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
