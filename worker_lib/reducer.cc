#include "worker_lib/reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/utils/lambda_post_hook.h>
#include <torch/torch.h>

#include <algorithm>
#include <numeric>

#include "base/assert.h"
#include "worker_lib/error_bridge.h"

namespace ddprun {
namespace {

constexpr const char* kDoing = "backward pass of DistributedDataParallel";
constexpr std::size_t kMaxNames = 10;  // in one message

[[noreturn]] void refuse_pass(const std::string& what,
                              DistError::Kind kind = DistError::Kind::kInvalidArgument,
                              int peer_rank = -1) {
  refuse(std::string(kDoing) + ": " + what, kind, peer_rank);
}

// Complex gradients are reduced as pairs of reals.
torch::ScalarType reduced_type(const torch::Tensor& tensor) {
  return c10::toRealValueType(tensor.scalar_type());
}

std::string join(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    text += (i ? ", '" : "'") + names[i] + "'";
  if (names.size() > kMaxNames)
    text += " and " + std::to_string(names.size() - kMaxNames) + " more";
  return text;
}

}  // namespace

// Rides in the callback at the end of a backward pass. Autograd drops the callback uncalled when an
// exception leaves the pass; that is how the reducer learns of it.
struct Reducer::PassGuard {
  explicit PassGuard(std::weak_ptr<Reducer> owner) : reducer(std::move(owner)) {}
  ~PassGuard() {
    if (const auto owner = reducer.lock(); owner && is_open) owner->give_up();
  }
  void end() {
    is_open = false;
    if (const auto owner = reducer.lock()) owner->finish();
  }
  const std::weak_ptr<Reducer> reducer;
  bool is_open = false;
};

Reducer::Reducer(ProcessGroup& group, const ReducerOptions& options)
    : group_(group),
      options_(options),
      world_size_(torch::tensor(static_cast<double>(group.size()))) {}

std::shared_ptr<Reducer> Reducer::make(std::vector<Parameter> parameters, ProcessGroup& group,
                                       const ReducerOptions& options) {
  DDPRUN_ASSERT(!parameters.empty(), "a module without gradients was refused");
  std::shared_ptr<Reducer> reducer(new Reducer(group, options));
  for (Parameter& parameter : parameters) reducer->slots_.push_back({std::move(parameter)});
  std::vector<std::size_t> order(reducer->slots_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  reducer->lay_out(order);
  reducer->install_hooks();
  return reducer;
}

Reducer::~Reducer() {
  for (Slot& slot : slots_) slot.accumulator->del_post_hook(slot.hook);
}

void Reducer::install_hooks() {
  using torch::autograd::utils::LambdaPostHook;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].accumulator = torch::autograd::impl::grad_accumulator(slots_[i].parameter.tensor);
    slots_[i].hook = slots_[i].accumulator->add_post_hook(
        std::make_unique<LambdaPostHook>([this, i](const auto& outputs, const auto&) {
          on_gradient(i);
          return outputs;
        }));
  }
}

// Makes buckets for this order of gradients, and every slot's place in them. Gradients stay where
// they are; the next pass moves them.
void Reducer::lay_out(const std::vector<std::size_t>& order) {
  std::vector<PlannedGradient> gradients;
  for (const Slot& slot : slots_)
    gradients.push_back({.bytes = slot.parameter.tensor.nbytes(),
                         .kind = static_cast<int>(reduced_type(slot.parameter.tensor))});
  layout_ = plan_buckets(gradients, order, options_.caps);
  buckets_.clear();
  for (const BucketLayout& layout : layout_) {
    const auto type = static_cast<torch::ScalarType>(layout.kind);
    const auto element_bytes = static_cast<std::int64_t>(c10::elementSize(type));
    const auto aligned = static_cast<std::int64_t>(slot_aligned(layout.bytes));
    const bool is_last = &layout == &layout_.back();
    const std::int64_t elements = aligned / element_bytes + (is_last ? group_.size() : 0);
    const torch::Tensor flat = group_.shared_empty({elements}, type).zero_();
    buckets_.push_back({.flat = flat, .work = {}});
    for (const BucketSlot& slot : layout.slots)
      slots_[slot.gradient].view = place(slots_[slot.gradient], flat, slot.offset_bytes);
  }
  const torch::Tensor& last = buckets_.back().flat;
  codes_ = last.narrow(0, last.size(0) - group_.size(), group_.size());
}

