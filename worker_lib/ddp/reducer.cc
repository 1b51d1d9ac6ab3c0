#include "worker_lib/ddp/reducer.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/assert.h"
#include "base/concat.h"
#include "worker_lib/data/epoch_notes.h"
#include "worker_lib/ddp/sparse_average.h"
#include "worker_lib/group/notes.h"
#include "worker_lib/util/error_bridge.h"
#include "worker_lib/util/exception_text.h"

namespace ddprun {
namespace {

// Throws the failure of a collective of a pass. If the ranks made different calls (usually after
// an early exit from a loop), the message says where this rank is.
[[noreturn]] void throw_from_pass(const DistError& thrown, std::int64_t pass,
                                  const ChosenEpochs& epochs) {
  if (thrown.kind() != DistError::Kind::kInvalidArgument) throw thrown;
  throw within(thrown, concat(kBackwardPass, ": pass ", pass,
                              epochs.empty() ? "" : concat(" in epoch ", epochs.front().epoch)));
}

// Returns the gradient of an embedding that looked up nothing.
torch::Tensor no_rows(const torch::Tensor& weight) {
  auto sizes = weight.sizes().vec();
  sizes[0] = 0;
  return torch::sparse_coo_tensor(
      torch::empty({1, 0}, torch::dtype(torch::kInt64).device(weight.device())),
      torch::empty(sizes, weight.options().requires_grad(false)), weight.sizes());
}

}  // namespace

// Held by the callback at the end of a backward pass. If an exception leaves the pass, autograd
// drops the callback without calling it. The guard's destructor then tells the reducer.
//
// The reducer shares `is_open` with the guard and never owns the guard itself. The destructor
// runs give_up(), which locks the reducer's mutex, so the last owner must not hold it.
struct Reducer::PassGuard {
  explicit PassGuard(std::weak_ptr<Reducer> owner) : reducer(std::move(owner)) {}
  ~PassGuard() {
    if (!is_open->exchange(false)) return;
    if (const auto owner = reducer.lock()) owner->give_up();
  }
  void end() {
    *is_open = false;
    if (const auto owner = reducer.lock()) owner->finish();
  }
  const std::weak_ptr<Reducer> reducer;
  const std::shared_ptr<std::atomic<bool>> is_open = std::make_shared<std::atomic<bool>>(false);
};

// GradientHook: runs on a gradient accumulator after it has put the gradient into .grad.
class Reducer::GradientHook final : public torch::autograd::FunctionPostHook {
 public:
  GradientHook(Reducer& reducer, std::size_t index) : reducer_(reducer), index_(index) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    reducer_.on_gradient(index_);
    return outputs;
  }

 private:
  Reducer& reducer_;
  const std::size_t index_;
};

Reducer::Reducer(std::vector<Parameter> parameters, ProcessGroup& group,
                 const DataParallelOptions& options)
    : group_(group), options_(options), recorder_(options.statistics_every, group.notes()) {
  std::vector<torch::Tensor> tensors;
  for (Parameter& parameter : parameters) {
    tensors.push_back(parameter.tensor);
    has_sparse_ |= parameter.is_sparse;
    slots_.push_back({.parameter = std::move(parameter)});
  }
  const std::size_t words = PassWords::count(group.size(), sends_used() ? slots_.size() : 0);
  buckets_ = std::make_unique<GradientBuckets>(
      std::move(tensors), words, group,
      BucketCaps{.first_bytes = options.first_bucket_bytes, .bytes = options.bucket_bytes});
  if (options.check_passes_late) group.notes()->late_checks->add(late_, group.world_ranks());
}

