#include "ddprun/comm_hook.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include "worker_lib/error_bridge.h"

namespace ddprun {
namespace {

using Finish = std::function<void()>;

Finish average(const torch::Tensor& tensor, ProcessGroup& group) {
  const Work work = group.all_reduce(tensor, {.op = ReduceOp::kAvg, .async = true});
  return [work] { work.wait(); };
}

Finish average_in(torch::ScalarType type, const GradBucket& bucket, ProcessGroup& group) {
  const torch::Tensor compressed = bucket.buffer.to(type);
  const Work work = group.all_reduce(compressed, {.op = ReduceOp::kAvg, .async = true});
  return [=, buffer = bucket.buffer] {
    work.wait();
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

// --- PowerSGD ---

namespace {

// A gradient that travels as the product of two thin matrices.
struct Matrix {
  torch::Tensor gradient;
  torch::Tensor values;  // n x m: the gradient, plus what earlier passes lost
  torch::Tensor p;       // n x rank
  torch::Tensor q;       // m x rank
};

torch::Tensor joined(const std::vector<torch::Tensor>& tensors, const torch::Tensor& like) {
  std::vector<torch::Tensor> flat;
  for (const torch::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return flat.empty() ? like.new_empty({0}) : torch::cat(flat);
}

// The inverse: the parts of `flat` into `tensors`.
void spread(const torch::Tensor& flat, const std::vector<torch::Tensor>& tensors) {
  std::int64_t offset = 0;
  for (const torch::Tensor& tensor : tensors) {
    tensor.copy_(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

// The same space by columns that are orthogonal to each other and of length 1.
torch::Tensor orthogonalised(const torch::Tensor& matrix) {
  const bool is_short =
      matrix.scalar_type() == torch::kFloat16 || matrix.scalar_type() == torch::kBFloat16;
  const torch::Tensor exact = is_short ? matrix.to(torch::kFloat32) : matrix;
  return std::get<0>(torch::linalg_qr(exact, "reduced")).to(matrix.scalar_type());
}

}  // namespace

struct PowerSgd::State {
  PowerSgdOptions options;
  struct OfBucket {
    std::int64_t passes = 0;
    std::vector<torch::Tensor> errors, last_q;  // by matrix; empty at first
  };
  std::map<int, OfBucket> buckets = {};
  Compression compression = {};

  bool is_worthwhile(const torch::Tensor& gradient) const;
  torch::Tensor first_q(const torch::Tensor& matrix, int bucket, std::size_t index,
                        std::int64_t pass) const;
  std::vector<Matrix> matrices_of(const GradBucket& bucket, OfBucket& own);
  void approximate(std::vector<Matrix>& matrices, OfBucket& own, ProcessGroup& group);
};

bool PowerSgd::State::is_worthwhile(const torch::Tensor& gradient) const {
  if (gradient.dim() < 2 || gradient.numel() == 0 || gradient.is_complex()) return false;
  const auto n = static_cast<double>(gradient.size(0));
  const double m = static_cast<double>(gradient.numel()) / n;
  return (n + m) * options.rank * options.min_compression_rate < n * m;
}

// The same numbers on every rank.
torch::Tensor PowerSgd::State::first_q(const torch::Tensor& matrix, int bucket, std::size_t index,
                                       std::int64_t pass) const {
  const std::uint64_t seed = options.seed + 1'000'003 * static_cast<std::uint64_t>(bucket) +
                             10'007 * index + 97 * static_cast<std::uint64_t>(pass);
  const torch::Tensor random = torch::randn({matrix.size(1), options.rank},
                                            at::detail::createCPUGenerator(seed), torch::kFloat32);
  return orthogonalised(random.to(matrix.options()));
}

std::vector<Matrix> PowerSgd::State::matrices_of(const GradBucket& bucket, OfBucket& own) {
  std::vector<Matrix> matrices;
  for (const torch::Tensor& gradient : bucket.gradients) {
    if (!is_worthwhile(gradient)) continue;
    const std::size_t index = matrices.size();
    Matrix m{.gradient = gradient, .values = gradient.reshape({gradient.size(0), -1}).clone()};
    if (options.use_error_feedback && index < own.errors.size()) m.values.add_(own.errors[index]);
    m.q = options.warm_start && index < own.last_q.size()
              ? own.last_q[index]
              : first_q(m.values, bucket.index, index, own.passes);
    m.p = m.values.mm(m.q);
    matrices.push_back(std::move(m));
  }
  return matrices;
}

// Their P are sums over the ranks.
void PowerSgd::State::approximate(std::vector<Matrix>& matrices, OfBucket& own,
                                  ProcessGroup& group) {
  if (matrices.empty()) return;
  std::vector<torch::Tensor> qs;
  for (Matrix& m : matrices) {
    m.p = orthogonalised(m.p);
    qs.push_back(m.values.t().mm(m.p));
  }
  const torch::Tensor flat = joined(qs, qs[0]);
  group.all_reduce(flat, {.op = ReduceOp::kAvg});
  compression.after += flat.nbytes();
  spread(flat, qs);
  own.errors.clear();
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Matrix& m = matrices[i];
    const torch::Tensor product = m.p.mm(qs[i].t());
    m.gradient.copy_(product.view(m.gradient.sizes()));
    if (options.use_error_feedback) own.errors.push_back(m.values.sub_(product));
  }
  own.last_q = std::move(qs);
}

PowerSgd::PowerSgd(const PowerSgdOptions& options)
    : state_(std::make_shared<State>(State{.options = options})) {
  if (options.rank < 1)
    refuse("PowerSgd: the option 'rank' is " + std::to_string(options.rank) +
           "; at least 1 is needed");
  if (options.start_iteration < 2)
    refuse("PowerSgd: the option 'start_iteration' is " + std::to_string(options.start_iteration) +
           "; it is at least 2, because buckets are laid out anew after the first pass");
}

PowerSgd::~PowerSgd() = default;

std::string PowerSgd::name() const {
  const PowerSgdOptions& o = state_->options;
  return "power_sgd of rank " + std::to_string(o.rank) + " from pass " +
         std::to_string(o.start_iteration) + " on, rate " + std::to_string(o.min_compression_rate) +
         (o.use_error_feedback ? ", error feedback" : "") + (o.warm_start ? ", warm start" : "") +
         ", seed " + std::to_string(o.seed);
}

PowerSgd::Compression PowerSgd::compression() const { return state_->compression; }

Finish PowerSgd::start(const GradBucket& bucket, ProcessGroup& group) {
  const torch::NoGradGuard no_grad;
  State::OfBucket& own = state_->buckets[bucket.index];
  Compression& compression = state_->compression;
  compression.before += bucket.buffer.nbytes();
  if (own.passes++ < state_->options.start_iteration) {
    compression.after += bucket.buffer.nbytes();
    return average(bucket.buffer, group);
  }
  std::vector<torch::Tensor> whole, ps;
  for (const torch::Tensor& gradient : bucket.gradients)
    if (!state_->is_worthwhile(gradient)) whole.push_back(gradient);
  std::vector<Matrix> matrices = state_->matrices_of(bucket, own);
  for (const Matrix& m : matrices) ps.push_back(m.p);
  const torch::Tensor flat_whole = joined(whole, bucket.buffer);
  const torch::Tensor flat_p = joined(ps, bucket.buffer);
  const Work whole_done = group.all_reduce(flat_whole, {.op = ReduceOp::kAvg, .async = true});
  const Work p_done = group.all_reduce(flat_p, {.async = true});
  compression.after += flat_whole.nbytes() + flat_p.nbytes();
  return [=, state = state_, index = bucket.index, &group]() mutable {
    const torch::NoGradGuard quiet;
    whole_done.wait();
    spread(flat_whole, whole);
    p_done.wait();
    spread(flat_p, ps);
    state->approximate(matrices, state->buckets[index], group);
  };
}

// --- local SGD ---

PostLocalSgd::PostLocalSgd(std::int64_t start_iteration, ProcessGroup* subgroup)
    : start_iteration_(start_iteration), subgroup_(subgroup) {
  if (start_iteration < 0)
    refuse("PostLocalSgd: start_iteration is " + std::to_string(start_iteration) +
           "; it counts passes, and is at least 0");
}

// Subgroups differ between ranks.
std::string PostLocalSgd::name() const {
  return "post_local_sgd from pass " + std::to_string(start_iteration_) + " on, " +
         (subgroup_ ? "in subgroups" : "alone");
}

Finish PostLocalSgd::start(const GradBucket& bucket, ProcessGroup& group) {
  const bool is_global = passes_ < start_iteration_;
  if (bucket.is_last) ++passes_;
  if (is_global) return average(bucket.buffer, group);
  return subgroup_ ? average(bucket.buffer, *subgroup_) : [] {};
}

PeriodicModelAverager::PeriodicModelAverager(std::int64_t period, std::int64_t warmup_steps)
    : period_(period), warmup_steps_(warmup_steps) {
  if (period < 1 || warmup_steps < 0)
    refuse("PeriodicModelAverager: a period of " + std::to_string(period) + " after " +
           std::to_string(warmup_steps) + " steps; they are at least 1 and 0");
}

void PeriodicModelAverager::average_parameters(const std::vector<torch::Tensor>& parameters,
                                               ProcessGroup& group) {
  const std::int64_t step = step_++;
  if (step < warmup_steps_ || (step - warmup_steps_) % period_ != 0) return;
  const torch::NoGradGuard no_grad;
  group.all_reduce_coalesced(parameters, {.op = ReduceOp::kAvg});
}

}  // namespace ddprun
