#include "tests/support/thread_world.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <mutex>

#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/worker_lib/cpu/world.h"
#include "worker_lib/backend_cpu.h"

namespace ddprun::testing_support {

// Any thread.
class ThreadWorld::Record {
 public:
  // A rank has finished its next collective. The ranks finish the same ones in the same order; the
  // first to do so counts.
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

  Result<void> all_reduce(void* data, std::size_t count, ElementType type, ReduceOp op,
                          Duration timeout) override {
    return note({"all_reduce", count * size_of(type)},
                group_->all_reduce(data, count, type, op, timeout));
  }
  Result<void> reduce(void* data, std::size_t count, ElementType type, ReduceOp op, Rank root,
                      Duration timeout) override {
    return note({"reduce", count * size_of(type)},
                group_->reduce(data, count, type, op, root, timeout));
  }
  Result<void> broadcast(void* data, std::size_t bytes, Rank root, Duration timeout) override {
    return note({"broadcast", bytes}, group_->broadcast(data, bytes, root, timeout));
  }
  Result<void> all_gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                          Duration timeout) override {
    return note({"all_gather", bytes}, group_->all_gather(input, outputs, bytes, timeout));
  }
  Result<void> reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                              ElementType type, ReduceOp op, Duration timeout) override {
    return note({"reduce_scatter", count * size_of(type)},
                group_->reduce_scatter(inputs, output, count, type, op, timeout));
  }
  Result<void> gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                      Rank root, Duration timeout) override {
    return note({"gather", bytes}, group_->gather(input, outputs, bytes, root, timeout));
  }
  Result<void> scatter(std::span<const void* const> inputs, void* output, std::size_t bytes,
                       Rank root, Duration timeout) override {
    return note({"scatter", bytes}, group_->scatter(inputs, output, bytes, root, timeout));
  }
  Result<void> barrier(Duration timeout) override {
    return note({"barrier", 0}, group_->barrier(timeout));
  }
  Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                    Duration timeout) override {
    return group_->send(data, bytes, destination, tag, timeout);
  }
  Result<Rank> recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                    Duration timeout) override {
    return group_->recv(data, bytes, source, tag, timeout);
  }
  void start_send(const void* data, std::size_t bytes, Rank destination, int tag, Duration timeout,
                  TransferDone done) override {
    group_->start_send(data, bytes, destination, tag, timeout, std::move(done));
  }
  void start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                  Duration timeout, TransferDone done) override {
    group_->start_recv(data, bytes, source, tag, timeout, std::move(done));
  }
  std::optional<Error> failure() const override { return group_->failure(); }
  void abort(const std::string& reason) override { group_->abort(reason); }

 private:
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
        std::make_unique<CpuBackend>(std::make_unique<RecordedGroup>(
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
