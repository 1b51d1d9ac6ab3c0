#include "worker_lib/ddp/autograd_graph.h"

#include <torch/csrc/autograd/variable.h>

#include <unordered_set>

namespace ddprun {

std::vector<char> reachable_from(std::span<const torch::Tensor> outputs,
                                 const AccumulatorIndex& accumulators) {
  using torch::autograd::Node;
  std::vector<char> reached(accumulators.size());
  std::unordered_set<const Node*> seen;
  std::vector<const Node*> open;
  const auto visit = [&](const Node* node) {
    if (node && seen.insert(node).second) open.push_back(node);
  };
  for (const torch::Tensor& output : outputs)
    if (output.requires_grad()) visit(torch::autograd::impl::gradient_edge(output).function.get());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    if (const auto found = accumulators.find(node); found != accumulators.end())
      reached[found->second] = 1;
    for (const torch::autograd::Edge& edge : node->next_edges()) visit(edge.function.get());
  }
  return reached;
}

}  // namespace ddprun