// Memory of the bucket with the parameter's shape; strides as AccumulateGrad would choose them. It
// keeps the bucket alive, because .grad may outlive the reducer.
torch::Tensor Reducer::place(const Slot& slot, const torch::Tensor& flat,
                             std::uint64_t offset_bytes) const {
  const torch::Tensor& parameter = slot.parameter.tensor;
  const auto strides = parameter.is_non_overlapping_and_dense()
                           ? parameter.strides().vec()
                           : torch::empty(parameter.sizes(), torch::kMeta).strides().vec();
  return torch::from_blob(
      static_cast<char*>(flat.data_ptr()) + offset_bytes, parameter.sizes(), strides,
      [flat](void*) {}, parameter.options().requires_grad(false));
}

void Reducer::decide(bool synchronise) {
  const std::lock_guard lock(mutex_);
  decision_ = decision_.value_or(false) || synchronise;
}

void Reducer::set_local(bool local) {
  const std::lock_guard lock(mutex_);
  local_ = local;
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kIdle) begin_pass();
  if (state_ == State::kLocalPass) return;
  Slot& slot = slots_[index];
  const std::string& name = slot.parameter.name;
  const torch::Tensor& gradient = slot.parameter.tensor.grad();
  if (!gradient.defined()) return;  // the end of the pass finds it missing
  if (at::GradMode::is_enabled())
    refuse_pass("create_graph is not supported; use torch::autograd::grad for second derivatives",
                DistError::Kind::kUnsupported);
  if (gradient.layout() != torch::kStrided)
    refuse_pass("'" + name + "' has a sparse gradient; make the layer with sparse(false)",
                DistError::Kind::kUnsupported);
  if (!pass_->mark_ready(index))
    refuse_pass("'" + name +
                "' got its gradient twice in one pass; is there a backward pass within it?");
  take_over(slot);
  for (int bucket = pass_->take_due(); bucket >= 0; bucket = pass_->take_due())
    send(bucket, /*async=*/true);
}

void Reducer::begin_pass() {
  const bool synchronise = decision_.value_or(!local_);
  // A reduction of a pass that was given up may still use the buckets.
  if (synchronise) wait_for_buckets();
  const auto guard = std::make_shared<PassGuard>(weak_from_this());
  torch::autograd::Engine::get_default_engine().queue_callback([guard] { guard->end(); });
  guard->is_open = true;
  state_ = synchronise ? State::kPass : State::kLocalPass;
  if (synchronise) pass_.emplace(layout_, slots_.size());
}

// Both ways divide by the world size with the same kernel. A gradient that autograd has just made
// is divided while it is copied; one that was added up in its place (zeros included) is divided
// there.
void Reducer::take_over(Slot& slot) {
  torch::Tensor& gradient = slot.parameter.tensor.mutable_grad();
  if (gradient.is_same(slot.view)) {
    gradient.div_(world_size_);
  } else {
    at::div_out(slot.view, gradient, world_size_);
    gradient = slot.view;
  }
}

void Reducer::send(int bucket, bool async) {
  Bucket& b = buckets_[static_cast<std::size_t>(bucket)];
  b.work = group_.all_reduce(b.flat, {.timeout = options_.timeout, .async = async});
}

void Reducer::wait_for_buckets() {
  for (const Bucket& bucket : buckets_) bucket.work.wait();
}

void Reducer::set_own_code(Code code) {
  codes_.zero_();
  if (code != Code::kComplete) codes_[group_.rank()].fill_(static_cast<int>(code));
}

