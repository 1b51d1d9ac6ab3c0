// Tests how the cpu backend passes calls to its engine. The engine is a double that the test
// lets continue. The results of collectives are tested in
// tests/worker_lib/group/backend_conformance_test.cc.
#include "worker_lib/cpu_backend/backend_cpu.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <thread>

#include "ddprun/error.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/tensor_list.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;

// The calls that a GatedGroup received, shared with the test.
struct EngineRecord {
  std::mutex mutex;
  std::condition_variable changed;
  bool is_open = true;  // calls return
  std::string aborted;
  std::vector<std::string> calls;
  std::vector<Duration> timeouts;
  std::thread::id last_thread;

  void open() {
    const std::lock_guard lock(mutex);
    is_open = true;
    changed.notify_all();
  }
};

// Rank 0 of 2. It records calls and carries out none.
class GatedGroup final : public CpuGroup {
 public:
  explicit GatedGroup(EngineRecord& record) : record_(record) {}

  int rank() const override { return 0; }
  int size() const override { return 2; }
  Result<void> all_reduce(std::span<const WritableBytes> tensors, ElementType type, ReduceOp op,
                          const CpuCallOptions& terms) override {
    return note(
        "all_reduce " + std::string(to_text(op)) + text_of(tensors) + " of " + to_text(type),
        terms.timeout);
  }
  Result<void> reduce(std::span<const WritableBytes> tensors, ElementType, ReduceOp op, Rank root,
                      const CpuCallOptions& terms) override {
    return note("reduce " + std::string(to_text(op)) + text_of(tensors) + " to " + to_text(root),
                terms.timeout);
  }
  Result<void> broadcast(std::span<const WritableBytes> tensors, Rank root,
                         const CpuCallOptions& terms) override {
    return note("broadcast" + text_of(tensors) + " from " + to_text(root), terms.timeout);
  }
  Result<void> all_gather(std::span<const ReadableBytes> inputs,
                          std::span<const WritableBytes> outputs,
                          const CpuCallOptions& terms) override {
    return note("all_gather" + text_of(inputs) + " to" + text_of(outputs), terms.timeout);
  }
  Result<void> reduce_scatter(std::span<const ReadableBytes> inputs,
                              std::span<const WritableBytes> outputs, ElementType, ReduceOp op,
                              const CpuCallOptions& terms) override {
    return note(
        "reduce_scatter " + std::string(to_text(op)) + text_of(inputs) + " to" + text_of(outputs),
        terms.timeout);
  }
  Result<void> gather(ReadableBytes, std::span<const WritableBytes> outputs, Rank root,
                      const CpuCallOptions& terms) override {
    return note("gather" + text_of(outputs) + " to " + to_text(root), terms.timeout);
  }
  Result<void> scatter(std::span<const ReadableBytes> inputs, WritableBytes, Rank root,
                       const CpuCallOptions& terms) override {
    return note("scatter" + text_of(inputs) + " from " + to_text(root), terms.timeout);
  }
  Result<void> all_to_all(std::span<const ReadableBytes> inputs,
                          std::span<const WritableBytes> outputs,
                          const CpuCallOptions& terms) override {
    return note("all_to_all" + text_of(inputs) + " to" + text_of(outputs), terms.timeout);
  }
  Result<void> barrier(Duration timeout) override { return note("barrier", timeout); }
  Result<Rank> carry_out(const MessageRequest& request) override {
    const std::string partner = request.partner < 0 ? "any" : std::to_string(request.partner);
    const Result<void> noted = note(
        (request.is_send ? "send " : "recv ") + std::to_string(request.bytes) +
            (request.is_send ? " to " : " from ") + partner + " tag " + std::to_string(request.tag),
        request.deadline.allowed());
    if (!noted) return noted.error();
    return Rank(request.partner < 0 ? 1 : request.partner);
  }
  void start(const MessageRequest& request, TransferDone done) override {
    transfers_.emplace_back([this, request, done = std::move(done)] { done(carry_out(request)); });
  }
  ~GatedGroup() override {
    if (std::ranges::any_of(transfers_, [](auto& one) { return one.joinable(); })) {
      if (!record_.is_open) abort("the process group was destroyed");
    }
    for (std::thread& one : transfers_) one.join();
  }
  std::shared_ptr<char> shared_memory(std::size_t) override { return nullptr; }
  std::optional<Error> failure() const override { return std::nullopt; }
  void abort(const std::string& reason) override {
    const std::lock_guard lock(record_.mutex);
    record_.aborted = reason;
    record_.changed.notify_all();
  }

