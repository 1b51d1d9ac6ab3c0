// Tests how the nccl backend splits its communicator, against the double of NCCL. Also tests
// how a communicator ends that has not formed, is in progress, blocks, or is used by a CUDA
// graph.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <latch>
#include <string>
#include <thread>

#include "tests/support/rank_threads.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/calls.h"
#include "worker_lib/nccl/engine.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::kPatience;
using testing_support::run_ranks;
using torch::Tensor;

// Rank 1 forms the communicator with rank 0, and then does not call the first collective.
void miss_the_first_collective(NcclDoubleWorld& world) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto backend = world.ranks.make(rank, 2);
    std::unique_ptr<NcclCommunicator> formed;
    if (rank == 1) {
      const auto store = world.ranks.connect();
      auto made = NcclCommunicator::form(
          NcclDouble::api(), store.get(), std::make_shared<NcclAbortState>(),
          {.rank = 1, .world_size = 2, .name = "group-7", .abort_grace = kPatience},
          Deadline(kPatience));
      ASSERT_TRUE(made) << made.error().message();
      formed = std::move(*made);
    } else {
      const TimePoint start = BootClock::now();
      const DistError late =
          failure_of(sum_on(*backend, torch::ones({4}), {.timeout = seconds(2), .async = true}));
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout) << late.what();
      EXPECT_THAT(late.what(), HasSubstr("rank 1 has not come"));
      EXPECT_LT(BootClock::now() - start, seconds(10));
    }
    over.arrive_and_wait();
  });
}

class NcclParts : public NcclOfAVersion {};

INSTANTIATE_TEST_SUITE_P(Of, NcclParts, nccl_versions(), name_of_version);

