#include "ddprun/sync_batch_norm.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <span>

#include "base/concat.h"
#include "base/joined.h"
#include "worker_lib/group/late_checks.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/nn/batch_norm_math.h"
#include "worker_lib/nn/core/moments.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using torch::Tensor;

// A rank's forward records this. It decides which collectives its backward pass can take part in.
// No value is 0: a rank whose number did not come shows that nothing was exchanged.
enum class Recorded { kNothing = 1, kParameters, kInput };

// The values on which all ranks agree in a forward. The backward pass uses them again, when the
// group may have ended.
struct Normalization : torch::CustomClassHolder {
  explicit Normalization(const detail::BatchNormParts& parts)
      : name(parts.name), group(parts.group), checks(parts.checks) {}

  const std::string name;
  const detail::GroupOfLayers group;
  const std::shared_ptr<detail::LateChecks> checks;  // null: errors are thrown at once
  Tensor mean, invstd;                               // on the input's device
  Tensor count;            // values of a channel on all ranks, without dimensions
  bool exchanges = false;  // the backward pass has a collective
};

// Throws if a call whose values have been read was aborted. With NCCL a wait only makes the
// stream wait, and an abort may end a call when the last values have already come. The call
// knows why it ended, or will know in a moment.
void expect_success(const Work& work) { work.wait(kTimeToFail); }

[[noreturn]] void refuse_unexchanged(const std::string& doing) {
  refuse(doing + ": its collective ended without the values of all ranks; do not use the result",
         DistError::Kind::kStopped);
}

Tensor or_nan(const Tensor& is_right, const Tensor& values) {
  return torch::where(is_right, values, std::numeric_limits<double>::quiet_NaN());
}

// Returns the sums over the ranks, [2, C]. Each rank adds 1 to one more value, which shows that
// all of them took part.
Tensor exchanged(const Normalization& all, const Tensor& own) {
  const std::string doing = "backward pass of " + all.name;
  ProcessGroup& group = all.group.get(doing);
  const Tensor flat = torch::cat({own.flatten(), torch::ones({1}, own.options())});
  const Work work = group.all_reduce(flat);
  const Tensor ranks = flat.narrow(0, own.numel(), 1);
  const Tensor sums = flat.narrow(0, 0, own.numel()).view(own.sizes());
  const auto look = [doing, work, size = group.size()](const Tensor& on_host) {
    const auto came = on_host.item<double>();
    expect_success(work);
    if (came != size) refuse_unexchanged(doing);
  };
  if (all.checks) {
    all.checks->add(ranks, look);
    return or_nan(ranks == group.size(), sums);
  }
  look(ranks);
  return sums;
}

