// DistributedDataParallel: every rank trains the same module on its own samples; gradients are
// averaged over the ranks while the backward pass runs, so that all ranks take the same optimizer
// steps.
//
//   auto ctx = ddprun::init();
//   Net net;  // a ModuleHolder, or a shared_ptr to a module
//   ddprun::DistributedDataParallel model(net, ctx.group());
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   loss(model(input), target).backward();  // .grad of every parameter is the average
//   optimizer.step();
//   ctx.report_progress(++step);  // for ddprun --hang-timeout and the status line
//
// Semantics are those of torch.nn.parallel.DistributedDataParallel of PyTorch 2.11; docs/ddp.md
// says where they differ. Gradients are averaged over ranks, not samples. After a backward pass
// every rank holds the same bits, whatever the bucket sizes.
//
// The method (buckets, reduced while the backward pass goes on): Li et al., "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training", VLDB 2020.
//
// The thread that trains owns it and the group; backward passes use the group from their own
// threads. The group must outlive it.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/optim/optimizer.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/comm_hook.h"
#include "ddprun/output_tensors.h"
#include "ddprun/process_group.h"
#include "ddprun/step_statistics.h"

namespace ddprun {

struct DataParallelOptions {
  // A bucket is sent when it has reached its size; the first one is small, so that communication
  // begins early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Before forwards, buffers become rank 0's: before the first one, and before each whose
  // predecessor was to be synchronised (grad mode on and no no_sync()).
  bool broadcast_buffers = true;
  // Deadline of each collective; default: the group's.
  std::optional<Timeout> timeout = {};
  // The .grad of a parameter is its place in a bucket, so that nothing is copied back. Otherwise
  // gradients stay where they are, and take memory twice.
  bool gradient_as_bucket_view = true;
  // Autograd computes gradients in their buckets, so that they need not be copied there. On a CPU with
  // gradient_as_bucket_view, and neither find_unused_parameters nor static_graph; elsewhere it does nothing.
  // It saves one copy of each gradient in a pass. Measure whether your net gains from it (docs/ddp.md). Its hazards:
  //   - It replaces LibTorch's allocator of host memory, for the whole process and until its end. Another
  //     library that does the same must come first.
  //   - It guesses which allocation of a pass becomes a gradient: the k-th one of so many bytes, as in the first
  //     pass. Where the guess is wrong, another tensor gets memory of a bucket. The bucket moves before anything
  //     is written to it, so that tensor keeps its values, but it keeps the whole old bucket alive.
  //   - What a tensor's storage shares is judged by reference counts. Code that keeps a raw pointer into a
  //     gradient, and no tensor, reads what the bucket holds later.
  bool compute_gradients_in_buckets = false;
  // Parameters may get no gradient, on some ranks or on all. Before a backward pass the graph is
  // walked from the tensors that forward returned (output_tensors.h), so that buckets do not wait
  // for what cannot come; what else has not come by the end of the pass counts as unused, too. An
  // unused parameter contributes the gradient that it has, or zeros; if no rank used it, its
  // gradient stays as it is.
  bool find_unused_parameters = false;
  // Every pass reaches the same parameters, as often as the first one did, which is noted there:
  // for re-entrant checkpointing of layers that are used several times. Those that the first pass
  // did not reach are unused. A pass that differs throws on every rank, kInvalidArgument. Nothing
  // overlaps in the first pass.
  bool static_graph = false;
  // On a GPU the host looks at what the ranks said of a pass at the end of the next one, so that it
  // need not wait for the device in each step. A pass that went wrong on some rank then returns.
  // A pass in which a rank lacked a gradient leaves a NaN in each gradient on every rank. If an
  // exception ended the pass on one rank, the gradients on the other ranks get a NaN. Ranks in
  // different epochs leave averages. The next pass throws, on every rank, what that one would have thrown,
  // and so does CheckpointManager::save(). The optimizer may have taken a step with these
  // gradients: restore a checkpoint before training goes on. A restore() that has filled the state
  // drops what is still to be thrown. Only save() checks the last pass of a training: call it at
  // the end, or set this to false.
  // save() of a manager whose group lacks ranks of this one names no parameters, and the next pass
  // throws again. Off: each pass waits for the device and throws itself, as it does on a CPU, in
  // the first pass, in join(), with a communication hook, with sparse gradients, with
  // find_unused_parameters and with static_graph.
  bool check_passes_late = true;
  // Names of parameters and buffers that are each rank's own: neither compared nor broadcast nor
  // averaged.
  std::vector<std::string> ignored_names = {};
  // After every so many steps (a step: a synchronised backward pass, and what follows it) the next
  // synchronised forward hashes what should be the same on every rank: parameters, the state of the
  // optimizer that watch_optimizer() was given, and buffers if this forward has just made them rank
  // 0's (otherwise each rank has its own on purpose). The ranks' hashes are exchanged in the
  // background and looked at in the first synchronised forward after the next pass, which throws
  // kCorrupt on every rank if they differ: which ranks, by majority (of two: rank 1), in what, and
  // since when. A step too late, but nobody waits. 0: never.
  std::int64_t check_consistency_every = 0;
  // Takes the times of every so manyth step (1: of each), for statistics(). 0: of none, and then
  // nothing is measured nor kept. Each rank has its own: it need not be the same everywhere.
  std::int64_t statistics_every = 0;
};

// Of join().
struct JoinOptions {
  // Gradients are divided by the number of ranks, also when some have no inputs left. Otherwise by
  // the number of those that have.
  bool divide_by_initial_world_size = true;
  // When the first rank has no inputs left, all end: kStopped.
  bool throw_on_early_termination = false;
};

namespace detail {

// What does not depend on the module's type. Hidden, so that users do not compile it.
class DataParallelCore {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
                   const DataParallelOptions& options);
  ~DataParallelCore();

