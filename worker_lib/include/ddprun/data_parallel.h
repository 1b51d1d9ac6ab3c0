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

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "ddprun/error.h"
#include "ddprun/process_group.h"

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
  // PyTorch's options that are not supported yet: true throws kUnsupported.
  bool find_unused_parameters = false;
  bool static_graph = false;
};

namespace detail {

// What does not depend on the module's type. Hidden, so that users do not compile it.
class DataParallelCore {
 public:
  DataParallelCore(std::shared_ptr<torch::nn::Module> module, ProcessGroup& group,
                   const DataParallelOptions& options);
  ~DataParallelCore();

  void before_forward();
  void enter_no_sync();
  void leave_no_sync() noexcept;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
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
  // grad mode is on and no NoSync lives. That pass throws, on every rank:
  //   kInvalidArgument  on some rank a parameter got no gradient (the message names it), an
  //                     exception left the pass, or a gradient came twice (a pass within another)
  //   kUnsupported      create_graph, sparse gradients
  //   as collectives    when the group fails
  // The gradients are then unspecified, but the same collectives have been called on all ranks.
  //
  // After it a parameter's .grad lies in a bucket: the next pass writes there again, so a tensor that
  // was kept of it changes. Clone what must stay.
  template <class... Arguments>
  decltype(auto) operator()(Arguments&&... arguments) {
    return forward(std::forward<Arguments>(arguments)...);
  }
  template <class... Arguments>
  decltype(auto) forward(Arguments&&... arguments) {
    core_->before_forward();
    return module_->forward(std::forward<Arguments>(arguments)...);
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

  // Not supported yet: throws kUnsupported.
  [[noreturn]] void join() { unsupported("join() for uneven inputs"); }
  template <class... Hook>
  [[noreturn]] void register_comm_hook(Hook&&...) {
    unsupported("communication hooks");
  }

 private:
  [[noreturn]] static void unsupported(const char* what) {
    throw DistError(DistError::Kind::kUnsupported,
                    std::string("DistributedDataParallel: ") + what + " are not supported yet");
  }

  Module module_;
  std::shared_ptr<detail::DataParallelCore> core_;
};

}  // namespace ddprun
