// Tests how the nccl backend makes its communicators, how it finds ranks that disagree or are
// missing, and how it ends. Against the double of NCCL; ranks are threads.
#include "worker_lib/nccl/engine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <barrier>
#include <latch>

#include "tests/support/rank_threads.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/calls.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::_;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::run_ranks;
using torch::Tensor;

class NcclGroups : public NcclOfAVersion {};

INSTANTIATE_TEST_SUITE_P(Of, NcclGroups, nccl_versions(), name_of_version);

// --- communicators

TEST_P(NcclGroups, FormingAGroupMakesNoCommunicatorAndTheFirstCallMakesOne) {
  run_ranks(3, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 3);
    EXPECT_EQ(cuda_.count("comm_init_rank"), 0);
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
    EXPECT_EQ(cuda_.count("comm_init_rank"), 0);
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    EXPECT_FALSE(world_.ranks.connect()->check({"group-7/nccl/id"})) << "all have it";
    backend->barrier(kCall).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_init_rank"), 3);
  EXPECT_EQ(cuda_.count("get_unique_id"), 1);
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
}

TEST_P(NcclGroups, ARankMayUseSeveralDevices) {
  cuda_.set_device_count(4);
  run_ranks(2, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 2);
    const Tensor first = torch::full({4}, rank + 1.0F);
    const Tensor second = torch::full({4}, 10.0F * (rank + 1));
    // Rank 0 has devices 0 and 1; rank 1 has 2 and 3.
    for (int i = 0; i < 2; ++i) {
      const Work one = sum_on(*backend, on_device(2 * rank, first));
      const Work other = sum_on(*backend, on_device(2 * rank + 1, second));
      one.wait(seconds(30));
      other.wait(seconds(30));
    }
    EXPECT_EQ(first[0].item<float>(), 6);
    EXPECT_EQ(second[0].item<float>(), 60);
    EXPECT_EQ(NcclDouble::current_device(), 0);
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
  });
  EXPECT_EQ(cuda_.count("comm_init_rank"), 4);
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
}

TEST_P(NcclGroups, RanksThatComeToUseTheirDevicesInAnotherOrderAreTold) {
  cuda_.set_device_count(2);
  std::latch done(2);
  run_ranks(2, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 2);
    const Tensor tensor = torch::ones({4});
    sum_on(*backend, on_device(0, tensor)).wait(seconds(30));
    const Work work = sum_on(*backend, on_device(rank, tensor));
    const DistError error = failure_of(work);
    EXPECT_EQ(error.kind(), DistError::Kind::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("all_reduce #2 of 4 f32 (sum) with tensors on devices that "
                                        "do not belong together"));
    done.arrive_and_wait();
  });
}

TEST_P(NcclGroups, AMessageBeforeTheFirstCollectiveNeedsItsTwoRanksOnly) {
  run_ranks(4, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 4);
    const Tensor tensor = torch::full({4}, static_cast<float>(rank));
    // A ring: each pair makes a communicator, and the ranks do not wait for each other in a
    // circle.
    const Tensor got = torch::zeros({4});
    if (rank < 3) {
      const std::vector<Work> works =
          backend->batch({{.kind = P2POp::Kind::kSend, .tensor = tensor, .peer = (rank + 1) % 3},
                          {.kind = P2POp::Kind::kRecv, .tensor = got, .peer = (rank + 2) % 3}},
                         kCall);
      for (const Work& one : works) one.wait(seconds(30));
      EXPECT_EQ(got[0].item<float>(), static_cast<float>((rank + 2) % 3));
      EXPECT_EQ(works[1].source_rank(), (rank + 2) % 3);
    }
    // Rank 3 arrives now. From here on, messages use the communicator of all ranks.
    sum_on(*backend, tensor).wait(seconds(30));
    if (rank == 3) backend->send(tensor, 0, 0, kCall).wait(seconds(30));
    if (rank == 0) backend->recv(got, 3, 0, kCall).wait(seconds(30));
    backend->barrier(kCall).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_init_rank"), 3 * 2 + 4);
}

