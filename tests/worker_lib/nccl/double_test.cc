// Tests the rules of the double, as they were read from NCCL's source. double_communicators.cc
// names the functions. The double must find what NCCL calls illegal, or the other tests prove
// nothing.
#include "tests/worker_lib/nccl/double.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <thread>

#include "tests/support/eventually.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::eventually;

class NcclDoubleRules : public testing::TestWithParam<NcclVersion> {
 protected:
  NcclDoubleRules() { cuda_.expect_breaches(); }
  ~NcclDoubleRules() override { EXPECT_THAT(cuda_.take_breaches(), IsEmpty()); }

  NcclComm begin(int rank, int size) {
    if (rank == 0) {
      EXPECT_EQ(nccl_.get_unique_id(&id_), NcclResult::kSuccess);
    }
    NcclComm comm = nullptr;
    began_ = nccl_.comm_init_rank(&comm, size, id_, rank);
    return comm;
  }
  NcclComm formed() {
    const NcclComm comm = begin(0, 1);
    EXPECT_EQ(state(comm), NcclResult::kSuccess);
    return comm;
  }
  NcclResult state(NcclComm comm) {
    NcclResult state = NcclResult::kSuccess;
    EXPECT_EQ(nccl_.comm_get_async_error(comm, &state), NcclResult::kSuccess);
    return state;
  }
  NcclResult sum(NcclComm comm) {
    return nccl_.all_reduce(value_.data(), value_.data(), 1, NcclType::kFloat32, NcclOp::kSum, comm,
                            nccl_.current_stream(0));
  }
  void expect_breach(const std::string& text) {
    EXPECT_THAT(cuda_.take_breaches(), ElementsAre(HasSubstr(text)));
  }

  NcclDouble cuda_{GetParam()};
  const NcclApi& nccl_ = NcclDouble::api();
  NcclUniqueId id_{};
  NcclResult began_ = NcclResult::kSuccess;
  std::array<float, 4> value_{1, 2, 3, 4};
};

INSTANTIATE_TEST_SUITE_P(Of, NcclDoubleRules,
                         testing::Values(NcclVersion::k2_28_9, NcclVersion::k2_30_7,
                                         NcclVersion::k2_31_2),
                         [](const auto& one) { return std::string(to_name(one.param)); });

TEST_P(NcclDoubleRules, AnInitHasItsHandleBeforeTheOthersHaveCome) {
  const NcclComm first = begin(0, 2);
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(began_, NcclResult::kInProgress);
  EXPECT_EQ(state(first), NcclResult::kInProgress);
  const NcclComm second = begin(1, 2);
  EXPECT_EQ(state(first), NcclResult::kSuccess);
  EXPECT_EQ(state(second), NcclResult::kSuccess);
  nccl_.comm_abort(first);
  nccl_.comm_abort(second);
}

TEST_P(NcclDoubleRules, AnInitThatFailsAtOnceLeavesNoHandleAndOneThatFailsLaterDoes) {
  cuda_.fail_next("comm_init_rank", NcclResult::kSystemError);
  EXPECT_EQ(begin(0, 1), nullptr);
  EXPECT_EQ(began_, NcclResult::kSystemError);
  cuda_.fail_job_of_next("comm_init_rank", NcclResult::kRemoteError);
  const NcclComm later = begin(0, 1);
  ASSERT_NE(later, nullptr);
  EXPECT_EQ(state(later), NcclResult::kRemoteError);
  EXPECT_EQ(state(later), NcclResult::kRemoteError) << "it stays";
  nccl_.comm_abort(later);
}

TEST_P(NcclDoubleRules, ASplitReturnsSuccessAndWritesItsHandleBeforeTheParentIsReady) {
  cuda_.set_rounds_in_progress(3);
  const NcclComm parent = begin(0, 1);
  while (state(parent) == NcclResult::kInProgress) {
  }
  NcclComm part = parent;
  EXPECT_EQ(nccl_.comm_split(parent, 4, 0, &part), NcclResult::kSuccess);
  EXPECT_EQ(part, nullptr);
  EXPECT_EQ(state(parent), NcclResult::kInProgress);
  while (state(parent) == NcclResult::kInProgress) EXPECT_EQ(part, nullptr);
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(state(part), NcclResult::kSuccess);
  nccl_.comm_abort(parent);
  nccl_.comm_abort(part);
}

