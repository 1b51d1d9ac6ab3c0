// Backend: carries out the calls of a ProcessGroup. cpu and nccl implement it. A program adds
// its own by implementing this class and naming it in InitOptions::more_backends
// (backend_kind.h).
//
// ProcessGroup checks all arguments before it calls. Tensors are dense, contiguous, on one
// device that the backend serves, and agree in shape and dtype. Roots and peers are in range,
// and are not this rank where that is forbidden. Timeouts are filled in. Calls come from one
// thread at a time and must be carried out in the order in which they come; messages may run
// concurrently with collectives. A call returns a Work that completes when the result is there.
// Its timeout counts from the call. After a call with async = false, ProcessGroup waits for the
// Work before the next call. So such a call may do its work before it returns. Failures are
// reported through the Work, never thrown (PendingWork in work.h sets a Work's result).
//
// Lists: a call that takes a TensorList carries its tensors as if they were one. A list has at
// least one tensor, and all tensors of a reduction have one dtype. A list lives only during the
// call: a backend that continues afterwards must keep the tensors. If a list has tensors for or
// from every rank, it holds all tensors of rank 0, then all of rank 1, and so on.
//
// kUnsupported, and kInvalidArgument about this rank's own arguments, leave the backend usable.
// After any other failure, a disagreement of the ranks included, the backend is finished. All
// later calls fail with kStopped and name the first failure.
//
// The destructor ends calls in progress. It never waits for peers without a time limit.
#pragma once

#include <torch/types.h>

#include <chrono>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddprun/p2p_op.h"
#include "ddprun/reduce_op.h"
#include "ddprun/work.h"

namespace ddprun {

// How to carry out one call.
struct CallOptions {
  std::chrono::nanoseconds timeout{};
  bool async = false;
};

struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double factor = 1;  // this rank's factor for kPremulSum
};

using TensorList = std::span<const torch::Tensor>;

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const std::string& name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Returns whether it carries tensors on devices of this type. The answer never changes.
  virtual bool takes(torch::DeviceType type) const = 0;

  virtual Work all_reduce(TensorList tensors, Reduction how, CallOptions call) = 0;
  virtual Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) = 0;
  virtual Work broadcast(TensorList tensors, int root, CallOptions call) = 0;
  // Copies the inputs of all ranks to all. outputs: for each rank as many tensors as `inputs`.
  virtual Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) = 0;
  // Reduces each rank's share to it. inputs: for each rank as many tensors as `outputs`.
  virtual Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                              CallOptions call) = 0;
  // Copies all inputs to the root. outputs: one tensor for each rank on the root, none elsewhere.
  virtual Work gather(TensorList outputs, const torch::Tensor& input, int root,
                      CallOptions call) = 0;
  virtual Work scatter(const torch::Tensor& output, TensorList inputs, int root,
                       CallOptions call) = 0;
  // Sends inputs[r] to rank r. Both lists have one tensor for each rank. Each pair of ranks may
  // have its own size. Sizes may disagree between ranks; that is a failure.
  virtual Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) = 0;
  virtual Work barrier(CallOptions call) = 0;
  // Blocks the host until all ranks have come. When its time is up, it fails on the ranks that
  // have come, and names all that have not.
  virtual Work monitored_barrier(CallOptions call) = 0;
  virtual Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) = 0;
  // source: kAnySource accepts any rank; the Work says which one sent.
  virtual Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) = 0;
  // Carries out several messages at once, none of which waits for another. Always asynchronous.
  // Returns one Work for each.
  virtual std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) = 0;
  // Returns whether any thread may call send(), recv() and batch(), concurrently with each other
  // and with a collective. If false, a program that does so is refused.
  virtual bool sends_on_any_thread() const { return false; }

  // Sets `seed` to an object for the ranks of this color; for ProcessGroup::split(). With it a
  // backend of the same kind can be formed more quickly than from nothing. The code that forms the
  // new backend hands the seed over (BackendStart::seed). Null if there is none. Collective over
  // the group, also for ranks without a color (negative). Colors are below size(); keys give the
  // order of the ranks. A failure ends only the split, and the group stays usable, unless ranks did
  // not come.
  virtual Work split_off(int color, int key, std::shared_ptr<void>* seed, CallOptions call) {
    static_cast<void>(color);
    static_cast<void>(key);
    static_cast<void>(call);
    seed->reset();
    return {};
  }

  // Returns an uninitialized tensor in memory that makes this backend's collectives on it
  // faster. Returns an undefined tensor if there is no such memory. Any thread.
  virtual torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) {
    static_cast<void>(sizes);
    static_cast<void>(dtype);
    return {};
  }

  // Ends calls in progress with kStopped and makes later ones fail the same way. Any thread.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace ddprun
