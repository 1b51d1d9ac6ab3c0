// CpuBackend: the cpu backend of a ProcessGroup. It passes the tensors' memory to a CpuGroup,
// which does the work. Asynchronous collectives run on the backend's own thread; messages run on
// the group's. Tensors of other devices are staged (device_staging.h): Work::wait() makes the
// caller's current stream wait for the results, and a send blocks until its tensor is on the
// host.
//
// Owned by a ProcessGroup. One thread at a time calls it, except abort(): any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ddprun/backend.h"
#include "worker_lib/cpu_backend/device_staging.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/group/serial_executor.h"

namespace ddprun {

class CpuBackend final : public Backend {
 public:
  // devices: the types of devices whose tensors it accepts.
  explicit CpuBackend(std::shared_ptr<CpuGroup> group,
                      std::vector<torch::DeviceType> devices = {torch::kCPU},
                      Duration close_grace = std::chrono::seconds(5));
  // Waits for collectives and messages in progress, for at most close_grace. Does not wait while
  // an exception is propagating. Ends the rest with kStopped. Other ranks that wait for such a
  // message learn that this rank has left.
  ~CpuBackend() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  bool takes(torch::DeviceType type) const override;

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
  Work monitored_barrier(CallOptions call) override { return barrier(call); }
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override;
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override;
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override;
  bool sends_on_any_thread() const override { return true; }

  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override;
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  // Runs engine_call(group, written, read, timeout), now or in its turn.
  template <class EngineCall>
  Work carry_out(CallOptions call, TensorList written, TensorList read, StagedAccess access,
                 EngineCall engine_call);
  template <class EngineCall>
  Work carry_out_staged(CallOptions call, TensorList written, TensorList read, StagedAccess access,
                        EngineCall engine_call);
  Result<torch::Tensor> on_host(const torch::Tensor& tensor, const Deadline& deadline);
  template <class End>
  Work recv_on_host(const torch::Tensor& tensor, int source, int tag, CallOptions call,
                    const std::shared_ptr<detail::HostWork>& work, End end);

  const std::string name_ = "cpu";
  StagedCall::ResultsEvent last_staged_;  // of the last staged collective
  const std::vector<torch::DeviceType> devices_;
  const Duration close_grace_;
  const std::shared_ptr<CpuGroup> group_;
  SerialExecutor executor_{"ddprun-group"};  // ends before the group that it uses
};

}  // namespace ddprun
