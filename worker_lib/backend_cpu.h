// CpuBackend: the cpu backend behind a ProcessGroup. It hands tensors' memory to a CpuGroup, which
// does the work, and carries asynchronous collectives out on a thread of its own; messages have the
// group's.
//
// Owned by a ProcessGroup. One thread at a time calls, except abort(): any thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ddprun/backend.h"
#include "worker_lib/cpu/cpu_group.h"
#include "worker_lib/serial_executor.h"

namespace ddprun {

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(std::unique_ptr<CpuGroup> group);
  // Ends calls in progress with kStopped.
  ~CpuBackend() override;

  const std::string& name() const override { return name_; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  Work all_reduce(const torch::Tensor& tensor, ReduceOp op, CallOptions call) override;
  Work reduce(const torch::Tensor& tensor, ReduceOp op, int root, CallOptions call) override;
  Work broadcast(const torch::Tensor& tensor, int root, CallOptions call) override;
  Work all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                  CallOptions call) override;
  Work reduce_scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                      ReduceOp op, CallOptions call) override;
  Work gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input, int root,
              CallOptions call) override;
  Work scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs, int root,
               CallOptions call) override;
  Work barrier(CallOptions call) override;
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override;
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override;
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override;

  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  template <class EngineCall>
  Work carry_out(CallOptions call, EngineCall engine_call);

  const std::string name_ = "cpu";
  std::unique_ptr<CpuGroup> group_;
  SerialExecutor executor_{"ddprun-group"};  // ends before the group it works on
};

}  // namespace ddprun
