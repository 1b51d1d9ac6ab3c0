// Tests how the nccl backend uses NCCL and CUDA, against the double of both. The results of
// its collectives are tested in tests/worker_lib/group/backend_conformance_test.cc.
#include "worker_lib/nccl/backend_nccl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>

#include "tests/support/eventually.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/store_of.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/calls.h"
#include "worker_lib/cpu_group/solo_group.h"
#include "worker_lib/flight/worker_reporter.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::kPatience;
using testing_support::run_ranks;
using testing_support::store_of;
using torch::Tensor;

std::unique_ptr<Backend> world_of_one(const NcclBackendOptions& changed = {},
                                      std::unique_ptr<CpuGroup> peers = nullptr) {
  NcclBackendOptions options = changed;
  options.device = torch::kCPU;
  options.close_grace = milliseconds(200);
  return BackendFactory(NcclDouble::api()).make(nullptr, options, std::move(peers));
}

// --- streams

TEST(NcclBackend, ACallWaitsForTheCallersStreamAndMarksItsEnd) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  backend->barrier(kCall).wait(seconds(30));  // makes the communicator
  const std::size_t before = cuda.calls().size();
  // The stream is closed, so that the call is not over yet when the wait begins.
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  work.wait();
  std::vector<std::string> calls = cuda.calls();
  cuda.open_stream();
  calls.erase(calls.begin(), calls.begin() + static_cast<std::ptrdiff_t>(before));
  EXPECT_THAT(calls, ElementsAre("event_record", "stream_wait_event", "all_reduce", "event_record",
                                 "stream_wait_event"));
}

// Else a rank that runs ahead of its GPU would look as if it waited for the others.
TEST(NcclBackend, AWaitOfTheStreamIsNoWaitOfTheRank) {
  NcclDouble cuda;
  const auto reporter = WorkerReporter::open({});
  ASSERT_TRUE(reporter->has_page());
  const auto page = MappedPages::map(reporter->place(), MappedPages::Access::kRead).value();
  ProcessGroup group(world_of_one(), torch::kCPU, seconds(60), reporter);
  cuda.close_stream();
  const Work work = group.all_reduce(torch::ones({4}));  // not async
  EXPECT_FALSE(work.is_completed());
  cuda.open_stream();
  EXPECT_TRUE(eventually([&] { return work.is_completed(); }));
  EXPECT_FALSE(oldest_in_progress(page[0]));
  EXPECT_EQ(page[0].waited_ns.load(), 0u);
}

TEST(NcclBackend, WhatTheCallersStreamStillHasToDoComesFirst) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  EXPECT_FALSE(work.is_completed());
  EXPECT_THROW(work.wait(milliseconds(1)), DistError);
  cuda.open_stream();
  work.wait(seconds(30));
  EXPECT_TRUE(work.is_completed());
}

TEST(NcclBackend, WaitingBlocksTheCallersStreamAndNotTheHost) {
  NcclDouble cuda;
  testing_support::RunningStore store;
  std::latch issued(2);
  run_ranks(2, [&](int rank) {
    const auto backend =
        BackendFactory(NcclDouble::api())
            .make(store_of(store.port()), {.rank = rank, .world_size = 2, .device = torch::kCPU});
    backend->barrier(kCall).wait(seconds(30));  // makes the communicator
    if (rank == 0) {
      const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
      work.wait();  // rank 1 has not called all_reduce yet
      EXPECT_FALSE(cuda.is_stream_idle());
      issued.count_down();
    } else {
      issued.count_down();
      issued.wait();
      backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
    }
    EXPECT_TRUE(eventually([&] { return cuda.is_stream_idle(); }));
  });
}

TEST(NcclBackend, EventsAreUsedAgain) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  for (int i = 0; i < 10; ++i) {
    backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall).wait(seconds(30));
  }
  EXPECT_EQ(cuda.count("event_create"), 1);
}

TEST(NcclBackend, ATensorLivesUntilTheCallIsOver) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.close_stream();
  Tensor tensor = torch::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> seen(tensor.getIntrusivePtr());
  const Work work = backend->all_reduce(list_of_one(tensor), {ReduceOp::kSum}, kCall);
  tensor.reset();
  EXPECT_FALSE(seen.expired());
  cuda.open_stream();
  EXPECT_TRUE(eventually([&] { return seen.expired(); }));
}

TEST(NcclBackend, TheCallersDeviceMayBeAnotherAndStaysCurrent) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  NcclDouble::api().set_device(3);
  backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall).wait(seconds(30));
  EXPECT_EQ(NcclDouble::current_device(), 3);
  NcclDouble::api().set_device(0);
}

