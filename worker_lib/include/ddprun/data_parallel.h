// DistributedDataParallel: trains the same module on every rank, each with its own samples. It
// averages gradients over the ranks while the backward pass runs, so all ranks take the same
// optimizer steps.
//
//   auto ctx = ddprun::init();
//   Net net;  // a ModuleHolder, or a shared_ptr to a module
//   ddprun::DistributedDataParallel model(net, ctx.group());
//   torch::optim::SGD optimizer(net->parameters(), 0.1);
//   loss(model(input), target).backward();  // .grad of every parameter is the average
//   optimizer.step();
//   ctx.report_progress(++step);  // for ddprun --hang-timeout and the status line
//
// Semantics are those of torch.nn.parallel.DistributedDataParallel of PyTorch 2.11;
// docs/concepts/ddp.md lists the differences. Gradients are averaged over ranks, not over samples.
// After a backward pass every rank holds the same bits, whatever the bucket sizes.
//
// Method (buckets that are reduced during the backward pass): Li et al., "PyTorch Distributed:
// Experiences on Accelerating Data Parallel Training", VLDB 2020.
//
// The thread that trains owns it and the group. Backward passes use the group from their own
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
  // A bucket is sent when it has reached its size. The first one is small, so that communication
  // begins early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Buffers become rank 0's before the first forward, and before each forward that follows a
  // synchronised one (grad mode on and no no_sync()).
  bool broadcast_buffers = true;
  // Deadline of each collective. Default: the group's.
  std::optional<Timeout> timeout = {};
  // The .grad of a parameter is a view of its bucket, so that nothing is copied back. If false,
  // gradients stay where they are and take the memory twice.
  bool gradient_as_bucket_view = true;
  // Has no effect since 0.1.0. It is there so that programs that set it still compile.
  bool compute_gradients_in_buckets = false;
  // Parameters may get no gradient, on some ranks or on all. Before a backward pass the graph is
  // walked from the tensors that forward returned (output_tensors.h). So buckets do not wait for
  // gradients that cannot come. A gradient that has not come by the end of the pass counts as
  // unused, too. An unused parameter contributes the gradient that it already has, or zeros. If no
  // rank used the parameter, its gradient stays as it is.
  bool find_unused_parameters = false;
  // Every pass reaches the same parameters, as often as the first pass did, which records them.
  // For re-entrant checkpointing of layers that are used several times. Parameters that the
  // first pass did not reach are unused. A pass that differs throws kInvalidArgument on every
  // rank. In the first pass no communication overlaps with computation.
  bool static_graph = false;
  // On a GPU the host reads the ranks' reports on a pass at the end of the next pass. So it need
  // not wait for the device in each step.
  //
  // A pass that went wrong on some rank then returns normally. If a rank lacked a gradient, each
  // gradient gets a NaN on every rank. If an exception ended the pass on one rank, the gradients
  // on the other ranks get a NaN. If the ranks were in different epochs, the gradients are
  // averages.
  //
  // The next pass, or CheckpointManager::save(), then throws on every rank the error of the
  // failed pass. The optimizer may have taken a step with these gradients: restore a checkpoint
  // before training continues. A restore() that has filled the state drops errors that are still
  // to be thrown. The last pass of a training is checked only by save(): call it at the end, or
  // set this to false. If the manager's group lacks ranks of this group, its save() names no
  // parameters, and the next pass throws again.
  //
  // If false, each pass waits for the device and throws by itself. Passes always do so on a CPU,
  // in the first pass, in join(), with a communication hook, with sparse gradients, with
  // find_unused_parameters and with static_graph.
  bool check_passes_late = true;
  // Names of parameters and buffers that each rank has for itself. They are neither compared nor
  // broadcast nor averaged.
  std::vector<std::string> ignored_names = {};
  // The interval of consistency checks, in steps (a step: a synchronised backward pass, and what
  // follows it); 0: never.
  //
  // After each interval the next synchronised forward hashes everything that should be the same
  // on every rank. This is the parameters and the state of the optimizer given to
  // watch_optimizer(). Buffers are hashed if this forward has just made them rank 0's; otherwise
  // they differ on purpose. The ranks exchange the hashes in the background.
  //
  // The first synchronised forward after the next pass compares them and throws kCorrupt on
  // every rank if they differ. The message names the ranks (by majority; of two ranks: rank 1),
  // the part that differs and since when. The error comes a step late, but no rank waits for the
  // check.
  std::int64_t check_consistency_every = 0;
  // Records the times of every n-th step for statistics() (1: of each step). 0: nothing is
  // measured or kept. Ranks may have different values.
  std::int64_t statistics_every = 0;
};

// Options of join().
struct JoinOptions {
  // Gradients are divided by the number of ranks, also when some have no inputs left. If false,
  // they are divided by the number of ranks that have inputs.
  bool divide_by_initial_world_size = true;
  // When the first rank has no inputs left, all ranks end with kStopped.
  bool throw_on_early_termination = false;
};

