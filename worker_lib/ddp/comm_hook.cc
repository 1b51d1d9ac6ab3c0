#include "ddprun/comm_hook.h"

#include <ATen/CPUGeneratorImpl.h>

#include <map>
#include <set>

#include "base/concat.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using Finish = std::function<void()>;

Finish average(const torch::Tensor& tensor, ProcessGroup& group) {
  const Work work = group.all_reduce(tensor, {.op = ReduceOp::kAvg, .async = true});
  return [work] { work.wait(); };
}

Finish average_in(torch::ScalarType type, const GradBucket& bucket, ProcessGroup& group) {
  const torch::Tensor compressed = bucket.buffer.to(type);
  return [=, averaged = average(compressed, group), buffer = bucket.buffer] {
    averaged();
    buffer.copy_(compressed);
  };
}

}  // namespace

Finish AllReduceHook::start(const GradBucket& bucket, ProcessGroup& group) {
  return average(bucket.buffer, group);
}

Finish Fp16Compress::start(const GradBucket& bucket, ProcessGroup& group) {
  return average_in(torch::kFloat16, bucket, group);
}

Finish Bf16Compress::start(const GradBucket& bucket, ProcessGroup& group) {
  return average_in(torch::kBFloat16, bucket, group);
}

Finish NoopHook::start(const GradBucket&, ProcessGroup&) {
  return [] {};
}

// --- state of hooks from pass to pass ---

HookState CommHook::state(const torch::nn::Module&) const { return {}; }

void CommHook::load_state(const HookState&, const torch::nn::Module&) {}

// --- PowerSGD ---

namespace {

// The state of a parameter whose gradients are compressed. It is not kept by bucket, because
// buckets are laid out anew after the first pass, also in a resumed run.
struct OfParameter {
  torch::Tensor parameter;
  // Position in the order of the first arrivals, which is the order of the first layout.
  std::int64_t number = 0;
  torch::Tensor error, last_q;
};

// A gradient that is sent as the product of two thin matrices.
struct Matrix {
  OfParameter* own;
  torch::Tensor gradient;
  torch::Tensor values;  // n x m: the gradient, plus the error of earlier passes
  torch::Tensor p;       // n x rank
  torch::Tensor q;       // m x rank
};

torch::Tensor flattened(const std::vector<torch::Tensor>& tensors, const torch::Tensor& like) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return flat.empty() ? like.new_empty({0}) : torch::cat(flat);
}

// The inverse: copies the parts of `flat` into `tensors`.
void spread(const torch::Tensor& flat, const std::vector<torch::Tensor>& tensors) {
  std::int64_t offset = 0;
  for (const torch::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

// Returns a matrix whose columns span the same space, are orthogonal to each other and have
// length 1.
torch::Tensor orthogonalised(const torch::Tensor& matrix) {
  const bool is_short =
      matrix.scalar_type() == torch::kFloat16 || matrix.scalar_type() == torch::kBFloat16;
  const torch::Tensor exact = is_short ? matrix.to(torch::kFloat32) : matrix;
  return std::get<0>(torch::linalg_qr(exact, "reduced")).to(matrix.scalar_type());
}

// Names of tensors in a HookState: "error 0.weight".
constexpr std::string_view kError = "error ";
constexpr std::string_view kLastQ = "q ";

}  // namespace

struct PowerSgd::State {
  PowerSgdOptions options;
  std::int64_t passes = 0;  // those that have begun to send their last bucket
  std::map<const void*, OfParameter> parameters = {};
  Compression compression = {};

  bool is_worthwhile(const torch::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0 || gradient.is_complex()) return false;
    const auto n = static_cast<double>(gradient.size(0));
    const double m = static_cast<double>(gradient.numel()) / n;
    return (n + m) * options.rank * options.min_compression_rate < n * m;
  }

  OfParameter& of(const torch::Tensor& parameter) {
    const auto number = static_cast<std::int64_t>(parameters.size());
    return parameters
        .try_emplace(parameter.unsafeGetTensorImpl(), OfParameter{parameter, number, {}, {}})
        .first->second;
  }

  // Returns the same numbers on every rank.
  torch::Tensor first_q(const torch::Tensor& matrix, std::int64_t number, std::int64_t pass) const {
    const std::uint64_t seed =
        options.seed + 1'000'003 * std::uint64_t(number) + 97 * std::uint64_t(pass + 1);
    const torch::Tensor random = torch::randn(
        {matrix.size(1), options.rank}, at::detail::createCPUGenerator(seed), torch::kFloat32);
    return orthogonalised(random.to(matrix.options()));
  }

  std::vector<Matrix> matrices_of(const GradBucket& bucket, std::int64_t pass) {
    std::vector<Matrix> matrices;
    for (std::size_t i = 0; i < bucket.gradients.size(); ++i) {
      const torch::Tensor& gradient = bucket.gradients[i];
      if (!is_worthwhile(gradient)) continue;
      OfParameter& own = of(bucket.parameters[i]);
      Matrix m{.own = &own,
               .gradient = gradient,
               .values = gradient.reshape({gradient.size(0), -1}).clone(),
               .p = {},
               .q = {}};
      if (options.use_error_feedback && own.error.defined()) m.values.add_(own.error);
      m.q = options.warm_start && own.last_q.defined() ? own.last_q
                                                       : first_q(m.values, own.number, pass);
      m.p = m.values.mm(m.q);
      matrices.push_back(std::move(m));
    }
    return matrices;
  }

  // Approximates the gradients. Each P is a sum over the ranks.
  void approximate(std::vector<Matrix>& matrices, ProcessGroup& group) {
    if (matrices.empty()) return;
    std::vector<torch::Tensor> qs;
    for (Matrix& m : matrices) {
      m.p = orthogonalised(m.p);
      qs.push_back(m.values.t().mm(m.p));
    }
    const torch::Tensor flat = flattened(qs, qs[0]);
    group.all_reduce(flat, {.op = ReduceOp::kAvg});
    compression.after += flat.nbytes();
    spread(flat, qs);
    for (std::size_t i = 0; i < matrices.size(); ++i) {
      const Matrix& m = matrices[i];
      const torch::Tensor product = m.p.mm(qs[i].t());
      m.gradient.copy_(product.view(m.gradient.sizes()));
      if (options.use_error_feedback) m.own->error = m.values.sub_(product);
      if (options.warm_start) m.own->last_q = qs[i];
    }
  }
};