 private:
  // Returns the bytes of each: " [24 8]".
  template <class Bytes>
  static std::string text_of(std::span<const Bytes> list) {
    std::string text = " [";
    for (const Bytes& one : list) {
      if (text.size() > 2) text += " ";
      text += std::to_string(one.size());
    }
    return text + "]";
  }

  Result<void> note(const std::string& call, Duration timeout) {
    std::unique_lock lock(record_.mutex);
    record_.calls.push_back(call);
    record_.timeouts.push_back(timeout);
    record_.last_thread = std::this_thread::get_id();
    record_.changed.wait(lock, [this] { return record_.is_open || !record_.aborted.empty(); });
    if (record_.aborted.empty()) return {};
    return Error{.kind = ErrorKind::kStopped, .doing = call, .cause = record_.aborted};
  }

  EngineRecord& record_;
  std::vector<std::thread> transfers_;
};

class CpuBackendTest : public testing::Test {
 protected:
  static constexpr CallOptions kBlocking{.timeout = seconds(60)};
  static constexpr CallOptions kAsync{.timeout = seconds(60), .async = true};

  EngineRecord engine_;
  std::unique_ptr<Backend> backend_ = make_cpu_backend(std::make_unique<GatedGroup>(engine_));
  const torch::Tensor x_ = torch::ones({6}, torch::kFloat64);
};

TEST_F(CpuBackendTest, EveryCallReachesTheEngineWithItsSizes) {
  const std::vector<torch::Tensor> two{torch::zeros({6}), torch::zeros({2})};
  const std::vector<torch::Tensor> four{two[0], two[1], two[0], two[1]};
  backend_->all_reduce(list_of_one(x_), {ReduceOp::kMax}, kBlocking);
  backend_->all_reduce(two, {ReduceOp::kSum}, kBlocking);
  backend_->reduce(x_, {ReduceOp::kSum}, 1, kBlocking);
  backend_->broadcast(two, 1, kBlocking);
  backend_->all_gather(four, two, kBlocking);
  backend_->reduce_scatter(two, four, {ReduceOp::kSum}, kBlocking);
  backend_->gather(two, two[0], 0, kBlocking);
  backend_->gather({}, two[0], 1, kBlocking);
  backend_->scatter(two[0], two, 0, kBlocking);
  backend_->all_to_all(two, two, kBlocking);
  backend_->barrier(kBlocking);
  backend_->monitored_barrier(kBlocking);
  backend_->send(x_, 1, 7, kBlocking);
  backend_->recv(x_, 1, 8, kBlocking);
  backend_->recv(x_, kAnySource, 9, kBlocking);
  EXPECT_THAT(
      engine_.calls,
      ElementsAre("all_reduce max [48] of f64", "all_reduce sum [24 8] of f32",
                  "reduce sum [48] to 1", "broadcast [24 8] from 1",
                  "all_gather [24 8] to [24 8 24 8]", "reduce_scatter sum [24 8 24 8] to [24 8]",
                  "gather [24 8] to 0", "gather [] to 1", "scatter [24 8] from 0",
                  "all_to_all [24 8] to [24 8]", "barrier", "barrier", "send 48 to 1 tag 7",
                  "recv 48 from 1 tag 8", "recv 48 from any tag 9"));
}

TEST_F(CpuBackendTest, EveryDtypeHasItsElementType) {
  for (const auto& [dtype, name] :
       std::vector<std::pair<torch::ScalarType, std::string>>{{torch::kBool, "bool"},
                                                              {torch::kBFloat16, "bf16"},
                                                              {torch::kComplexFloat, "c64"},
                                                              {torch::kComplexDouble, "c128"}}) {
    backend_->all_reduce(list_of_one(torch::zeros({1}, dtype)), {ReduceOp::kSum}, kBlocking);
    EXPECT_THAT(engine_.calls.back(), testing::EndsWith(" of " + name));
  }
}

