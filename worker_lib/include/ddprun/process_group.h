// ProcessGroup: the collectives of a set of ranks.
//
// Every rank of the group must call the same collectives in the same order with matching shapes and
// dtypes. They run in that order. One thread at a time may call into a group: a second one is refused
// (kInvalidArgument). On the cpu backend messages are for any thread, beside collectives and each other.
//
// Tensors: dense, contiguous, those of one call on one device of a type that the group serves; anything
// else throws kInvalidArgument naming the tensor and the rule. "In place" means that the tensor's own memory gets the result; no
// collective resizes or replaces a tensor. Dtypes: bool, uint8, int8, int16, int32, int64, float16,
// bfloat16, float32, float64, complex64, complex128; reduce_op.h says what is defined for which (the
// cpu backend sums the 16-bit ones in float32; nccl has no int16 and no bitwise reductions, and says
// kUnsupported). Zero-element tensors work, and tensors without dimensions. Tensors that are written
// must not overlap others, except that the own share may be the same memory: all_gather's and
// gather's outputs[rank()] the input, scatter's and reduce_scatter's inputs[rank()] the output (of one
// tensor that holds all shares: this rank's).
//
// Forms: `*_coalesced` carries many tensors as one, in one exchange, which is quicker than many small
// ones. The forms named after PyTorch's `*_into_tensor` and `*_tensor` have the ranks' shares one
// behind the other in one tensor.
//
// Autograd does not record collectives. A tensor that requires grad is taken like any other; one
// that is written counts as changed in place, so that a backward pass which saved its old value
// fails.
//
// Waiting: each call has a deadline (options.timeout, else the group's). With async = false, the
// default, a call returns when its result is there (on CUDA: when it has been put in the current
// stream, so that what is launched there next sees it; a failure of it throws from a later call);
// with async = true it returns at once and the tensors must neither be read nor written before
// Work::wait().
//
// Failures throw DistError, from the call or from wait(): kTimeout, kPeerLost (with the rank that
// died), kStopped, kConnection. After one of these the group is finished: every later call throws
// kStopped with the first failure. kInvalidArgument about this rank's own arguments is noticed
// before anything is sent; the group stays usable, but the other ranks may be waiting in the
// collective that this rank refused. When the ranks call different collectives, or the same with
// different shapes, every rank of a cpu group throws kInvalidArgument naming both, and the group is
// finished, too: nobody knows any more who is where.
//
// A dead process is noticed within 1 s, a node that has gone silent after the job's lease (5 s).
//
// Determinism: on the cpu backend the result of a reduction is a function of the inputs, the world
// size and the node layout only, the same bits on every rank and in every run; with
// deterministic_across_layouts, of the inputs and the world size only.
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

// premul_factor: of ReduceOp::kPremulSum, this rank's own.
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
struct CollectiveOptions {  // for all_gather, all_to_all and barrier
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
  // Deadline of forming the group and of each of its calls that gives none. Default: the world's.
  std::optional<Timeout> timeout = {};
  // For people, in errors and reports: "tp0". Default: the ranks.
  std::string name = {};
  // As InitOptions's. Default: the world's.
  std::optional<bool> deterministic_across_layouts = {};
};

// Checks for finding faults; they make every collective of the group blocking and much slower. All ranks
// ask for the same ones. The environment variable DDPRUN_VERIFY asks for them without a change of the
// program: 1 for both, nan, results.
struct Verify {
  // A rank that gives a NaN is named on every rank (kInvalidArgument), nothing is sent, and the group goes
  // on. Of messages: at the sender only.
  bool nan = false;
  // Results that should be the same everywhere (of all_reduce, broadcast, all_gather) are compared, and the
  // ranks named that have others (kCorrupt); the group goes on.
  bool results = false;
};

// What a group is to others.
struct GroupIdentity {
  std::string name = "world";
  std::uint64_t id = 0;               // the same on all its ranks; 0: the world
  std::vector<int> world_ranks = {};  // by rank of the group; empty: the same
  GroupFactory* factory = nullptr;        // for groups within it; null: it cannot be split
};