void Reducer::finish() {
  const std::lock_guard lock(mutex_);
  const State ended = std::exchange(state_, State::kIdle);
  decision_.reset();
  if (ended == State::kPass) finish_pass();
}

void Reducer::finish_pass() {
  const std::vector<std::size_t> missing = pass_->missing();
  const std::vector<std::size_t> order = pass_->ready_order();
  set_own_code(missing.empty() ? Code::kComplete : Code::kMissing);
  const int last = static_cast<int>(buckets_.size()) - 1;
  try {
    for (int bucket = pass_->take_remaining(); bucket >= 0; bucket = pass_->take_remaining())
      send(bucket, /*async=*/bucket != last);
  } catch (const DistError&) {
    wait_for_buckets();  // the failure of an earlier bucket is the first one, and says more
    throw;
  }
  wait_for_buckets();
  const torch::Tensor sums = codes_.to(torch::kCPU, torch::kFloat64);
  const std::vector<int> codes(sums.const_data_ptr<double>(),
                               sums.const_data_ptr<double>() + sums.numel());
  if (std::ranges::any_of(codes, [](int code) { return code != 0; })) report(codes, missing);
  if (!has_ready_order_) adopt_ready_order(order);
}

// The other ranks will come to all of this pass's reductions, so they are called here, too, and
// tell them. Whoever gave the pass up has an exception in flight already.
void Reducer::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  const State ended = std::exchange(state_, State::kIdle);
  decision_.reset();
  if (ended != State::kPass) return;
  try {
    set_own_code(Code::kGivenUp);
    for (int bucket = pass_->take_remaining(); bucket >= 0; bucket = pass_->take_remaining())
      send(bucket, /*async=*/true);
  } catch (...) {
    // The group has failed; so it will at every rank, and at our next call.
  }
}

// Every rank has the same codes and so takes the same way here.
void Reducer::report(const std::vector<int>& codes, const std::vector<std::size_t>& missing) {
  for (std::size_t rank = 0; rank < codes.size(); ++rank)
    if (codes[rank] == static_cast<int>(Code::kGivenUp))
      refuse_pass(
          "an exception left it on rank " + std::to_string(rank) + ", whose gradients are missing",
          DistError::Kind::kInvalidArgument, static_cast<int>(rank));
  std::vector<std::string> names;
  for (const std::size_t index : missing) {
    const Parameter& parameter = slots_[index].parameter;
    names.push_back(parameter.name + (parameter.tensor.requires_grad() ? "" : " (frozen)"));
  }
  const auto all = group_.all_gather_object(names, options_.timeout);
  std::string text;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto theirs = all[rank].get<std::vector<std::string>>();
    if (theirs.empty()) continue;
    text += (text.empty() ? "rank " : "; rank ") + std::to_string(rank) + " got no gradient for " +
            join(theirs);
  }
  const bool nested = torch::autograd::get_current_node() != nullptr;
  refuse_pass(text + (nested
                          ? ". It is a backward pass within another one, which is not supported yet"
                          : ". Each parameter that required grad at construction must take part in "
                            "every synchronised pass; unused parameters are not supported yet"));
}

// Once, after the first pass, when all gradients lie in their places.
void Reducer::adopt_ready_order(const std::vector<std::size_t>& own_order) {
  const auto order = torch::tensor(std::vector<std::int64_t>(own_order.begin(), own_order.end()))
                         .to(group_.device());
  group_.broadcast(order, {.timeout = options_.timeout});
  const torch::Tensor agreed = order.cpu();
  const auto* indices = agreed.const_data_ptr<std::int64_t>();
  const std::vector<torch::Tensor> old = [&] {
    std::vector<torch::Tensor> views;
    for (const Slot& slot : slots_) views.push_back(slot.view);
    return views;
  }();
  lay_out({indices, indices + agreed.numel()});
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].view.copy_(old[i]);
    slots_[i].parameter.tensor.mutable_grad() = slots_[i].view;
  }
  has_ready_order_ = true;
}

}  // namespace ddprun
