// EndedBackend: the cpu backend until the test ends it. From then on its collectives behave as
// NCCL calls that are aborted while a stream waits for them. Such a call is complete at once
// and carries no values. If the abort comes after the values (End::kBehindTheValues), the call
// carries all values, and only a wait with a timeout reports the failure.
//
//   run_with_ends(2, [](ProcessGroup& group, bool& has_ended) { ... has_ended = true; ... });
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/thread_world.h"
#include "tests/worker_lib/cpu_group/world.h"
#include "worker_lib/cpu_backend/backend_cpu.h"
#include "worker_lib/group/work_state.h"

namespace ddprun::testing_support {

enum class End { kBeforeTheValues, kBehindTheValues };

// FailedBehindItsValues: the state of a call that was aborted after its values had arrived.
class FailedBehindItsValues final : public detail::WorkState {
 public:
  void wait(std::optional<Duration> timeout) override {
    if (timeout) throw DistError(DistError::Kind::kStopped, "the call was aborted");
  }
  bool is_completed() override { return true; }
  std::exception_ptr exception() override { return nullptr; }
  int source_rank() override { return -1; }
  void record(FlightTicket ticket) override { ticket.end(/*failed=*/true); }
  void when_over(std::function<void()> then) override { then(); }
};

class EndedBackend final : public Backend {
 public:
  // has_ended: read in each call.
  EndedBackend(std::unique_ptr<Backend> backend, const bool& has_ended, End how)
      : backend_(std::move(backend)), has_ended_(has_ended), how_(how) {}

  const std::string& name() const override { return backend_->name(); }
  int rank() const override { return backend_->rank(); }
  int size() const override { return backend_->size(); }
  bool takes(torch::DeviceType type) const override { return backend_->takes(type); }
  Work all_reduce(TensorList tensors, Reduction how, CallOptions call) override {
    return ended([&] { return backend_->all_reduce(tensors, how, call); });
  }
  Work reduce(const torch::Tensor& tensor, Reduction how, int root, CallOptions call) override {
    return ended([&] { return backend_->reduce(tensor, how, root, call); });
  }
  Work broadcast(TensorList tensors, int root, CallOptions call) override {
    return ended([&] { return backend_->broadcast(tensors, root, call); });
  }
  Work all_gather(TensorList outputs, TensorList inputs, CallOptions call) override {
    return ended([&] { return backend_->all_gather(outputs, inputs, call); });
  }
  Work reduce_scatter(TensorList outputs, TensorList inputs, Reduction how,
                      CallOptions call) override {
    return ended([&] { return backend_->reduce_scatter(outputs, inputs, how, call); });
  }
  Work gather(TensorList outputs, const torch::Tensor& input, int root, CallOptions call) override {
    return ended([&] { return backend_->gather(outputs, input, root, call); });
  }
  Work scatter(const torch::Tensor& output, TensorList inputs, int root,
               CallOptions call) override {
    return ended([&] { return backend_->scatter(output, inputs, root, call); });
  }
  Work all_to_all(TensorList outputs, TensorList inputs, CallOptions call) override {
    return ended([&] { return backend_->all_to_all(outputs, inputs, call); });
  }
  Work barrier(CallOptions call) override {
    return ended([&] { return backend_->barrier(call); });
  }
  Work monitored_barrier(CallOptions call) override { return barrier(call); }
  Work send(const torch::Tensor& tensor, int destination, int tag, CallOptions call) override {
    return backend_->send(tensor, destination, tag, call);
  }
  Work recv(const torch::Tensor& tensor, int source, int tag, CallOptions call) override {
    return backend_->recv(tensor, source, tag, call);
  }
  std::vector<Work> batch(const std::vector<P2POp>& operations, CallOptions call) override {
    return backend_->batch(operations, call);
  }
  void abort(const std::string& reason) override { backend_->abort(reason); }

 private:
  template <class Call>
  Work ended(Call call) const {
    if (!has_ended_) return call();
    if (how_ == End::kBeforeTheValues) return {};
    call().wait();
    return Work(std::make_shared<FailedBehindItsValues>());
  }

  const std::unique_ptr<Backend> backend_;
  const bool& has_ended_;
  const End how_;
};

// Runs `rank_body` on each rank of a world whose backends are EndedBackends. Ranks are threads.
inline void run_with_ends(int size,
                          const std::function<void(ProcessGroup&, bool& has_ended)>& rank_body,
                          End how = End::kBeforeTheValues) {
  RunningStore store;
  expect_no_errors(errors_of_ranks(size, [&](int rank) {
    at::set_num_threads(1);
    bool has_ended = false;
    ProcessGroup group(
        std::make_unique<EndedBackend>(
            make_cpu_backend(form_rank(
                store.port(), std::string(static_cast<std::size_t>(size), 'a'), rank, "world")),
            has_ended, how),
        torch::kCPU, kPatience);
    rank_body(group, has_ended);
  }));
}

}  // namespace ddprun::testing_support