// The parts are multiplied separately: an infinite part does not make the other part a NaN.
TEST_F(CpuBackendTest, ComplexNumbersAreMultipliedPartByPart) {
  const Reduction halves{.op = ReduceOp::kPremulSum, .factor = 0.5};
  const double infinite = std::numeric_limits<double>::infinity();
  const auto values = [&](double real, double imaginary) {
    return torch::view_as_complex(torch::tensor({{real, imaginary}}, torch::kFloat64));
  };
  const torch::Tensor in_place = values(infinite, 1);
  backend_->all_reduce(list_of_one(in_place), halves, kBlocking);
  EXPECT_TRUE(torch::equal(in_place, values(infinite, 0.5))) << in_place;
  const torch::Tensor read = values(1, -infinite), share = values(0, 0);
  backend_->reduce_scatter(list_of_one(share), list_of_one(read), halves, kBlocking);
  EXPECT_TRUE(torch::equal(read, values(1, -infinite)));
}

// The engine has no such operation, so the backend multiplies first. Inputs must not change.
TEST_F(CpuBackendTest, ValuesAreMultipliedBeforeTheirSumIsMade) {
  const Reduction halves{.op = ReduceOp::kPremulSum, .factor = 0.5};
  const torch::Tensor ones = torch::ones({2});
  backend_->all_reduce(list_of_one(ones), halves, kBlocking);
  EXPECT_TRUE(torch::equal(ones, torch::full({2}, 0.5)));

  backend_->reduce(x_, halves, 1, kBlocking);  // this rank is not the root
  EXPECT_TRUE(torch::equal(x_, torch::ones({6}, torch::kFloat64)));
  backend_->reduce(x_, halves, 0, kBlocking);
  EXPECT_TRUE(torch::equal(x_, torch::full({6}, 0.5, torch::kFloat64)));

  const std::vector<torch::Tensor> inputs{torch::ones({2}), torch::ones({2})};
  backend_->reduce_scatter(list_of_one(ones), inputs, halves, kBlocking);
  EXPECT_TRUE(torch::equal(inputs[0], torch::ones({2})));
  EXPECT_THAT(engine_.calls.back(), "reduce_scatter sum [8 8] to [8]");
}

TEST_F(CpuBackendTest, InferenceTensorsAreMultipliedToo) {
  torch::Tensor ones;
  {
    const c10::InferenceMode guard;
    ones = torch::ones({2});
  }
  for (const CallOptions& call : {kBlocking, kAsync}) {
    EXPECT_NO_THROW(
        backend_->all_reduce(list_of_one(ones), {.op = ReduceOp::kPremulSum, .factor = 2}, call)
            .wait());
  }
  EXPECT_TRUE(torch::equal(ones, torch::full({2}, 4.0)));
}

TEST_F(CpuBackendTest, ABlockingCallRunsInTheCallersThread) {
  EXPECT_TRUE(backend_->all_reduce(list_of_one(x_), {ReduceOp::kSum}, kBlocking).is_completed());
  EXPECT_EQ(engine_.last_thread, std::this_thread::get_id());
}

TEST_F(CpuBackendTest, ABlockingCallBehindAsynchronousOnesTakesItsTurn) {
  engine_.is_open = false;
  const Work first = backend_->all_reduce(list_of_one(x_), {ReduceOp::kSum}, kAsync);
  const Work second = backend_->broadcast(list_of_one(x_), 0, kAsync);
  const Work third = backend_->barrier(kBlocking);
  EXPECT_FALSE(first.is_completed());
  EXPECT_FALSE(third.is_completed());
  engine_.open();
  third.wait(seconds(30));
  EXPECT_TRUE(second.is_completed());
  EXPECT_THAT(engine_.calls,
              ElementsAre("all_reduce sum [48] of f64", "broadcast [48] from 0", "barrier"));
  EXPECT_NE(engine_.last_thread, std::this_thread::get_id());
}