TEST_P(NcclParts, APartBeginsWithACommunicatorThatIsSplitOff) {
  run_ranks(4, [&](int rank) {
    const auto all = world_.ranks.make(rank, 4);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    // Rank 3 is in no part. The keys put the others in reverse order.
    std::shared_ptr<void> seed;
    all->split_off(rank == 3 ? -1 : 5, -rank, &seed, kCall).wait();
    ASSERT_EQ(seed != nullptr, rank != 3);
    EXPECT_EQ(cuda_.count("get_unique_id"), 1);
    if (rank != 3) {
      const auto part =
          BackendFactory(NcclDouble::api())
              .make(nullptr, {.rank = 2 - rank, .world_size = 3, .device = torch::kCPU}, nullptr,
                    seed);
      const Tensor tensor = torch::full({4}, static_cast<float>(rank));
      part->broadcast(list_of_one(tensor), 0, kCall).wait(seconds(30));
      EXPECT_EQ(tensor[0].item<float>(), 2);
      // The parent group keeps working.
      sum_on(*part, tensor).wait(seconds(30));
    }
    sum_on(*all, torch::ones({4})).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_split"), 4);
  EXPECT_EQ(cuda_.count("comm_init_rank"), 4);
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
}

TEST_P(NcclParts, WithoutACommunicatorThereIsNothingToSplit) {
  run_ranks(2, [&](int rank) {
    const auto all = world_.ranks.make(rank, 2);
    std::shared_ptr<void> seed;
    all->split_off(0, rank, &seed, kCall).wait();
    EXPECT_EQ(seed, nullptr);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_split"), 0);
}

TEST_P(NcclParts, ASplitThatFailsIsToldAndTheGroupGoesOn) {
  const auto all = world_.ranks.make(0, 1);
  sum_on(*all, torch::ones({4})).wait(seconds(30));
  cuda_.fail_next("comm_split", NcclResult::kSystemError);
  std::shared_ptr<void> seed;
  EXPECT_THAT(
      failure_of(all->split_off(0, 0, &seed, kCall)).what(),
      HasSubstr("split the NCCL communicator of 1 ranks: NCCL: a failure that was planned"));
  EXPECT_EQ(seed, nullptr);
  sum_on(*all, torch::ones({4})).wait(seconds(30));
  all->split_off(0, 0, &seed, kCall).wait();
  EXPECT_NE(seed, nullptr);
  seed.reset();
  EXPECT_EQ(cuda_.count("comm_abort"), 1) << "what nobody took is freed";
}

TEST_P(NcclParts, ASplitWaitsForWhatIsInFlight) {
  const auto all = world_.ranks.make(0, 1);
  sum_on(*all, torch::ones({4})).wait(seconds(30));
  cuda_.close_stream();
  sum_on(*all, torch::ones({4}));
  std::shared_ptr<void> seed;
  std::thread splitter([&] { all->split_off(0, 0, &seed, kCall).wait(); });
  EXPECT_FALSE(eventually([&] { return cuda_.count("comm_split") > 0; }, milliseconds(50)));
  cuda_.open_stream();
  splitter.join();
  EXPECT_NE(seed, nullptr);
}

TEST_P(NcclParts, ASplitThatWaitsInVainSaysForWhat) {
  const auto all = world_.ranks.make(0, 1);
  sum_on(*all, torch::ones({4})).wait(seconds(30));
  cuda_.close_stream();
  const Work work = sum_on(*all, torch::ones({8}));
  std::shared_ptr<void> seed;
  const DistError late =
      failure_of(all->split_off(0, 0, &seed, {.timeout = milliseconds(50), .async = true}));
  EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
  EXPECT_THAT(late.what(), HasSubstr("split: nccl all_reduce #2 of 8 Float (sum) is not complete"));
  EXPECT_EQ(failure_of(work).kind(), DistError::Kind::kTimeout);
  cuda_.open_stream();
}

TEST_P(NcclParts, APartOfASplitThatIsGivenUpLivesUntilNcclIsDone) {
  run_ranks(2, [&](int rank) {
    const auto all = world_.ranks.make(rank, 2);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    if (rank == 1) {
      EXPECT_TRUE(eventually([&] { return cuda_.count("comm_split") == 1; }));
      all->abort("enough");
      return;
    }
    std::shared_ptr<void> seed;
    EXPECT_THAT(failure_of(all->split_off(0, 0, &seed, kCall)).what(), HasSubstr("enough"));
    EXPECT_EQ(seed, nullptr);
  });
  EXPECT_EQ(cuda_.count("comm_abort"), 3) << "NCCL leaves a part behind, which is freed, too";
}

TEST_P(NcclParts, APartThatNobodyUsesIsClosedWithItsGroup) {
  run_ranks(2, [&](int rank) {
    const auto all = world_.ranks.make(rank, 2);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    std::shared_ptr<void> seed;
    all->split_off(0, rank, &seed, kCall).wait();
    const auto part =
        BackendFactory(NcclDouble::api())
            .make(nullptr, {.rank = rank, .world_size = 2, .device = torch::kCPU}, nullptr, seed);
  });
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
  EXPECT_EQ(cuda_.count("comm_destroy"), 4);
}

// --- splits that take a while, or fail

TEST_P(NcclParts, TheParentIsInProgressUntilThePartIsThere) {
  cuda_.set_rounds_in_progress(50);
  run_ranks(3, [&](int rank) {
    const auto all = world_.ranks.make(rank, 3);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    std::shared_ptr<void> seed;
    all->split_off(rank == 1 ? -1 : 0, rank, &seed, kCall).wait();
    EXPECT_EQ(seed != nullptr, rank != 1);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    all->barrier(kCall).wait(seconds(30));
  });
}

TEST_P(NcclParts, RanksWithoutAPartMakeOneThatIsClosedAgain) {
  run_ranks(3, [&](int rank) {
    const auto all = world_.ranks.make(rank, 3);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    std::shared_ptr<void> seed;
    all->split_off(-1, rank, &seed, kCall).wait();
    EXPECT_EQ(seed, nullptr);
    all->barrier(kCall).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_destroy"), 6);
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
}

// NCCL would crash here: see NcclDoubleRules.ASplitWithoutAColorThatIsAbortedCrashes.
TEST_P(NcclParts, ASplitOfARankWithoutAColorMayBeAborted) {
  run_ranks(2, [&](int rank) {
    const auto all = world_.ranks.make(rank, 2);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    if (rank == 1) {
      EXPECT_TRUE(eventually([&] { return cuda_.count("comm_split") == 1; }));
      all->abort("enough");
      return;
    }
    std::shared_ptr<void> seed;
    EXPECT_THAT(failure_of(all->split_off(-1, 0, &seed, kCall)).what(), HasSubstr("enough"));
  });
}

TEST_P(NcclParts, ASplitThatFailsInProgressEndsTheGroupOnAllRanks) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto all = world_.ranks.make(rank, 2);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    all->barrier(kCall).wait(seconds(30));
    if (rank == 0) cuda_.fail_job_of_next("comm_split", NcclResult::kSystemError);
    all->monitored_barrier({.timeout = seconds(30)}).wait();
    std::shared_ptr<void> seed;
    const DistError error = failure_of(all->split_off(0, rank, &seed, kCall));
    EXPECT_THAT(error.what(), HasSubstr("a failure that was planned"));
    EXPECT_EQ(seed, nullptr);
    over.arrive_and_wait();
    // NCCL keeps the failure as the state of the parent: no later call on it can succeed.
    EXPECT_THAT(failure_of(sum_on(*all, torch::ones({4}))).what(),
                HasSubstr("a failure that was planned"));
  });
}

TEST_P(NcclParts, ASplitToWhichARankDoesNotComeEndsAtItsDeadline) {
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto all = world_.ranks.make(rank, 2);
    sum_on(*all, torch::ones({4})).wait(seconds(30));
    if (rank == 0) {
      std::shared_ptr<void> seed;
      const DistError late =
          failure_of(all->split_off(0, 0, &seed, {.timeout = milliseconds(100), .async = true}));
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout) << late.what();
    }
    over.arrive_and_wait();
  });
}