TEST_P(NcclGroups, ManyRanksMeetAtSeveralRoots) {
  constexpr int kRanks = 7;
  run_ranks(kRanks, [&](int rank) {
    const auto backend = world_.ranks.make_alone(rank, kRanks, {.ranks_per_root = 3});
    const Tensor tensor = torch::ones({4});
    sum_on(*backend, tensor).wait(seconds(30));
    EXPECT_EQ(tensor[0].item<float>(), kRanks);
    for (const char* key : {"group-7/nccl/id", "group-7/nccl/id/1", "group-7/nccl/id/2"}) {
      EXPECT_FALSE(
          eventually([&] { return world_.ranks.connect()->check({key}); }, milliseconds(1)))
          << key;
    }
    backend->barrier(kCall).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_init_rank_scalable"), kRanks);
  EXPECT_EQ(cuda_.count("get_unique_id"), 3);
}

TEST_P(NcclGroups, MoreThan128RanksMeetAtSeveralRootsByThemselves) {
  constexpr int kRanks = 130;
  run_ranks(kRanks, [&](int rank) {
    const auto backend = world_.ranks.make_alone(rank, kRanks);
    sum_on(*backend, torch::ones({1})).wait(seconds(60));
  });
  EXPECT_EQ(cuda_.count("comm_init_rank_scalable"), kRanks);
  EXPECT_EQ(cuda_.count("get_unique_id"), 2);
}

TEST_P(NcclGroups, AnOldNcclHasOneRootForAll) {
  run_ranks(4, [&](int rank) {
    const auto backend = world_.old_ranks.make(rank, 4, {.ranks_per_root = 2});
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    EXPECT_FALSE(backend->shared_empty({4}, torch::kFloat32).defined());
    std::shared_ptr<void> seed;
    backend->split_off(0, rank, &seed, kCall).wait();
    EXPECT_EQ(seed, nullptr);
    backend->barrier(kCall).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_init_rank"), 4);
}

TEST_P(NcclGroups, RanksThatDoNotComeToTheFirstCallAreNamed) {
  std::latch over(2);
  run_ranks(4, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 4);
    if (rank == 0 || rank == 2) {
      const DistError late = failure_of(
          sum_on(*backend, torch::ones({4}), {.timeout = milliseconds(300), .async = true}));
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
      EXPECT_THAT(late.what(), HasSubstr("ranks 1 and 3 have not come (rank 1 has called nothing "
                                         "yet; rank 3 has called nothing yet)"));
      over.count_down();
    }
    over.wait();
  });
  EXPECT_EQ(cuda_.count("comm_abort"), 2);
}

TEST_P(NcclGroups, ARankZeroThatDoesNotComeIsNamed) {
  const auto backend = world_.ranks.make_alone(1, 2);
  const DistError late =
      failure_of(sum_on(*backend, torch::ones({4}), {.timeout = milliseconds(50), .async = true}));
  EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
  EXPECT_EQ(late.peer_rank(), 0);
  EXPECT_THAT(late.what(), HasSubstr("wait for the unique id of rank 0"));
}

TEST_P(NcclGroups, NobodyWaitsForAnIdThatRankZeroCannotMake) {
  cuda_.fail_next("get_unique_id", NcclResult::kSystemError);
  run_ranks(3, [&](int rank) {
    const auto backend = world_.ranks.make_alone(rank, 3);
    const DistError error = failure_of(sum_on(*backend, torch::ones({4})));
    EXPECT_THAT(error.what(), HasSubstr("a failure that was planned"));
    EXPECT_EQ(error.peer_rank(), rank == 0 ? -1 : 0);
  });
}

TEST_P(NcclGroups, AStreamThatCannotBeMadeEndsTheGroup) {
  cuda_.fail_next("stream_create", static_cast<CudaResult>(2));
  const auto backend = world_.ranks.make(0, 1);
  EXPECT_THAT(failure_of(sum_on(*backend, torch::ones({4}))).what(),
              HasSubstr("make a stream for NCCL"));
}

// --- failures

TEST_P(NcclGroups, ADeadlineNamesWhoHasNotComeAndWhatTheyCalledLast) {
  std::latch over(3);
  run_ranks(3, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 3);
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    if (rank != 1) {
      const DistError late = failure_of(
          sum_on(*backend, torch::ones({1000}), {.timeout = milliseconds(500), .async = true}));
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout) << late.what();
      EXPECT_EQ(late.peer_rank(), 1);
      EXPECT_THAT(
          late.what(),
          HasSubstr("nccl all_reduce #2 of 1000 Float (sum): it is not complete; rank 1 has not "
                    "come (rank 1 called last all_reduce #1 of 4 f32 (sum))"));
    }
    over.arrive_and_wait();
    // Rank 1 learns of the failure at its next call.
    const DistError next = failure_of(sum_on(*backend, torch::ones({4})));
    EXPECT_EQ(next.kind(), DistError::Kind::kStopped);
    EXPECT_THAT(next.what(), HasSubstr("rank 1 has not come"));
  });
}

