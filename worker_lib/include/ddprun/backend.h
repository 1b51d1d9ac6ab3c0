// Backend: what does the work behind a ProcessGroup. Implemented by cpu and nccl; a third one can
// be added by implementing this and handing it to a ProcessGroup.
//
// ProcessGroup has checked all arguments before it calls: tensors are dense, contiguous, on the
// right device, and agree in shape and dtype; roots and peers are in range and not this rank where
// that is forbidden; timeouts are filled in. Calls come from one thread at a time and must be
// carried out in the order in which they come; messages may go beside collectives. A call returns a
// Work that completes when the result is there; its timeout counts from the call. After a call with
// async = false ProcessGroup waits for the Work before it calls again, so such a call may do its
// work at once. Failures are reported through the Work, never thrown.
//
// kUnsupported, and kInvalidArgument about this rank's own arguments, leave the backend usable.
// After any other failure, the disagreement of ranks included, it is finished: all later calls fail
// with kStopped and tell the first failure.
//
// The destructor ends calls in progress; it never waits for peers without a bound.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "ddprun/p2p_op.h"
#include "ddprun/reduce_op.h"
#include "ddprun/work.h"

namespace ddprun {

// How one call is to be carried out.
struct CallOptions {
  std::chrono::nanoseconds timeout{};
  bool async = false;
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  virtual Work all_reduce(const torch::Tensor& tensor, ReduceOp op, CallOptions call) = 0;
  virtual Work reduce(const torch::Tensor& tensor, ReduceOp op, int root, CallOptions call) = 0;
  virtual Work broadcast(const torch::Tensor& tensor, int root, CallOptions call) = 0;
  virtual Work all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                          CallOptions call) = 0;
  virtual Work reduce_scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                              ReduceOp op, CallOptions call) = 0;
  virtual Work gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                      int root, CallOptions call) = 0;
  virtual Work scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                       int root, CallOptions call) = 0;
  virtual Work barrier(CallOptions call) = 0;
  virtual Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) = 0;
  // source: kAnySource: any; the Work says which it was.
  virtual Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) = 0;
  // Several messages at once, none of which waits for another; always asynchronous. One Work for
  // each.
  virtual std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) = 0;

  // Ends calls in progress with kStopped, from any thread, and makes later ones fail the same way.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ddprun