class ArgumentCheck;
class Backend;
class Deadline;
class DeviceTypes;
class WorkerReporter;
struct CallOptions;
struct FlightTicket;
struct NanFound;

class ProcessGroup {
 public:
  // Made by Context. `backend` does the work; `device` is this rank's. reporter: is told of every call, for
  // verdicts on hangs; null: nobody is.
  ProcessGroup(std::unique_ptr<Backend> backend, torch::Device device, Timeout timeout,
               std::shared_ptr<WorkerReporter> reporter = nullptr, GroupIdentity identity = {},
               Verify verify = {});
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  torch::Device device() const { return device_; }
  // Whether it takes tensors on devices of this type.
  bool takes(torch::DeviceType type) const;
  Timeout timeout() const { return timeout_; }
  // "cpu", "nccl", or which one for which type of device: "cpu:cpu,cuda:nccl".
  const std::string& backend_name() const;
  // "world", or what the group was called.
  const std::string& name() const { return identity_.name; }
  // The rank in the world of each rank of the group.
  const std::vector<int>& world_ranks() const { return identity_.world_ranks; }
  // For ddprun's own classes: what they know of each other by way of the group. Outlives it.
  const std::shared_ptr<detail::GroupNotes>& notes() const { return notes_; }

  // Parts the group: the ranks that give the same color are a group, in the order of their keys and,
  // where these are equal, of their ranks here. A negative color: in none of them; returns null.
  // A collective call of all ranks; it blocks. The new group works beside this one, with an order of
  // calls of its own, and must end before the Context. Throws kUnsupported where the group is not a
  // Context's or made from one.
  std::unique_ptr<ProcessGroup> split(int color, int key = 0, const GroupOptions& options = {});

  // Every rank's tensor becomes the reduction of all of them. In place.
  Work all_reduce(const torch::Tensor& tensor, const AllReduceOptions& options = {});
  // Each tensor of the list, which has one dtype.
  Work all_reduce_coalesced(const std::vector<torch::Tensor>& tensors,
                            const AllReduceOptions& options = {});

  // The root's tensor becomes the reduction; the others' are left as they were. In place.
  Work reduce(const torch::Tensor& tensor, const ReduceOptions& options = {});

  // Every rank's tensor becomes the root's. In place.
  Work broadcast(const torch::Tensor& tensor, const RootOptions& options = {});
  // Each tensor of the list; dtypes may be mixed.
  Work broadcast_coalesced(const std::vector<torch::Tensor>& tensors,
                           const RootOptions& options = {});