TEST_P(NcclDoubleRules, ASplitThatFailsStaysOnTheParentAndLeavesAPart) {
  const NcclComm parent = formed();
  cuda_.fail_job_of_next("comm_split", NcclResult::kSystemError);
  NcclComm part = nullptr;
  EXPECT_EQ(nccl_.comm_split(parent, 0, 0, &part), NcclResult::kSuccess);
  EXPECT_EQ(state(parent), NcclResult::kSystemError);
  EXPECT_EQ(sum(parent), NcclResult::kSystemError) << "every later call has it";
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(state(part), NcclResult::kSuccess) << "which says nothing";
  nccl_.comm_abort(part);
  expect_breach("before that of its parent");
  nccl_.comm_abort(parent);
}

TEST_P(NcclDoubleRules, ASplitThatIsRefusedLeavesTheParentAsItIs) {
  const NcclComm parent = formed();
  cuda_.fail_next("comm_split", NcclResult::kInvalidArgument);
  NcclComm part = nullptr;
  EXPECT_EQ(nccl_.comm_split(parent, 0, 0, &part), NcclResult::kInvalidArgument);
  EXPECT_EQ(state(parent), NcclResult::kSuccess);
  nccl_.comm_abort(parent);
}

TEST_P(NcclDoubleRules, ASplitWithoutAColorThatIsAbortedCrashes) {
  const NcclComm first = begin(0, 2);
  const NcclComm second = begin(1, 2);
  EXPECT_EQ(state(first), NcclResult::kSuccess);
  EXPECT_EQ(state(second), NcclResult::kSuccess);
  NcclComm part = nullptr;
  EXPECT_EQ(nccl_.comm_split(first, -1, 0, &part), NcclResult::kSuccess);
  EXPECT_EQ(state(first), NcclResult::kInProgress) << "it waits for the others";
  nccl_.comm_abort(first);
  expect_breach("crashes");
  EXPECT_EQ(part, nullptr);
  nccl_.comm_abort(second);
}

TEST_P(NcclDoubleRules, ACallWhileAnotherIsInProgressIsIllegalAndItsErrorStays) {
  cuda_.set_rounds_in_progress(1000);
  const NcclComm comm = begin(0, 1);
  EXPECT_EQ(sum(comm), NcclResult::kInvalidArgument);
  expect_breach("in progress");
  EXPECT_EQ(state(comm), NcclResult::kInvalidArgument);
  nccl_.comm_abort(comm);
}

TEST_P(NcclDoubleRules, AnErrorInAGroupIsTheGroupsAndStays) {
  const NcclComm comm = formed();
  nccl_.group_start();
  EXPECT_EQ(sum(comm), NcclResult::kSuccess);
  cuda_.fail_next("all_reduce", NcclResult::kInvalidArgument);
  EXPECT_EQ(sum(comm), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.group_end(), NcclResult::kInvalidArgument);
  EXPECT_EQ(state(comm), NcclResult::kInvalidArgument);
  EXPECT_EQ(nccl_.group_end(), NcclResult::kInvalidUsage);
  expect_breach("group_end without group_start");
  nccl_.comm_abort(comm);
}

TEST_P(NcclDoubleRules, TheFirstCollectiveIsInProgressUntilAllRanksHaveCalledOne) {
  const NcclComm first = begin(0, 2);
  const NcclComm second = begin(1, 2);
  EXPECT_EQ(state(first), NcclResult::kSuccess);
  EXPECT_EQ(state(second), NcclResult::kSuccess);
  EXPECT_EQ(sum(first), NcclResult::kInProgress);
  EXPECT_EQ(state(first), NcclResult::kInProgress);
  EXPECT_TRUE(cuda_.is_stream_idle()) << "nothing is on the stream before";
  EXPECT_EQ(sum(second), NcclResult::kSuccess);
  EXPECT_EQ(state(first), NcclResult::kSuccess);
  nccl_.comm_abort(first);
  nccl_.comm_abort(second);
}

TEST_P(NcclDoubleRules, OnlyACommunicatorThatFormedAndIsReadyMayBeRevokedOnce) {
  const NcclComm unformed = begin(0, 2);
  EXPECT_NE(nccl_.comm_revoke(unformed), NcclResult::kSuccess);
  expect_breach("never formed");
  nccl_.comm_abort(unformed);

  const NcclComm unseen = begin(0, 1);
  cuda_.set_rounds_in_progress(1000);
  EXPECT_EQ(state(unseen), NcclResult::kSuccess);
  EXPECT_EQ(sum(unseen), NcclResult::kInProgress);
  EXPECT_NE(nccl_.comm_revoke(unseen), NcclResult::kSuccess);
  expect_breach("was not seen to succeed");
  nccl_.comm_abort(unseen);

  cuda_.set_rounds_in_progress(0);
  const NcclComm good = formed();
  EXPECT_EQ(nccl_.comm_revoke(good), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.comm_revoke(good), NcclResult::kInvalidArgument);
  expect_breach("finalized or revoked");
  EXPECT_EQ(sum(good), NcclResult::kInvalidUsage);
  expect_breach("was revoked");
  EXPECT_EQ(nccl_.comm_destroy(good), NcclResult::kSuccess);
}