std::shared_ptr<Reducer> Reducer::make(std::vector<Parameter> parameters, ProcessGroup& group,
                                       const DataParallelOptions& options) {
  DDPRUN_ASSERT(!parameters.empty(), "a module without gradients was refused");
  std::shared_ptr<Reducer> reducer(new Reducer(std::move(parameters), group, options));
  std::vector<std::size_t> order(reducer->slots_.size());
  std::iota(order.rbegin(), order.rend(), 0);
  reducer->lay_out(std::move(order));
  reducer->first_buckets_ = reducer->bucket_contents();
  reducer->install_hooks();
  return reducer;
}

void Reducer::lay_out(std::vector<std::size_t> order) {
  std::erase_if(order, [&](std::size_t i) { return slots_[i].parameter.is_sparse; });
  buckets_->lay_out(order);
}

Reducer::~Reducer() {
  for (Slot& slot : slots_) slot.accumulator->del_post_hook(slot.hook);
}

void Reducer::install_hooks() {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    slots_[i].accumulator = torch::autograd::impl::grad_accumulator(slots_[i].parameter.tensor);
    accumulators_[slots_[i].accumulator.get()] = i;
    slots_[i].hook = slots_[i].accumulator->add_post_hook(std::make_unique<GradientHook>(*this, i));
  }
}

// --- decisions of forwards ---

void Reducer::set_require_sync(bool synchronise) {
  const std::lock_guard lock(mutex_);
  decision_before_ = decision_;
  decision_ = decision_.value_or(false) || synchronise;
  ++forwards_;
}

void Reducer::cancel_forward() {
  const std::lock_guard lock(mutex_);
  recorder_.forward_fails();
  decision_ = decision_before_;
  --forwards_;
}

void Reducer::prepare_for_backward(std::span<const torch::Tensor> outputs) {
  const std::lock_guard lock(mutex_);
  recorder_.forward_ends();
  for (const torch::Tensor& output : outputs)
    if (output.requires_grad() && !output.is_leaf())
      output.register_hook([reducer = weak_from_this()](const torch::Tensor&) {
        if (const auto owner = reducer.lock()) owner->on_output();
      });
  if (!options_.find_unused_parameters || outputs.empty()) return;
  const std::vector<char> reached = reachable_from(outputs, accumulators_);
  reachable_.resize(slots_.size());
  for (std::size_t i = 0; i < reached.size(); ++i) reachable_[i] |= reached[i];
  ++prepared_;
}

void Reducer::forward_begins() {
  if (options_.statistics_every == 0) return;
  const std::lock_guard lock(mutex_);
  recorder_.forward_begins(passes_ + 1);
}

void Reducer::module_begins() {
  if (options_.statistics_every == 0) return;
  const std::lock_guard lock(mutex_);
  recorder_.module_begins();
}

void Reducer::set_local(bool local) {
  const std::lock_guard lock(mutex_);
  local_ = local;
}

void Reducer::compare_epochs(bool compare) {
  const std::lock_guard lock(mutex_);
  compares_epochs_ = compare;
}

void Reducer::set_divisor(std::optional<int> divisor) {
  const std::lock_guard lock(mutex_);
  divisor_ = divisor;
}

// --- during a pass ---

void Reducer::on_output() {
  const std::lock_guard lock(mutex_);
  open_scope();
  if (is_to_accumulate()) is_pass_due_ = true;
}

// Returns whether the running pass adds to .grad of parameters. torch::autograd::grad does not.
bool Reducer::is_to_accumulate() const {
  const auto* chosen = torch::autograd::get_current_graph_task_exec_info();
  if (!chosen || chosen->empty()) return true;  // all nodes of the graph
  return std::ranges::any_of(slots_, [&](const Slot& slot) {
    const auto found = chosen->find(slot.accumulator.get());
    return found != chosen->end() && found->second.needed_;
  });
}

// Returns whether other ranks may be in a synchronised pass, although no gradient has come here.
bool Reducer::awaits_gradients() const {
  return is_pass_due_ && is_to_synchronise() && std::ranges::any_of(slots_, [](const Slot& slot) {
           return slot.parameter.tensor.requires_grad();
         });
}

