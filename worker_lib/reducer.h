// Reducer: averages gradients over the ranks while backward passes run.
//
// Each parameter's gradient accumulator has a hook. It moves the gradient into its place in a
// bucket, divided by the world size, and makes that place the parameter's .grad; a bucket that is
// complete is reduced, asynchronously, while the backward pass goes on. A callback at the end of
// the pass waits.
//
//      hook: gradient ready          all due buckets sent      callback: end of the pass
//   idle ------------------> in pass --------------------+----------------------------> idle
//     ^                                                  | the pass was given up
//     +--------------------------------------------------+ (an exception left it)
//
// Bits: a gradient is divided first and then summed, in its own dtype, element by element; where it
// lies in which bucket does not matter. (Method: PyTorch's; ddprun always divides, PyTorch
// multiplies by the reciprocal on one of its two paths.)
//
// No quiet drift: every pass of every rank sends all buckets, complete or not, in list order. The
// last one carries a code from each rank, and so all ranks learn in the same pass that one of them
// has gradients missing (kMissing) or gave the pass up (kGivenUp), and all throw.
//
// The layout of the first pass is a guess, the parameters in reverse. At its end rank 0's order of
// readiness becomes the order of all, for good.
//
// One pass at a time; its hooks may run on several threads. The group must outlive the reducer.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_lib/core/bucket_plan.h"

namespace ddprun {

struct ReducerOptions {
  BucketCaps caps;
  std::optional<Timeout> timeout;
};

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  struct Parameter {
    std::string name;
    torch::Tensor tensor;  // requires grad, floating-point or complex, on the group's device
  };

  // The same parameters, in the same order, on every rank. `parameters` is not empty.
  static std::shared_ptr<Reducer> make(std::vector<Parameter> parameters, ProcessGroup& group,
                                       const ReducerOptions& options);
  ~Reducer();

  // Whether the next backward pass is to be synchronised: what a forward decided. Where several
  // forwards come before it, one that is synchronised is enough (PyTorch's rule). A pass that no
  // forward spoke for is synchronised unless set_local(true) holds.
  void decide(bool synchronise);

  // Passes without a decision stay local while this is set.
  void set_local(bool local);

 private:
  enum class Code { kComplete = 0, kMissing = 1, kGivenUp = 2 };
  struct PassGuard;

  struct Slot {
    Parameter parameter;
    std::shared_ptr<torch::autograd::Node> accumulator;  // the parameter holds it weakly only
    std::uintptr_t hook = 0;
    // Its place in a bucket; no view to autograd, so that detach_() works on it.
    torch::Tensor view;
  };
  struct Bucket {
    torch::Tensor flat;
    Work work;  // of the last reduction
  };

  Reducer(ProcessGroup& group, const ReducerOptions& options);

  void install_hooks();
  void lay_out(const std::vector<std::size_t>& order);
  torch::Tensor place(const Slot& slot, const torch::Tensor& flat,
                      std::uint64_t offset_bytes) const;

  void on_gradient(std::size_t index);
  void begin_pass();
  void take_over(Slot& slot);
  void send(int bucket, bool async);
  void wait_for_buckets();
  void set_own_code(Code code);

  void finish();
  void finish_pass();
  void give_up() noexcept;
  [[noreturn]] void report(const std::vector<int>& codes, const std::vector<std::size_t>& missing);
  void adopt_ready_order(const std::vector<std::size_t>& own_order);

  ProcessGroup& group_;
  const ReducerOptions options_;
  const torch::Tensor world_size_;  // the divisor

  std::mutex mutex_;
  std::vector<Slot> slots_;
  std::vector<BucketLayout> layout_;
  std::vector<Bucket> buckets_;
  torch::Tensor codes_;  // one element for each rank, at the end of the last bucket
  bool has_ready_order_ = false;

  std::optional<bool> decision_;
  bool local_ = false;
  enum class State { kIdle, kLocalPass, kPass } state_ = State::kIdle;
  std::optional<ReductionPass> pass_;
};

}  // namespace ddprun