PowerSgd::PowerSgd(const PowerSgdOptions& options)
    : state_(std::make_shared<State>(State{.options = options})) {
  if (options.rank < 1)
    refuse(concat("PowerSgd: the option 'rank' is ", options.rank, "; at least 1 is needed"));
  if (options.start_iteration < 2)
    refuse(concat("PowerSgd: the option 'start_iteration' is ", options.start_iteration,
                  "; it is at least 2, because buckets are rearranged after the first pass"));
}

PowerSgd::~PowerSgd() = default;

std::string PowerSgd::name() const {
  const PowerSgdOptions& o = state_->options;
  return concat("power_sgd of rank ", o.rank, " from pass ", o.start_iteration, " on, rate ",
                std::to_string(o.min_compression_rate),
                o.use_error_feedback ? ", error feedback" : "", o.warm_start ? ", warm start" : "",
                ", seed ", o.seed);
}

PowerSgd::Compression PowerSgd::compression() const { return state_->compression; }

Finish PowerSgd::start(const GradBucket& bucket, ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  Compression& compression = state_->compression;
  compression.before += bucket.buffer.nbytes();
  const std::int64_t pass = state_->passes;
  if (bucket.is_last) ++state_->passes;
  for (std::size_t i = 0; i < bucket.gradients.size(); ++i)
    if (state_->is_worthwhile(bucket.gradients[i])) (void)state_->of(bucket.parameters[i]);
  if (pass < state_->options.start_iteration) {
    compression.after += bucket.buffer.nbytes();
    return average(bucket.buffer, group);
  }
  std::vector<torch::Tensor> whole, ps;
  for (const torch::Tensor& gradient : bucket.gradients)
    if (!state_->is_worthwhile(gradient)) whole.push_back(gradient);
  std::vector<Matrix> matrices = state_->matrices_of(bucket, pass);
  for (const Matrix& m : matrices) ps.push_back(m.p);
  const torch::Tensor flat_whole = flattened(whole, bucket.buffer);
  const torch::Tensor flat_p = flattened(ps, bucket.buffer);
  const Work whole_done = group.all_reduce(flat_whole, {.op = ReduceOp::kAvg, .async = true});
  const Work p_done = group.all_reduce(flat_p, {.async = true});
  compression.after += flat_whole.nbytes() + flat_p.nbytes();
  return [=, state = state_, &group]() mutable {
    const torch::NoGradGuard quiet;
    whole_done.wait();
    spread(flat_whole, whole);
    p_done.wait();
    spread(flat_p, ps);
    state->approximate(matrices, group);
  };
}