TEST_P(NcclGroups, TheDeadlineOfABatchNamesThoseWhoseEndsHaveNotCome) {
  std::latch over(4);
  run_ranks(4, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 4);
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    const Tensor tensor = torch::ones({4});
    if (rank == 2) backend->send(tensor, 0, 0, kCall);
    if (rank == 0) {
      const std::vector<Tensor> got{torch::ones({4}), torch::ones({4}), torch::ones({4})};
      const auto recv = [&](int peer) {
        return P2POp{.kind = P2POp::Kind::kRecv, .tensor = got[peer - 1], .peer = peer};
      };
      const std::vector<Work> works = backend->batch({recv(1), recv(2), recv(3)},
                                                     {.timeout = milliseconds(500), .async = true});
      const DistError late = failure_of(works[1]);
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout) << late.what();
      EXPECT_EQ(late.peer_rank(), 1);
      EXPECT_THAT(late.what(), HasSubstr("batch_isend_irecv of 12 Float: it is not complete; "
                                         "ranks 1 and 3 have not come"));
    }
    over.arrive_and_wait();
  });
}

TEST_P(NcclGroups, EveryRankIsToldWhoCalledWhatWhenTheyDisagree) {
  std::latch over(4);
  run_ranks(4, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 4);
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    const TimePoint start = BootClock::now();
    // Several calls are in flight. Ranks 0 to 2 are in a collective, rank 3 is in none.
    cuda_.let_ranks_disagree();
    if (rank < 3) {
      std::vector<Work> works;
      works.push_back(sum_on(*backend, torch::ones({8})));
      works.push_back(rank == 1 ? backend->broadcast(list_of_one(torch::ones({8})), 1, kCall)
                                : sum_on(*backend, torch::ones({8})));
      works.push_back(backend->barrier(kCall));
      for (const Work& one : works) {
        const DistError error = failure_of(one);
        EXPECT_EQ(error.kind(), DistError::Kind::kInvalidArgument) << error.what();
        EXPECT_THAT(error.what(),
                    HasSubstr("the ranks disagree: ranks 0 and 2 called all_reduce #3 of 8 f32 "
                              "(sum); rank 1 called broadcast #3 of 8 f32 from rank 1; rank 3 "
                              "called nothing there yet"));
      }
      EXPECT_LT(BootClock::now() - start, seconds(1));
    }
    over.arrive_and_wait();
    if (rank == 3) {
      EXPECT_THAT(failure_of(sum_on(*backend, torch::ones({8}))).what(),
                  HasSubstr("ranks 0 and 2 called all_reduce #3"));
    }
  });
}

TEST_P(NcclGroups, BarriersOfTwoKindsDisagree) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 2);
    backend->barrier(kCall).wait(seconds(30));
    const Work work =
        rank == 0 ? backend->barrier(kCall) : backend->monitored_barrier({.timeout = seconds(30)});
    const DistError error = failure_of(work);
    EXPECT_EQ(error.kind(), DistError::Kind::kInvalidArgument) << error.what();
    EXPECT_THAT(error.what(), HasSubstr("rank 0 called barrier #2; rank 1 called "
                                        "monitored_barrier #2"));
    over.arrive_and_wait();
  });
}

TEST_P(NcclGroups, ComparingCallsCanBeSwitchedOff) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 2, {.compare_calls = false});
    cuda_.let_ranks_disagree();
    const CallOptions brief{.timeout = milliseconds(700), .async = true};
    const Work work =
        rank == 0 ? sum_on(*backend, torch::ones({8}), brief) : backend->barrier(brief);
    const DistError error = failure_of(work);
    EXPECT_EQ(error.kind(), DistError::Kind::kTimeout) << error.what();
    over.arrive_and_wait();
  });
}

TEST_P(NcclGroups, ARevokedCommunicatorIsQuietBeforeItIsFreed) {
  auto backend = world_.ranks.make(0, 1);
  cuda_.close_stream();
  const Work work = sum_on(*backend, torch::ones({4}));
  cuda_.make_abort_hang();
  const TimePoint start = BootClock::now();
  backend->abort("enough");
  EXPECT_LT(BootClock::now() - start, milliseconds(700)) << "stop_grace is 800 ms";
  EXPECT_THAT(failure_of(work).what(), HasSubstr("enough"));
  cuda_.open_stream();
  cuda_.let_abort_return();
  backend.reset();
  EXPECT_EQ(cuda_.count("comm_abort returned"), 1);
}

