// A rank of a ProcessGroup, with tensors, for benchmarks/collectives.py. It measures what
// ProcessGroup costs in addition to the engine. Calls and sizes are those of collectives_cpu.
//
// Usage: collectives_group --driver PATH --rank R --ranks N --meet FILE [--longest BYTES]
#include <ddprun/context.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "benchmarks/round_server.h"

namespace ddprun::benchmarks {
namespace {

class GroupRank final : public MeasuredSystem {
 public:
  GroupRank(ProcessGroup& group, std::int64_t longest)
      : group_(group),
        one_(torch::zeros({longest / 4})),
        other_(torch::zeros({longest / 4})),
        shared_(group.shared_empty({longest / 4})) {
    shared_.zero_();
  }

  std::function<void()> prepare(const Order& order) override {
    const auto size = static_cast<std::int64_t>(order.size(0) / 4);
    const auto first = [](const torch::Tensor& all, std::int64_t count) {
      return all.narrow(0, 0, count);
    };
    const torch::Tensor whole = first(one_, size), share = first(other_, size / group_.size());
    if (order.call == "all_reduce") return [=, this] { group_.all_reduce(whole); };
    if (order.call == "shared") {
      return [this, tensor = first(shared_, size)] { group_.all_reduce(tensor); };
    }
    if (order.call == "broadcast") return [=, this] { group_.broadcast(whole); };
    if (order.call == "all_gather") {
      return [=, this] { group_.all_gather_into_tensor(whole, share); };
    }
    if (order.call == "reduce_scatter") {
      return [=, this] { group_.reduce_scatter_tensor(share, whole); };
    }
    if (order.call == "all_to_all") {
      return [this, whole, to = first(other_, size)] { group_.all_to_all_single(to, whole); };
    }
    if (order.call == "barrier") return [this] { barrier(); };
    return nullptr;
  }

  void barrier() override { group_.barrier(); }

 private:
  ProcessGroup& group_;
  torch::Tensor one_, other_, shared_;
};

int benchmark(int argc, char** argv) {
  std::string driver, meet;
  int rank = 0, ranks = 2;
  std::int64_t longest = std::int64_t{100} << 20;
  CLI::App app("A rank of a ProcessGroup for benchmarks/collectives.py");
  app.add_option("--driver", driver, "the driver's Unix socket")->required();
  app.add_option("--rank", rank, "of this process");
  app.add_option("--ranks", ranks, "of the world");
  app.add_option("--meet", meet, "a file that is not there yet")->required();
  app.add_option("--longest", longest, "bytes of a buffer");
  CLI11_PARSE(app, argc, argv);

  bind_to_core(rank);
  torch::set_num_threads(1);
  auto ctx = ddprun::init({.device = torch::Device(torch::kCPU),
                           .init_method = "file://" + meet,
                           .rank = rank,
                           .world_size = ranks});
  GroupRank self(ctx.group(), longest);
  serve_rounds(driver, rank, self);
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::benchmark(argc, argv); }
