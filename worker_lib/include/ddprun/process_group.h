// ProcessGroup: the collectives of a set of ranks.
//
// Every rank of the group must call the same collectives in the same order, with matching shapes
// and dtypes. They run in that order. One thread at a time may call into a group; a second one
// is refused with kInvalidArgument. On the cpu backend any thread may send and receive messages,
// concurrently with collectives and with other messages.
//
// Tensors must be dense and contiguous. All tensors of one call must be on one device, of a type
// that the group serves. Anything else throws kInvalidArgument that names the tensor and the
// rule. "In place" means that the tensor's own memory gets the result. No collective resizes or
// replaces a tensor. Dtypes: bool, uint8, int8, int16, int32, int64, float16, bfloat16, float32,
// float64, complex64, complex128. reduce_op.h says which reductions are defined for which dtype.
// The cpu backend sums the 16-bit floating-point ones in float32. nccl has no int16 and no
// bitwise reductions, and throws kUnsupported for them. Tensors with zero elements and tensors
// without dimensions work. A tensor that is written must not overlap others, with one exception:
// the rank's own share may be the same memory. In all_gather and gather this is outputs[rank()]
// and the input; in scatter and reduce_scatter it is inputs[rank()] and the output. In one
// tensor that holds all shares it is this rank's share.
//
// Forms: `*_coalesced` carries many tensors in one exchange, as if they were one, which is
// quicker than many small ones. The forms named after PyTorch's `*_into_tensor` and `*_tensor`
// hold the ranks' shares one after the other in one tensor.
//
// Autograd does not record collectives. A tensor that requires grad is accepted like any other.
// A tensor that is written counts as changed in place, so a backward pass that saved its old
// value fails.
//
// Waiting: each call has a deadline (options.timeout, else the group's). With async = false, the
// default, a call returns when its result is there. On CUDA it returns when the result is
// enqueued on the current stream. Work that is launched on that stream afterwards sees the
// result. A failure throws from a later call. With async = true the call returns at once; the
// tensors must neither be read nor written before Work::wait() returns.
//
// Failures throw DistError, from the call or from wait(): kTimeout, kPeerLost (with the rank
// that died), kStopped, kConnection. After one of these the group is finished: every later call
// throws kStopped with the first failure. An error in this rank's own arguments
// (kInvalidArgument) is found before anything is sent. The group then stays usable, but the
// other ranks may be waiting in the collective that this rank refused. If the ranks call
// different collectives, or the same one with different shapes, every rank of a cpu group throws
// kInvalidArgument that names both. That group is finished, too, because the ranks' positions
// are no longer known.
//
// A dead process is noticed within 1 s, a silent node after the job's lease (5 s).
//
// Determinism: on the cpu backend the result of a reduction depends only on the inputs, the
// world size and the node layout. It has the same bits on every rank and in every run. With
// deterministic_across_layouts it depends only on the inputs and the world size.
#pragma once

#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/p2p_op.h"
#include "ddprun/reduce_op.h"
#include "ddprun/work.h"