TEST_P(NcclGroups, AnAbortThatDoesNotReturnKeepsTheTensorsAndNobodyElse) {
  auto backend = world_.old_ranks.make(
      0, 1, {.stop_grace = milliseconds(100), .abort_grace = milliseconds(200)});
  cuda_.close_stream();
  Tensor tensor = torch::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> seen(tensor.getIntrusivePtr());
  const Work work = sum_on(*backend, tensor);
  tensor.reset();
  cuda_.make_abort_hang();
  const TimePoint start = BootClock::now();
  std::thread aborter([&] { backend->abort("enough"); });
  EXPECT_THAT(failure_of(work).what(), HasSubstr("enough"));
  EXPECT_LT(BootClock::now() - start, seconds(1));
  aborter.join();
  backend.reset();
  EXPECT_LT(BootClock::now() - start, seconds(2));
  EXPECT_FALSE(seen.expired()) << "a kernel may still write to it";
  cuda_.open_stream();
  cuda_.let_abort_return();
  EXPECT_TRUE(eventually([&] { return seen.expired(); }));
}

TEST_P(NcclGroups, AnAbortThatDoesNotReturnKeepsTheTensorsOfACallThatWasNotMadeYet) {
  auto backend = world_.old_ranks.make(
      0, 1, {.stop_grace = milliseconds(100), .abort_grace = milliseconds(200)});
  backend->barrier(kCall).wait(seconds(30));
  cuda_.make_abort_hang();
  cuda_.set_rounds_in_progress(1 << 30);
  Tensor tensor = torch::ones({4});
  const c10::weak_intrusive_ptr<c10::TensorImpl> seen(tensor.getIntrusivePtr());
  const DistError late =
      failure_of(sum_on(*backend, tensor, {.timeout = milliseconds(50), .async = true}));
  EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
  tensor.reset();
  backend.reset();
  EXPECT_FALSE(seen.expired()) << "a kernel may still write to it";
  cuda_.let_abort_return();
  EXPECT_TRUE(eventually([&] { return seen.expired(); }));
}

TEST_P(NcclGroups, ADestructorDoesNotWaitForADestroyThatHangs) {
  auto backend = world_.ranks.make(0, 1);
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  cuda_.make_abort_hang();
  const TimePoint start = BootClock::now();
  backend.reset();
  EXPECT_LT(BootClock::now() - start, seconds(5));
  cuda_.let_abort_return();
  EXPECT_TRUE(eventually([&] { return cuda_.count("comm_destroy") == 1; }));
}

// --- memory

TEST_P(NcclGroups, SharedTensorsAreNcclsMemoryThatItsCommunicatorKnows) {
  run_ranks(2, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 2);
    Tensor early = backend->shared_empty({2, 3}, torch::kFloat32);
    ASSERT_TRUE(early.defined());
    early.fill_(rank + 1);
    sum_on(*backend, early).wait(seconds(30));
    EXPECT_EQ(early[1][2].item<float>(), 3);
    const Tensor late = backend->shared_empty({8}, torch::kInt64);
    sum_on(*backend, early).wait(seconds(30));
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
    EXPECT_EQ(cuda_.registered_count(), 4);
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
    early.reset();
    backend->barrier(kCall).wait(seconds(30));
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
    EXPECT_EQ(cuda_.registered_count(), 2);
    EXPECT_EQ(cuda_.memory_count(), 2);
    backend->monitored_barrier({.timeout = seconds(30)}).wait();
  });
}

TEST_P(NcclGroups, ASharedTensorMayOutliveItsGroup) {
  auto backend = world_.ranks.make(0, 1);
  Tensor tensor = backend->shared_empty({4}, torch::kFloat32);
  tensor.fill_(7);
  sum_on(*backend, tensor).wait(seconds(30));
  EXPECT_EQ(cuda_.registered_count(), 1);
  backend.reset();
  EXPECT_EQ(cuda_.registered_count(), 0);
  EXPECT_EQ(tensor[3].item<float>(), 7);
  EXPECT_EQ(cuda_.memory_count(), 1);
  tensor.reset();
  EXPECT_EQ(cuda_.memory_count(), 0);
}

