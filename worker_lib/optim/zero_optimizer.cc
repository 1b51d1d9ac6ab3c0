#include "ddprun/zero_optimizer.h"

#include <torch/types.h>

#include "base/assert.h"
#include "base/concat.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/optim/core/shard_owners.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun::detail {
namespace {

std::vector<torch::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<torch::Tensor> result;
  for (const auto& group : optimizer.param_groups())
    result.insert(result.end(), group.params().begin(), group.params().end());
  return result;
}

std::string describe(const torch::Tensor& parameter) {
  return concat(text_of(parameter.dtype()), " ", text_of(parameter.sizes()), " with strides ",
                text_of(parameter.strides()));
}

// Returns one line for each parameter.
std::vector<std::string> describe(const torch::optim::Optimizer& optimizer) {
  std::vector<std::string> lines;
  for (std::size_t g = 0; g < optimizer.param_groups().size(); ++g)
    for (const torch::Tensor& parameter : optimizer.param_groups()[g].params())
      lines.push_back(concat("group ", g, ": ", describe(parameter)));
  return lines;
}

void expect_equal(const std::vector<std::string>& own, const std::vector<std::string>& theirs,
                  int rank) {
  static const std::string kNone = "none";
  for (std::size_t i = 0; i < std::max(own.size(), theirs.size()); ++i) {
    const std::string& mine = i < own.size() ? own[i] : kNone;
    const std::string& other = i < theirs.size() ? theirs[i] : kNone;
    if (mine != other)
      refuse(concat("ZeroRedundancyOptimizer: the ranks' parameters differ: parameter ", i, " is '",
                    mine, "' here and '", other, "' on rank ", rank));
  }
}

// Returns the elements of a tensor without gaps, in the order of memory, which is the same on
// every rank.
torch::Tensor flat_view(const torch::Tensor& parameter) {
  return parameter.detach().as_strided({parameter.numel()}, {1}, parameter.storage_offset());
}

// WithoutGradients: removes the gradients of some parameters while it lives. An optimizer skips
// parameters without a gradient.
class WithoutGradients {
 public:
  explicit WithoutGradients(std::vector<torch::Tensor> parameters)
      : parameters_(std::move(parameters)) {
    for (const torch::Tensor& parameter : parameters_)
      gradients_.push_back(std::exchange(parameter.mutable_grad(), {}));
  }
  ~WithoutGradients() {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].mutable_grad() = std::move(gradients_[i]);
  }
  WithoutGradients(const WithoutGradients&) = delete;
  WithoutGradients& operator=(const WithoutGradients&) = delete;

 private:
  std::vector<torch::Tensor> parameters_;
  std::vector<torch::Tensor> gradients_;
};

}  // namespace

struct ZeroShards::Impl {
  ProcessGroup& group;
  ShardOwners owners{group.size()};
  std::size_t groups_dealt = 0;
};

ZeroShards::ZeroShards(ProcessGroup& group) : impl_(new Impl{group}) {}
ZeroShards::~ZeroShards() = default;

void ZeroShards::deal_out(const torch::optim::Optimizer& optimizer) {
  Impl& i = *impl_;
  const auto& groups = optimizer.param_groups();
  if (i.groups_dealt == groups.size()) return;
  with_dist_errors("ZeroRedundancyOptimizer", [&] {
    const std::vector<std::string> own = describe(optimizer);
    const auto all = i.group.all_gather_object(own);
    for (std::size_t rank = 0; rank < all.size(); ++rank)
      expect_equal(own, all[rank].get<std::vector<std::string>>(), static_cast<int>(rank));
    for (; i.groups_dealt < groups.size(); ++i.groups_dealt) {
      std::vector<std::int64_t> sizes;
      for (const torch::Tensor& parameter : groups[i.groups_dealt].params()) {
        if (!parameter.is_non_overlapping_and_dense())
          refuse("ZeroRedundancyOptimizer: a parameter's memory has gaps or overlaps: " +
                 describe(parameter) + "; make it contiguous");
        sizes.push_back(parameter.numel());
      }
      i.owners.add_group(sizes);
    }
  });
}

torch::Tensor ZeroShards::step(torch::optim::Optimizer& optimizer,
                               const torch::optim::Optimizer::LossClosure& closure,
                               const std::function<void()>& step_of_own) {
  torch::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  deal_out(optimizer);
  const torch::NoGradGuard no_grad;
  const Impl& i = *impl_;
  std::vector<std::vector<torch::Tensor>> by_owner(static_cast<std::size_t>(i.group.size()));
  const std::vector<torch::Tensor> parameters = parameters_of(optimizer);
  std::vector<torch::Tensor> others;
  for (std::size_t p = 0; p < parameters.size(); ++p) {
    const int owner = owner_of(p);
    if (owner != i.group.rank()) others.push_back(parameters[p]);
    if (parameters[p].numel() > 0)
      by_owner[static_cast<std::size_t>(owner)].push_back(flat_view(parameters[p]));
  }
  {
    const WithoutGradients hidden(std::move(others));
    step_of_own();
  }
  if (i.group.size() == 1) return loss;
  std::vector<Work> works;
  for (int owner = 0; owner < i.group.size(); ++owner)
    if (const auto& tensors = by_owner[static_cast<std::size_t>(owner)]; !tensors.empty())
      works.push_back(i.group.broadcast_coalesced(tensors, {.root = owner, .async = true}));
  for (Work& work : works) work.wait();
  return loss;
}

ProcessGroup& ZeroShards::group() const { return impl_->group; }

int ZeroShards::owner_of(std::size_t index) const {
  DDPRUN_ASSERT(index < impl_->owners.owners().size(), "the parameter was dealt out");
  return impl_->owners.owners()[index];
}

void ZeroShards::refuse_archive() {
  refuse(
      "torch::save() and torch::load() of a ZeroRedundancyOptimizer: each rank has its share of "
      "the state only; CheckpointManager saves and restores all of it",
      DistError::Kind::kUnsupported);
}

}  // namespace ddprun::detail