TEST_F(CpuBackendTest, ATimeoutRunsFromTheCallAndNotFromItsTurn) {
  engine_.is_open = false;
  backend_->barrier(kAsync);
  const Work late = backend_->barrier({.timeout = milliseconds(1), .async = true});
  const Work patient = backend_->barrier({.timeout = seconds(60), .async = true});
  testing_support::let_pass(milliseconds(2));
  engine_.open();
  patient.wait(seconds(30));
  EXPECT_EQ(engine_.timeouts[1], Duration::zero());
  EXPECT_LE(engine_.timeouts[2], seconds(60) - milliseconds(2));
  EXPECT_GT(engine_.timeouts[2], seconds(1));
}

TEST_F(CpuBackendTest, MessagesGoBesideCollectivesAndKeepTheirTensors) {
  engine_.is_open = false;
  const Work collective = backend_->barrier(kAsync);
  torch::Tensor tensor = torch::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> seen(tensor.getIntrusivePtr());
  const Work received = backend_->recv(tensor, kAnySource, 3, kAsync);
  const std::vector<Work> batch =
      backend_->batch({{P2POp::Kind::kSend, tensor, 1, 1}, {P2POp::Kind::kRecv, x_, 1, 2}}, kAsync);
  tensor.reset();
  EXPECT_TRUE(testing_support::eventually([&] {
    const std::lock_guard lock(engine_.mutex);
    return engine_.calls.size() == 4;
  }));
  EXPECT_EQ(received.source_rank(), -1) << "it is not complete";
  EXPECT_FALSE(seen.expired());
  engine_.open();
  for (const Work& work : {received, batch[0], batch[1]}) work.wait(seconds(30));
  EXPECT_TRUE(seen.expired());
  EXPECT_EQ(received.source_rank(), 1);
  EXPECT_EQ(batch[0].source_rank(), -1);
  EXPECT_EQ(batch[1].source_rank(), 1);
  collective.wait(seconds(30));
}

TEST_F(CpuBackendTest, WhatWasIssuedStillHappensWhenItIsDestroyed) {
  engine_.is_open = false;
  const Work dropped = backend_->all_reduce(list_of_one(x_), {ReduceOp::kSum}, kAsync);
  backend_->barrier(kAsync);
  std::thread others([&] {
    testing_support::let_pass(milliseconds(2));
    engine_.open();
  });
  backend_.reset();
  others.join();
  EXPECT_EQ(engine_.aborted, "");
  EXPECT_EQ(engine_.calls.size(), 2u);
  dropped.wait(seconds(30));
}

TEST_F(CpuBackendTest, AnExceptionThatPassesIsNotHeldUp) {
  engine_.is_open = false;
  EXPECT_THROW(
      {
        const std::unique_ptr<Backend> ends_here = std::move(backend_);
        ends_here->barrier(kAsync);
        throw std::runtime_error("the training has failed");
      },
      std::runtime_error);
  EXPECT_EQ(engine_.aborted, "the process group was destroyed");
}

TEST_F(CpuBackendTest, DestroyingItAbortsWhatDoesNotGetOverAndFailsItsWorks) {
  engine_.is_open = false;
  backend_ = make_cpu_backend(std::make_unique<GatedGroup>(engine_), std::vector{torch::kCPU},
                              milliseconds(2));
  std::vector<Work> works;
  for (int i = 0; i < 5; ++i)
    works.push_back(backend_->all_reduce(list_of_one(x_), {ReduceOp::kSum}, kAsync));
  backend_.reset();
  EXPECT_EQ(engine_.aborted, "the process group was destroyed");
  for (const Work& work : works) {
    EXPECT_DIST_ERROR(work.wait(seconds(30)), DistError::Kind::kStopped, testing::_);
  }
}

TEST_F(CpuBackendTest, DestroyingAnIdleOneAbortsNothing) {
  backend_->barrier(kAsync).wait(seconds(30));
  backend_.reset();
  EXPECT_EQ(engine_.aborted, "");
}

TEST_F(CpuBackendTest, TensorsLiveUntilTheirCallIsOver) {
  engine_.is_open = false;
  torch::Tensor tensor = torch::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> seen(tensor.getIntrusivePtr());
  const Work work = backend_->all_reduce(list_of_one(tensor), {ReduceOp::kSum}, kAsync);
  tensor.reset();
  EXPECT_FALSE(seen.expired());
  engine_.open();
  work.wait(seconds(30));
  EXPECT_TRUE(seen.expired());
}

}  // namespace
}  // namespace ddprun
