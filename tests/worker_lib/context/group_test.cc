// Tests groups of some ranks of a world. The ranks are threads here, each with its own
// Context.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <functional>
#include <latch>
#include <limits>
#include <memory>
#include <optional>
#include <thread>

#include "ddprun/context.h"
#include "tests/support/context_world.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/rank_threads.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/world.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::ElementsAre;
using testing::HasSubstr;
using testing_support::in_a_world_of;
using testing_support::kPatience;
using testing_support::run_ranks;
using torch::Tensor;

int sum_of_ranks(Context& context, ProcessGroup& group) {
  const Tensor tensor = torch::full({1}, context.rank(), torch::kInt32);
  group.all_reduce(tensor);
  return tensor.item<int>();
}

TEST(NewGroup, MembersMeetWithoutTheOthers) {
  in_a_world_of(4, [](Context& context) {
    const auto odd = context.new_group({3, 1});
    EXPECT_EQ(odd != nullptr, context.rank() % 2 == 1);
    if (!odd) return;
    EXPECT_EQ(odd->size(), 2);
    EXPECT_EQ(odd->rank(), context.rank() / 2);
    EXPECT_THAT(odd->world_ranks(), ElementsAre(1, 3));
    EXPECT_EQ(odd->name(), "1,3");
    EXPECT_EQ(sum_of_ranks(context, *odd), 4);
  });
}

TEST(NewGroup, ItsRanksAgreeInWhatTheyWantOfReductions) {
  in_a_world_of(2, [](Context& context) {
    EXPECT_TRUE(context.new_group({0, 1}, {.deterministic_across_layouts = true}));
    const bool mine = context.rank() == 0;
    EXPECT_DIST_ERROR(context.new_group({0, 1}, {.deterministic_across_layouts = mine}),
                      DistError::Kind::kInvalidArgument,
                      HasSubstr("same bits for every layout, unlike this rank"));
  });
}

TEST(NewGroup, OfOneRankNeedsNobody) {
  in_a_world_of(2, [](Context& context) {
    const auto alone = context.new_group({context.rank()});
    ASSERT_TRUE(alone);
    EXPECT_EQ(alone->size(), 1);
    EXPECT_EQ(sum_of_ranks(context, *alone), context.rank());
  });
}

TEST(NewGroup, OfTheSameRanksAreDifferentGroups) {
  in_a_world_of(2, [](Context& context) {
    const auto first = context.new_group({0, 1}, {.name = "first"});
    const auto second = context.new_group({0, 1}, {.name = "second"});
    // The order differs between the ranks: the groups do not wait for each other.
    std::vector<Work> works;
    const Tensor a = torch::ones({3});
    const Tensor b = torch::full({3}, 2.0);
    for (int i = 0; i < 2; ++i) {
      const bool is_first = (i == 0) == (context.rank() == 0);
      ProcessGroup& group = is_first ? *first : *second;
      works.push_back(group.all_reduce(is_first ? a : b, {.async = true}));
    }
    for (const Work& work : works) work.wait(seconds(30));
    EXPECT_TRUE(torch::equal(a, torch::full({3}, 2.0)));
    EXPECT_TRUE(torch::equal(b, torch::full({3}, 4.0)));
  });
}

TEST(NewGroup, GroupsAreUsedByAThreadEach) {
  in_a_world_of(3, [](Context& context) {
    const auto left = context.new_group({0, 1, 2});
    const auto right = context.new_group({0, 1, 2});
    const auto many = [&](ProcessGroup& group) {
      for (int i = 0; i < 200; ++i) EXPECT_EQ(sum_of_ranks(context, group), 3);
    };
    std::thread other([&] { many(*left); });
    many(*right);
    other.join();
  });
}