  void before_forward();
  void after_forward(const std::vector<torch::Tensor>& outputs);
  void abandon_forward() noexcept;
  void enter_no_sync();
  void leave_no_sync() noexcept;
  void register_comm_hook(std::shared_ptr<CommHook> hook);
  void watch_optimizer(const torch::optim::Optimizer* optimizer);
  torch::Tensor clip_grad_norm_(double max_norm, double norm_type, bool error_if_nonfinite);
  DataParallelStatistics statistics() const;
  void begin_join(const JoinOptions& options);
  void shadow_others();
  void end_join() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// One forward, from before to after it.
class ForwardScope {
 public:
  explicit ForwardScope(DataParallelCore& core) : core_(core) { core_.before_forward(); }
  ~ForwardScope() {
    if (!has_ended_) core_.abandon_forward();
  }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

  void end(const std::vector<torch::Tensor>& outputs) {
    core_.after_forward(outputs);
    has_ended_ = true;
  }

 private:
  DataParallelCore& core_;
  bool has_ended_ = false;
};

template <class T>
std::shared_ptr<torch::nn::Module> as_module(const std::shared_ptr<T>& module) {
  return module;
}
template <class T>
std::shared_ptr<torch::nn::Module> as_module(const torch::nn::ModuleHolder<T>& holder) {
  return holder.is_empty() ? nullptr : holder.ptr();
}

}  // namespace detail

// While one of these lives, forwards are not synchronised: the backward passes over them leave each
// rank's own gradients, added up.
class [[nodiscard]] NoSync {
 public:
  explicit NoSync(std::shared_ptr<detail::DataParallelCore> core) : core_(std::move(core)) {
    core_->enter_no_sync();
  }
  ~NoSync() {
    if (core_) core_->leave_no_sync();
  }
  NoSync(NoSync&&) noexcept = default;
  NoSync& operator=(NoSync&&) = delete;

 private:
  std::shared_ptr<detail::DataParallelCore> core_;
};

// Module: a ModuleHolder (Linear, Sequential, what TORCH_MODULE makes) or a shared_ptr to a module.
template <class Module>
class DistributedDataParallel {
  static_assert(!std::is_base_of_v<torch::nn::Module, Module>,
                "DistributedDataParallel shares the module's ownership, so it takes no `Net net;`: hold the "
                "module by `auto net = std::make_shared<Net>();`, or by a holder that TORCH_MODULE makes");

 public:
  // Collective. Compares name, shape, dtype, strides and requires_grad of every parameter, the
  // buffers and the options over the ranks: kInvalidArgument on every rank names the first
  // difference and both versions. Then all parameters and buffers become rank 0's. Parameters that
  // require grad now are the ones that are synchronised. kInvalidArgument also if there is none, or
  // if one is not on the group's device.
  DistributedDataParallel(Module module, ProcessGroup& group,
                          const DataParallelOptions& options = {})
      : module_(std::move(module)),
        core_(std::make_shared<detail::DataParallelCore>(detail::as_module(module_), group,
                                                         options)) {}