namespace detail {

// The part that does not depend on the module's type. It is hidden, so that users do not compile
// it.
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

// One forward, from before_forward() to after_forward().
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

// NoSync: while one lives, forwards are not synchronised. Backward passes over them leave each
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

// Module: a ModuleHolder (Linear, Sequential, a holder that TORCH_MODULE makes) or a shared_ptr
// to a module.
template <class Module>
class DistributedDataParallel {
  static_assert(
      !std::is_base_of_v<torch::nn::Module, Module>,
      "DistributedDataParallel shares the module's ownership, so it takes no `Net net;`: hold the "
      "module by `auto net = std::make_shared<Net>();`, or by a holder that TORCH_MODULE makes");

 public:
  // Compares over the ranks (it is a collective): name, shape, dtype, strides and requires_grad of
  // every parameter, the buffers and the options. If they differ, throws kInvalidArgument on every
  // rank, with the first difference and both versions. Then all parameters and buffers become
  // rank 0's. The parameters that require grad now are the synchronised ones. Throws
  // kInvalidArgument also if there is none, or if one is not on the group's device.
  DistributedDataParallel(Module module, ProcessGroup& group,
                          const DataParallelOptions& options = {})
      : module_(std::move(module)),
        core_(std::make_shared<detail::DataParallelCore>(detail::as_module(module_), group,
                                                         options)) {}

  // Calls the module's forward. The first backward pass over its output averages the gradients,
  // if grad mode is on and no NoSync lives. That pass throws, on every rank (on a GPU the next
  // one does: check_passes_late):
  //   kInvalidArgument  on some rank a parameter got no gradient (the message names it), an
  //                     exception left the pass, or a gradient came twice (a pass within
  //                     another); or the ranks are in different epochs by
  //                     DistributedSampler::set_epoch(), which says which samplers count
  //                     (not inside join())
  //   kUnsupported      create_graph; a sparse gradient, except of an Embedding or EmbeddingBag
  //                     that was made with sparse(true)
  //   as collectives    when the group fails
  // The gradients are then unspecified, but all ranks have called the same collectives.
  //
  // After the pass a parameter's .grad is a view of a bucket. The next pass writes there again,
  // so a tensor kept from .grad changes. Clone gradients that must stay.
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

  // Returns a guard: while it lives, gradients stay local (NoSync). For gradient accumulation; may
  // be nested.
  //   { auto quiet = model.no_sync(); loss(model(a)).backward(); }
  //   loss(model(b)).backward();  // averages the sum of both
  NoSync no_sync() { return NoSync(core_); }

  // Access to the module. Calls made through these do not synchronise buffers. Backward passes
  // are synchronised all the same, unless a NoSync lives.
  auto* operator->() { return module_.get(); }
  auto& operator*() { return *module_; }
  Module& module() { return module_; }

  // Makes `hook` average the buckets from now on (comm_hook.h). Collective; call it once, before
  // the first synchronised pass (else kInvalidArgument). Throws kInvalidArgument on every rank
  // if the ranks give hooks of different names.
  void register_comm_hook(std::shared_ptr<CommHook> hook) {
    core_->register_comm_hook(std::move(hook));
  }

  // Adds this optimizer's state and options (the learning rate) to the checks of
  // check_consistency_every. Every rank calls this at the same step; nothing is sent. The
  // optimizer must live during every forward that follows, until another call replaces it (null:
  // none). Throws kUnsupported for an optimizer whose state checkpoints cannot hold.
  void watch_optimizer(const torch::optim::Optimizer* optimizer) {
    core_->watch_optimizer(optimizer);
  }

  // Calls ddprun::clip_grad_norm_() (clip_grad_norm.h) for all parameters. Throws
  // kInvalidArgument also if the last backward pass was in no_sync(): each rank would clip its
  // own gradients by another norm, before they are averaged.
  torch::Tensor clip_grad_norm_(double max_norm, double norm_type = 2.0,
                                bool error_if_nonfinite = false) {
    return core_->clip_grad_norm_(max_norm, norm_type, error_if_nonfinite);
  }

  // Returns the configuration and, with the option 'statistics_every', the times of the steps
  // (step_statistics.h). Not collective. Must not be called during a backward pass.
  DataParallelStatistics statistics() const { return core_->statistics(); }

  // Trains ranks with different numbers of inputs. `loop` is this rank's training loop: forward
  // and backward through this object, one synchronised forward for each synchronised backward
  // pass. A rank whose loop has returned answers the others' collectives with zeros until all
  // loops have returned. Then every rank gets the parameters and buffers of the rank that
  // trained longest (of several, the highest rank). The gradients of a rank whose loop has
  // returned are unspecified. Method: PyTorch's Join.
  //
  //   model.join([&] { for (auto& batch : *loader) train(batch); });
  //
  // Costs a small all_gather for each forward. An exception of `loop` is passed on; the other
  // ranks fail as if a rank were lost. With throw_on_early_termination every rank throws
  // kStopped, at the end of its loop or in its next forward. Throws kUnsupported inside another
  // join(), and for a communication hook without divide_by_initial_world_size.
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

// Returns the statistics under the names of PyTorch's DistributedDataParallel
// (_get_ddp_logging_data), as far as they exist here. Times are nanoseconds: of the last
// recorded step, and means under names that begin with avg_.
nlohmann::json logging_data(const DataParallelStatistics& statistics);

}  // namespace ddprun
