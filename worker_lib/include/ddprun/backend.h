// Backend: what does the work behind a ProcessGroup. Implemented by cpu and nccl; a third one can
// be added by implementing this and naming it in InitOptions::more_backends (backend_kind.h).
//
// ProcessGroup has checked all arguments before it calls: tensors are dense, contiguous, on one device
// that the backend takes, and agree in shape and dtype; roots and peers are in range and not this rank where
// that is forbidden; timeouts are filled in. Calls come from one thread at a time and must be
// carried out in the order in which they come; messages may go beside collectives. A call returns a
// Work that completes when the result is there; its timeout counts from the call. After a call with
// async = false ProcessGroup waits for the Work before it calls again, so such a call may do its
// work at once. Failures are reported through the Work (work.h: PendingWork is its other side), never
// thrown.
//
// Lists: where a call takes a TensorList, its tensors are carried as if they were one; there is at
// least one, and all of a reduction have one dtype. A list lives during the call only: a backend
// that goes on afterwards keeps the tensors. Where there is something for or from every rank, the
// list holds all tensors of rank 0, then all of rank 1, and so on.
//
// kUnsupported, and kInvalidArgument about this rank's own arguments, leave the backend usable.
// After any other failure, the disagreement of ranks included, it is finished: all later calls fail
// with kStopped and tell the first failure.
//
// The destructor ends calls in progress; it never waits for peers without a bound.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>

#include "ddprun/p2p_op.h"
#include "ddprun/reduce_op.h"
#include "ddprun/work.h"

namespace ddprun {

// How one call is to be carried out.
struct CallOptions {
  std::chrono::nanoseconds timeout{};
  bool async = false;
};

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;  // of kPremulSum: this rank's own
};

using TensorList = std::span<const torch::Tensor>;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Whether it carries tensors on devices of this type. The same answer every time.
  virtual bool takes(torch::DeviceType type) const = 0;

  virtual Work all_reduce(TensorList tensors, Reduction how, CallOptions call) = 0;
  virtual Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) = 0;
  virtual Work broadcast(TensorList tensors, int root, CallOptions call) = 0;
  // outputs: for each rank as many as `inputs`.
  virtual Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) = 0;
  // inputs: for each rank as many as `outputs`.
  virtual Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                              CallOptions call) = 0;
  // outputs: one for each rank on the root, none elsewhere.
  virtual Work gather(TensorList outputs, const torch::Tensor& input, int root,
                      CallOptions call) = 0;
  virtual Work scatter(const torch::Tensor& output, TensorList inputs, int root,
                       CallOptions call) = 0;
  // One for each rank in both; each pair of ranks may have a size of its own, and sizes may
  // disagree between ranks, which is a failure then.
  virtual Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) = 0;
  virtual Work barrier(CallOptions call) = 0;
  // A barrier that blocks the host and, when time is up, fails on the ranks that have come with the
  // names of all that have not.
  virtual Work monitored_barrier(CallOptions call) = 0;
  virtual Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) = 0;
  // source: kAnySource: any; the Work says which it was.
  virtual Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) = 0;
  // Several messages at once, none of which waits for another; always asynchronous. One Work for
  // each.
  virtual std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) = 0;
  // Whether send(), recv() and batch() may be called by any thread, beside each other and a collective.
  // Otherwise a program that does so is refused.
  virtual bool sends_on_any_thread() const { return false; }

  // For ProcessGroup::split(): what a backend of the same kind, formed for the ranks of this color,
  // can begin with, quicker than from nothing; whoever forms it hands that over. Null where there
  // is nothing. Collective over the group, also for ranks without a color (negative); colors are
  // below size(), keys put the ranks in order. A failure is the split's: the group goes on, unless
  // ranks did not come.
  virtual Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) {
    static_cast<void>(color);
    static_cast<void>(key);
    static_cast<void>(call);
    seed->reset();
    return {};
  }

  // A tensor in memory that makes this backend's collectives on it quicker, its contents of no
  // account; an undefined one where there is no such memory. Any thread.
  virtual torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) {
    static_cast<void>(sizes);
    static_cast<void>(dtype);
    return {};
  }

  // Ends calls in progress with kStopped, from any thread, and makes later ones fail the same way.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ddprun