TEST(NcclBackend, MessagesToSeveralRanksAreOneGroup) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  backend->gather(list_of_one(torch::zeros({4})), torch::ones({4}), 0, kCall).wait(seconds(30));
  EXPECT_EQ(cuda.count("group_start"), 1);
  EXPECT_EQ(cuda.count("group_end"), 1);
}

TEST(NcclBackend, WhatIsCalledWhenACallIsOverMayMakeTheNextOne) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  std::atomic<bool> is_made = false;
  cuda.close_stream();
  const Work first = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  first.future()->addCallback([&](c10::ivalue::Future&) {
    backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
    is_made = true;
  });
  cuda.open_stream();
  EXPECT_TRUE(eventually([&] { return is_made.load(); }));
}

TEST(NcclBackend, WhatIsCalledWhenACallIsOverIsNotCalledInTheMiddleOfAnother) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  const std::thread::id caller = std::this_thread::get_id();
  for (int i = 0; i < 10; ++i) {
    std::atomic<bool> is_called = false;
    cuda.close_stream();
    const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
    work.future()->addCallback([&](c10::ivalue::Future&) {
      EXPECT_NE(std::this_thread::get_id(), caller);
      is_called = true;
    });
    cuda.open_stream();
    // This call is most likely the first to see that the other one is over.
    backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
    EXPECT_TRUE(eventually([&] { return is_called.load(); }));
  }
}

// --- failures

TEST(NcclBackend, WhatIsCalledWhenACallFailsMayMakeCalls) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  bool is_called = false;
  work.future()->addCallback([&](c10::ivalue::Future&) {
    EXPECT_EQ(failure_of(backend->barrier(kCall)).kind(), DistError::Kind::kStopped);
    is_called = true;
  });
  backend->abort("enough");
  EXPECT_TRUE(is_called);
  cuda.open_stream();
}

TEST(NcclBackend, ADeadPeerThatNcclNoticesFirstIsNamed) {
  NcclDouble cuda;
  auto peers = make_solo_group();
  CpuGroup& group = *peers;
  const auto backend = world_of_one({}, std::move(peers));
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  cuda.set_async_error(0, NcclResult::kRemoteError);
  EXPECT_FALSE(eventually([&] { return work.is_completed(); }, milliseconds(60)));
  group.abort("rank 3 died");
  EXPECT_THAT(failure_of(work).what(), HasSubstr("nccl group: rank 3 died"));
  cuda.open_stream();
}

TEST(NcclBackend, WhatNcclNoticesEndsEverythingInFlightWithinASecond) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.close_stream();
  const Work first = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  const Work second = backend->broadcast(list_of_one(torch::ones({4})), 0, kCall);
  const TimePoint start = BootClock::now();
  cuda.set_async_error(0, NcclResult::kRemoteError);
  EXPECT_EQ(failure_of(first).kind(), DistError::Kind::kPeerLost);
  EXPECT_EQ(failure_of(second).kind(), DistError::Kind::kPeerLost);
  EXPECT_LT(BootClock::now() - start, seconds(1));
  EXPECT_EQ(cuda.count("comm_abort"), 1);
  const DistError later = failure_of(backend->barrier(kCall));
  EXPECT_EQ(later.kind(), DistError::Kind::kStopped);
  EXPECT_THAT(later.what(), HasSubstr("nccl barrier #3: the group has ended: nccl group: NCCL"));
  cuda.open_stream();
}

TEST(NcclBackend, ADeadlineThatPassesNamesTheCallAndEndsTheGroup) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({1000})), {ReduceOp::kSum},
                                        {.timeout = milliseconds(30), .async = true});
  const DistError late = failure_of(work);
  EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
  EXPECT_EQ(late.allowed(), milliseconds(30));
  EXPECT_THAT(late.what(), HasSubstr("nccl all_reduce #1 of 1000 Float (sum): it is not complete"));
  EXPECT_TRUE(eventually([&] { return cuda.count("comm_abort") == 1; }));
  cuda.open_stream();
}