TEST_P(NcclDoubleRules, ACommunicatorIsFinalizedOnceAndReleasedOnce) {
  const NcclComm comm = formed();
  EXPECT_EQ(nccl_.comm_finalize(comm), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.comm_destroy(comm), NcclResult::kSuccess);
  nccl_.comm_abort(comm);
  expect_breach("aborted or destroyed");

  const NcclComm twice = formed();
  EXPECT_EQ(nccl_.comm_finalize(twice), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.comm_finalize(twice), NcclResult::kInvalidArgument);
  expect_breach("finalized or revoked");
  EXPECT_EQ(nccl_.comm_destroy(twice), NcclResult::kInvalidArgument);
  expect_breach("instead of comm_abort");
  nccl_.comm_abort(twice);
}

TEST_P(NcclDoubleRules, AFinalizeWaitsForTheGraphsOfTheCommunicator) {
  const NcclComm comm = formed();
  cuda_.begin_capture();
  EXPECT_EQ(sum(comm), NcclResult::kSuccess);
  cuda_.end_capture();
  EXPECT_EQ(nccl_.comm_finalize(comm), NcclResult::kInProgress);
  EXPECT_EQ(state(comm), NcclResult::kInProgress);
  cuda_.destroy_graph();
  EXPECT_EQ(state(comm), NcclResult::kSuccess);
  EXPECT_EQ(nccl_.comm_destroy(comm), NcclResult::kSuccess);
}

TEST_P(NcclDoubleRules, ABlockingInitReturnsWhenAllHaveComeOrItIsAborted) {
  cuda_.set_blocking();
  NcclComm first = nullptr;
  ASSERT_EQ(nccl_.get_unique_id(&id_), NcclResult::kSuccess);
  std::thread stuck(
      [&] { EXPECT_NE(nccl_.comm_init_rank(&first, 2, id_, 0), NcclResult::kSuccess); });
  EXPECT_TRUE(eventually([&] { return __atomic_load_n(&first, __ATOMIC_ACQUIRE) != nullptr; }));
  nccl_.comm_abort(first);
  stuck.join();
}

TEST_P(NcclDoubleRules, AParentThatWasShrunkWithAbortIsReleasedByAbortSince2312) {
  const NcclComm first = begin(0, 2);
  const NcclComm second = begin(1, 2);
  EXPECT_EQ(state(first), NcclResult::kSuccess);
  EXPECT_EQ(state(second), NcclResult::kSuccess);
  NcclComm part = nullptr;
  EXPECT_EQ(NcclDouble::comm_shrink(first, std::array{1}, &part, true), NcclResult::kSuccess);
  EXPECT_EQ(state(first), NcclResult::kSuccess);
  ASSERT_NE(part, nullptr);
  EXPECT_EQ(sum(part), NcclResult::kSuccess);
  EXPECT_EQ(NcclDouble::comm_shrink(second, std::array{1}, &part, false),
            NcclResult::kInvalidArgument);
  expect_breach("excludes nobody, or its caller");
  nccl_.comm_destroy(first);
  if (GetParam() == NcclVersion::k2_31_2) expect_breach("shrunk with abort");
  nccl_.comm_abort(second);
  nccl_.comm_abort(part);
}

TEST_P(NcclDoubleRules, AGrownCommunicatorIsInProgressAndItsParentIsNot) {
  const NcclComm old = formed();
  ASSERT_EQ(nccl_.get_unique_id(&id_), NcclResult::kSuccess);
  NcclComm grown = nullptr;
  NcclComm fresh = nullptr;
  const NcclResult began = NcclDouble::comm_grow(old, 2, &id_, -1, &grown);
  if (GetParam() == NcclVersion::k2_28_9) {
    EXPECT_EQ(began, NcclResult::kInvalidUsage) << "it has none";
  } else {
    EXPECT_EQ(began, NcclResult::kSuccess);
    EXPECT_EQ(state(old), NcclResult::kSuccess);
    ASSERT_NE(grown, nullptr);
    EXPECT_EQ(state(grown), NcclResult::kInProgress);
    EXPECT_EQ(NcclDouble::comm_grow(nullptr, 2, &id_, 1, &fresh), NcclResult::kSuccess);
    EXPECT_EQ(state(grown), NcclResult::kSuccess);
    EXPECT_EQ(state(fresh), NcclResult::kSuccess);
    nccl_.comm_abort(grown);
    nccl_.comm_abort(fresh);
  }
  nccl_.comm_abort(old);
}

}  // namespace
}  // namespace ddprun
