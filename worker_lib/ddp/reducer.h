// Reducer: averages gradients over the ranks while backward passes run.
//
// Each parameter's gradient accumulator has a hook. The hook moves the gradient into its place
// in a bucket and makes that place the parameter's .grad. A complete bucket is reduced
// asynchronously while the backward pass continues. A callback at the end of the pass waits.
//
//      hook: gradient ready          all due buckets sent      callback: end of the pass
//   idle ------------------> in pass --------------------+----------------------------> idle
//     ^                                                  | the pass was given up
//     +--------------------------------------------------+ (an exception left it)
//
// The callback belongs to the outermost pass that an output of the module is part of (the
// outputs have a hook, too). So gradients of a pass within it, as re-entrant checkpointing
// makes, count for the outer one.
//
// Bits: gradients are summed in the group's order, and the sum is divided by the world size,
// element by element (ReduceOp::kAvg). The result does not depend on the bucket that a gradient
// lies in, nor on whether it was copied there or added up there. (PyTorch divides first, or
// multiplies by the reciprocal. For two ranks all of these give the same bits, except for
// numbers at the limits of the dtype's range.)
//
// No silent divergence: every pass of every rank sends all buckets, complete or not, in list
// order. The last bucket carries words from each rank (ddp/core/pass_words.h):
// - a code: all ranks learn in the same pass that one of them has gradients missing (kMissing)
//   or gave the pass up (kGivenUp), and all throw;
// - the epoch that the rank's samplers chose last (data/epoch_notes.h);
// - if parameters may be unused, the parameters that the rank used.
// The words also prove that the reduction happened at all.
//
// Late looks: on a GPU the host would wait for the device in each pass to read the words. With
// check_passes_late it reads the words of a pass at the end of the next one. Meanwhile the device
// itself writes NaN to the gradients of a pass that was not complete on all ranks
// (spoil_unless_complete()).
//
// The layout of the first pass is a guess: the parameters in reverse, because the backward pass
// reaches the last ones first. At its end all ranks adopt rank 0's order of readiness, for good:
// ranks may differ in theirs, and must send the same buckets in the same order.
//
// One pass runs at a time; its hooks may run on several threads. The group must outlive the
// reducer.
#pragma once

#include <torch/csrc/autograd/function.h>
#include <torch/types.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddprun/data_parallel.h"
#include "worker_lib/ddp/autograd_graph.h"
#include "worker_lib/ddp/core/bucket_plan.h"
#include "worker_lib/ddp/gradient_buckets.h"
#include "worker_lib/ddp/pass_check.h"
#include "worker_lib/ddp/step_recorder.h"
#include "worker_lib/group/late_checks.h"

namespace ddprun {

class Reducer : public std::enable_shared_from_this<Reducer> {
 public:
  struct Parameter {
    std::string name;
    torch::Tensor tensor;    // requires grad, floating-point or complex, on the group's device
    bool is_sparse = false;  // its gradients are sparse
  };

  // Makes a reducer. Every rank gives the same parameters, in the same order. `parameters` is
  // not empty. options: check_passes_late (default: on) counts on every device.
  static std::shared_ptr<Reducer> make(std::vector<Parameter> parameters, ProcessGroup& group,
                                       const DataParallelOptions& options);
  ~Reducer();

  // Sets whether the next backward pass is synchronised, as a forward decided. If several
  // forwards come before the pass, one synchronised forward is enough (PyTorch's rule). A pass
  // without a decision is synchronised, unless set_local(true) holds.
  void set_require_sync(bool synchronise);

  // Withdraws the decision of the last forward, because that forward threw.
  void cancel_forward();

  // Registers the outputs of the last forward that decided.
  void prepare_for_backward(std::span<const torch::Tensor> outputs);

  // Mark the parts of a forward, for statistics.
  void forward_begins();
  void module_begins();

  // Keeps passes without a decision local, while this is set.
  void set_local(bool local);

  // Makes `hook` average the buckets from now on. Call it once, before the first pass.
  void set_hook(std::shared_ptr<CommHook> hook) { hook_ = std::move(hook); }
  bool has_hook() const { return hook_ != nullptr; }
  bool has_begun() const { return passes_ > 0; }
  // Returns whether the last pass left gradients that were not averaged.
  bool was_local() const { return was_local_; }
  // Returns the number of synchronised passes that have begun. Between two collectives it is the
  // same on every rank.
  std::int64_t passes() const { return passes_; }