namespace ddprun {

class GroupFactory;
namespace detail {
struct GroupNotes;
}
using Timeout = std::chrono::nanoseconds;

// premul_factor: this rank's factor for ReduceOp::kPremulSum.
struct AllReduceOptions {
  ReduceOp op = ReduceOp::kSum;
  double premul_factor = 1;
  std::optional<Timeout> timeout = {};
  bool async = false;
};
struct ReduceOptions {
  int root = 0;
  ReduceOp op = ReduceOp::kSum;
  double premul_factor = 1;
  std::optional<Timeout> timeout = {};
  bool async = false;
};
struct ReduceScatterOptions {
  ReduceOp op = ReduceOp::kSum;
  double premul_factor = 1;
  std::optional<Timeout> timeout = {};
  bool async = false;
};
// For broadcast, gather and scatter.
struct RootOptions {
  int root = 0;
  std::optional<Timeout> timeout = {};
  bool async = false;
};
// For all_gather, all_to_all and barrier.
struct CollectiveOptions {
  std::optional<Timeout> timeout = {};
  bool async = false;
};
struct AllToAllSingleOptions {
  // Lengths along the first dimension, one for each rank; empty: equal shares.
  std::vector<std::int64_t> output_splits = {};
  std::vector<std::int64_t> input_splits = {};
  std::optional<Timeout> timeout = {};
  bool async = false;
};
struct PointToPointOptions {
  int tag = 0;
  std::optional<Timeout> timeout = {};
  bool async = false;
};

struct GroupOptions {
  // Deadline of forming the group, and of each of its calls that gives none. Default: the
  // world's.
  std::optional<Timeout> timeout = {};
  // A name for people, in errors and reports: "tp0". Default: the ranks.
  std::string name = {};
  // The same as in InitOptions. Default: the world's.
  std::optional<bool> deterministic_across_layouts = {};
};

// Checks for finding faults. They make every collective of the group blocking and much slower.
// All ranks must ask for the same ones. The environment variable DDPRUN_VERIFY asks for them
// without a change of the program: nan, results, or 1 for both.
struct Verify {
  // A rank whose tensor has a NaN is named on every rank (kInvalidArgument). Nothing is sent,
  // and the group stays usable. For messages, only the sender checks and throws.
  bool nan = false;
  // Results that should be the same everywhere (of all_reduce, broadcast, all_gather) are
  // compared. Ranks with other results are named (kCorrupt). The group stays usable.
  bool results = false;
};

// Identifies a group to its users and to other groups.
struct GroupIdentity {
  std::string name = "world";
  std::uint64_t id = 0;               // the same on all its ranks; 0: the world
  std::vector<int> world_ranks = {};  // world rank of each rank of the group; empty: the same
  GroupFactory* factory = nullptr;    // makes groups within it; null: it cannot be split
};

class ArgumentCheck;
class Backend;
class DeviceTypes;
class WorkerReporter;

class ProcessGroup {
 public:
  // Makes a group; Context calls it. `backend` carries out the calls; `device` is this rank's.
  // `reporter` records every call, for verdicts on hangs; null: calls are not recorded.
  ProcessGroup(std::unique_ptr<Backend> backend, torch::Device device, Timeout timeout,
               std::shared_ptr<WorkerReporter> reporter = nullptr, GroupIdentity identity = {},
               Verify verify = {});
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  torch::Device device() const { return device_; }
  // Returns whether the group takes tensors on devices of this type.
  bool takes(torch::DeviceType type) const;
  Timeout timeout() const { return timeout_; }
  // Returns "cpu", "nccl", or the backend for each type of device: "cpu:cpu,cuda:nccl".
  const std::string& backend_name() const;
  // Returns "world", or the name that the group was given.
  const std::string& name() const { return identity_.name; }
  // Returns the world rank of each rank of the group.
  const std::vector<int>& world_ranks() const { return identity_.world_ranks; }
  // Returns facts that ddprun's own classes share through the group. They outlive it.
  const std::shared_ptr<detail::GroupNotes>& notes() const { return notes_; }

  // Splits the group. Ranks that give the same color form a group, in the order of their keys;
  // ranks with equal keys keep their order here. A rank with a negative color is in no group and
  // gets null. A collective call of all ranks; it blocks. The new group has its own order of
  // calls and works concurrently with this one. It must end before the Context. Throws
  // kUnsupported if this group comes neither from a Context nor from a split of such a group.
  std::unique_ptr<ProcessGroup> split(int color, int key = 0, const GroupOptions& options = {});

  // Makes every rank's tensor the reduction of all of them. In place.
  Work all_reduce(const torch::Tensor& tensor, const AllReduceOptions& options = {});
  // Reduces each tensor of the list. All have one dtype.
  Work all_reduce_coalesced(const std::vector<torch::Tensor>& tensors,
                            const AllReduceOptions& options = {});

  // Makes the root's tensor the reduction; the others' tensors do not change. In place.
  Work reduce(const torch::Tensor& tensor, const ReduceOptions& options = {});

  // Makes every rank's tensor equal to the root's. In place.
  Work broadcast(const torch::Tensor& tensor, const RootOptions& options = {});
  // Broadcasts each tensor of the list. Dtypes may be mixed.
  Work broadcast_coalesced(const std::vector<torch::Tensor>& tensors,
                           const RootOptions& options = {});