void Reducer::on_gradient(std::size_t index) {
  const std::lock_guard lock(mutex_);
  if (state_ == State::kIdle) {
    open_scope();
    begin_pass();
  }
  Slot& slot = slots_[index];
  const torch::Tensor& gradient = slot.parameter.tensor.grad();
  if (!gradient.defined()) return;  // the end of the pass reports it as missing
  slot.is_used = true;
  if (state_ == State::kLocalPass) return;
  expect_usable(slot, gradient);
  if (!pass_->arrive(index)) {
    const std::string which = "'" + slot.parameter.name + "' got its gradient ";
    if (pass_->arrivals()[index] == 0)
      refuse_pass(which + (expected_.empty()
                               ? "after its bucket was sent: no output of the forward leads to it"
                               : "now, and did not in the first pass: the graph is not static"));
    refuse_pass(which +
                (expected_.empty()
                     ? "twice in one pass; is there a backward pass within it? With the option "
                       "'static_graph' such passes are synchronised"
                     : "more often than in the first pass: the graph is not static"));
  }
  if (!slot.parameter.is_sparse) {
    move_into_bucket(index);
    recorder_.gradient_came(buckets_->bucket_of(index));
  }
  send_due();
}

void Reducer::expect_usable(const Slot& slot, const torch::Tensor& gradient) const {
  if (at::GradMode::is_enabled())
    refuse_pass("create_graph is not supported; use torch::autograd::grad for second derivatives",
                DistError::Kind::kUnsupported);
  const bool is_sparse = gradient.layout() == torch::kSparse;
  if (is_sparse == slot.parameter.is_sparse) return;
  refuse_pass(
      "'" + slot.parameter.name + "' has a " + (is_sparse ? "sparse" : "dense") + " gradient; " +
          (is_sparse ? "sparse ones are those of Embedding and EmbeddingBag with sparse(true)"
                     : "its layer was made with sparse(true)"),
      DistError::Kind::kUnsupported);
}

// The pass ends with the graph task that is running now, unless an outer pass is to end it.
void Reducer::open_scope() {
  if (is_scope_open_ && *is_scope_open_) return;
  auto guard = std::make_shared<PassGuard>(weak_from_this());
  const auto is_open = guard->is_open;
  torch::autograd::Engine::get_default_engine().queue_callback(
      [guard = std::move(guard)] { guard->end(); });
  *is_open = true;
  is_scope_open_ = is_open;
  recorder_.pass_begins(passes_ + 1);
}

void Reducer::begin_pass() {
  const bool synchronise = is_to_synchronise();
  if (synchronise) prepare_pass();
  state_ = synchronise ? State::kPass : State::kLocalPass;
  if (!synchronise) return recorder_.is_not_recorded();
  recorder_.is_synchronised(passes_, [this] {
    std::vector<BucketTimes> untimed;
    for (const BucketContents& bucket : bucket_contents())
      untimed.push_back({.gradients = bucket.parameters.size(), .bytes = bucket.bytes});
    return untimed;
  });
  for (std::size_t i = 0; i < slots_.size(); ++i)
    if (expected_.empty() ? forwards_ > 0 && prepared_ == forwards_ && !reachable_[i]
                          : expected_[i] == 0)
      mark_unused(i);
  send_due();
}

// Throws if a parameter belongs to two reducers: one would average a gradient while the other
// writes to it.
void Reducer::expect_no_other_hooks() const {
  for (const Slot& slot : slots_) {
    const auto is_ours = [](const auto& hook) {
      return dynamic_cast<const GradientHook*>(hook.get()) != nullptr;
    };
    if (std::ranges::count_if(slot.accumulator->post_hooks(), is_ours) > 1)
      refuse_pass("'" + slot.parameter.name +
                  "' belongs to another DistributedDataParallel, too; it can be in one at a time");
  }
}