  // outputs[r] becomes rank r's input. `outputs` has size() tensors like `input`.
  Work all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                  const CollectiveOptions& options = {});
  // `output` has size() times the elements of `input`, of any shape, and gets the ranks' inputs one
  // behind the other. The input may be this rank's share of it.
  Work all_gather_into_tensor(const torch::Tensor& output, const torch::Tensor& input,
                              const CollectiveOptions& options = {});
  // outputs[i] gets the ranks' inputs[i]; dtypes may be mixed.
  Work all_gather_into_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                        const std::vector<torch::Tensor>& inputs,
                                        const CollectiveOptions& options = {});

  // `output` becomes the reduction of all ranks' inputs[rank()]. `inputs` has size() tensors like
  // `output`; they are only read, but for the output where that is inputs[rank()].
  Work reduce_scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                      const ReduceScatterOptions& options = {});
  // `input` has size() times the elements of `output`: the shares of all ranks one behind the other.
  Work reduce_scatter_tensor(const torch::Tensor& output, const torch::Tensor& input,
                             const ReduceScatterOptions& options = {});
  // outputs[i] from inputs[i]; all of one dtype.
  Work reduce_scatter_tensor_coalesced(const std::vector<torch::Tensor>& outputs,
                                       const std::vector<torch::Tensor>& inputs,
                                       const ReduceScatterOptions& options = {});

  // outputs[r] becomes what rank r has in inputs[rank()]. Both lists have size() tensors of one dtype;
  // shapes may differ from pair to pair, but what one sends must have as many elements as the other
  // expects (else kInvalidArgument on every rank of a cpu group, which is finished then).
  Work all_to_all(const std::vector<torch::Tensor>& outputs,
                  const std::vector<torch::Tensor>& inputs, const CollectiveOptions& options = {});
  // The same with the shares one behind the other along the first dimension: input_splits[r] rows go
  // to rank r, output_splits[r] come from it.
  Work all_to_all_single(const torch::Tensor& output, const torch::Tensor& input,
                         const AllToAllSingleOptions& options = {});

  // On the root outputs[r] becomes rank r's input; elsewhere `outputs` must be empty.
  Work gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
              const RootOptions& options = {});

  // `output` becomes the root's inputs[rank()]; elsewhere `inputs` must be empty.
  Work scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
               const RootOptions& options = {});

  // Returns when every rank has called it.
  Work barrier(const CollectiveOptions& options = {});
  // The same, on the host, for finding out who is missing: with nccl, too, the error of a timeout names
  // all ranks that did not come. Blocks.
  void monitored_barrier(std::optional<Timeout> timeout = {});

  // Point to point, matched by pair of ranks and tag: messages of one tag are received in the order
  // sent, by receives in the order in which they were called. The receiver's tensor must have the
  // sender's number of bytes (else kInvalidArgument at the receiver, and the group goes on). A
  // small send may return before it is received. To oneself: kInvalidArgument.
  // On cpu, messages wait neither for collectives nor for messages under other tags or of other
  // ranks, and source may be kAnySource: the next message of the tag, whoever sent it, says
  // Work::source_rank(). On nccl they take turns with collectives, and another size ends the group.
  Work send(const torch::Tensor& tensor, int destination, const PointToPointOptions& options = {});
  Work recv(const torch::Tensor& tensor, int source, const PointToPointOptions& options = {});
  // The same with options.async.
  Work isend(const torch::Tensor& tensor, int destination, PointToPointOptions options = {});
  Work irecv(const torch::Tensor& tensor, int source, PointToPointOptions options = {});
  // Sends and receives that do not wait for each other, in whatever order they stand; one Work for
  // each. On nccl the way to exchange messages without a deadlock.
  std::vector<Work> batch_isend_irecv(const std::vector<P2POp>& operations,
                                      std::optional<Timeout> timeout = {});

  // JSON values of any size; they block, the timeout is that of the whole exchange. Every number
  // keeps all its bits (they travel as CBOR). objects.h has the same for what torch::save can write.
  // Element r is rank r's value.
  std::vector<nlohmann::json> all_gather_object(const nlohmann::json& value,
                                                std::optional<Timeout> timeout = {});
  // The root's value on every rank.
  nlohmann::json broadcast_object(const nlohmann::json& value, int root = 0,
                                  std::optional<Timeout> timeout = {});
  // On the root element r is rank r's value; elsewhere the list is empty.
  std::vector<nlohmann::json> gather_object(const nlohmann::json& value, int root = 0,
                                            std::optional<Timeout> timeout = {});
  // The root's values[rank()]; elsewhere `values` must be empty.
  nlohmann::json scatter_object(const std::vector<nlohmann::json>& values, int root = 0,
                                std::optional<Timeout> timeout = {});

  // What objects are made of: texts of any bytes and size. As the object forms.
  std::vector<std::string> all_gather_bytes(const std::string& bytes,
                                            std::optional<Timeout> timeout = {});
  std::string broadcast_bytes(const std::string& bytes, int root = 0,
                              std::optional<Timeout> timeout = {});
  std::vector<std::string> gather_bytes(const std::string& bytes, int root = 0,
                                        std::optional<Timeout> timeout = {});
  std::string scatter_bytes(const std::vector<std::string>& bytes, int root = 0,
                            std::optional<Timeout> timeout = {});

  // A tensor on the group's device, its contents of no account, that all_reduce is quickest with: on the
  // cpu backend the ranks of a node reach each other's, so that nothing is copied before and after (from
  // some KiB on, if every rank's tensor is such a one). It may outlive the group. Where there is no such
  // memory it is an ordinary tensor. Throws kInvalidArgument for negative sizes. Any thread.
  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype = torch::kFloat32);

  // Ends every call in progress on this rank, now and later, with kStopped. Any thread.
  void abort(const std::string& reason);

  // For ddprun --hang-timeout: this rank has got on with something that is no call into the group.
  // DistributedDataParallel's forward and CheckpointManager say so by themselves. Costs some
  // nanoseconds. Any thread.
  void report_activity();

 private:
  friend class LongWait;
  struct Call;
  // While it lives, other threads are refused.
  struct Leave {
    void operator()(std::atomic<bool>* is_called) const {
      is_called->store(false, std::memory_order_release);
    }
  };
  using Turn = std::unique_ptr<std::atomic<bool>, Leave>;
  Turn take_turn(bool is_message);
  ArgumentCheck check_for(const char* call) const;
  template <class Options>
  CallOptions how(const ArgumentCheck& check, const Options& options) const;
  template <class Issue>
  Work carry_out(const Call& call, Issue issue);
  template <class Issue>
  Work carry_out_alone(const Call& call, CallOptions options, Issue issue);
  std::span<const torch::Tensor> on_root(int root, std::span<const torch::Tensor> tensors) const;
  std::span<const torch::Tensor> off_root(int root, std::span<const torch::Tensor> tensors) const;

  std::vector<std::int64_t> values_of_all(const Call& call, const char* checking,
                                          std::int64_t mine);
  void expect_no_nan(const Call& call);
  void expect_no_nan_here(const Call& call);
  std::string name_of(const Call& call) const;
  [[noreturn]] void refuse_nan(const Call& call, const NanFound& found) const;
  void expect_agreement(const Call& call);
  std::string in_group() const;

  Work exchange(const ArgumentCheck& check, const std::vector<torch::Tensor>& outputs,
                const std::vector<torch::Tensor>& inputs, CallOptions options);

  template <class Body>
  auto exchange_objects(const char* name, std::optional<Timeout> timeout, Body body);
  std::vector<std::int64_t> sizes_of_all(std::size_t mine, const Deadline& deadline);
  std::vector<std::string> all_gather_text(const std::string& bytes, const Deadline& deadline);
  std::string broadcast_text(const std::string& bytes, int root, const Deadline& deadline);
  std::vector<std::string> gather_text(const std::string& bytes, int root,
                                       const Deadline& deadline);
  std::string scatter_text(const std::vector<std::string>& texts, int root,
                           const Deadline& deadline);
  std::vector<torch::Tensor> exchange_bytes(const torch::Tensor& bytes,
                                            const std::vector<std::int64_t>& outgoing,
                                            const std::vector<std::int64_t>& incoming,
                                            const Deadline& deadline);
  FlightTicket begin(const Call& call);
  static void keep_record(const Work& work, FlightTicket ticket);

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<const DeviceTypes> devices_;  // that the backend takes
  torch::Device device_;
  torch::Device object_device_;  // where objects travel: the cpu, if the backend takes it
  Timeout timeout_;
  std::shared_ptr<WorkerReporter> reporter_;  // never null
  GroupIdentity identity_;
  const Verify verify_;
  const std::shared_ptr<detail::GroupNotes> notes_;  // never null
  std::atomic<bool> is_called_ = false;  // by one thread, which is in it
  std::atomic<std::uint64_t> collectives_ = 0;  // begun
};

// While one lives, this rank may wait long in calls into the group without being taken for a hang by
// ddprun --hang-timeout, because another rank has something to do alone: rank 0 that evaluates or
// writes a file. That one should say report_activity() now and then. CheckpointManager has its own.
// One thread makes and destroys it; the group must outlive it.
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
