#include "worker_lib/backend_cpu.h"

#include "base/deadline.h"
#include "worker_lib/cpu/group_end.h"
#include "worker_lib/error_bridge.h"
#include "worker_lib/tensor_facts.h"
#include "worker_lib/work_state.h"

namespace ddprun {
namespace {

ElementType element_type_of(const torch::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case torch::kBool: return ElementType::kBool;
    case torch::kUInt8: return ElementType::kU8;
    case torch::kInt8: return ElementType::kI8;
    case torch::kInt16: return ElementType::kI16;
    case torch::kInt32: return ElementType::kI32;
    case torch::kInt64: return ElementType::kI64;
    case torch::kFloat16: return ElementType::kF16;
    case torch::kBFloat16: return ElementType::kBF16;
    case torch::kFloat32: return ElementType::kF32;
    case torch::kFloat64: return ElementType::kF64;
    default: DDPRUN_ASSERT(false, "ProcessGroup has checked the dtype");
  }
}

std::vector<void*> written(const std::vector<torch::Tensor>& tensors) {
  std::vector<void*> pointers;
  for (const torch::Tensor& tensor : tensors) pointers.push_back(tensor.mutable_data_ptr());
  return pointers;
}

std::vector<const void*> read(const std::vector<torch::Tensor>& tensors) {
  std::vector<const void*> pointers;
  for (const torch::Tensor& tensor : tensors) pointers.push_back(tensor.const_data_ptr());
  return pointers;
}

}  // namespace

CpuBackend::CpuBackend(std::unique_ptr<CpuGroup> group) : group_(std::move(group)) {}

CpuBackend::~CpuBackend() {
  if (!executor_.is_idle()) group_->abort(kGroupDestroyed);
}

// Blocking calls with nothing before them run in the caller's thread: two thread switches would
// cost ten times the collective itself. The closures of the others keep the tensors alive.
template <class EngineCall>
Work CpuBackend::carry_out(CallOptions call, EngineCall engine_call) {
  const auto guarded = [engine_call = std::move(engine_call)](Duration timeout) -> Result<void> {
    try {
      return engine_call(timeout);
    } catch (...) {  // LibTorch, handing out the memory of a lazily copied tensor
      return error_in_flight("reach the memory of a tensor");
    }
  };
  if (!call.async && executor_.is_idle()) return detail::work_of(guarded(call.timeout));
  return Work(executor_.submit(
      [deadline = Deadline(call.timeout), guarded] { return guarded(deadline.remaining()); }));
}

Work CpuBackend::all_reduce(const torch::Tensor& tensor, ReduceOp op, CallOptions call) {
  return carry_out(call, [group = group_.get(), tensor, op](Duration timeout) {
    return group->all_reduce(tensor.mutable_data_ptr(), count_of(tensor), element_type_of(tensor),
                             op, timeout);
  });
}

Work CpuBackend::reduce(const torch::Tensor& tensor, ReduceOp op, int root, CallOptions call) {
  return carry_out(call, [group = group_.get(), tensor, op, root](Duration timeout) {
    return group->reduce(tensor.mutable_data_ptr(), count_of(tensor), element_type_of(tensor), op,
                         Rank(root), timeout);
  });
}

Work CpuBackend::broadcast(const torch::Tensor& tensor, int root, CallOptions call) {
  return carry_out(call, [group = group_.get(), tensor, root](Duration timeout) {
    return group->broadcast(tensor.mutable_data_ptr(), tensor.nbytes(), Rank(root), timeout);
  });
}

Work CpuBackend::all_gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                            CallOptions call) {
  return carry_out(call, [group = group_.get(), outputs, input](Duration timeout) {
    return group->all_gather(input.const_data_ptr(), written(outputs), input.nbytes(), timeout);
  });
}

Work CpuBackend::reduce_scatter(const torch::Tensor& output,
                                const std::vector<torch::Tensor>& inputs, ReduceOp op,
                                CallOptions call) {
  return carry_out(call, [group = group_.get(), output, inputs, op](Duration timeout) {
    return group->reduce_scatter(read(inputs), output.mutable_data_ptr(), count_of(output),
                                 element_type_of(output), op, timeout);
  });
}

Work CpuBackend::gather(const std::vector<torch::Tensor>& outputs, const torch::Tensor& input,
                        int root, CallOptions call) {
  return carry_out(call, [group = group_.get(), outputs, input, root](Duration timeout) {
    return group->gather(input.const_data_ptr(), written(outputs), input.nbytes(), Rank(root),
                         timeout);
  });
}

Work CpuBackend::scatter(const torch::Tensor& output, const std::vector<torch::Tensor>& inputs,
                         int root, CallOptions call) {
  return carry_out(call, [group = group_.get(), output, inputs, root](Duration timeout) {
    return group->scatter(read(inputs), output.mutable_data_ptr(), output.nbytes(), Rank(root),
                          timeout);
  });
}

Work CpuBackend::barrier(CallOptions call) {
  return carry_out(call,
                   [group = group_.get()](Duration timeout) { return group->barrier(timeout); });
}

Work CpuBackend::send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) {
  return carry_out(call, [group = group_.get(), tensor, destination, tag](Duration timeout) {
    return group->send(tensor.const_data_ptr(), tensor.nbytes(), Rank(destination), tag, timeout);
  });
}

Work CpuBackend::recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) {
  return carry_out(call, [group = group_.get(), tensor, source, tag](Duration timeout) {
    return group->recv(tensor.mutable_data_ptr(), tensor.nbytes(), Rank(source), tag, timeout);
  });
}

}  // namespace ddprun
