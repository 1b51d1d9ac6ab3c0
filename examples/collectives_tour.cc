// Calls every collective once, and prints the results rank by rank.
//
//   ddprun --standalone --nproc-per-node=3 build/release/bin/collectives_tour
//
// Each rank writes a line: what it had and what it got. Rank 0 gathers the lines of all ranks
// (also with a collective) and prints them in order, so the output is the same every time.
#include <ddprun/context.h>
#include <torch/torch.h>

#include <cstdio>
#include <sstream>
#include <string>
#include <vector>

#include "examples/command_line.h"

namespace {

using ddprun::ProcessGroup;
using ddprun::ReduceOp;
using torch::Tensor;

class Tour {
 public:
  Tour(ProcessGroup& group, torch::Device device)
      : group_(group), device_(device), rank_(group.rank()), size_(group.size()) {}

  void run() {
    title("all_reduce, sum: every rank gets the sum");
    Tensor x = own();
    const std::string had = text(x);
    group_.all_reduce(x);
    show(had + " -> " + text(x));

    title("all_reduce, avg: every rank gets the average");
    x = own().to(torch::kFloat32);
    group_.all_reduce(x, {.op = ReduceOp::kAvg});
    show(had + " -> " + text(x));

    title("reduce, max, to rank 0: the others keep what they had");
    x = own();
    group_.reduce(x, {.root = 0, .op = ReduceOp::kMax});
    show(had + " -> " + text(x));

    const int last = size_ - 1;
    title("broadcast from rank " + std::to_string(last));
    x = own();
    group_.broadcast(x, {.root = last});
    show(had + " -> " + text(x));

    title("all_gather: every rank gets all parts");
    std::vector<Tensor> all = blank();
    group_.all_gather(all, own());
    show(had + " -> " + text(all));

    title("reduce_scatter, sum: rank r gets the sum of part r of all ranks");
    const std::vector<Tensor> parts = part_for_each();
    x = torch::zeros_like(parts[0]);
    group_.reduce_scatter(x, parts);
    show(text(parts) + " -> " + text(x));

    title("gather to rank 0");
    all = rank_ == 0 ? blank() : std::vector<Tensor>();
    group_.gather(all, own());
    show(had + " -> " + (all.empty() ? "nothing" : text(all)));

    title("scatter from rank 0: rank r gets part r");
    const std::vector<Tensor> sent = rank_ == 0 ? part_for_each() : std::vector<Tensor>();
    x = torch::zeros_like(parts[0]);
    group_.scatter(x, sent);
    show((sent.empty() ? "nothing" : text(sent)) + " -> " + text(x));

    if (size_ > 1) ring();

    title("two asynchronous all_reduces in flight, waited for in any order");
    const Tensor a = own();
    const Tensor b = own() * 10;
    const ddprun::Work first = group_.all_reduce(a, {.async = true});
    const ddprun::Work second = group_.all_reduce(b, {.async = true});
    second.wait();
    first.wait();
    show(text(a) + " and " + text(b));

    title("all_gather_object: every rank gets the JSON value of every rank");
    const std::vector<nlohmann::json> values =
        group_.all_gather_object({{"rank", rank_}, {"even", rank_ % 2 == 0}});
    show(nlohmann::json(values).dump());

    title("broadcast_object from rank 0, a JSON value");
    const nlohmann::json plan = group_.broadcast_object(
        rank_ == 0 ? nlohmann::json{{"lr", 0.1}, {"name", "tour"}} : nlohmann::json());
    show(plan.dump());

    title("barrier: no rank continues before all have arrived");
    group_.barrier();
    show("passed");
  }

 private:
  // Sends around the ring. Rank 0 sends first; otherwise each rank would wait for the previous one.
  void ring() {
    title("send and recv: to the next rank");
    const int next = (rank_ + 1) % size_;
    const int previous = (rank_ + size_ - 1) % size_;
    const Tensor got = torch::zeros_like(own());
    if (rank_ == 0) group_.send(own(), next);
    group_.recv(got, previous);
    if (rank_ != 0) group_.send(own(), next);
    show("rank " + std::to_string(previous) + " sent " + text(got));
  }

  // Returns the input of this rank r: [r, r + 1].
  Tensor own() const { return torch::arange(rank_, rank_ + 2, device_); }

  std::vector<Tensor> blank() const {
    std::vector<Tensor> tensors;
    for (int r = 0; r < size_; ++r) tensors.push_back(torch::zeros_like(own()));
    return tensors;
  }

  // Returns a part for each rank r: [10 * this rank + r].
  std::vector<Tensor> part_for_each() const {
    std::vector<Tensor> parts;
    for (int r = 0; r < size_; ++r) parts.push_back(torch::full({1}, 10 * rank_ + r, device_));
    return parts;
  }

  static std::string text(const Tensor& tensor) {
    std::ostringstream text;
    text << "[";
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      text << (i > 0 ? " " : "") << tensor[i].item<double>();
    }
    text << "]";
    return text.str();
  }

  static std::string text(const std::vector<Tensor>& tensors) {
    std::ostringstream all;
    for (std::size_t i = 0; i < tensors.size(); ++i) all << (i > 0 ? " " : "") << text(tensors[i]);
    return all.str();
  }

  void title(const std::string& what) const {
    if (rank_ == 0) std::printf("\n%s\n", what.c_str());
  }

  void show(const std::string& line) const {
    const std::vector<nlohmann::json> lines = group_.all_gather_object(line);
    if (rank_ != 0) return;
    for (int r = 0; r < size_; ++r) {
      const auto of_rank = lines[static_cast<std::size_t>(r)].get<std::string>();
      std::printf("  rank %d: %s\n", r, of_rank.c_str());
    }
    std::fflush(stdout);
  }

  ProcessGroup& group_;
  const torch::Device device_;
  const int rank_;
  const int size_;
};

}  // namespace

int main(int argc, char** argv) {
  examples::CommandLine line(
      "Calls every collective once and prints what each rank had and got.\n"
      "Example: ddprun --standalone --nproc-per-node=3 collectives_tour",
      "collectives_tour");
  return line.run(argc, argv, [] {
    ddprun::Context context = ddprun::init();
    if (context.rank() == 0) {
      std::printf("%d ranks over the %s backend\n", context.world_size(),
                  context.group().backend_name().c_str());
    }
    Tour(context.group(), context.device()).run();
  });
}