TEST(NewGroup, AFailureEndsItsGroupAndNamesItAndTheOthersGoOn) {
  std::latch is_over(2);
  in_a_world_of(2, [&](Context& context) {
    const auto group = context.new_group({0, 1}, {.name = "tp"});
    if (context.rank() == 0) {
      EXPECT_DIST_ERROR(group->barrier({.timeout = milliseconds(100)}), DistError::Kind::kTimeout,
                        HasSubstr("barrier #1 in group tp of the world's ranks 0 and 1: rank 1 did "
                                  "not arrive"));
    }
    is_over.arrive_and_wait();
    const auto after = context.rank() == 0 ? DistError::Kind::kStopped : DistError::Kind::kTimeout;
    EXPECT_DIST_ERROR(group->barrier(), after, HasSubstr("group tp"));
    EXPECT_EQ(sum_of_ranks(context, context.group()), 1);
  });
}

TEST(NewGroup, AMemberThatDoesNotComeIsNamed) {
  in_a_world_of(2, [&](Context& context) {
    if (context.rank() == 1) return;
    EXPECT_DIST_ERROR(context.new_group({0, 1}, {.timeout = milliseconds(200)}),
                      DistError::Kind::kTimeout, HasSubstr("form group 0,1"));
  });
}

// --- messages of a rank that leaves

enum class Leaves { kWorld, kPart };

// In a world of two, rank 1 sends 1 MiB of sevens, drops the Work, and leaves the world or a part
// of it. Rank 0 runs receive(group, has_left) once rank 1 begins to leave.
void send_and_leave(Leaves leaves,
                    const std::function<void(ProcessGroup&, std::atomic<bool>&)>& receive) {
  const auto store = std::make_shared<testing_support::MapStore>();
  std::atomic<bool> is_leaving = false, has_left = false;
  run_ranks(2, [&](int rank) {
    std::optional<Context> context(testing_support::context_of(rank, 2, store));
    std::unique_ptr<ProcessGroup> part = context->group().split(/*color=*/0);
    ProcessGroup& group = leaves == Leaves::kPart ? *part : context->group();
    if (rank == 0) {
      EXPECT_TRUE(testing_support::eventually([&] { return is_leaving.load(); }));
      receive(group, has_left);
    } else {
      (void)group.isend(torch::full({1 << 18}, 7.0F), 0);
      is_leaving = true;
      part.reset();
      if (leaves == Leaves::kWorld) context.reset();
      has_left = true;
    }
    if (leaves == Leaves::kPart) context->group().barrier();
  });
}

TEST(LeavingAGroup, WaitsForTheReceiverOfAMessageWhoseWorkWasDropped) {
  for (const Leaves leaves : {Leaves::kWorld, Leaves::kPart}) {
    send_and_leave(leaves, [](ProcessGroup& group, std::atomic<bool>&) {
      testing_support::let_pass(milliseconds(300));  // the receiver is late
      const Tensor tensor = torch::zeros({1 << 18});
      group.recv(tensor, 1);
      EXPECT_TRUE(torch::equal(tensor, torch::full({1 << 18}, 7.0F)));
    });
  }
}

TEST(LeavingAGroup, WaitsOnlyForAWhileAndAReceiverThatComesLaterIsTold) {
  send_and_leave(Leaves::kWorld, [](ProcessGroup& group, std::atomic<bool>& has_left) {
    EXPECT_TRUE(testing_support::eventually([&] { return has_left.load(); }));
    EXPECT_DIST_ERROR(group.recv(torch::zeros({1 << 18}), 1), DistError::Kind::kPeerLost,
                      HasSubstr("has left"));
  });
}

TEST(NewGroup, WrongRanksAreRefusedByName) {
  in_a_world_of(2, [](Context& context) {
    const auto refused = [&](std::vector<int> ranks, const std::string& why) {
      EXPECT_DIST_ERROR(context.new_group(ranks), DistError::Kind::kInvalidArgument,
                        testing::StrEq("new_group: " + why));
    };
    refused({}, "ranks must hold at least one rank");
    refused({0, 2}, "rank 2 is not a rank of the world; its ranks are 0 to 1");
    refused({-1}, "rank -1 is not a rank of the world; its ranks are 0 to 1");
    refused({1, 0, 1}, "rank 1 is given twice");
    EXPECT_DIST_ERROR(context.new_group({0}, {.timeout = seconds(0)}),
                      DistError::Kind::kInvalidArgument, HasSubstr("timeout"));
  });
}