void Reducer::prepare_pass() {
  if (passes_ == 0) expect_no_other_hooks();
  // A reduction of a pass that was given up may still use the buckets.
  wait_for_buckets();
  ++passes_;
  works_.assign(buckets_->count(), {});
  finishes_.clear();
  pass_.emplace(buckets_->layout(), slots_.size(), expected_);
  if (options_.static_graph && expected_.empty()) pass_->only_count();
}

void Reducer::mark_unused(std::size_t index) {
  pass_->mark_unused(index);
  contribute_without_gradient(index);
}

// Copies nothing if the gradient was added up in its place.
void Reducer::move_into_bucket(std::size_t index) {
  torch::Tensor& gradient = slots_[index].parameter.tensor.mutable_grad();
  slots_[index].kept.reset();  // it was marked unused, and came after all
  if (gradient.is_same(buckets_->place(index))) return;
  if (!buckets_->is_in_place(index, gradient)) buckets_->place(index).copy_(gradient);
  if (options_.gradient_as_bucket_view) gradient = buckets_->place(index);
}

// Contributes zeros, or the gradient from before this pass. That gradient is kept, because it
// must stay unchanged if no rank used the parameter.
void Reducer::contribute_without_gradient(std::size_t index) {
  Slot& slot = slots_[index];
  if (slot.parameter.is_sparse) return;
  const torch::Tensor& old = slot.parameter.tensor.grad();
  if (!old.defined()) {
    buckets_->place(index).zero_();
  } else if (buckets_->is_in_place(index, old)) {
    slot.kept = old.clone();
  } else {
    buckets_->place(index).copy_(old);
  }
}

void Reducer::send_due() {
  while (const auto bucket = pass_->take_due()) send(*bucket, /*async=*/true);
}

void Reducer::send(std::size_t bucket, bool async) {
  recorder_.sent(bucket);
  if (hook_) {
    try {
      finishes_.push_back(hook_->start(bucket_for_hook(bucket), group_));
    } catch (...) {
      // The calls that the hook has made are unknown, so the ranks cannot continue together.
      group_.abort("the communication hook '" + hook_->name() +
                   "' failed: " + one_line_of(exception_text()));
      throw;
    }
    return;
  }
  works_[bucket] =
      group_.all_reduce(buckets_->flat(bucket), {.op = divisor_ ? ReduceOp::kSum : ReduceOp::kAvg,
                                                 .timeout = options_.timeout,
                                                 .async = async});
  recorder_.watch(bucket, works_[bucket]);
}

GradBucket Reducer::bucket_for_hook(std::size_t bucket) const {
  GradBucket result{.index = static_cast<int>(bucket),
                    .is_last = bucket + 1 == buckets_->count(),
                    .buffer = buckets_->payload(bucket)};
  for (const BucketSlot& slot : buckets_->layout()[bucket].slots) {
    result.gradients.push_back(buckets_->place(slot.gradient));
    result.parameters.push_back(slots_[slot.gradient].parameter.tensor);
  }
  return result;
}

// Reduces the words separately, because a hook gets only gradients.
void Reducer::reduce_words(bool async) {
  works_.back() = group_.all_reduce(
      buckets_->words(), {.op = ReduceOp::kAvg, .timeout = options_.timeout, .async = async});
}

void Reducer::wait_for_buckets() {
  try {
    for (const Work& work : works_) work.wait();
  } catch (const DistError& thrown) {
    throw_from_pass(thrown, passes_, own_epochs());
  }
}

// Some passes need the words at their end. The words decide the layout after the first pass, the
// end of a hook, unchanged gradients, and the number of rows of sparse gradients. In join() each
// forward waits for the device anyway.
bool Reducer::may_look_late() const {
  return options_.check_passes_late && has_ready_order_ && !hook_ && !sends_used() &&
         !has_sparse_ && compares_epochs_;
}

