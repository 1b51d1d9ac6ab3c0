#include "worker_lib/cpu_backend/backend_cpu.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/util/SmallVector.h>

#include <exception>

#include "base/deadline.h"
#include "worker_lib/collective/group_end.h"
#include "worker_lib/cpu_backend/device_staging.h"
#include "worker_lib/group/serial_executor.h"
#include "worker_lib/group/tensor_facts.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

// An engine call seldom has more tensors than this, and then allocates no heap memory for them.
using WritableVector = c10::SmallVector<WritableBytes, 8>;
using ReadableVector = c10::SmallVector<ReadableBytes, 8>;

WritableBytes memory_of(const torch::Tensor& tensor) {
  return {static_cast<char*>(tensor.mutable_data_ptr()), tensor.nbytes()};
}

ReadableBytes contents_of(const torch::Tensor& tensor) {
  return {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()};
}

WritableVector memory_of(TensorList tensors) {
  WritableVector list;
  for (const torch::Tensor& one : tensors) list.push_back(memory_of(one));
  return list;
}

ReadableVector contents_of(TensorList tensors) {
  ReadableVector list;
  for (const torch::Tensor& one : tensors) list.push_back(contents_of(one));
  return list;
}

// The engine has sums. A premultiplication is done before, in place if the result goes there
// anyway.
ReduceOp engine_op(const Reduction& how) {
  return how.op == ReduceOp::kPremulSum ? ReduceOp::kSum : how.op;
}

CpuCallOptions terms_of(TensorList tensors, Duration timeout) {
  CpuCallOptions terms(timeout);
  const ContentFacts content = content_of(tensors);
  terms.type = content.type;
  terms.types = content.types;
  return terms;
}

CpuCallOptions terms_of(const Reduction& how, Duration timeout) {
  CpuCallOptions terms(timeout);
  terms.asked = how.op;
  return terms;
}

bool needs_products(const Reduction& how) {
  return how.op == ReduceOp::kPremulSum && how.factor != 1;
}

// ProcessGroup tells autograd of a call. Here autograd would refuse inference tensors, because
// the thread of the asynchronous calls is not in inference mode.
using WithoutAutograd = at::AutoDispatchBelowADInplaceOrView;

// Complex numbers are multiplied as pairs. LibTorch would multiply with the complex number
// factor + 0i, which makes NaN of an infinite part.
torch::Tensor parts_of(const torch::Tensor& tensor) {
  return tensor.is_complex() ? torch::view_as_real(tensor) : tensor;
}

void multiply_in_place(const Reduction& how, TensorList tensors) {
  if (!needs_products(how)) return;
  const WithoutAutograd guard;
  for (const torch::Tensor& one : tensors) parts_of(one).mul_(how.factor);
}

std::vector<torch::Tensor> multiplied(const Reduction& how, TensorList tensors) {
  const WithoutAutograd guard;
  std::vector<torch::Tensor> products;
  for (const torch::Tensor& one : tensors) {
    products.push_back(torch::empty_like(one));
    parts_of(products.back()).copy_(parts_of(one) * how.factor);
  }
  return products;
}

constexpr StagedAccess kInPlace{
    .reads_written = true, .writes_on_this_rank = true, .can_be_cut = true};

bool is_on_host(TensorList tensors) { return tensors.empty() || tensors[0].is_cpu(); }

void complete(detail::HostWork& work, const Result<Rank>& received) {
  if (received) {
    work.complete({}, received->value);
  } else {
    work.complete(received.error());
  }
}

// Returns body(), or an error if LibTorch throws in it.
template <class Body>
auto or_error(const char* doing, const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (...) {
    return error_in_flight(doing);
  }
}

// LibTorch throws when it cannot provide the memory of a lazily copied tensor.
constexpr const char* kReachingMemory = "reach the memory of a tensor";