// Returns the exit code of a child. Kills a child that does not end in time.
int code_of(pid_t child) {
  int status = -1;
  const bool ended =
      testing_support::eventually([&] { return waitpid(child, &status, WNOHANG) == child; });
  if (!ended) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  return status;
}

TEST(Fork, TheChildIsInNoGroupAndLeavesNone) {
  in_a_world_of(2, [](Context& context) {
    auto part = context.new_group({0, 1});
    const Tensor tensor = torch::ones({3});
    const int other = 1 - context.rank();
    // The fork also works after calls that use threads.
    std::vector<Work> works{context.group().all_reduce(tensor, {.async = true}),
                            context.group().irecv(torch::empty({1}), other),
                            context.group().isend(torch::empty({1}), other)};
    for (const Work& work : works) work.wait();
    if (context.rank() == 0) {
      const auto in_the_child = [&]() noexcept {
        bool is_refused = false;
        try {
          part->barrier({.timeout = milliseconds(1)});
        } catch (const DistError& error) {
          is_refused = error.kind() == DistError::Kind::kUnsupported;
        }
        context.group().abort("by a child");
        part.reset();
        { const Context gone = std::move(context); }
        _exit(is_refused ? 0 : 1);
      };
      const pid_t child = fork();
      if (child == 0) in_the_child();
      EXPECT_EQ(code_of(child), 0);
    }
    part->barrier();
    EXPECT_EQ(sum_of_ranks(context, context.group()), 1);
  });
}

TEST(Split, RanksOfAColorAreAGroupInTheOrderOfTheirKeys) {
  in_a_world_of(5, [](Context& context) {
    const int rank = context.rank();
    const auto part = context.group().split(rank % 2, -rank);
    ASSERT_TRUE(part);
    if (rank % 2 == 0) {
      EXPECT_THAT(part->world_ranks(), ElementsAre(4, 2, 0));
      EXPECT_EQ(sum_of_ranks(context, *part), 6);
    } else {
      EXPECT_THAT(part->world_ranks(), ElementsAre(3, 1));
      EXPECT_EQ(sum_of_ranks(context, *part), 4);
    }
    EXPECT_EQ(part->world_ranks()[static_cast<std::size_t>(part->rank())], rank);

    // A part can be split again.
    const auto half = part->split(part->rank() == 0 ? 7 : -1);
    EXPECT_EQ(half != nullptr, part->rank() == 0);
    if (half) {
      EXPECT_THAT(half->world_ranks(), ElementsAre(rank));
    }
  });
}

TEST(Split, OfAWorldOfOneNeedsNobody) {
  in_a_world_of(1, [](Context& context) {
    const auto alone = context.group().split(0);
    ASSERT_TRUE(alone);
    EXPECT_EQ(sum_of_ranks(context, *alone), 0);
  });
}

// The nccl backend gives a rank without a color one that no other rank has.
TEST(Split, AColorMayBeAnyNumber) {
  NcclDoubleWorld world;
  BackendFactory factory(NcclDouble::api());
  run_ranks(2, [&](int rank) {
    Context context = init_with({.device = torch::Device(torch::kCUDA, 0),
                                 .timeout = kPatience,
                                 .rank = rank,
                                 .world_size = 2,
                                 .store = world.ranks.connect()},
                                &factory);
    ProcessGroup& group = context.group();
    const Tensor host = torch::ones({4});
    const auto sum_on = [&host](ProcessGroup& of) {
      of.all_reduce(on_device(0, host), {.async = true}).wait(seconds(5));
    };
    sum_on(group);  // now it has a communicator, which can be split
    const auto part = group.split(rank == 0 ? std::numeric_limits<int>::max() - 1 : -1);
    EXPECT_EQ(part != nullptr, rank == 0);
    if (part) sum_on(*part);
    sum_on(group);
  });
  EXPECT_EQ(world.cuda.count("comm_split"), 2);
}

}  // namespace
}  // namespace ddprun