TEST_P(NcclGroups, ASharedTensorThatIsLetGoOfIsKeptUntilItsStreamHasPassed) {
  const auto backend = world_.ranks.make(0, 1);
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  Tensor tensor = backend->shared_empty({4}, torch::kFloat32);
  cuda_.close_stream();
  sum_on(*backend, tensor).wait();
  tensor.reset();
  sum_on(*backend, torch::ones({4})).wait();
  EXPECT_EQ(cuda_.memory_count(), 1);
  cuda_.open_stream();
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  EXPECT_EQ(cuda_.memory_count(), 0);
}

TEST_P(NcclGroups, WithoutNcclsMemoryASharedTensorIsAnOrdinaryOne) {
  const auto backend = world_.ranks.make(0, 1);
  cuda_.fail_next("mem_alloc", NcclResult::kUnhandledCudaError);
  EXPECT_FALSE(backend->shared_empty({4}, torch::kFloat32).defined());
  cuda_.fail_next("comm_register", NcclResult::kInvalidUsage);
  const Tensor tensor = backend->shared_empty({4}, torch::kFloat32);
  sum_on(*backend, tensor.fill_(1)).wait(seconds(30));
}

// --- CUDA graphs

TEST_P(NcclGroups, CallsAreCapturedIntoAGraphAndRunWithIt) {
  run_ranks(1, [&](int) {
    const auto backend = world_.ranks.make(0, 1);
    const Tensor warm = torch::ones({4});
    sum_on(*backend, warm).wait(seconds(30));
    const Tensor input = torch::ones({4});
    const Tensor output = torch::zeros({4});
    cuda_.begin_capture();
    // The call's deadline would have passed long before the graph runs.
    const Work work = backend->all_gather(list_of_one(output), list_of_one(input),
                                          {.timeout = milliseconds(1), .async = true});
    work.wait();
    work.wait(milliseconds(1));
    EXPECT_TRUE(work.is_completed()) << "for the host";
    cuda_.end_capture();
    work.wait();
    EXPECT_EQ(output[0].item<float>(), 0) << "it has not run";
    for (int i = 1; i <= 3; ++i) {
      input.fill_(i);
      cuda_.replay();
      EXPECT_EQ(output[0].item<float>(), i);
    }
    // Calls outside the graph still work.
    sum_on(*backend, warm).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
}

TEST_P(NcclGroups, WhatIsCalledBehindACapturedCallIsCapturedBehindIt) {
  const auto backend = world_.ranks.make(0, 1);
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  const Tensor tensor = torch::ones({4});
  cuda_.begin_capture();
  const auto future = sum_on(*backend, tensor).future();
  EXPECT_TRUE(future->completed());
  cuda_.end_capture();
}

TEST_P(NcclGroups, ASharedTensorInACaptureIsAnOrdinaryOne) {
  const auto backend = world_.ranks.make(0, 1);
  cuda_.begin_capture();
  EXPECT_FALSE(backend->shared_empty({4}, torch::kFloat32).defined());
  cuda_.end_capture();
  EXPECT_TRUE(backend->shared_empty({4}, torch::kFloat32).defined());
}

TEST_P(NcclGroups, WhatCannotBeCapturedIsRefusedAndTheGroupGoesOn) {
  const auto backend = world_.ranks.make(0, 1);
  cuda_.begin_capture();
  const DistError first = failure_of(sum_on(*backend, torch::ones({4})));
  EXPECT_EQ(first.kind(), DistError::Kind::kUnsupported);
  EXPECT_THAT(first.what(), HasSubstr("make one call before the capture"));
  cuda_.end_capture();
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  cuda_.begin_capture();
  const DistError barrier = failure_of(backend->barrier(kCall));
  EXPECT_EQ(barrier.kind(), DistError::Kind::kUnsupported);
  EXPECT_THAT(barrier.what(), HasSubstr("it blocks the host"));
  cuda_.end_capture();
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
}

// --- the factory

TEST_P(NcclGroups, AFactoryWithoutADriverSeesNoDevices) {
  const BackendFactory factory(NcclDouble::api());
  cuda_.set_device_count(2);
  EXPECT_EQ(factory.device_count(), 2);
  cuda_.fail_next("get_device_count", static_cast<CudaResult>(35));
  EXPECT_EQ(factory.device_count(), 0);
}

}  // namespace
}  // namespace ddprun