// Averages travel, so a word that one rank sets arrives divided by the world size.
void Reducer::set_words(PassCode code) {
  std::vector<bool> used;
  if (sends_used())
    for (const Slot& slot : slots_) used.push_back(slot.is_used);
  buckets_->write_words(PassWords::of_rank(group_.rank(), group_.size(), code, own_epochs(), used));
}

ChosenEpochs Reducer::own_epochs() const {
  return compares_epochs_ ? detail::chosen_epochs(group_) : ChosenEpochs();
}

// --- end of a pass ---

// Returns what the pass was. kIdle: there was none.
Reducer::State Reducer::end_pass() {
  const bool is_due = state_ == State::kIdle && awaits_gradients();
  is_pass_due_ = false;
  if (is_due) begin_pass();  // no gradient will come
  const State ended = std::exchange(state_, State::kIdle);
  if (ended == State::kIdle) return ended;
  decision_.reset();
  forwards_ = prepared_ = 0;
  std::ranges::fill(reachable_, 0);
  return ended;
}

void Reducer::finish() {
  const std::lock_guard lock(mutex_);
  const State ended = end_pass();
  recorder_.computed();
  if (ended == State::kIdle) return;
  was_local_ = ended == State::kLocalPass;
  if (ended == State::kPass) finish_pass();
}

void Reducer::finish_pass() {
  std::vector<std::size_t> missing = pass_->missing();
  if (options_.find_unused_parameters || (options_.static_graph && expected_.empty()))
    for (const std::size_t index : std::exchange(missing, {})) mark_unused(index);
  const std::optional<PassWords> words = reduce_rest(missing);
  finish_buckets();
  finalize_gradients(words);
  finalize_sparse(words, /*is_shadow=*/false);
  for (Slot& slot : slots_) slot.is_used = false;
  recorder_.pass_ends();
  if (options_.static_graph && expected_.empty()) expected_ = pass_->arrivals();
  adopt_ready_order();
}

void Reducer::shadow_pass() {
  const std::lock_guard lock(mutex_);
  recorder_.is_not_recorded();
  prepare_pass();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    pass_->mark_unused(i);
    slots_[i].is_used = false;
    if (!slots_[i].parameter.is_sparse) buckets_->place(i).zero_();
  }
  send_due();
  const std::optional<PassWords> words = reduce_rest({});
  finish_buckets();
  finalize_sparse(words, /*is_shadow=*/true);
  adopt_ready_order();
}

// REQUIRES: the works have been waited for.
PassCheck Reducer::take_check(const std::vector<std::size_t>& missing) {
  PassCheck check{.group = group_,
                  .timeout = options_.timeout,
                  .is_static_graph = options_.static_graph,
                  .is_nested = torch::autograd::get_current_node() != nullptr,
                  .epochs = own_epochs(),
                  .works = std::exchange(works_, {}),
                  .scale = divisor_ && !hook_ ? 1.0 : group_.size()};
  for (const std::size_t index : missing) check.missing.push_back(describe_missing(index));
  return check;
}

// Returns the sums of the ranks' words for a pass that is complete everywhere; nullopt if they
// are read in the next pass. missing: parameters that got no gradient here.
std::optional<PassWords> Reducer::reduce_rest(const std::vector<std::size_t>& missing) {
  set_words(missing.empty() ? PassCode::kComplete : PassCode::kMissing);
  const std::size_t last = buckets_->count() - 1;
  try {
    while (const auto bucket = pass_->take_remaining()) send(*bucket, /*async=*/*bucket != last);
    if (hook_) reduce_words(/*async=*/false);
  } catch (const DistError& thrown) {
    wait_for_buckets();  // throws an earlier bucket's failure, which says more
    throw_from_pass(thrown, passes_, own_epochs());
  }
  wait_for_buckets();
  late_->settle();  // of the previous pass
  PassCheck check = take_check(missing);
  if (may_look_late()) {
    look_later(std::move(check));
    recorder_.reduced();
    return std::nullopt;
  }
  const torch::Tensor words = buckets_->words().cpu();
  recorder_.reduced();
  return check.look_at(words, Looking::kTogether);
}

