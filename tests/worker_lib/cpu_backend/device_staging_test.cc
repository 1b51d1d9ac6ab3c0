// Tests tensors of another device on the cpu backend: the results are those of tensors on the
// host, in the order of the streams.
#include "worker_lib/cpu_backend/device_staging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <latch>

#include "ddprun/context.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/map_store.h"
#include "tests/support/rank_threads.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/support/queue_device.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using testing_support::kPatience;
using testing_support::run_ranks;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

template <class Body>
void in_a_world_of(int size, Body body) {
  const torch::Device device = QueueDevice::install();
  const auto store = std::make_shared<testing_support::MapStore>();
  run_ranks(size, [&](int rank) {
    Context context = init_with({.device = device,
                                 .backend = "cpu",
                                 .timeout = kPatience,
                                 .rank = rank,
                                 .world_size = size,
                                 .store = store},
                                nullptr);
    body(context.group());
  });
}

Tensor put(const Tensor& host) { return QueueDevice::put(host); }
Tensor get(const Tensor& device) { return QueueDevice::get(device); }

Tensors put(const Tensors& hosts) {
  Tensors there;
  for (const Tensor& one : hosts) there.push_back(put(one));
  return there;
}

Tensor ranks_own(const ProcessGroup& group, std::int64_t elements) {
  return torch::arange(elements, torch::kFloat32) * (group.rank() + 1);
}

Tensor sum_of_all(const ProcessGroup& group, std::int64_t elements) {
  const int n = group.size();
  return torch::arange(elements, torch::kFloat32) * (n * (n + 1) / 2);
}

// One piece; several pieces and a rest; exactly two pieces; one element; none.
constexpr std::array<std::int64_t, 5> kSizes{5, (9 << 18) + 7, 2 << 20, 1, 0};

TEST(DeviceStaging, TheGroupTakesTheDevicesTensorsAndTheHosts) {
  in_a_world_of(2, [](ProcessGroup& group) {
    EXPECT_TRUE(group.takes(torch::kPrivateUse1));
    EXPECT_TRUE(group.takes(torch::kCPU));
    EXPECT_FALSE(group.takes(torch::kCUDA));
    EXPECT_EQ(group.device(), torch::Device(torch::kPrivateUse1, 0));
    EXPECT_EQ(group.backend_name(), "cpu");
    const Tensor host = ranks_own(group, 3);
    group.all_reduce(host);
    EXPECT_TRUE(torch::equal(host, sum_of_all(group, 3)));
  });
}

TEST(DeviceStaging, AllReduceInPieces) {
  in_a_world_of(3, [](ProcessGroup& group) {
    for (const std::int64_t elements : kSizes) {
      const Tensor tensor = put(ranks_own(group, elements));
      group.all_reduce(tensor);
      const Tensor got = get(tensor);
      EXPECT_TRUE(torch::equal(got, sum_of_all(group, elements)))
          << elements << " " << got.slice(0, 0, 8) << sum_of_all(group, elements).slice(0, 0, 8);
    }
  });
}

TEST(DeviceStaging, AListOfTensorsIsCutAcrossTheirBorders) {
  in_a_world_of(2, [](ProcessGroup& group) {
    const Tensors tensors = put({ranks_own(group, 3 << 19), ranks_own(group, 0),
                                 ranks_own(group, 7), ranks_own(group, 5 << 19)});
    group.all_reduce_coalesced(tensors);
    for (const Tensor& one : tensors) {
      EXPECT_TRUE(torch::equal(get(one), sum_of_all(group, one.numel())));
    }
  });
}

TEST(DeviceStaging, ReduceLeavesTheOthersAsTheyWere) {
  in_a_world_of(3, [](ProcessGroup& group) {
    for (const std::int64_t elements : kSizes) {
      const Tensor tensor = put(ranks_own(group, elements));
      group.reduce(tensor, {.root = 1, .op = ReduceOp::kPremulSum, .premul_factor = 2});
      const Tensor expected =
          group.rank() == 1 ? sum_of_all(group, elements) * 2 : ranks_own(group, elements);
      EXPECT_TRUE(torch::equal(get(tensor), expected)) << elements;
    }
  });
}

TEST(DeviceStaging, BroadcastOfTensorsOfSeveralDtypes) {
  in_a_world_of(3, [](ProcessGroup& group) {
    const Tensor floats = put(ranks_own(group, (3 << 20) + 5));
    const Tensor bytes = put(torch::full({77}, group.rank(), torch::kUInt8));
    group.broadcast_coalesced({floats, bytes}, {.root = 2});
    EXPECT_TRUE(torch::equal(get(floats), torch::arange((3 << 20) + 5, torch::kFloat32) * 3));
    EXPECT_TRUE(torch::equal(get(bytes), torch::full({77}, 2, torch::kUInt8)));
  });
}

