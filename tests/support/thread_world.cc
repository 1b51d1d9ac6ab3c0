#include "tests/support/thread_world.h"

#include <gtest/gtest.h>

#include <mutex>

#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/cpu_group/world.h"
#include "worker_lib/cpu_backend/backend_cpu.h"

namespace ddprun::testing_support {

// Record: the collectives that the ranks have done. Any thread.
class ThreadWorld::Record {
 public:
  // Records that a rank has finished its next collective. The ranks finish the same collectives
  // in the same order. The first rank to finish one adds it.
  void finished(std::size_t index_of_rank, Call call) {
    const std::lock_guard lock(mutex_);
    if (index_of_rank == calls_.size()) calls_.push_back(std::move(call));
  }
  std::vector<Call> calls() const {
    const std::lock_guard lock(mutex_);
    return calls_;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Call> calls_;
};

class ThreadWorld::RecordedGroup final : public CpuGroup {
 public:
  RecordedGroup(std::unique_ptr<CpuGroup> group, std::shared_ptr<Record> record)
      : group_(std::move(group)), record_(std::move(record)) {}

  int rank() const override { return group_->rank(); }
  int size() const override { return group_->size(); }

  Result<void> all_reduce(std::span<const WritableBytes> tensors, ElementType type, ReduceOp op,
                          const CpuCallOptions& terms) override {
    return note({"all_reduce", bytes_of(tensors)}, group_->all_reduce(tensors, type, op, terms));
  }
  Result<void> reduce(std::span<const WritableBytes> tensors, ElementType type, ReduceOp op,
                      Rank root, const CpuCallOptions& terms) override {
    return note({"reduce", bytes_of(tensors)}, group_->reduce(tensors, type, op, root, terms));
  }
  Result<void> broadcast(std::span<const WritableBytes> tensors, Rank root,
                         const CpuCallOptions& terms) override {
    return note({"broadcast", bytes_of(tensors)}, group_->broadcast(tensors, root, terms));
  }
  Result<void> all_gather(std::span<const ReadableBytes> inputs,
                          std::span<const WritableBytes> outputs,
                          const CpuCallOptions& terms) override {
    return note({"all_gather", bytes_of(inputs)}, group_->all_gather(inputs, outputs, terms));
  }
  Result<void> reduce_scatter(std::span<const ReadableBytes> inputs,
                              std::span<const WritableBytes> outputs, ElementType type, ReduceOp op,
                              const CpuCallOptions& terms) override {
    return note({"reduce_scatter", bytes_of(outputs)},
                group_->reduce_scatter(inputs, outputs, type, op, terms));
  }
  Result<void> gather(ReadableBytes input, std::span<const WritableBytes> outputs, Rank root,
                      const CpuCallOptions& terms) override {
    return note({"gather", input.size()}, group_->gather(input, outputs, root, terms));
  }
  Result<void> scatter(std::span<const ReadableBytes> inputs, WritableBytes output, Rank root,
                       const CpuCallOptions& terms) override {
    return note({"scatter", output.size()}, group_->scatter(inputs, output, root, terms));
  }
  Result<void> all_to_all(std::span<const ReadableBytes> inputs,
                          std::span<const WritableBytes> outputs,
                          const CpuCallOptions& terms) override {
    return note({"all_to_all", bytes_of(inputs)}, group_->all_to_all(inputs, outputs, terms));
  }
  Result<void> barrier(Duration timeout) override {
    return note({"barrier", 0}, group_->barrier(timeout));
  }
  Result<Rank> carry_out(const MessageRequest& request) override {
    return group_->carry_out(request);
  }
  void start(const MessageRequest& request, TransferDone done) override {
    group_->start(request, std::move(done));
  }
  std::shared_ptr<char> shared_memory(std::size_t bytes) override {
    return group_->shared_memory(bytes);
  }
  std::optional<Error> failure() const override { return group_->failure(); }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
  template <class Bytes>
  static std::size_t bytes_of(std::span<const Bytes> tensors) {
    std::size_t bytes = 0;
    for (const Bytes& one : tensors) bytes += one.size();
    return bytes;
  }

  Result<void> note(Call call, Result<void> result) {
    if (result) record_->finished(finished_++, std::move(call));
    return result;
  }

  const std::unique_ptr<CpuGroup> group_;
  const std::shared_ptr<Record> record_;
  std::size_t finished_ = 0;
};

ThreadWorld::ThreadWorld(int size, Timeout timeout) : size_(size), timeout_(timeout) {}

ThreadWorld::~ThreadWorld() = default;

std::vector<std::string> ThreadWorld::errors(const std::function<void(ProcessGroup&)>& rank_body) {
  testing_support::RunningStore store;
  const auto record = record_ = std::make_shared<Record>();
  return errors_of_ranks(size_, [&](int rank) {
    at::set_num_threads(1);
    ProcessGroup group(
        make_cpu_backend(std::make_unique<RecordedGroup>(
            form_rank(store.port(), std::string(static_cast<std::size_t>(size_), 'a'), rank,
                      "world"),
            record)),
        torch::kCPU, timeout_);
    rank_body(group);
  });
}

void ThreadWorld::run(const std::function<void(ProcessGroup&)>& rank_body) {
  expect_no_errors(errors(rank_body));
}

std::vector<ThreadWorld::Call> ThreadWorld::calls() const { return record_->calls(); }

}  // namespace ddprun::testing_support
