// Tests ranks whose calls do not match. Every rank learns within a second which rank called
// what, whatever the calls are and wherever they differ. The tests run on the cpu backend. For
// nccl they run on the double, with the calls that NCCL accepts or hangs in.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <latch>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "ddprun/context.h"
#include "ddprun/process_group.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/held_port.h"
#include "tests/support/rank_threads.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/world.h"
#include "tests/worker_lib/support/scoped_environment.h"

namespace ddprun {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::dist_error_of;
using testing_support::kPatience;
using testing_support::run_ranks;
using testing_support::ThreadWorld;
using torch::Tensor;

using CallOfRank = std::function<void(ProcessGroup&)>;

// Disagreement: rank 1 makes another call than ranks 0 and 2.
struct Disagreement {
  std::string name;
  CallOfRank call, other;
  std::string told, told_of_other;
};

std::vector<Tensor> each(const torch::TensorOptions& options, std::int64_t elements = 4) {
  std::vector<Tensor> list;
  for (int rank = 0; rank < 3; ++rank) list.push_back(torch::zeros({elements}, options));
  return list;
}

std::vector<Tensor> on_root(const ProcessGroup& group, std::vector<Tensor> list, int root = 0) {
  return group.rank() == root ? std::move(list) : std::vector<Tensor>();
}

CallOfRank all_reduce(torch::ScalarType type, std::int64_t elements, ReduceOp op) {
  return [=](ProcessGroup& group) { group.all_reduce(torch::zeros({elements}, type), {.op = op}); };
}
CallOfRank reduce(torch::ScalarType type, std::int64_t elements, ReduceOp op, int root) {
  return [=](ProcessGroup& group) {
    group.reduce(torch::zeros({elements}, type), {.root = root, .op = op});
  };
}
CallOfRank broadcast(torch::ScalarType type, std::int64_t elements, int root = 0) {
  return
      [=](ProcessGroup& group) { group.broadcast(torch::zeros({elements}, type), {.root = root}); };
}
CallOfRank broadcast_two(torch::ScalarType first, torch::ScalarType second) {
  return [=](ProcessGroup& group) {
    group.broadcast_coalesced({torch::zeros({4}, first), torch::zeros({4}, second)});
  };
}
CallOfRank all_gather(torch::ScalarType type, std::int64_t elements) {
  return [=](ProcessGroup& group) {
    group.all_gather(each(type, elements), torch::zeros({elements}, type));
  };
}
CallOfRank reduce_scatter(torch::ScalarType type, std::int64_t elements, ReduceOp op) {
  return [=](ProcessGroup& group) {
    group.reduce_scatter(torch::zeros({elements}, type), each(type, elements), {.op = op});
  };
}
CallOfRank gather(torch::ScalarType type, std::int64_t elements, int root = 0) {
  return [=](ProcessGroup& group) {
    group.gather(on_root(group, each(type, elements), root), torch::zeros({elements}, type),
                 {.root = root});
  };
}
CallOfRank scatter(torch::ScalarType type, std::int64_t elements, int root = 0) {
  return [=](ProcessGroup& group) {
    group.scatter(torch::zeros({elements}, type), on_root(group, each(type, elements), root),
                  {.root = root});
  };
}
CallOfRank all_to_all(torch::ScalarType type) {
  return [=](ProcessGroup& group) { group.all_to_all(each(type), each(type)); };
}
CallOfRank barrier() {
  return [](ProcessGroup& group) { group.barrier(); };
}

const auto f32 = torch::kFloat32, i32 = torch::kInt32, f16 = torch::kFloat16;
const auto sum = ReduceOp::kSum, max = ReduceOp::kMax;

std::vector<Disagreement> disagreements() {
  return {
      {"Kind", all_reduce(f32, 4, sum), barrier(), "all_reduce #1 of 4 f32 (sum)", "barrier #1"},
      {"KindThatMovesAsMuch", broadcast(f32, 4), scatter(f32, 4),
       "broadcast #1 of 4 f32 from rank 0", "scatter #1 of 4 f32 from rank 0"},
      {"AllReduceDtype", all_reduce(f32, 4, sum), all_reduce(i32, 4, sum), "of 4 f32 (sum)",
       "of 4 i32 (sum)"},
      {"AllReduceCount", all_reduce(f32, 4, sum), all_reduce(f32, 5, sum), "of 4 f32", "of 5 f32"},
      {"AllReduceOp", all_reduce(f32, 4, sum), all_reduce(f32, 4, max), "(sum)", "(max)"},
      {"AllReducePremulSum", all_reduce(f32, 4, sum), all_reduce(f32, 4, ReduceOp::kPremulSum),
       "(sum)", "(premul_sum)"},
      {"ReduceRoot", reduce(f32, 4, sum, 0), reduce(f32, 4, sum, 1), "to rank 0", "to rank 1"},
      {"ReduceDtype", reduce(f32, 4, sum, 0), reduce(i32, 4, sum, 0), "4 f32", "4 i32"},
      {"ReducePremulSum", reduce(f32, 4, sum, 0), reduce(f32, 4, ReduceOp::kPremulSum, 0), "(sum)",
       "(premul_sum)"},
      {"BroadcastDtypeOfOneSize", broadcast(f32, 4), broadcast(i32, 4), "of 4 f32 from",
       "of 4 i32 from"},
      {"BroadcastDtypeOfAnotherSize", broadcast(f32, 4), broadcast(f16, 8), "of 4 f32 from",
       "of 8 f16 from"},
      {"BroadcastCount", broadcast(f32, 4), broadcast(f32, 5), "of 4 f32", "of 5 f32"},
      {"BroadcastRoot", broadcast(f32, 4), broadcast(f32, 4, 2), "from rank 0", "from rank 2"},
      {"BroadcastOfMuchMemory", broadcast(f32, 1 << 20), broadcast(i32, 1 << 20), "1048576 f32",
       "1048576 i32"},
      {"CoalescedDtypes", broadcast_two(f32, i32), broadcast_two(i32, f32), "of 32 B in 2 tensors",
       "of 32 B in 2 tensors from rank 0 whose sizes or dtypes are others"},
      {"CoalescedDtypeOfAll", broadcast_two(f32, f32), broadcast_two(i32, i32),
       "of 8 f32 in 2 tensors", "of 8 i32 in 2 tensors"},
      {"AllGatherDtype", all_gather(f32, 4), all_gather(i32, 4), "of 4 f32", "of 4 i32"},
      {"AllGatherCount", all_gather(f32, 4), all_gather(f32, 5), "of 4 f32", "of 5 f32"},
      {"ReduceScatterDtype", reduce_scatter(f32, 4, sum), reduce_scatter(i32, 4, sum), "4 f32",
       "4 i32"},
      {"ReduceScatterOp", reduce_scatter(f32, 4, sum), reduce_scatter(f32, 4, max), "(sum)",
       "(max)"},
      {"GatherDtype", gather(f32, 4), gather(i32, 4), "4 f32 to", "4 i32 to"},
      {"GatherRoot", gather(f32, 4), gather(f32, 4, 1), "to rank 0", "to rank 1"},
      {"ScatterDtype", scatter(f32, 4), scatter(i32, 4), "4 f32 from", "4 i32 from"},
      {"ScatterCount", scatter(f32, 4), scatter(f32, 8), "of 4 f32", "of 8 f32"},
      {"AllToAllDtype", all_to_all(f32), all_to_all(i32), "all_to_all #1 of f32",
       "all_to_all #1 of i32"},
  };
}

class RanksDisagree : public testing::TestWithParam<Disagreement> {};

TEST_P(RanksDisagree, AllLearnWhoCalledWhatWithinASecond) {
  const Disagreement& calls = GetParam();
  ThreadWorld world(3);
  const std::vector<std::string> errors = world.errors([&](ProcessGroup& group) {
    const TimePoint begin = BootClock::now();
    try {
      group.rank() == 1 ? calls.other(group) : calls.call(group);
    } catch (const DistError& error) {
      EXPECT_EQ(error.kind(), DistError::Kind::kInvalidArgument);
      EXPECT_LT(BootClock::now() - begin, std::chrono::seconds(1));
      throw;
    }
  });
  ASSERT_EQ(errors.size(), 3u);
  for (const std::string& error : errors) {
    EXPECT_THAT(error, AllOf(HasSubstr("the ranks disagree: ranks 0 and 2 called "),
                             HasSubstr("; rank 1 called "), HasSubstr(calls.told),
                             HasSubstr(calls.told_of_other)));
  }
}

INSTANTIATE_TEST_SUITE_P(, RanksDisagree, testing::ValuesIn(disagreements()),
                         [](const auto& one) { return one.param.name; });

// --- nccl: sizes that do not match

class NcclSizes : public testing::Test {
 protected:
  NcclDoubleWorld world_;
};

class NcclSizesInWorld : public NcclSizes, public testing::WithParamInterface<int> {
 protected:
  // Runs a call in which the ranks disagree, and expects that every rank throws `told` within a
  // second. The call may end early on some ranks. Then they wait in a barrier. Rank 0 first
  // waits until all others have the error, and gets it at its next call.
  void expect_told(const CallOfRank& call, const std::string& told) {
    const int size = GetParam();
    world_.cuda.let_ranks_disagree();
    std::latch heard(size - 1);
    std::barrier over(size);
    run_ranks(size, [&](int rank) {
      ProcessGroup group(world_.ranks.make(rank, size), torch::kCPU, kPatience);
      group.barrier();
      const TimePoint begin = BootClock::now();
      const DistError error = dist_error_of([&] {
        call(group);
        if (rank == 0) heard.wait();
        group.barrier();
      });
      EXPECT_LT(BootClock::now() - begin, std::chrono::seconds(1)) << "rank " << rank;
      EXPECT_THAT(error.what(), HasSubstr("nccl group: the ranks disagree in " + told))
          << "rank " << rank;
      if (rank != 0) heard.count_down();
      over.arrive_and_wait();
    });
  }
};

INSTANTIATE_TEST_SUITE_P(, NcclSizesInWorld, testing::Values(2, 3, 4),
                         testing::PrintToStringParamName());

// Rows: the number of rows that go from one rank to another.
using Rows = std::function<std::int64_t(int from, int to)>;

std::int64_t uneven(int from, int to) { return (2 * from + 3 * to) % 5; }

// Returns the numbers of rows of uneven(), but rank 1 expects `rows` more rows from rank 0 than
// rank 0 sends. `rows` may be negative.
Rows with_fault(std::int64_t rows) {
  return [=](int from, int to) { return uneven(from, to) + (from == 0 && to == 1 ? rows : 0); };
}

CallOfRank exchange(const Rows& sent, const Rows& awaited) {
  return [=](ProcessGroup& group) {
    std::vector<Tensor> outputs, inputs;
    for (int r = 0; r < group.size(); ++r) {
      inputs.push_back(torch::ones({sent(group.rank(), r), 3}));
      outputs.push_back(torch::zeros({awaited(r, group.rank()), 3}));
    }
    group.all_to_all(outputs, inputs);
  };
}

CallOfRank exchange_single(const Rows& sent, const Rows& awaited) {
  return [=](ProcessGroup& group) {
    std::vector<std::int64_t> in, out;
    for (int r = 0; r < group.size(); ++r) {
      out.push_back(sent(group.rank(), r));
      in.push_back(awaited(r, group.rank()));
    }
    const auto sum = [](const auto& rows) { return std::accumulate(rows.begin(), rows.end(), 0L); };
    const Tensor input = torch::ones({sum(out), 3}), output = torch::zeros({sum(in), 3});
    group.all_to_all_single(output, input, {.output_splits = in, .input_splits = out});
  };
}

TEST_P(NcclSizesInWorld, UnevenSplitsThatAgreeGoThroughHoweverLateARankIs) {
  const int size = GetParam();
  run_ranks(size, [&](int rank) {
    ProcessGroup group(world_.ranks.make(rank, size), torch::kCPU, kPatience);
    group.barrier();
    for (const CallOfRank& call : {exchange(uneven, uneven), exchange_single(uneven, uneven)}) {
      // Meanwhile the collective logs of the other ranks are compared, on all nodes.
      if (rank == 0) testing_support::let_pass(std::chrono::milliseconds(300));
      call(group);
      group.barrier();
    }
  });
}

TEST_P(NcclSizesInWorld, LessThanIsAwaitedInAnAllToAllIsTold) {
  expect_told(exchange(uneven, with_fault(2)),
              "all_to_all #2 of f32: rank 0 sends rank 1 24 B (6 f32) less than rank 1 awaits");
}

TEST_P(NcclSizesInWorld, MoreThanIsAwaitedInAnAllToAllSingleIsTold) {
  expect_told(exchange_single(uneven, with_fault(-2)),
              "all_to_all #2 of f32: rank 0 sends rank 1 24 B (6 f32) more than rank 1 awaits");
}

// NCCL gives rank 1 the beginning of the data and goes on.
TEST_F(NcclSizes, WhatNcclLetsPassIsToldWhileCallsGetOn) {
  world_.cuda.let_ranks_disagree();
  std::barrier over(2);
  run_ranks(2, [&](int rank) {
    ProcessGroup group(world_.ranks.make(rank, 2), torch::kCPU, kPatience);
    const TimePoint begin = BootClock::now();
    const DistError error = dist_error_of([&] {
      exchange(uneven, with_fault(-2))(group);
      while (BootClock::now() - begin < std::chrono::seconds(5)) {
        group.barrier();
        testing_support::let_pass(std::chrono::milliseconds(20));  // a step
      }
    });
    EXPECT_LT(BootClock::now() - begin, std::chrono::seconds(1));
    EXPECT_THAT(error.what(), HasSubstr("rank 0 sends rank 1 24 B (6 f32) more"));
    over.arrive_and_wait();
  });
}

// --- nccl: messages

// Runs these calls on two ranks, after a barrier of all ranks. Both must throw `told`.
void exchange_messages(NcclDoubleWorld& world, int size, int low, int high,
                       const CallOfRank& of_low, const CallOfRank& of_high,
                       const std::string& told) {
  world.cuda.let_ranks_disagree();
  std::barrier over(size);
  run_ranks(size, [&](int rank) {
    ProcessGroup group(world.ranks.make(rank, size), torch::kCPU, kPatience);
    group.barrier();
    const TimePoint begin = BootClock::now();
    if (rank == low || rank == high) {
      const DistError error = dist_error_of([&] {
        (rank == low ? of_low : of_high)(group);
        // A rank whose own part is over gets the error at a later call.
        while (BootClock::now() - begin < std::chrono::seconds(5)) {
          testing_support::let_pass(std::chrono::milliseconds(20));
          group.send(torch::ones({1}), rank == low ? high : low);
        }
      });
      EXPECT_LT(BootClock::now() - begin, std::chrono::seconds(1)) << "rank " << rank;
      EXPECT_THAT(error.what(), HasSubstr("nccl group: the ranks disagree: " + told))
          << "rank " << rank;
    }
    over.arrive_and_wait();
  });
}

CallOfRank send_to(int peer, std::vector<std::int64_t> elements) {
  return [=](ProcessGroup& group) {
    for (const std::int64_t one : elements) group.send(torch::ones({one}), peer);
  };
}
CallOfRank recv_from(int peer, std::vector<std::int64_t> elements) {
  return [=](ProcessGroup& group) {
    for (const std::int64_t one : elements) group.recv(torch::zeros({one}), peer);
  };
}

TEST_F(NcclSizes, AMessageOfLessThanIsReceivedIsTold) {
  exchange_messages(
      world_, 2, 0, 1, send_to(1, {4, 5, 100, 7}), recv_from(0, {4, 5, 200, 7}),
      "rank 0's send #3 to rank 1 is of 400 B, rank 1's recv #3 from rank 0 of 800 B");
}

TEST_F(NcclSizes, AMessageOfMoreThanIsReceivedIsToldWhileCallsGetOn) {
  exchange_messages(
      world_, 2, 0, 1, send_to(1, {4, 200}), recv_from(0, {4, 100}),
      "rank 0's send #2 to rank 1 is of 800 B, rank 1's recv #2 from rank 0 of 400 B");
}

// Ranks 1 and 3 are on two nodes. The first ranks of these nodes make no calls.
TEST_F(NcclSizes, AMessageBetweenNodesIsToldThoughTheirFirstRanksAreAtRest) {
  exchange_messages(
      world_, 4, 1, 3, recv_from(3, {4, 200}), send_to(1, {4, 100}),
      "rank 3's send #2 to rank 1 is of 400 B, rank 1's recv #2 from rank 3 of 800 B");
}

TEST_F(NcclSizes, AMessageOfABatchIsTold) {
  const auto batch = [](int peer, std::int64_t out, std::int64_t in) {
    return [=](ProcessGroup& group) {
      group.batch_isend_irecv({{P2POp::Kind::kRecv, torch::zeros({in}), peer},
                               {P2POp::Kind::kSend, torch::zeros({out}), peer}});
    };
  };
  exchange_messages(
      world_, 2, 0, 1, batch(1, 4, 100), batch(0, 50, 4),
      "rank 1's send #1 to rank 0 is of 200 B, rank 0's recv #1 from rank 1 of 400 B");
}

// Tests sends far ahead of their receives, sizes of all kinds, batches in another order, and
// collectives between messages.
TEST_F(NcclSizes, MessagesThatBelongTogetherGoThroughHoweverLateTheyAreReceived) {
  run_ranks(2, [&](int rank) {
    ProcessGroup group(world_.ranks.make(rank, 2), torch::kCPU, kPatience);
    const int peer = 1 - rank;
    std::vector<Work> works;
    for (int round = 0; round < 3; ++round) {
      if (rank == 1) testing_support::let_pass(std::chrono::milliseconds(200));
      for (std::int64_t i = 0; i < 100; ++i) {
        const Tensor tensor = torch::ones({1 + (i * 7 + round) % 50});
        works.push_back(rank == 0 ? group.isend(tensor, peer) : group.irecv(tensor, peer));
      }
      const P2POp out{P2POp::Kind::kSend, torch::ones({3 + rank}), peer};
      const P2POp in{P2POp::Kind::kRecv, torch::zeros({4 - rank}), peer};
      const auto both = rank == 0 ? std::vector{out, in} : std::vector{in, out};
      for (const Work& one : group.batch_isend_irecv(both)) works.push_back(one);
      group.all_reduce(torch::ones({4}));
      group.barrier();
    }
    for (const Work& one : works) one.wait(kPatience);
  });
}

// --- several backends: a call with a tensor of another device uses another backend

TEST(BackendsByDevice, ADeadlineTellsThatAMissingRankIsInTheOtherBackend) {
  const ScopedEnvironment none({});
  NcclDoubleWorld world;
  BackendFactory factory(NcclDouble::api());
  std::barrier over(3);
  run_ranks(3, [&](int rank) {
    Context context = init_with({.device = torch::Device(torch::kCUDA, 0),
                                 .timeout = kPatience,
                                 .rank = rank,
                                 .world_size = 3,
                                 .store = world.ranks.connect()},
                                &factory);
    ProcessGroup& group = context.group();
    EXPECT_EQ(group.backend_name(), "cpu:cpu,cuda:nccl");
    const Tensor host = torch::ones({4});
    group.all_reduce(host);
    const Tensor tensor = rank == 0 ? on_device(0, host) : host;
    const auto timeout = std::chrono::milliseconds(rank == 0 ? 300 : 600);
    const DistError error = dist_error_of([&] { group.all_reduce(tensor, {.timeout = timeout}); });
    EXPECT_THAT(
        error.what(),
        HasSubstr(rank == 0 ? "ranks 1 and 2 have not come (rank 1 has called nothing yet; rank 2 "
                              "has called nothing yet); ranks 1 and 2 have begun a collective of "
                              "the cpu backend, which this rank has not called: a call goes to the "
                              "backend of its tensors' device"
                            : "rank 0 did not arrive; ranks 1 and 2 are there; rank 0 has called "
                              "nccl all_reduce #1 of 4 f32 (sum), which this rank has not called: "
                              "a call goes to the backend of its tensors' device"));
    over.arrive_and_wait();
  });
}

// A failure of one backend is a failure of the world: rank 0 does not wait for ranks that may still
// need the store that it hosts.
TEST(BackendsByDevice, Rank0DoesNotWaitWhereOneBackendHasFailed) {
  const ScopedEnvironment none({});
  for (const bool fails_in_nccl : {true, false}) {
    SCOPED_TRACE(fails_in_nccl ? "nccl" : "cpu");
    NcclDoubleWorld world;
    BackendFactory factory(NcclDouble::api());
    const testing_support::HeldPort port;
    std::atomic<bool> is_rank0_gone = false;
    run_ranks(2, [&](int rank) {
      std::optional<Context> context = init_with({.device = torch::Device(torch::kCUDA, 0),
                                                  .timeout = kPatience,
                                                  .init_method = "tcp://" + port.endpoint(),
                                                  .rank = rank,
                                                  .world_size = 2},
                                                 &factory);
      if (rank == 1) {
        EXPECT_TRUE(testing_support::eventually([&] { return is_rank0_gone.load(); },
                                                std::chrono::seconds(5)));
        return;
      }
      Tensor tensor = torch::ones({4});
      if (fails_in_nccl) tensor = on_device(0, tensor);
      const DistError error = dist_error_of([&] {
        context->group().all_reduce(tensor, {.timeout = std::chrono::milliseconds(300)});
      });
      EXPECT_EQ(error.kind(), DistError::Kind::kTimeout);
      context.reset();
      is_rank0_gone = true;
    });
  }
}

}  // namespace
}  // namespace ddprun