TEST(NcclBackend, AFailureOfAnyCallEndsTheGroup) {
  for (const std::string call : {"event_create", "event_record", "stream_wait_event", "all_gather",
                                 "memcpy_async", "event_query"}) {
    NcclDouble cuda;
    const auto backend = world_of_one();
    cuda.fail_next(call, static_cast<CudaResult>(1));
    const Work work =
        backend->all_gather(list_of_one(torch::zeros({4})), list_of_one(torch::ones({4})), kCall);
    if (call == "memcpy_async") {
      // With a world of one, the outputs are one block, so nothing was copied.
      work.wait(seconds(30));
      backend->gather(list_of_one(torch::zeros({4})), torch::ones({4}), 0, kCall);
    }
    EXPECT_TRUE(eventually([&] { return cuda.count("comm_abort") == 1; })) << call;
    const DistError later = failure_of(backend->barrier(kCall));
    EXPECT_EQ(later.kind(), DistError::Kind::kStopped) << call;
    EXPECT_THAT(later.what(), HasSubstr("a failure that was planned")) << call;
  }
}

TEST(NcclBackend, ADeviceThatAnswersNoQuestionEndsTheGroup) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.fail_next("stream_is_capturing", static_cast<CudaResult>(700));
  const auto call = [&] {
    return failure_of(backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall));
  };
  EXPECT_THAT(call().what(), HasSubstr("nccl all_reduce #1 of 4 Float (sum): CUDA: a failure"));
  EXPECT_EQ(call().kind(), DistError::Kind::kStopped);
}

TEST(NcclBackend, ACallThatThereIsNoMemoryForEndsTheGroup) {
  NcclDouble cuda;
  const auto backend = BackendFactory(NcclDouble::api())
                           .make(nullptr, {.rank = 1, .world_size = 4, .device = torch::kCPU});
  // Four of these tensors overflow the size, and they are not contiguous with each other.
  float memory = 0;
  const auto huge = [&memory] { return torch::from_blob(&memory, {std::int64_t{1} << 59}); };
  const std::vector<Tensor> outputs{huge(), huge(), huge(), huge()};
  const Work work = backend->all_gather(outputs, list_of_one(huge()), kCall);
  EXPECT_THAT(failure_of(work).what(), HasSubstr("make room for the tensors of all ranks"));
  const DistError later = failure_of(backend->barrier(kCall));
  EXPECT_EQ(later.kind(), DistError::Kind::kStopped);
  EXPECT_THAT(later.what(), HasSubstr("make room for the tensors of all ranks"));
}

TEST(NcclBackend, AnAbortFromAnotherThreadEndsAWait) {
  NcclDouble cuda;
  const auto backend = world_of_one();
  cuda.close_stream();
  const Work work = backend->barrier(kCall);
  std::thread other([&] { backend->abort("the generation ended"); });
  const DistError stopped = failure_of(work);
  EXPECT_EQ(stopped.kind(), DistError::Kind::kStopped);
  EXPECT_THAT(stopped.what(), HasSubstr("the generation ended"));
  other.join();
  cuda.open_stream();
}

TEST(NcclBackend, ADeadPeerEndsWhatIsInFlight) {
  NcclDouble cuda;
  auto peers = make_solo_group();
  CpuGroup& group = *peers;
  const auto backend = world_of_one({}, std::move(peers));
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  EXPECT_FALSE(work.is_completed());
  const TimePoint start = BootClock::now();
  group.abort("rank 3 died");
  EXPECT_THAT(failure_of(work).what(), HasSubstr("nccl group: rank 3 died"));
  EXPECT_LT(BootClock::now() - start, seconds(10)) << "the call's deadline is after 60 s";
  cuda.open_stream();
}

TEST(NcclBackend, ItsDestructorDoesNotWaitForAnAbortThatHangs) {
  NcclDouble cuda;
  auto backend = world_of_one({.abort_grace = milliseconds(50)});
  cuda.close_stream();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  cuda.make_abort_hang();
  const TimePoint start = BootClock::now();
  backend.reset();
  EXPECT_LT(BootClock::now() - start, seconds(5));
  EXPECT_EQ(failure_of(work).kind(), DistError::Kind::kStopped);
  cuda.open_stream();
  cuda.let_abort_return();
  // The abandoned thread uses the double until then.
  EXPECT_TRUE(eventually([&] { return cuda.count("comm_abort returned") == 1; }));
}

TEST(NcclBackend, ItsDestructorLetsFinishWhatCanFinish) {
  NcclDouble cuda;
  auto backend = world_of_one();
  const Work work = backend->all_reduce(list_of_one(torch::ones({4})), {ReduceOp::kSum}, kCall);
  backend.reset();
  work.wait(seconds(30));
  EXPECT_EQ(cuda.count("comm_abort"), 0);
  EXPECT_EQ(cuda.count("comm_destroy"), 1);
}

}  // namespace
}  // namespace ddprun