TEST(DeviceStaging, SharesOfTheRanks) {
  in_a_world_of(2, [](ProcessGroup& group) {
    const auto at = static_cast<std::size_t>(group.rank());
    const Tensor mine = put(torch::full({2, 3}, group.rank()));
    const Tensors all = put({torch::zeros({2, 3}), torch::zeros({2, 3})});
    const Tensor own_like = put(torch::full({2, 3}, group.rank(), torch::kFloat32));
    group.all_gather(all, own_like);
    for (int r = 0; r < 2; ++r) {
      EXPECT_TRUE(torch::equal(get(all[static_cast<std::size_t>(r)]),
                               torch::full({2, 3}, r, torch::kFloat32)));
    }

    const Tensor share = put(torch::zeros({4}));
    group.reduce_scatter(share, put({ranks_own(group, 4), ranks_own(group, 4) + 1}));
    EXPECT_TRUE(torch::equal(get(share), sum_of_all(group, 4) + 2 * group.rank()));

    const Tensors gathered =
        group.rank() == 1 ? put({torch::zeros({4}), torch::zeros({4})}) : Tensors();
    group.gather(gathered, put(ranks_own(group, 4)), {.root = 1});
    if (group.rank() == 1) {
      EXPECT_TRUE(torch::equal(get(gathered[0]) * 2, get(gathered[1])));
    }

    const Tensor scattered = put(torch::zeros({2}));
    group.scatter(scattered,
                  group.rank() == 0 ? put({torch::ones({2}), torch::ones({2}) * 7}) : Tensors());
    EXPECT_TRUE(torch::equal(get(scattered), torch::ones({2}) * (group.rank() == 0 ? 1 : 7)));

    // Rank r sends r + 1 elements to rank 0 and two to rank 1.
    const Tensors outgoing = put({torch::full({group.rank() + 1}, group.rank(), torch::kFloat32),
                                  torch::full({2}, 10 + group.rank(), torch::kFloat32)});
    const Tensors incoming = group.rank() == 0 ? put({torch::zeros({1}), torch::zeros({2})})
                                               : put({torch::zeros({2}), torch::zeros({2})});
    group.all_to_all(incoming, outgoing);
    EXPECT_EQ(get(incoming[1 - at])[0].item<float>(), group.rank() == 0 ? 1 : 10);
    group.barrier();
  });
}

TEST(DeviceStaging, MessagesOfEveryKind) {
  in_a_world_of(2, [](ProcessGroup& group) {
    const Tensor tensor = put(ranks_own(group, 1 << 18));
    if (group.rank() == 0) {
      group.send(tensor, 1, {.tag = 3});
      const Work sent = group.isend(tensor, 1);
      sent.wait();
      return;
    }
    const Tensor first = put(torch::zeros({1 << 18}));
    group.recv(first, 0, {.tag = 3});
    EXPECT_TRUE(torch::equal(get(first), torch::arange(1 << 18, torch::kFloat32)));
    const Tensor second = put(torch::zeros({1 << 18}));
    const Work received = group.irecv(second, kAnySource);
    received.wait();
    EXPECT_EQ(received.source_rank(), 0);
    EXPECT_TRUE(torch::equal(get(second), torch::arange(1 << 18, torch::kFloat32)));
  });
}

TEST(DeviceStaging, ACallSeesWhatTheStreamWasGivenBeforeIt) {
  in_a_world_of(2, [](ProcessGroup& group) {
    const Tensor tensor = put(torch::zeros({1 << 16}));
    const Tensor ones = torch::ones({1 << 16});
    if (group.rank() == 0) QueueDevice::close_stream();
    torch::Tensor(tensor).copy_(ones, /*non_blocking=*/true);
    const Work work = group.all_reduce(tensor, {.async = true});
    if (group.rank() == 0) {
      EXPECT_THROW(work.wait(milliseconds(20)), DistError);
      EXPECT_FALSE(work.is_completed());
      QueueDevice::open_stream();
    }
    work.wait();
    EXPECT_TRUE(testing_support::eventually([&] { return work.is_completed(); }));
    EXPECT_EQ(get(tensor).min().item<float>(), 2);
    EXPECT_EQ(get(tensor).max().item<float>(), 2);
  });
}

