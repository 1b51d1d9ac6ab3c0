#include "ddprun/sync_batch_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <span>

#include "worker_lib/batch_norm_math.h"
#include "worker_lib/core/moments.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/tensor_facts.h"

namespace ddprun {
namespace {

using torch::Tensor;

// What a rank's forward records, so which collectives its backward pass can take part in.
enum class Recorded { kNothing, kParameters, kInput };

// What all ranks agree on in a forward; the backward pass uses it again.
struct Normalization : torch::CustomClassHolder {
  explicit Normalization(ProcessGroup& group_) : group(group_) {}

  ProcessGroup& group;
  Tensor mean, invstd;     // float64, on the input's device
  double count = 0;        // values of a channel on all ranks
  bool exchanges = false;  // the backward pass has a collective
};

// y = (x - mean) * invstd * weight + bias; its derivative after x is
// invstd * weight * (g - mean of g - (x - mean) * invstd^2 * mean of g (x - mean)).
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  // Optional, because autograd takes no undefined tensors.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& weight_or_none,
                        const std::optional<Tensor>& bias_or_none,
                        const c10::intrusive_ptr<Normalization>& all) {
    const Tensor weight = weight_or_none.value_or(Tensor()), bias = bias_or_none.value_or(Tensor());
    context->save_for_backward({input, weight});
    context->saved_data["all"] = c10::IValue::make_capsule(all);
    const Tensor shift = bias.defined() ? bias.to(torch::kFloat64) : torch::zeros_like(all->mean);
    return normalized(input, all->mean, scale_of(*all, weight), shift);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    if (at::GradMode::is_enabled())
      refuse("backward pass of SyncBatchNorm: create_graph is not supported",
             DistError::Kind::kUnsupported);
    const auto saved = context->get_saved_variables();
    const Tensor& input = saved[0];
    const Tensor& weight = saved[1];
    const auto capsule = context->saved_data["all"].toCapsule();
    const auto& all = static_cast<const Normalization&>(*capsule);
    const Tensor& gradient = gradients[0];
    const Tensor sums = gradient_sums(gradient, input, all.mean);
    Tensor of_weight, of_bias;
    if (weight.defined()) {
      of_weight = (sums[1] * all.invstd).to(weight.scalar_type());
      of_bias = sums[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    if (!all.exchanges) return {Tensor(), of_weight, of_bias, Tensor()};
    all.group.all_reduce(sums);
    // The means over all ranks of g, and of g * (x - mean).
    const Tensor of_g = sums[0] / all.count, of_product = sums[1] / all.count;
    return {input_gradient(gradient, input, all.mean, scale_of(all, weight), of_g,
                           of_product * all.invstd.square()),
            of_weight, of_bias, Tensor()};
  }

 private:
  static Tensor scale_of(const Normalization& all, const Tensor& weight) {
    return weight.defined() ? all.invstd * weight.detach() : all.invstd;
  }
};

Recorded recorded_by(const Tensor& input, const detail::BatchNormParts& parts) {
  if (!at::GradMode::is_enabled()) return Recorded::kNothing;
  if (input.requires_grad()) return Recorded::kInput;
  const bool any = (parts.weight.defined() && parts.weight.requires_grad()) ||
                   (parts.bias.defined() && parts.bias.requires_grad());
  return any ? Recorded::kParameters : Recorded::kNothing;
}

// Every rank has the same rows, and so decides the same.
bool agree_on_exchange(const std::string& doing, std::span<const Recorded> of_ranks) {
  const auto nothing = std::ranges::find(of_ranks, Recorded::kNothing);
  const auto something =
      std::ranges::find_if(of_ranks, [](Recorded r) { return r != Recorded::kNothing; });
  if (nothing != of_ranks.end() && something != of_ranks.end())
    refuse(doing + ": rank " + std::to_string(nothing - of_ranks.begin()) +
           " records no gradients, rank " + std::to_string(something - of_ranks.begin()) +
           " does; its backward pass would wait for a rank that has none. Use grad mode on all "
           "ranks or on none");
  return std::ranges::find(of_ranks, Recorded::kInput) != of_ranks.end();
}

// One row for each rank: means, squares, count, what it recorded.
Tensor gather_moments(const Moments& own, Recorded recorded, ProcessGroup& group,
                      torch::Device device) {
  std::vector<double> row = own.mean();
  row.insert(row.end(), own.squares().begin(), own.squares().end());
  row.push_back(own.count());
  row.push_back(static_cast<double>(recorded));
  const Tensor mine = torch::tensor(row, torch::kFloat64).to(device);
  const Tensor all = torch::empty({group.size(), mine.numel()}, mine.options());
  group.all_gather_into_tensor(all, mine);
  return all.cpu();
}

void update_running_statistics(const detail::BatchNormParts& parts, const Tensor& mean,
                               const Tensor& unbiased_variance) {
  if (!parts.running_mean.defined()) return;
  Tensor batches = parts.num_batches_tracked;
  batches += 1;
  const double m = parts.options.momentum().value_or(1 / batches.item<double>());
  const auto update = [m](Tensor running, const Tensor& value) {
    running.copy_(running.to(torch::kFloat64) * (1 - m) + value * m);
  };
  update(parts.running_mean, mean);
  update(parts.running_var, unbiased_variance);
}

// Collective. The moments of all ranks' batches; refuses what cannot be normalized, on every rank.
c10::intrusive_ptr<Normalization> normalization_of(const std::string& doing, const Tensor& input,
                                                   const detail::BatchNormParts& parts) {
  const Recorded own = recorded_by(input, parts);
  const torch::NoGradGuard no_grad;
  const Tensor all = gather_moments(moments_of(input), own, parts.group, input.device());
  const auto channels = static_cast<std::size_t>(input.size(1));
  Moments total(channels);
  std::vector<Recorded> recorded;
  for (std::int64_t rank = 0; rank < all.size(0); ++rank) {
    const std::span<const double> row = values_of(all[rank]);
    total.merge(row[2 * channels], row.first(channels), row.subspan(channels, channels));
    recorded.push_back(static_cast<Recorded>(row[2 * channels + 1]));
  }
  if (total.count() < 2)
    refuse(doing + ": the batches of all ranks have " +
           std::to_string(static_cast<int>(total.count())) +
           " values for each channel, training needs at least 2");

  auto result = c10::make_intrusive<Normalization>(parts.group);
  result->exchanges = agree_on_exchange(doing, recorded);
  result->count = total.count();
  result->mean = torch::tensor(total.mean(), torch::kFloat64).to(input.device());
  const Tensor squares = torch::tensor(total.squares(), torch::kFloat64).to(input.device());
  result->invstd = (squares / total.count() + parts.options.eps()).rsqrt();
  update_running_statistics(parts, result->mean, squares / (total.count() - 1));
  return result;
}

void expect_normalizable(const std::string& doing, const Tensor& input,
                         const detail::BatchNormParts& parts) {
  if (!input.is_floating_point())
    refuse(doing + ": the input is " + dtype_and_shape(input) + "; it must be floating-point");
  if (input.size(1) != parts.options.num_features() || input.size(1) == 0)
    refuse(doing + ": the input is " + dtype_and_shape(input) + "; its second dimension must be " +
           std::to_string(std::max<std::int64_t>(1, parts.options.num_features())) + " channels");
}

// --- conversion ---------------------------------------------------------------------------------

using Converted = std::map<const torch::nn::Module*, torch::nn::AnyModule>;

template <class Plain, class Sync>
bool convert(const torch::nn::Module& module, ProcessGroup& group, Converted& converted) {
  const auto* plain = dynamic_cast<const Plain*>(&module);
  if (!plain) return false;
  auto sync = std::make_shared<Sync>(plain->options, group);
  sync->share(*plain);
  converted.insert_or_assign(&module, torch::nn::AnyModule(std::move(sync)));
  return true;
}

bool is_batch_norm(const torch::nn::Module& module) {
  return dynamic_cast<const torch::nn::BatchNorm1dImpl*>(&module) ||
         dynamic_cast<const torch::nn::BatchNorm2dImpl*>(&module) ||
         dynamic_cast<const torch::nn::BatchNorm3dImpl*>(&module);
}

// The entry through which `parent` calls its child, where it is one that can be written to: that of a
// Sequential, or of a class derived from it.
torch::nn::AnyModule* entry_for(torch::nn::Module& parent, const torch::nn::Module& child) {
  auto* sequential = dynamic_cast<torch::nn::SequentialImpl*>(&parent);
  if (!sequential) return nullptr;
  const auto found =
      std::find_if(sequential->begin(), sequential->end(),
                   [&](torch::nn::AnyModule& entry) { return entry.ptr().get() == &child; });
  return found == sequential->end() ? nullptr : &*found;
}

std::string path_to(const std::string& parent, const std::string& child) {
  return parent.empty() ? child : parent + "." + child;
}

// "'head.bn' in Block" of every layer that is held by something else than a Sequential.
void find_stuck(torch::nn::Module& module, const std::string& path,
                std::vector<std::string>& stuck) {
  for (const auto& child : module.named_children()) {
    const std::string name = path_to(path, child.key());
    if (is_batch_norm(*child.value()) && !entry_for(module, *child.value()))
      stuck.push_back("'" + name + "' in " + module.name());
    find_stuck(*child.value(), name, stuck);
  }
}

// REQUIRES: no layer is stuck. One that stands in several places becomes one new layer in all of them.
std::size_t replace_below(torch::nn::Module& module, ProcessGroup& group, Converted& converted) {
  using namespace torch::nn;
  std::size_t count = 0;
  for (const auto& child : module.named_children()) {
    const std::shared_ptr<Module>& old = child.value();
    count += replace_below(*old, group, converted);
    if (!is_batch_norm(*old)) continue;
    if (!converted.contains(old.get())) {
      (void)(convert<BatchNorm1dImpl, SyncBatchNorm1dImpl>(*old, group, converted) ||
             convert<BatchNorm2dImpl, SyncBatchNorm2dImpl>(*old, group, converted) ||
             convert<BatchNorm3dImpl, SyncBatchNorm3dImpl>(*old, group, converted));
      ++count;
    }
    AnyModule& entry = *entry_for(module, *old);
    entry = converted.at(old.get());
    module.replace_module(child.key(), entry.ptr());
  }
  return count;
}

}  // namespace

namespace detail {

Tensor sync_batch_norm(const Tensor& input, const BatchNormParts& parts) {
  const std::string doing = "forward of " + parts.name;
  return with_dist_errors(doing, [&] {
    expect_normalizable(doing, input, parts);
    const auto optional = [](const Tensor& tensor) {
      return tensor.defined() ? std::optional(tensor) : std::nullopt;
    };
    return Normalize::apply(input, optional(parts.weight), optional(parts.bias),
                            normalization_of(doing, input, parts));
  });
}

void expect_dimensions(std::size_t d, const Tensor& input) {
  const auto given = static_cast<std::size_t>(input.dim());
  if (given == d + 2 || (d == 1 && given == 2)) return;
  refuse("forward of SyncBatchNorm" + std::to_string(d) + "d: the input is " +
         dtype_and_shape(input) + "; it must have " + (d == 1 ? "2 or 3" : std::to_string(d + 2)) +
         " dimensions");
}

}  // namespace detail

std::size_t convert_sync_batchnorm(torch::nn::Module& module, ProcessGroup& group) {
  const std::string doing = "convert to SyncBatchNorm: ";
  if (is_batch_norm(module))
    refuse(
        doing + "the module is a " + module.name() + " itself; declare it as ddprun::SyncBatchNorm",
        DistError::Kind::kUnsupported);
  std::vector<std::string> stuck;
  find_stuck(module, "", stuck);
  if (!stuck.empty())
    refuse(doing +
               std::accumulate(
                   stuck.begin() + 1, stuck.end(), stuck.front(),
                   [](const std::string& a, const std::string& b) { return a + ", " + b; }) +
               " would keep calling the old layer: only those in a Sequential can be replaced; "
               "declare these as ddprun::SyncBatchNorm",
           DistError::Kind::kUnsupported);
  Converted converted;
  return replace_below(module, group, converted);
}

}  // namespace ddprun