  // Calls the module's forward. The first backward pass over its output averages the gradients, if
  // grad mode is on and no NoSync lives. That pass throws, on every rank (on a GPU the next one:
  // check_passes_late):
  //   kInvalidArgument  on some rank a parameter got no gradient (the message names it), an
  //                     exception left the pass, or a gradient came twice (a pass within another); or the ranks
  //                     are in different epochs, by DistributedSampler::set_epoch() of samplers that were made
  //                     with this group (not inside join())
  //   kUnsupported      create_graph; a sparse gradient, but of an Embedding or EmbeddingBag that was
  //                     made with sparse(true)
  //   as collectives    when the group fails
  // The gradients are then unspecified, but the same collectives have been called on all ranks.
  //
  // After it a parameter's .grad lies in a bucket: the next pass writes there again, so a tensor
  // that was kept of it changes. Clone what must stay.
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    detail::ForwardScope scope(*core_);
    if constexpr (std::is_void_v<decltype(module_->forward(
                      std::forward<Arguments>(arguments)...))>) {
      module_->forward(std::forward<Arguments>(arguments)...);
      scope.end({});
    } else {
      decltype(auto) output = module_->forward(std::forward<Arguments>(arguments)...);
      scope.end(tensors_in(output));
      return output;
    }
  }

  // For gradient accumulation; may be nested.
  //   { auto quiet = model.no_sync(); loss(model(a)).backward(); }
  //   loss(model(b)).backward();  // averages the sum of both
  NoSync no_sync() { return NoSync(core_); }

  // The module. What is called through these is not synchronised by forwards: backward passes are
  // (unless a NoSync lives), buffers are not.
  auto* operator->() { return module_.get(); }
  auto& operator*() { return *module_; }
  Module& module() { return module_; }

  // Collective; once, before the first synchronised pass (else kInvalidArgument). From then on
  // `hook` averages the buckets (comm_hook.h). kInvalidArgument on every rank if the ranks give
  // hooks of different names.
  void register_comm_hook(std::shared_ptr<CommHook> hook) {
    core_->register_comm_hook(std::move(hook));
  }

  // The checks of check_consistency_every compare this optimizer's state and options (the learning
  // rate), too. Every rank calls this at the same step; nothing is sent. The optimizer must be there
  // in every forward that follows, until another takes its place (null: none). kUnsupported for one
  // whose state checkpoints cannot hold.
  void watch_optimizer(const torch::optim::Optimizer* optimizer) {
    core_->watch_optimizer(optimizer);
  }

  // ddprun::clip_grad_norm_() (clip_grad_norm.h) of all parameters. Throws kInvalidArgument, too, if the last
  // backward pass was in no_sync(): each rank would clip its own gradients by another norm, before the
  // average.
  torch::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0,
                                bool error_if_nonfinite = false) {
    return core_->clip_grad_norm_(max_norm, norm_type, error_if_nonfinite);
  }

  // What it works with, and with the option 'statistics_every' what the steps took
  // (step_statistics.h). Not collective; not during a backward pass.
  DataParallelStatistics statistics() const { return core_->statistics(); }

  // For ranks with different numbers of inputs. `loop` is this rank's training loop: forward and
  // backward through this object, one synchronised forward for each synchronised backward pass. A
  // rank whose loop has returned answers the others' collectives with zeros until all have; then
  // every rank gets the parameters and buffers of the one that trained longest (of several, of the
  // highest rank). The gradients of a rank that has nothing more to do are unspecified. Method:
  // PyTorch's Join.
  //
  //   model.join([&] { for (auto& batch : *loader) train(batch); });
  //
  // Costs a small all_gather for each forward. What `loop` throws passes through; the other ranks
  // fail as when a rank is lost. With throw_on_early_termination: kStopped on every rank, at the
  // end of its loop or in its next forward. kUnsupported inside another join(), and for a
  // communication hook without divide_by_initial_world_size.
  template <class Loop>
  void join(Loop&& loop, const JoinOptions& options = {}) {
    core_->begin_join(options);
    const std::unique_ptr<detail::DataParallelCore, void (*)(detail::DataParallelCore*)> end(
        core_.get(), [](detail::DataParallelCore* core) { core->end_join(); });
    std::forward<Loop>(loop)();
    core_->shadow_others();
  }

 private:
  Module module_;
  std::shared_ptr<detail::DataParallelCore> core_;
};

// The statistics under the names that PyTorch's DistributedDataParallel has for them
// (_get_ddp_logging_data), as far as they exist here. Times are nanoseconds, of the last recorded
// step, and means with the prefix avg_.
nlohmann::json logging_data(const DataParallelStatistics& statistics);

}  // namespace ddprun