TEST(DeviceStaging, AFuturesCallbackSeesTheResults) {
  in_a_world_of(2, [](ProcessGroup& group) {
    const Tensor tensor = put(ranks_own(group, 1 << 20));
    std::promise<bool> is_right;
    const auto future = group.all_reduce(tensor, {.async = true}).future();
    future->addCallback([&](c10::ivalue::Future& over) {
      const Tensor got = get(over.value().toTensorVector().at(0));
      is_right.set_value(torch::equal(got, sum_of_all(group, 1 << 20)));
    });
    EXPECT_TRUE(is_right.get_future().get());
    future->wait();
    EXPECT_TRUE(torch::equal(get(tensor), sum_of_all(group, 1 << 20)));
  });
}

TEST(DeviceStaging, CallsInFlightKeepTheirOrderAndAWorkMayBeThrownAway) {
  in_a_world_of(2, [](ProcessGroup& group) {
    Tensors tensors;
    for (int i = 0; i < 20; ++i) tensors.push_back(put(ranks_own(group, 1000 + i)));
    std::vector<Work> works;
    for (const Tensor& one : tensors) works.push_back(group.all_reduce(one, {.async = true}));
    // No code waits for these works, or keeps their tensors.
    for (int i = 0; i < 20; ++i) group.all_reduce(put(ranks_own(group, 1 << 16)), {.async = true});
    for (const Work& work : works) work.wait();
    for (const Tensor& one : tensors) {
      EXPECT_TRUE(torch::equal(get(one), sum_of_all(group, one.numel())));
    }
    group.barrier();
  });
}

TEST(DeviceStaging, ACallInFlightReadsTheResultsOfTheOnesBeforeIt) {
  in_a_world_of(2, [](ProcessGroup& group) {
    // The tensor is long: its copy to the device is still in progress when the next call
    // begins.
    const Tensor tensor = put(ranks_own(group, 3 << 20));
    const Tensor copy = put(torch::zeros({3 << 20}));
    std::vector<Work> works;
    for (int i = 0; i < 8; ++i) works.push_back(group.all_reduce(tensor, {.async = true}));
    works.push_back(group.broadcast(tensor, {.root = 1, .async = true}));
    works.push_back(group.all_to_all_single(copy, tensor, {.async = true}));
    for (const Work& work : works) work.wait();
    EXPECT_TRUE(torch::equal(get(tensor), sum_of_all(group, 3 << 20) * 128));
    const Tensor half = get(tensor).view({2, -1})[group.rank()];
    EXPECT_TRUE(torch::equal(get(copy), half.repeat({2})));
  });
}

TEST(DeviceStaging, ADeviceThatDoesNotGetThereEndsTheGroupAtTheDeadline) {
  std::latch both(2);
  in_a_world_of(2, [&](ProcessGroup& group) {
    const Tensor tensor = put(torch::ones({8}));
    both.arrive_and_wait();
    if (group.rank() == 1) {
      const DistError failure =
          testing_support::dist_error_of([&] { group.barrier({.timeout = kPatience}); });
      EXPECT_THAT(failure.what(), HasSubstr("rank 0"));
      return;
    }
    QueueDevice::close_stream();
    const DistError failure = testing_support::dist_error_of(
        [&] { group.all_reduce(tensor, {.timeout = milliseconds(50)}); });
    EXPECT_EQ(failure.kind(), DistError::Kind::kTimeout);
    EXPECT_THAT(failure.what(), HasSubstr("the device has not got so far"));
    EXPECT_EQ(testing_support::dist_error_of([&] { group.barrier(); }).kind(),
              DistError::Kind::kStopped);
    QueueDevice::open_stream();
  });
}

TEST(DeviceStaging, TensorsOfOneCallAreOnOneDevice) {
  in_a_world_of(1, [](ProcessGroup& group) {
    const DistError failure = testing_support::dist_error_of([&] {
      group.all_reduce_coalesced({put(torch::ones({2})), torch::ones({2})});
    });
    EXPECT_EQ(failure.kind(), DistError::Kind::kInvalidArgument);
    EXPECT_STREQ(
        failure.what(),
        "all_reduce_coalesced: tensors[1] must be on privateuseone:0 like the call's other "
        "tensors, but is on cpu");
  });
}

TEST(DeviceStaging, WhatHasNoStreamsCannotBeStaged) {
  EXPECT_FALSE(can_be_staged(torch::kCPU));
  EXPECT_FALSE(can_be_staged(torch::kMeta));
  EXPECT_FALSE(can_be_staged(torch::kMPS));
}

}  // namespace
}  // namespace ddprun