HookState PowerSgd::state(const torch::nn::Module& model) const {
  nlohmann::json numbers = nlohmann::json::object();
  HookState result;
  std::set<std::int64_t> found;
  for (const auto& item : model.named_parameters()) {
    const auto own = state_->parameters.find(item.value().unsafeGetTensorImpl());
    // A parameter with several names is saved under the first.
    if (own == state_->parameters.end() || !found.insert(own->second.number).second) continue;
    numbers[item.key()] = own->second.number;
    const auto keep = [&](std::string_view what, const torch::Tensor& tensor) {
      if (tensor.defined()) result.tensors.emplace(std::string(what) + item.key(), tensor);
    };
    keep(kError, own->second.error);
    keep(kLastQ, own->second.last_q);
  }
  if (found.size() != state_->parameters.size())
    refuse("the state of the hook '" + name() + "': it compresses parameters of another model");
  result.values = {{"passes", state_->passes}, {"numbers", numbers}};
  return result;
}

void PowerSgd::load_state(const HookState& state, const torch::nn::Module& model) {
  const auto refuse_state = [&](const std::string& what) {
    refuse("the state of the hook '" + name() + "': " + what);
  };
  std::map<const void*, OfParameter> parameters;
  const auto own_parameters = model.named_parameters();
  for (const auto& [parameter_name, number] : state.values.at("numbers").items()) {
    const torch::Tensor* parameter = own_parameters.find(parameter_name);
    if (!parameter) refuse_state("this model has no '" + parameter_name + "'");
    OfParameter own{*parameter, number, {}, {}};
    const std::int64_t rows = parameter->size(0), columns = parameter->numel() / rows;
    const auto take = [&](std::string_view what, torch::IntArrayRef sizes, torch::Tensor& tensor) {
      const auto saved = state.tensors.find(std::string(what) + parameter_name);
      if (saved == state.tensors.end()) return;
      if (saved->second.sizes() != sizes)
        refuse_state("'" + saved->first + "' has another shape here");
      tensor = saved->second.to(parameter->device(), saved->second.scalar_type(),
                                /*non_blocking=*/false, /*copy=*/true);
    };
    take(kError, {rows, columns}, own.error);
    take(kLastQ, {columns, state_->options.rank}, own.last_q);
    parameters.emplace(parameter->unsafeGetTensorImpl(), own);
  }
  state_->parameters = std::move(parameters);
  state_->passes = state.values.at("passes");
}

// --- local SGD ---

PostLocalSgd::PostLocalSgd(std::int64_t start_iteration, ProcessGroup* subgroup)
    : start_iteration_(start_iteration), subgroup_(subgroup) {
  if (start_iteration < 0)
    refuse(concat("PostLocalSgd: start_iteration is ", start_iteration,
                  "; it counts passes, and is at least 0"));
}

// The name leaves out the subgroup's ranks, because subgroups differ between ranks.
std::string PostLocalSgd::name() const {
  return concat("post_local_sgd from pass ", start_iteration_, " on, ",
                subgroup_ ? "in subgroups" : "alone");
}

Finish PostLocalSgd::start(const GradBucket& bucket, ProcessGroup& group) {
  const bool is_global = passes_ < start_iteration_;
  if (bucket.is_last) ++passes_;
  if (is_global) return average(bucket.buffer, group);
  return subgroup_ ? average(bucket.buffer, *subgroup_) : [] {};
}

HookState PostLocalSgd::state(const torch::nn::Module&) const {
  return {.values = {{"passes", passes_}}};
}

void PostLocalSgd::load_state(const HookState& state, const torch::nn::Module&) {
  passes_ = state.values.at("passes");
}

PeriodicModelAverager::PeriodicModelAverager(std::int64_t period, std::int64_t warmup_steps)
    : period_(period), warmup_steps_(warmup_steps) {
  if (period < 1 || warmup_steps < 0)
    refuse(concat("PeriodicModelAverager: a period of ", period, " after ", warmup_steps,
                  " steps; they are at least 1 and 0"));
}

void PeriodicModelAverager::average_parameters(const std::vector<torch::Tensor>& parameters,
                                               ProcessGroup& group) {
  const std::int64_t step = step_++;
  if (step < warmup_steps_ || (step - warmup_steps_) % period_ != 0) return;
  const torch::NoGradGuard no_grad;
  group.all_reduce_coalesced(parameters, {.op = ReduceOp::kAvg});
}

nlohmann::json PeriodicModelAverager::state() const { return {{"step", step_}}; }

void PeriodicModelAverager::load_state(const nlohmann::json& state) { step_ = state.at("step"); }

}  // namespace ddprun