class CpuBackend final : public Backend {
 public:
  CpuBackend(std::shared_ptr<CpuGroup> group, std::vector<torch::DeviceType> devices,
             Duration close_grace)
      : devices_(std::move(devices)), close_grace_(close_grace), group_(std::move(group)) {}

  // A rank that drops a Work and leaves has still issued the call: the others are in it, or will
  // be. If an exception is propagating, the others should not wait for it, so this rank leaves at
  // once.
  ~CpuBackend() override {
    if (std::uncaught_exceptions() == 0) {
      const Deadline grace(close_grace_);
      executor_.await_idle(grace.remaining());
      group_->await_messages(grace.remaining());
    }
    if (!executor_.is_idle()) group_->abort(kGroupDestroyed);
  }

  const std::string& name() const override { return name_; }
  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }
  bool takes(torch::DeviceType type) const override {
    return std::ranges::find(devices_, type) != devices_.end();
  }

  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override {
    return carry_out(call, tensors, {}, kInPlace,
                     [how](CpuGroup& group, TensorList all, TensorList, Duration timeout) {
                       multiply_in_place(how, all);
                       return group.all_reduce(memory_of(all), element_type_of(all[0]),
                                               engine_op(how), terms_of(how, timeout));
                     });
  }

  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override {
    return carry_out(
        call, list_of(tensor), {},
        {.reads_written = true, .writes_on_this_rank = root == rank(), .can_be_cut = true},
        [how, root](CpuGroup& group, TensorList all, TensorList, Duration timeout) {
          torch::Tensor one = all[0];
          if (group.rank() == root) {
            multiply_in_place(how, all);
          } else if (needs_products(how)) {
            one = multiplied(how, all)[0];
          }
          const WritableBytes memory = memory_of(one);
          return group.reduce(list_of(memory), element_type_of(one), engine_op(how), Rank(root),
                              terms_of(how, timeout));
        });
  }

  Work broadcast(TensorList tensors, int root, CallOptions call) override {
    return carry_out(call, tensors, {},
                     {.reads_written = root == rank(),
                      .writes_on_this_rank = root != rank(),
                      .can_be_cut = true},
                     [root](CpuGroup& group, TensorList all, TensorList, Duration timeout) {
                       return group.broadcast(memory_of(all), Rank(root), terms_of(all, timeout));
                     });
  }

  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override {
    return carry_out(call, outputs, inputs, {},
                     [](CpuGroup& group, TensorList to, TensorList from, Duration timeout) {
                       return group.all_gather(contents_of(from), memory_of(to),
                                               terms_of(from, timeout));
                     });
  }

  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override {
    return carry_out(call, outputs, inputs, {},
                     [how](CpuGroup& group, TensorList to, TensorList from, Duration timeout) {
                       std::vector<torch::Tensor> products;
                       if (needs_products(how)) products = multiplied(how, from);
                       const TensorList given = products.empty() ? from : TensorList(products);
                       return group.reduce_scatter(contents_of(given), memory_of(to),
                                                   element_type_of(to[0]), engine_op(how),
                                                   terms_of(how, timeout));
                     });
  }

  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override {
    return carry_out(call, outputs, list_of(input), {},
                     [root](CpuGroup& group, TensorList to, TensorList from, Duration timeout) {
                       return group.gather(contents_of(from[0]), memory_of(to), Rank(root),
                                           terms_of(from, timeout));
                     });
  }

  Work scatter(const torch::Tensor& output, TensorList inputs, int root,
               CallOptions call) override {
    return carry_out(call, list_of(output), inputs, {},
                     [root](CpuGroup& group, TensorList to, TensorList from, Duration timeout) {
                       return group.scatter(contents_of(from), memory_of(to[0]), Rank(root),
                                            terms_of(to, timeout));
                     });
  }

  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override {
    return carry_out(call, outputs, inputs, {},
                     [](CpuGroup& group, TensorList to, TensorList from, Duration timeout) {
                       return group.all_to_all(contents_of(from), memory_of(to),
                                               terms_of(from, timeout));
                     });
  }

  Work barrier(CallOptions call) override {
    return carry_out(call, {}, {}, {},
                     [](CpuGroup& group, TensorList, TensorList, Duration timeout) {
                       return group.barrier(timeout);
                     });
  }

  // Messages run concurrently with collectives: the group carries out each when it can.
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override {
    if (!tensor.is_cpu()) {
      const Deadline deadline(call.timeout);
      const Result<torch::Tensor> host = on_host(tensor, deadline);
      if (!host) return detail::work_of(host.error());
      return send(*host, destination, tag, {.timeout = deadline.remaining(), .async = call.async});
    }
    const auto data =
        or_error(kReachingMemory, [&]() -> Result<const void*> { return tensor.const_data_ptr(); });
    if (!data) return detail::work_of(data.error());
    if (!call.async) {
      return detail::work_of(
          group_->send(*data, tensor.nbytes(), Rank(destination), tag, call.timeout));
    }
    auto work = std::make_shared<detail::HostWork>();
    group_->start_send(*data, tensor.nbytes(), Rank(destination), tag, call.timeout,
                       [work, kept = tensor](const Result<Rank>& sent) mutable {
                         kept.reset();  // before any thread sees the end
                         work->complete(sent ? Result<void>() : sent.error());
                       });
    return Work(std::move(work));
  }

  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override {
    auto work = std::make_shared<detail::HostWork>();
    if (tensor.is_cpu()) {
      return recv_on_host(tensor, source, tag, call, work,
                          [work](const Result<Rank>& received) { complete(*work, received); });
    }
    try {
      auto staged = std::make_shared<StagedCall>(list_of(tensor), TensorList(), StagedAccess());
      recv_on_host(staged->host_written()[0], source, tag, call, work,
                   [work, staged](const Result<Rank>& received) {
                     complete(*work, or_error("copy a tensor from the host", [&] {
                       if (received) staged->start_copy_to_device();
                       return received;
                     }));
                   });
      return staged_work(std::move(work), std::move(staged));
    } catch (...) {
      return detail::work_of(error_in_flight("make room on the host for a tensor"));
    }
  }

  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override {
    std::vector<Work> works;
    for (const P2POp& one : operations) {
      works.push_back(one.kind == P2POp::Kind::kSend ? send(one.tensor, one.peer, one.tag, call)
                                                     : recv(one.tensor, one.peer, one.tag, call));
    }
    return works;
  }

  torch::Tensor shared_empty(torch::IntArrayRef sizes, torch::ScalarType dtype) override {
    const std::size_t elements = c10::multiply_integers(sizes);
    std::shared_ptr<char> memory = group_->shared_memory(elements * c10::elementSize(dtype));
    if (!memory) return {};
    char* const data = memory.get();
    return torch::from_blob(
        data, sizes, [memory = std::move(memory)](void*) mutable { memory.reset(); }, dtype);
  }
  Work monitored_barrier(CallOptions call) override { return barrier(call); }
  bool sends_on_any_thread() const override { return true; }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  // Runs engine_call(group, written, read, timeout), now or in its turn.
  //
  // Blocking calls with nothing before them run on the caller's thread: two thread switches would
  // cost ten times the collective itself. The closures of the other calls keep the tensors alive.
  template <class EngineCall>
  Work carry_out(CallOptions call, TensorList written, TensorList read, StagedAccess access,
                 EngineCall engine_call) {
    const auto guarded = [engine_call = std::move(engine_call), group = group_.get()](
                             TensorList writes, TensorList reads, Duration timeout) {
      return or_error(kReachingMemory, [&]() -> Result<void> {
        return engine_call(*group, writes, reads, timeout);
      });
    };
    if (!is_on_host(written) || !is_on_host(read)) {
      return carry_out_staged(call, written, read, access, guarded);
    }
    if (!call.async && executor_.is_idle()) {
      return detail::work_of(guarded(written, read, call.timeout));
    }
    return Work(
        executor_.submit([deadline = Deadline(call.timeout), guarded,
                          writes = std::vector<torch::Tensor>(written.begin(), written.end()),
                          reads = std::vector<torch::Tensor>(read.begin(), read.end())] {
          return guarded(writes, reads, deadline.remaining());
        }));
  }

  // A failure on the way to the engine leaves the other ranks in the call. So it ends the group,
  // as a failure on their side would. A call after another one starts its copies in its turn,
  // because it may read that call's result.
  template <class EngineCall>
  Work carry_out_staged(CallOptions call, TensorList written, TensorList read, StagedAccess access,
                        EngineCall engine_call) {
    const auto ending_group = [group = group_.get()](auto body) -> Result<void> {
      const Result<void> result = or_error("copy a tensor between a device and the host", body);
      if (!result) group->abort(result.error().message());
      return result;
    };
    const Deadline deadline(call.timeout);
    const bool is_first = executor_.is_idle();
    std::shared_ptr<StagedCall> staged;
    StagedCall::ResultsEvent previous = last_staged_;
    const Result<void> begun = ending_group([&]() -> Result<void> {
      staged = std::make_shared<StagedCall>(written, read, access);
      if (is_first) staged->start_copy_to_host(previous);
      return {};
    });
    if (!begun) return detail::work_of(begun);
    last_staged_ = staged->results();
    const auto run = [=, group = group_.get()] {
      return ending_group([&] {
        if (!is_first) staged->start_copy_to_host(previous);
        return staged->run(*group, engine_call, deadline);
      });
    };
    if (call.async || !is_first) return staged_work(executor_.submit(run), staged);
    auto host = std::make_shared<detail::HostWork>();
    host->complete(run());
    return staged_work(std::move(host), std::move(staged));
  }

  Result<torch::Tensor> on_host(const torch::Tensor& tensor, const Deadline& deadline) {
    return or_error("copy a tensor to the host", [&]() -> Result<torch::Tensor> {
      StagedCall staged({}, list_of(tensor), {});
      staged.start_copy_to_host(nullptr);
      torch::Tensor host;
      const auto keep = [&host](TensorList, TensorList read, Duration) -> Result<void> {
        host = read[0];
        return {};
      };
      const Result<void> is_there = staged.run(*group_, keep, deadline);
      if (!is_there) return is_there.error();
      return host;
    });
  }

  // Receives; `end` completes the work.
  template <class End>
  Work recv_on_host(const torch::Tensor& tensor, int source, int tag, CallOptions call,
                    const std::shared_ptr<detail::HostWork>& work, End end) {
    const std::optional<Rank> from =
        source == kAnySource ? std::nullopt : std::optional(Rank(source));
    const auto data =
        or_error(kReachingMemory, [&]() -> Result<void*> { return tensor.mutable_data_ptr(); });
    if (!data) {
      end(data.error());
    } else if (!call.async) {
      end(group_->recv(*data, tensor.nbytes(), from, tag, call.timeout));
    } else {
      group_->start_recv(*data, tensor.nbytes(), from, tag, call.timeout,
                         [end, kept = tensor](const Result<Rank>& received) mutable {
                           kept.reset();  // before any thread sees the end
                           end(received);
                         });
    }
    return Work(work);
  }

  const std::string name_ = "cpu";
  StagedCall::ResultsEvent last_staged_;  // of the last staged collective
  const std::vector<torch::DeviceType> devices_;
  const Duration close_grace_;
  const std::shared_ptr<CpuGroup> group_;
  SerialExecutor executor_{"ddprun-group"};  // ends before the group that it uses
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend(std::shared_ptr<CpuGroup> group,
                                          std::vector<torch::DeviceType> devices,
                                          Duration close_grace) {
  return std::make_unique<CpuBackend>(std::move(group), std::move(devices), close_grace);
}

}  // namespace ddprun