// --- communicators that have not formed, or are in progress

TEST_P(NcclParts, ACommunicatorThatNeverFormedIsAbortedAndNotRevoked) {
  std::latch over(2);
  run_ranks(3, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 3);
    if (rank < 2) {
      const DistError late =
          failure_of(sum_on(*backend, torch::ones({4}), {.timeout = seconds(2), .async = true}));
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout) << late.what();
      over.count_down();
    }
    over.wait();
  });
  EXPECT_EQ(cuda_.count("comm_revoke"), 0);
  EXPECT_EQ(cuda_.count("comm_abort"), 2);
}

TEST_P(NcclParts, ACommunicatorWhoseCallIsInProgressIsAbortedAndNotRevoked) {
  auto backend = world_.ranks.make(0, 1);
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  cuda_.set_rounds_in_progress(1 << 30);
  const DistError late =
      failure_of(sum_on(*backend, torch::ones({4}), {.timeout = milliseconds(50), .async = true}));
  EXPECT_EQ(late.kind(), DistError::Kind::kTimeout);
  backend.reset();
  EXPECT_EQ(cuda_.count("comm_revoke"), 0);
}

TEST_P(NcclParts, ACommunicatorThatHasFailedIsAbortedAndNotRevoked) {
  auto backend = world_.ranks.make(0, 1);
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  cuda_.fail_job_of_next("all_reduce", NcclResult::kRemoteError);
  EXPECT_THAT(failure_of(sum_on(*backend, torch::ones({4}))).what(),
              HasSubstr("a failure that was planned"));
  backend.reset();
  EXPECT_EQ(cuda_.count("comm_revoke"), 0);
  EXPECT_EQ(cuda_.count("comm_abort"), 1);
}

// Rank 1 forms the communicator, but does not call the first collective, in which ranks
// connect.
TEST_P(NcclParts, TheFirstCallNamesTheRanksThatDoNotConnect) { miss_the_first_collective(world_); }

// --- NCCL_COMM_BLOCKING=1

TEST_P(NcclParts, ABlockingInitEndsAtTheDeadlineOfItsCall) {
  cuda_.set_blocking();
  std::latch over(2);
  run_ranks(2, [&](int rank) {
    const auto backend = world_.ranks.make(rank, 2);
    if (rank == 0) {
      const TimePoint start = BootClock::now();
      const DistError late =
          failure_of(sum_on(*backend, torch::ones({4}), {.timeout = seconds(2), .async = true}));
      EXPECT_EQ(late.kind(), DistError::Kind::kTimeout) << late.what();
      EXPECT_THAT(late.what(), HasSubstr("rank 1 has not come"));
      EXPECT_LT(BootClock::now() - start, seconds(10));
    }
    over.arrive_and_wait();
  });
  EXPECT_TRUE(eventually([&] { return cuda_.count("comm_abort returned") == 1; }));
}

TEST_P(NcclParts, ABlockingCallEndsAtItsDeadline) {
  cuda_.set_blocking();
  miss_the_first_collective(world_);
}

TEST_P(NcclParts, ABlockingWorldWorks) {
  cuda_.set_blocking();
  run_ranks(3, [&](int rank) {
    const auto all = world_.ranks.make(rank, 3);
    for (int i = 0; i < 3; ++i) sum_on(*all, torch::ones({4})).wait(seconds(30));
    std::shared_ptr<void> seed;
    all->split_off(rank == 2 ? -1 : 0, rank, &seed, kCall).wait();
    EXPECT_EQ(seed != nullptr, rank != 2);
    all->barrier(kCall).wait(seconds(30));
  });
  EXPECT_EQ(cuda_.count("comm_abort"), 2) << "the parts that nobody took";
}

