// NcclBackend: the nccl backend behind a ProcessGroup, written against the table of nccl_api.h
// only.
//
// Every collective goes to a stream of the backend's own: it waits there for what the caller's
// current stream has been given so far, and Work::wait() makes the caller's stream wait for it; the
// host waits for neither. Only a barrier's wait, and a wait with a timeout, block the host.
//
// A watcher thread, started by the first call, looks at what is in flight every 20 ms: a deadline
// that has passed, an error that NCCL noticed, or a failure of the group of peers ends the
// communicator and everything in flight with it. The peers are a CpuGroup of the same ranks that
// makes no calls: NCCL does not notice a dead rank, or does not say which one; its watch does,
// within 1 s.
//
// What NCCL does not have is kUnsupported: int16 and bitwise reductions, receives from any source,
// and tags other than 0 (messages of a pair of ranks arrive in the order in which they are sent, in
// step with the collectives, so two ranks that first send and then receive wait for each other;
// those of a batch do not).
//
// Owned by a ProcessGroup. One thread at a time calls, except abort(): any thread.
#pragma once

#include <array>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/ids.h"
#include "ddprun/backend.h"
#include "worker_lib/cpu/cpu_group.h"
#include "worker_lib/nccl_api.h"
#include "worker_lib/nccl_communicator.h"
#include "worker_lib/nccl_work.h"

namespace ddprun {

struct NcclBackendOptions {
  Rank rank{0};
  int world_size = 1;
  torch::Device device{torch::kCUDA, 0};
  std::string name;    // begins every key in the store
  std::string title;   // behind what was done, in errors: " in group tp"; empty: of the world
  Duration timeout{};  // of forming the group
  // The destructor gives what is in flight, and the peers' leave, so long before it aborts.
  Duration close_grace = std::chrono::seconds(5);
  Duration abort_grace = std::chrono::seconds(10);  // see NcclCommunicatorOptions
};

// A tensor that a call reads or writes, without the tensor.
template <class Pointer>
struct NcclPart {
  Pointer data = nullptr;
  std::size_t bytes = 0;
  std::size_t elements = 0;
};
using WrittenPart = NcclPart<void*>;
using ReadPart = NcclPart<const void*>;

// What NCCL calls a reduction.
struct NcclReduction {
  NcclType type = NcclType::kUint8;
  NcclOp op = NcclOp::kSum;
  int values = 1;                   // of the type in an element: a complex number has two
  std::array<char, 8> factor = {};  // one value of the type
  bool is_premul = false;           // `op` is to be made from the factor
};

class NcclBackend final : public Backend {
 public:
  // Collective. The device must be the current one. The store is used during the call only and may
  // be null in a world of one, and so may the peers; without them a dead rank is noticed at the
  // deadline.
  static Result<std::unique_ptr<NcclBackend>> form(const NcclApi& api, Store* store,
                                                   const NcclBackendOptions& options,
                                                   std::unique_ptr<CpuGroup> peers = nullptr);
  // Waits for what is in flight and for the peers' leave, a little; then aborts.
  ~NcclBackend() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return options_.rank.value; }
  int size() const override { return options_.world_size; }

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override;
  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override;
  Work broadcast(TensorList tensors, int root, CallOptions call) override;
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override;
  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override;
  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override;
  Work scatter(const torch::Tensor& output, TensorList inputs, int root, CallOptions call) override;
  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override;
  Work barrier(CallOptions call) override;
  // By the group of peers: the device is not waited for.
  Work monitored_barrier(CallOptions call) override;
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override;
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override;
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override;
  void abort(const std::string& reason) override;

 private:
  struct Copy {
    void* to;
    const void* from;
    std::size_t bytes;
  };
  // What one call is made of, in the order of the stream.
  struct Issue {
    NcclCall what;                        // for errors
    std::vector<torch::Tensor> keep;      // alive until the call is over
    std::vector<Copy> copies_ahead = {};  // within the device
    NcclCommunicator::Issue launch;       // makes the NCCL calls
    std::vector<Copy> copies_behind = {};
    NcclWork::HostWait host_wait = NcclWork::HostWait::kOnRequest;
  };

  NcclBackend(const NcclApi& api, const NcclBackendOptions& options,
              std::unique_ptr<CpuGroup> peers, std::unique_ptr<NcclCommunicator> communicator);
  Result<void> prepare();
  int device_index() const { return options_.device.has_index() ? options_.device.index() : 0; }

  std::string words_of(const NcclCall& call) const { return to_text(call) + options_.title; }
  Work issue(Issue issue, CallOptions call);
  // from[r] goes to rank r, to[r] comes from it, where there are any bytes.
  Work issue_messages(Issue issue, std::vector<WrittenPart> to, std::vector<ReadPart> from,
                      CallOptions call);
  Result<std::shared_ptr<NcclWork>> launch(Issue issue, CallOptions call);
  Result<std::shared_ptr<NcclWork>> enqueue(Issue& issue, const Deadline& deadline);
  CudaResult copy(const std::vector<Copy>& copies);
  Result<CudaEvent> take_event();
  NcclResult grouped(std::size_t count, const std::function<NcclResult(std::size_t)>& call);
  template <class Calls>
  NcclResult with_op(const NcclReduction& as, NcclComm comm, Calls calls);

  Result<void> start_watcher();
  void watch();
  Result<void> inspect();
  Result<void> reap();
  void fail(const Error& failure);
  bool drain(const Deadline& deadline);

  const std::string name_ = "nccl";
  const NcclApi& api_;
  const NcclBackendOptions options_;
  std::unique_ptr<CpuGroup> peers_;
  std::unique_ptr<NcclCommunicator> communicator_;
  CudaStream stream_ = nullptr;
  torch::Tensor token_;  // what barriers reduce
  std::uint64_t calls_ = 0;
  std::optional<NcclOp> premul_sum_;  // the one made last

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::deque<std::shared_ptr<NcclWork>> in_flight_;  // in the order of the stream
  std::vector<CudaEvent> events_;                    // all that were made
  std::vector<CudaEvent> free_events_;               // those that mark nothing now
  bool closing_ = false;
  std::thread watcher_;
};

// Makes nccl backends: what init_with() gets from a program that is linked with
// ddprun::worker_cuda.
class BackendFactory {
 public:
  explicit BackendFactory(const NcclApi& api) : api_(api) {}

  // 0 where there is no GPU or no driver.
  int device_count() const;
  // Makes the device the current one of this thread.
  Result<void> select_device(int index) const;
  // See NcclBackend::form().
  Result<std::unique_ptr<Backend>> form(Store* store, const NcclBackendOptions& options,
                                        std::unique_ptr<CpuGroup> peers = nullptr) const;

 private:
  const NcclApi& api_;
};

}  // namespace ddprun