void Reducer::look_later(PassCheck check) {
  spoil_unless_complete(check.scale);
  const auto shared = std::make_shared<const PassCheck>(std::move(check));
  const auto look = [&](Looking how) {
    return [weak = weak_from_this(), shared, how](const torch::Tensor& words) {
      if (const auto owner = weak.lock()) static_cast<void>(shared->look_at(words, how));
    };
  };
  late_->add(buckets_->words(), look(Looking::kTogether), look(Looking::kAlone));
}

// Writes NaN to each gradient unless every rank's code has come and is kComplete. The device
// decides; the host does not wait for it.
void Reducer::spoil_unless_complete(double scale) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor codes = buckets_->words().narrow(0, 0, group_.size());
  const double complete = static_cast<double>(PassCode::kComplete) / scale;
  const torch::Tensor is_complete = (codes - complete).abs_().lt(0.5 / scale).all();
  buckets_->multiply_first_elements(
      torch::where(is_complete, 1.0F, std::numeric_limits<float>::quiet_NaN()));
}

// Either all ranks call this, or none.
void Reducer::finish_buckets() {
  std::size_t finished = 0;
  for (const auto& finish : std::exchange(finishes_, {})) {
    finish();
    recorder_.done(finished++);
  }
  if (!divisor_) return;
  for (std::size_t bucket = 0; bucket < buckets_->count(); ++bucket)
    buckets_->payload(bucket).div_(*divisor_);
}

// All buckets hold averages now. A parameter that this rank did not use gets its average if
// another rank used it.
void Reducer::finalize_gradients(const std::optional<PassWords>& words) {
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = slots_[i];
    if (slot.parameter.is_sparse) continue;
    torch::Tensor& gradient = slot.parameter.tensor.mutable_grad();
    const torch::Tensor& place = buckets_->place(i);
    const torch::Tensor kept = std::exchange(slot.kept, {});
    if (is_left_alone(i, words)) {
      if (kept.defined()) place.copy_(kept);
    } else if (options_.gradient_as_bucket_view) {
      if (!gradient.is_same(place)) gradient = place;
    } else if (gradient.defined()) {
      gradient.copy_(place);
    } else {
      gradient = place.clone();
    }
  }
}

// Returns whether no rank used the parameter.
bool Reducer::is_left_alone(std::size_t index, const std::optional<PassWords>& words) const {
  return sends_used() && !words->is_used(index);
}

void Reducer::finalize_sparse(const std::optional<PassWords>& words, bool is_shadow) {
  std::vector<torch::Tensor*> gradients;
  std::vector<torch::Tensor> mine;
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (!slots_[i].parameter.is_sparse || is_left_alone(i, words)) continue;
    const torch::Tensor& parameter = slots_[i].parameter.tensor;
    gradients.push_back(&parameter.mutable_grad());
    mine.push_back(gradients.back()->defined() && !is_shadow ? *gradients.back()
                                                             : no_rows(parameter));
  }
  const std::vector<torch::Tensor> averages =
      average_sparse(mine, divisor_.value_or(group_.size()), group_, options_.timeout);
  for (std::size_t i = 0; i < averages.size(); ++i) *gradients[i] = averages[i];
}

// The other ranks will make all reductions of this pass. So this rank makes them, too, and
// reports kGivenUp in them. The thread that gave the pass up already has an exception in flight.
void Reducer::give_up() noexcept {
  const std::lock_guard lock(mutex_);
  try {
    if (end_pass() != State::kPass) return;
    for (Slot& slot : slots_) slot.kept.reset();
    set_words(PassCode::kGivenUp);
    while (const auto bucket = pass_->take_remaining()) send(*bucket, /*async=*/true);
    if (hook_) reduce_words(/*async=*/true);
    if (!options_.check_passes_late) return;
    // As in reduce_rest(): reading the words may be a collective of all ranks.
    wait_for_buckets();
    late_->settle();
    if (!may_look_late()) return;
    PassCheck check = take_check({});
    works_ = check.works;  // the next pass waits for them, too, as it may use another stream
    look_later(std::move(check));
  } catch (...) {
    state_ = State::kIdle;
    // Either the group has failed: then every rank, and the next call here, reports it. Or the
    // previous pass failed: then the other ranks report it.
  }
}