// y = (x - mean) * invstd * weight + bias. Its derivative with respect to x is
// invstd * weight * (g - mean of g - (x - mean) * invstd^2 * mean of g (x - mean)).
class Normalize : public torch::autograd::Function<Normalize> {
 public:
  // Optional, because autograd accepts no undefined tensors.
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input,
                        const std::optional<Tensor>& weight_or_none,
                        const std::optional<Tensor>& bias_or_none,
                        const c10::intrusive_ptr<Normalization>& all) {
    const Tensor weight = weight_or_none.value_or(Tensor()), bias = bias_or_none.value_or(Tensor());
    context->save_for_backward({input, weight});
    context->saved_data["all"] = c10::IValue::make_capsule(all);
    const Tensor shift =
        bias.defined() ? bias.to(all->mean.scalar_type()) : torch::zeros_like(all->mean);
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
    Tensor sums = gradient_sums(gradient, input, all.mean);
    Tensor of_weight, of_bias;
    if (weight.defined()) {
      of_weight = (sums[1] * all.invstd).to(weight.scalar_type());
      of_bias = sums[0].to(weight.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    }
    if (!all.exchanges) return {Tensor(), of_weight, of_bias, Tensor()};
    sums = exchanged(all, sums);
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

// Returns whether the backward pass exchanges input gradients. Every rank has the same rows, and
// so decides the same.
bool agree_on_exchange(const std::string& doing, std::span<const Recorded> of_ranks) {
  const auto nothing = std::ranges::find(of_ranks, Recorded::kNothing);
  const auto something =
      std::ranges::find_if(of_ranks, [](Recorded r) { return r != Recorded::kNothing; });
  if (nothing != of_ranks.end() && something != of_ranks.end())
    refuse(concat(doing, ": rank ", nothing - of_ranks.begin(), " records no gradients, rank ",
                  something - of_ranks.begin(),
                  " does; its backward pass would wait for a rank that has none. Use grad mode on "
                  "all ranks or on none"));
  return std::ranges::find(of_ranks, Recorded::kInput) != of_ranks.end();
}

Tensor row_of(const Moments& own, Recorded recorded) {
  std::vector<double> row = own.mean();
  row.insert(row.end(), own.squares().begin(), own.squares().end());
  row.push_back(own.count());
  row.push_back(static_cast<double>(recorded));
  return torch::tensor(row, torch::kFloat64);
}

// Every rank's row: means, squares, count, and what it recorded. Zeros if nothing has come.
struct GatheredRows {
  Tensor rows;
  Work work;

  // Returns the count, and what the rank recorded.
  Tensor numbers() const { return rows.narrow(1, rows.size(1) - 2, 2); }
};

GatheredRows gather_rows(const Tensor& mine, ProcessGroup& group) {
  GatheredRows all{torch::zeros({group.size(), mine.numel()}, mine.options()), {}};
  all.work = group.all_gather_into_tensor(all.rows, mine);
  return all;
}

// Returns whether the backward pass has a collective. Throws the errors that the ranks find
// together. numbers: on the CPU.
bool expect_sound(const std::string& doing, const Tensor& numbers, const Work& work) {
  double count = 0;
  std::vector<Recorded> recorded;
  expect_success(work);
  for (std::int64_t rank = 0; rank < numbers.size(0); ++rank) {
    count += numbers[rank][0].item<double>();
    recorded.push_back(static_cast<Recorded>(numbers[rank][1].item<double>()));
    if (recorded.back() < Recorded::kNothing || recorded.back() > Recorded::kInput)
      refuse_unexchanged(doing);
  }
  if (count < 2)
    refuse(concat(doing, ": the batches of all ranks have ", static_cast<int>(count),
                  " values for each channel, training needs at least 2"));
  return agree_on_exchange(doing, recorded);
}

// is_right: a tensor without dimensions; if it is false nothing changes.
void update_running_statistics(const detail::BatchNormParts& parts, const Tensor& mean,
                               const Tensor& unbiased_variance, const Tensor& is_right) {
  if (!parts.running_mean.defined()) return;
  Tensor batches = parts.num_batches_tracked;
  batches += is_right.to(batches.scalar_type());
  const Tensor m = parts.options.momentum()
                       ? torch::full({}, *parts.options.momentum(), mean.options())
                       : batches.to(mean.scalar_type()).reciprocal();
  const auto update = [&](Tensor running, const Tensor& value) {
    const Tensor next = running.to(mean.scalar_type()) * (1 - m) + value * m;
    running.copy_(torch::where(is_right, next, running.to(mean.scalar_type())));
  };
  update(parts.running_mean, mean);
  update(parts.running_var, unbiased_variance);
}

// Returns the moments of all ranks' batches; collective. Refuses, on every rank, batches that
// cannot be normalized.
c10::intrusive_ptr<Normalization> normalization_of(const std::string& doing, const Tensor& input,
                                                   const detail::BatchNormParts& parts) {
  const Recorded own = recorded_by(input, parts);
  const torch::NoGradGuard no_grad;
  const GatheredRows all = gather_rows(row_of(moments_of(input), own), parts.group.get(doing));
  auto result = c10::make_intrusive<Normalization>(parts);
  result->exchanges = expect_sound(doing, all.numbers(), all.work);
  const auto channels = static_cast<std::size_t>(input.size(1));
  Moments total(channels);
  for (std::int64_t rank = 0; rank < all.rows.size(0); ++rank) {
    const std::span<const double> row = values_of(all.rows[rank]);
    total.merge(row[2 * channels], row.first(channels), row.subspan(channels, channels));
  }
  result->count = torch::scalar_tensor(total.count(), torch::kFloat64);
  result->mean = torch::tensor(total.mean(), torch::kFloat64);
  const Tensor squares = torch::tensor(total.squares(), torch::kFloat64);
  result->invstd = (squares / total.count() + parts.options.eps()).rsqrt();
  update_running_statistics(parts, result->mean, squares / (total.count() - 1),
                            torch::scalar_tensor(true, torch::kBool));
  return result;
}

// The same on another device, without waiting for it. The host reads the ranks' numbers in the
// next forward. Until then a NaN shows an error. The backward pass always has a collective,
// because the host does not know yet whether another rank needs it.
c10::intrusive_ptr<Normalization> normalization_on_device(const std::string& doing,
                                                          const Tensor& input,
                                                          const detail::BatchNormParts& parts) {
  parts.checks->settle();
  const Recorded own = recorded_by(input, parts);
  const torch::NoGradGuard no_grad;
  const GatheredRows all =
      gather_rows(moments_row(input, static_cast<double>(own)), parts.group.get(doing));
  parts.checks->add(all.numbers(), [doing, work = all.work](const Tensor& on_host) {
    expect_sound(doing, on_host, work);
  });
  const CombinedMoments total = combined_moments(all.rows);
  const Tensor has_come =
      (all.numbers().select(1, 1) >= static_cast<double>(Recorded::kNothing)).all();
  const Tensor is_right = has_come.logical_and(total.count >= 2);
  auto result = c10::make_intrusive<Normalization>(parts);
  result->exchanges = true;
  result->count = total.count;
  result->mean = or_nan(is_right, total.mean);
  result->invstd = (total.squares / total.count + parts.options.eps()).rsqrt();
  update_running_statistics(parts, total.mean, total.squares / (total.count - 1), is_right);
  return result;
}

void expect_normalizable(const std::string& doing, const Tensor& input,
                         const detail::BatchNormParts& parts) {
  if (!input.is_floating_point())
    refuse(concat(doing, ": the input is ", dtype_and_shape(input), "; it must be floating-point"));
  if (input.size(1) != parts.options.num_features() || input.size(1) == 0)
    refuse(concat(doing, ": the input is ", dtype_and_shape(input),
                  "; its second dimension must be ",
                  std::max<std::int64_t>(1, parts.options.num_features()), " channels"));
}

// --- conversion ---

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

// Returns the entry through which `parent` calls its child, if it can be replaced: that of a
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

// Lists "'head.bn' in Block" for every layer that is held by something else than a Sequential.
void find_stuck(torch::nn::Module& module, const std::string& path,
                std::vector<std::string>& stuck) {
  for (const auto& child : module.named_children()) {
    const std::string name = path_to(path, child.key());
    if (is_batch_norm(*child.value()) && !entry_for(module, *child.value()))
      stuck.push_back("'" + name + "' in " + module.name());
    find_stuck(*child.value(), name, stuck);
  }
}

// REQUIRES: every layer can be replaced. A layer in several places becomes one new layer in all
// of them.
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

ProcessGroup& GroupOfLayers::get(const std::string& doing) const {
  if (notes_->has_ended)
    refuse(doing + ": the group that the layer was made with has ended", DistError::Kind::kStopped);
  return *group_;
}

std::shared_ptr<LateChecks> make_late_checks(const ProcessGroup& group) {
  const auto checks = std::make_shared<LateChecks>();
  group.notes()->late_checks->add(checks, group.world_ranks());
  return checks;
}

Tensor sync_batch_norm(const Tensor& input, const BatchNormParts& parts) {
  const std::string doing = "forward of " + parts.name;
  return with_dist_errors(doing, [&] {
    expect_normalizable(doing, input, parts);
    const auto optional = [](const Tensor& tensor) {
      return tensor.defined() ? std::optional(tensor) : std::nullopt;
    };
    return Normalize::apply(input, optional(parts.weight), optional(parts.bias),
                            parts.checks ? normalization_on_device(doing, input, parts)
                                         : normalization_of(doing, input, parts));
  });
}

void expect_dimensions(std::size_t d, const Tensor& input) {
  const auto given = static_cast<std::size_t>(input.dim());
  if (given == d + 2 || (d == 1 && given == 2)) return;
  refuse(concat("forward of SyncBatchNorm", d, "d: the input is ", dtype_and_shape(input),
                "; it must have ", d == 1 ? "2 or 3" : std::to_string(d + 2), " dimensions"));
}

}  // namespace detail

std::size_t convert_sync_batchnorm(torch::nn::Module& module, ProcessGroup& group) {
  const std::string doing = "convert to SyncBatchNorm: ";
  if (is_batch_norm(module))
    refuse(concat(doing, "the module is a ", module.name(),
                  " itself; declare it as ddprun::SyncBatchNorm"),
           DistError::Kind::kUnsupported);
  std::vector<std::string> stuck;
  find_stuck(module, "", stuck);
  if (!stuck.empty())
    refuse(concat(doing, joined(stuck),
                  " would keep calling the old layer: only those in a Sequential can be replaced; "
                  "declare these as ddprun::SyncBatchNorm"),
           DistError::Kind::kUnsupported);
  Converted converted;
  return replace_below(module, group, converted);
}

}  // namespace ddprun