// --- threads and devices

TEST_P(NcclParts, NoThreadMakesAContextOnADeviceThatTheRankDoesNotUse) {
  cuda_.set_device_count(4);
  {
    const auto backend = world_.ranks.make(0, 1);
    const Tensor tensor = torch::ones({4});
    for (int i = 0; i < 2; ++i) sum_on(*backend, on_device(3, tensor)).wait(seconds(30));
    backend->abort("enough");
  }
  EXPECT_EQ(cuda_.count("comm_abort returned"), 1);
  EXPECT_EQ(cuda_.contexts(), std::set{3});
  EXPECT_EQ(NcclDouble::current_device(), 0);
}

TEST_P(NcclParts, AQueryThatBlocksInTheDriverDoesNotKeepTheGroupFromEnding) {
  auto backend = world_.ranks.make(0, 1, {.stop_grace = milliseconds(100)});
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  cuda_.close_stream();
  const Work work = sum_on(*backend, torch::ones({4}));
  cuda_.make_event_query_hang();
  const TimePoint start = BootClock::now();
  backend->abort("enough");
  EXPECT_LT(BootClock::now() - start, seconds(10));
  EXPECT_NE(work.exception(), nullptr);
  cuda_.let_event_query_return();
  cuda_.open_stream();
}

TEST_P(NcclParts, ACallThatWasNotBegunBeforeAnAbortIsNeverMade) {
  auto backend = world_.ranks.make(0, 1,
                                   {.close_grace = milliseconds(50),
                                    .stop_grace = milliseconds(100),
                                    .abort_grace = milliseconds(200)});
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  constexpr const char* kThread = "ddprun-nccl-aux";
  cuda_.hold_threads(kThread);
  backend.reset();
  ASSERT_TRUE(eventually([&] { return cuda_.count("comm_abort returned") == 1; }));
  cuda_.let_threads_go();
  const auto has_ended = [&] {
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string name;
      std::getline(std::ifstream(task.path() / "comm"), name);
      if (name == kThread) return false;
    }
    return true;
  };
  EXPECT_TRUE(eventually(has_ended));
  EXPECT_EQ(cuda_.count("comm_finalize"), 0);
}

// --- CUDA graphs and memory

TEST_P(NcclParts, AGraphThatOutlivesItsGroupCostsHalfASecondAndKeepsTheCommunicator) {
  auto backend = world_.ranks.make(0, 1, {.close_grace = seconds(20)});
  const Tensor tensor = torch::ones({4});
  sum_on(*backend, tensor).wait(seconds(30));
  cuda_.begin_capture();
  sum_on(*backend, tensor).wait();
  cuda_.end_capture();
  const TimePoint start = BootClock::now();
  backend.reset();
  EXPECT_LT(BootClock::now() - start, seconds(10));
  EXPECT_EQ(cuda_.count("comm_abort"), 0);
  EXPECT_EQ(cuda_.count("comm_destroy"), 0) << "the graph may still run";
}

TEST_P(NcclParts, AGraphThatIsGoneKeepsNothing) {
  auto backend = world_.ranks.make(0, 1);
  const Tensor tensor = torch::ones({4});
  sum_on(*backend, tensor).wait(seconds(30));
  cuda_.begin_capture();
  sum_on(*backend, tensor).wait();
  cuda_.end_capture();
  cuda_.destroy_graph();
  backend.reset();
  EXPECT_EQ(cuda_.count("comm_destroy"), 1);
}

TEST_P(NcclParts, ASharedTensorThatAnotherThreadLetsGoOfIsKeptUntilItsOwnStreamHasPassed) {
  const auto backend = world_.ranks.make(0, 1);
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  Tensor tensor = backend->shared_empty({4}, torch::kFloat32);
  cuda_.close_stream();  // the stream that the tensor is used on is busy
  std::thread other([gone = std::move(tensor), &backend]() mutable {
    gone.reset();
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
    sum_on(*backend, torch::ones({4})).wait(seconds(30));
  });
  other.join();
  EXPECT_EQ(cuda_.memory_count(), 1);
  cuda_.open_stream();
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  sum_on(*backend, torch::ones({4})).wait(seconds(30));
  EXPECT_EQ(cuda_.memory_count(), 0);
}

}  // namespace
}  // namespace ddprun