std::string Reducer::describe_missing(std::size_t index) const {
  const Parameter& parameter = slots_[index].parameter;
  std::string text = "'" + parameter.name + "'";
  if (!parameter.tensor.requires_grad()) text += " (frozen)";
  if (torch::autograd::impl::try_get_grad_accumulator(parameter.tensor) !=
      slots_[index].accumulator)
    text += " (its dtype or device changed after construction)";
  if (!expected_.empty())
    text +=
        concat(" (", pass_->arrivals()[index], " of the ", expected_[index], " of the first pass)");
  return text;
}

// Has an effect once, after the first pass. Gradients that lie in their places move with them.
void Reducer::adopt_ready_order() {
  if (has_ready_order_) return;
  const std::vector<std::size_t> own_order = pass_->ready_order();
  const auto order = torch::tensor(std::vector<std::int64_t>(own_order.begin(), own_order.end()))
                         .to(group_.device());
  group_.broadcast(order, {.timeout = options_.timeout});
  const torch::Tensor agreed = order.cpu();
  const auto* indices = agreed.const_data_ptr<std::int64_t>();
  std::vector<torch::Tensor> old;
  for (std::size_t i = 0; i < slots_.size(); ++i) old.push_back(buckets_->place(i));
  lay_out(std::vector<std::size_t>(indices, indices + agreed.numel()));
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    torch::Tensor& gradient = slots_[i].parameter.tensor.mutable_grad();
    if (!gradient.defined() || !gradient.is_same(old[i])) continue;
    buckets_->place(i).copy_(old[i]);
    gradient = buckets_->place(i);
  }
  has_ready_order_ = true;
  recorder_.change_buckets();
}

// --- statistics ---

std::vector<BucketContents> Reducer::bucket_contents() const {
  std::vector<BucketContents> result;
  for (const BucketLayout& layout : buckets_->layout()) {
    BucketContents& bucket = result.emplace_back();
    bucket.dtype = c10::toString(static_cast<torch::ScalarType>(layout.kind));
    for (const BucketSlot& slot : layout.slots) {
      bucket.parameters.push_back(slot.gradient);
      bucket.bytes += slots_[slot.gradient].parameter.tensor.nbytes();
    }
  }
  return result;
}

void Reducer::describe(DataParallelStatistics& to) {
  const std::lock_guard lock(mutex_);
  for (const Slot& slot : slots_) {
    const torch::Tensor& tensor = slot.parameter.tensor;
    to.parameters.push_back(slot.parameter.name);
    to.parameter_bytes += tensor.nbytes();
    const std::string dtype = c10::toString(tensor.scalar_type());
    if (!std::ranges::count(to.dtypes, dtype)) to.dtypes.push_back(dtype);
  }
  to.first_buckets = first_buckets_;
  to.buckets = bucket_contents();
  to.has_rebuilt_buckets = has_ready_order_;
  if (hook_) to.comm_hook = hook_->name();
  to.passes = passes_;
  if (pass_) to.ready_order = pass_->ready_order();
  for (const std::size_t index : to.ready_order) {
    if (pass_->arrivals()[index] > 0) continue;
    to.unused.push_back(index);
    to.unused_bytes += slots_[index].parameter.tensor.nbytes();
  }
  to.last = recorder_.statistics().last();
  to.recent = recorder_.statistics().summary();
}

}  // namespace ddprun