  // Makes outputs[r] equal to rank r's input. `outputs` has size() tensors like `input`.
  Work all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                  const CollectiveOptions& options = {});
  // Makes outputs[r][i] equal to rank r's inputs[i]. Dtypes may be mixed.
  Work all_gather_coalesced(const std::vector<std::vector<torch::Tensor>>& outputs,
                            const std::vector<torch::Tensor>& inputs,
                            const CollectiveOptions& options = {});
  // Writes the inputs of the ranks into `output`, one after the other. `output` may have any
  // shape with size() times the elements of `input`. The input may be this rank's share of it.
  Work all_gather_into_tensor(const torch::Tensor& output, const torch::Tensor& input,
                              const CollectiveOptions& options = {});
  // Writes the ranks' inputs[i] into outputs[i]. Dtypes may be mixed.
  Work all_gather_into_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                        const std::vector<torch::Tensor>& inputs,
                                        const CollectiveOptions& options = {});

  // Makes `output` the reduction of all ranks' inputs[rank()]. `inputs` has size() tensors like
  // `output`. They are only read, unless inputs[rank()] is the output.
  Work reduce_scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                      const ReduceScatterOptions& options = {});
  // Reduces `input`, which has size() times the elements of `output`: the shares of all ranks, one
  // after the other.
  Work reduce_scatter_tensor(const torch::Tensor& output, const torch::Tensor& input,
                             const ReduceScatterOptions& options = {});
  // Makes outputs[i] from inputs[i]. All have one dtype.
  Work reduce_scatter_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                       const std::vector<torch::Tensor>& inputs,
                                       const ReduceScatterOptions& options = {});

  // Makes outputs[r] equal to rank r's inputs[rank()]. Both lists have size() tensors of one
  // dtype. Shapes may differ from pair to pair. The sent tensor must have as many elements as
  // the receiver expects. Otherwise every rank of a cpu group throws kInvalidArgument, and the
  // group is finished.
  Work all_to_all(const std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& inputs, const CollectiveOptions& options = {});
  // Exchanges shares that stand one after the other along the first dimension: input_splits[r]
  // rows go to rank r, and output_splits[r] rows come from it. Otherwise it does what all_to_all
  // does.
  Work all_to_all_single(const torch::Tensor& output, const torch::Tensor& input,
                         const AllToAllSingleOptions& options = {});

  // Makes outputs[r] on the root equal to rank r's input. Elsewhere `outputs` must be empty.
  Work gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
              const RootOptions& options = {});

  // Makes `output` equal to the root's inputs[rank()]. Elsewhere `inputs` must be empty.
  Work scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
               const RootOptions& options = {});

  // Returns when every rank has called it.
  Work barrier(const CollectiveOptions& options = {});
  // Waits on the host until all ranks have come, to find the missing ones. When the timeout passes,
  // the error names all ranks that did not come, with nccl, too. Blocks.
  void monitored_barrier(std::optional<Timeout> timeout = {});

  // Send and receive messages, matched by pair of ranks and by tag. Messages of one tag are
  // received in the order in which they were sent, by receives in the order in which they were
  // called. The receiver's tensor must have the sender's number of bytes. Otherwise the receiver
  // throws kInvalidArgument, and the group stays usable. A small send may return before it is
  // received. A message to the rank itself throws kInvalidArgument.
  //
  // On cpu, a message waits neither for collectives nor for messages of other tags or ranks.
  // There `source` may be kAnySource: it takes the next message of the tag from any rank, and
  // Work::source_rank() returns the sender. On nccl messages and collectives run in one order,
  // and a wrong size ends the group.
  Work send(const torch::Tensor& tensor, int destination, const PointToPointOptions& options = {});
  Work recv(const torch::Tensor& tensor, int source, const PointToPointOptions& options = {});
  // Do the same with options.async set.
  Work isend(const torch::Tensor& tensor, int destination, PointToPointOptions options = {});
  Work irecv(const torch::Tensor& tensor, int source, PointToPointOptions options = {});
  // Sends and receives that do not wait for each other, whatever their order in the list.
  // Returns one Work for each. On nccl this is the way to exchange messages without a deadlock.
  std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations,
                                      std::optional<Timeout> timeout = {});

  // Exchange JSON values of any size. They block, and the timeout covers the whole exchange.
  // Every number keeps all its bits (values travel as CBOR). objects.h has the same for
  // everything that torch::save can write.
  // Returns a list whose element r is rank r's value.
  std::vector<nlohmann::json> all_gather_object(const nlohmann::json& value,
                                                std::optional<Timeout> timeout = {});
  // Returns the root's value on every rank.
  nlohmann::json broadcast_object(const nlohmann::json& value, int root = 0,
                                  std::optional<Timeout> timeout = {});
  // Returns, on the root, a list whose element r is rank r's value; elsewhere an empty list.
  std::vector<nlohmann::json> gather_object(const nlohmann::json& value, int root = 0,
                                            std::optional<Timeout> timeout = {});
  // Returns the root's values[rank()]. Elsewhere `values` must be empty.
  nlohmann::json scatter_object(const std::vector<nlohmann::json>& values, int root = 0,
                                std::optional<Timeout> timeout = {});

  // Exchange strings of any bytes and size in the same way; the object forms are made of these.
  std::vector<std::string> all_gather_bytes(const std::string& bytes,
                                            std::optional<Timeout> timeout = {});
  std::string broadcast_bytes(const std::string& bytes, int root = 0,
                              std::optional<Timeout> timeout = {});
  std::vector<std::string> gather_bytes(const std::string& bytes, int root = 0,
                                        std::optional<Timeout> timeout = {});
  std::string scatter_bytes(const std::vector<std::string>& bytes, int root = 0,
                            std::optional<Timeout> timeout = {});

  // Returns an uninitialized tensor on the group's device with which all_reduce is fastest. On
  // the cpu backend the ranks of a node read and write each other's shared tensors, so nothing
  // is copied before and after. This needs a tensor of some KiB or more, and a shared tensor on
  // every rank. Without such memory the result is an ordinary tensor. It may outlive the group.
  // Throws kInvalidArgument for negative sizes. Any thread.
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype = torch::kFloat32);

  // Ends every call of this rank, in progress and later, with kStopped. Any thread.
  void abort(const std::string& reason);

  // Reports progress for ddprun --hang-timeout: this rank has done work that is no call into the
  // group. DistributedDataParallel's forward and CheckpointManager report by themselves. Costs
  // some nanoseconds. Any thread.
  void report_activity();
  // Reports for ddprun's goodput that the training of this rank has waited that long for a
  // checkpoint. CheckpointManager reports by itself. Any thread.
  void report_checkpoint(std::chrono::nanoseconds waited);

 private:
  friend class LongWait;
  class Call;
  class Exchange;
  // While it lives, calls of other threads are refused.
  struct Leave {
    void operator()(std::atomic<bool>* is_called) const {
      is_called->store(false, std::memory_order_release);
    }
  };
  using Turn = std::unique_ptr<std::atomic<bool>, Leave>;
  ArgumentCheck check_for(const char* call) const;

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const DeviceTypes> devices_;  // that the backend serves
  torch::Device device_;
  torch::Device object_device_;  // where objects travel: the CPU, if the backend serves it
  Timeout timeout_;
  std::shared_ptr<WorkerReporter> reporter_;  // never null
  GroupIdentity identity_;
  const Verify verify_;
  const std::shared_ptr<detail::GroupNotes> notes_;  // never null
  std::atomic<bool> is_called_ = false;              // one thread is inside a call
  std::atomic<std::uint64_t> collectives_ = 0;       // begun so far
};

// LongWait: while one lives, ddprun --hang-timeout does not take long waits of this rank in
// calls into the group for a hang. Use it while another rank works alone: rank 0 that evaluates
// or writes a file. That rank should call report_activity() now and then. CheckpointManager has
// its own LongWait. One thread makes and destroys it. The group must outlive it.
class LongWait {
 public:
  explicit LongWait(ProcessGroup& group);
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

 private:
  std::shared_ptr<WorkerReporter> reporter_;
};

}  // namespace ddprun