  // Sets whether synchronised passes throw if the ranks' samplers are in different epochs.
  void compare_epochs(bool compare);

  // Sums are divided by this number; nullopt: by the group's size.
  void set_divisor(std::optional<int> divisor);

  // Runs a pass for a rank that has no inputs left. It takes part in all reductions of the other
  // ranks, with zeros. The gradients of its parameters are unspecified then.
  void shadow_pass();

  // Adds parameters, buckets, passes and times to `to`. For the thread that trains, between
  // passes.
  void describe(DataParallelStatistics& to);

 private:
  struct PassGuard;
  class GradientHook;

  struct Slot {
    Parameter parameter;
    std::shared_ptr<torch::autograd::Node> accumulator;  // the parameter holds it weakly only
    std::uintptr_t hook = 0;
    torch::Tensor kept;    // the old gradient of a parameter that this pass did not reach
    bool is_used = false;  // since the last synchronised pass, in local passes, too
  };

  enum class State { kIdle, kLocalPass, kPass };

  Reducer(std::vector<Parameter> parameters, ProcessGroup& group,
          const DataParallelOptions& options);

  void install_hooks();

  void on_output();
  void on_gradient(std::size_t index);
  bool is_to_accumulate() const;
  bool is_to_synchronise() const { return decision_.value_or(!local_); }
  bool awaits_gradients() const;
  void expect_usable(const Slot& slot, const torch::Tensor& gradient) const;
  void open_scope();
  void begin_pass();
  void move_into_bucket(std::size_t index);
  void contribute_without_gradient(std::size_t index);
  void send_due();
  void send(std::size_t bucket, bool async);
  GradBucket bucket_for_hook(std::size_t bucket) const;
  void reduce_words(bool async);
  void wait_for_buckets();
  bool may_look_late() const;
  bool sends_used() const { return options_.find_unused_parameters || options_.static_graph; }
  void set_words(PassCode code);
  ChosenEpochs own_epochs() const;

  State end_pass();
  void finish();
  void prepare_pass();
  void expect_no_other_hooks() const;
  void finish_pass();
  void mark_unused(std::size_t index);
  PassCheck take_check(const std::vector<std::size_t>& missing);
  std::optional<PassWords> reduce_rest(const std::vector<std::size_t>& missing);
  void look_later(PassCheck check);
  void spoil_unless_complete(double scale);
  void finish_buckets();
  void finalize_gradients(const std::optional<PassWords>& words);
  void finalize_sparse(const std::optional<PassWords>& words, bool is_shadow);
  void lay_out(std::vector<std::size_t> order);
  bool is_left_alone(std::size_t index, const std::optional<PassWords>& words) const;
  void give_up() noexcept;
  std::string describe_missing(std::size_t index) const;
  void adopt_ready_order();

  std::vector<BucketContents> bucket_contents() const;

  ProcessGroup& group_;
  const DataParallelOptions options_;

  std::mutex mutex_;
  std::vector<Slot> slots_;
  AccumulatorIndex accumulators_;
  std::unique_ptr<GradientBuckets> buckets_;
  std::vector<Work> works_;  // by bucket: of its last reduction
  std::shared_ptr<CommHook> hook_;
  std::vector<std::function<void()>> finishes_;  // of the hook's started calls, in the order of the
                                                 // buckets
  std::optional<int> divisor_;
  bool has_ready_order_ = false;
  bool has_sparse_ = false;
  const std::shared_ptr<detail::LateChecks> late_ = std::make_shared<detail::LateChecks>();
  std::vector<int> expected_;  // static graph: arrivals of the first pass

  // Decisions of forwards on the next pass.
  std::optional<bool> decision_;
  std::optional<bool> decision_before_;  // the last forward
  int forwards_ = 0;
  int prepared_ = 0;             // forwards whose outputs are known
  std::vector<char> reachable_;  // from these outputs

  bool local_ = false;
  bool compares_epochs_ = true;
  State state_ = State::kIdle;
  std::shared_ptr<const std::atomic<bool>> is_scope_open_;  // of the last guard; null before the
                                                            // first
  // A gradient of an output has come, in a pass that reaches the parameters.
  bool is_pass_due_ = false;
  std::int64_t passes_ = 0;  // synchronised ones
  bool was_local_ = false;
  std::optional<ReductionPass> pass_;

  std::vector<BucketContents> first_buckets_;
  StepRecorder recorder_;
};

}  // namespace ddprun
