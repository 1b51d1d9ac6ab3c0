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

// LibTorch throws when it cannot hand out the memory of a lazily copied tensor.
template <class Get>
auto with_memory(Get get) -> Result<decltype(get())> {
  try {
    return get();
  } catch (...) {
    return error_in_flight("reach the memory of a tensor");
  }
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

// Messages go beside the collectives: the group carries them out, each when it can.
Work CpuBackend::send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) {
  const Result<const void*> data = with_memory([&] { return tensor.const_data_ptr(); });
  if (!data) return detail::work_of(data.error());
  if (!call.async) {
    return detail::work_of(
        group_->send(*data, tensor.nbytes(), Rank(destination), tag, call.timeout));
  }
  auto work = std::make_shared<detail::HostWork>();
  group_->start_send(*data, tensor.nbytes(), Rank(destination), tag, call.timeout,
                     [work, kept = tensor](const Result<Rank>& sent) mutable {
                       kept.reset();  // before anybody learns of the end
                       work->complete(sent ? Result<void>() : sent.error());
                     });
  return Work(std::move(work));
}

Work CpuBackend::recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) {
  const Result<void*> data = with_memory([&] { return tensor.mutable_data_ptr(); });
  if (!data) return detail::work_of(data.error());
  const std::optional<Rank> from =
      source == kAnySource ? std::nullopt : std::optional(Rank(source));
  auto work = std::make_shared<detail::HostWork>();
  const auto end = [work](const Result<Rank>& received) {
    if (received) {
      work->complete({}, received->value);
    } else {
      work->complete(received.error());
    }
  };
  if (!call.async) {
    end(group_->recv(*data, tensor.nbytes(), from, tag, call.timeout));
  } else {
    group_->start_recv(*data, tensor.nbytes(), from, tag, call.timeout,
                       [end, kept = tensor](const Result<Rank>& received) mutable {
                         kept.reset();  // before anybody learns of the end
                         end(received);
                       });
  }
  return Work(std::move(work));
}

std::vector<Work> CpuBackend::batch(const std::vector<P2POp>& operations, CallOptions call) {
  std::vector<Work> works;
  for (const P2POp& one : operations) {
    works.push_back(one.kind == P2POp::Kind::kSend ? send(one.tensor, one.peer, one.tag, call)
                                                   : recv(one.tensor, one.peer, one.tag, call));
  }
  return works;
}

}  // namespace ddprun
