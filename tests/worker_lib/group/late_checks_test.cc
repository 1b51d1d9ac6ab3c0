// Tests copies to the host that nothing waits for, on a device whose streams run at any later
// time.
#include "worker_lib/group/late_checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>

#include "tests/support/eventually.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/cpu_group/world.h"
#include "tests/worker_lib/support/queue_device.h"
#include "worker_lib/cpu_backend/backend_cpu.h"
#include "worker_lib/group/any_rank.h"

namespace ddprun {
namespace {

using detail::HostCopy;
using detail::LateChecks;
using detail::LateChecksOfGroup;
using std::chrono::milliseconds;
using testing::ElementsAre;
using testing_support::kPatience;
using torch::Tensor;

TEST(LateChecks, CopyWhatTheStreamHoldsThenAndWaitForNothing) {
  QueueDevice::install();
  const Tensor values = QueueDevice::put(torch::tensor({1, 2}));
  QueueDevice::close_stream();
  LateChecks checks;
  std::vector<int> seen;
  checks.add(values, [&](const Tensor& on_host) { seen.push_back(on_host[1].item<int>()); });
  const Tensor later = torch::tensor({3, 4});
  values.copy_(later, /*non_blocking=*/true);  // after the copy for the check
  EXPECT_THAT(seen, ElementsAre());
  std::future<void> settled = std::async(std::launch::async, [&] { checks.settle(); });
  EXPECT_EQ(settled.wait_for(milliseconds(30)), std::future_status::timeout);
  QueueDevice::open_stream();
  settled.get();
  EXPECT_THAT(seen, ElementsAre(2));
  checks.settle();
  EXPECT_THAT(seen, ElementsAre(2)) << "each is looked at once";
  QueueDevice::drain();
}

TEST(LateChecks, OfAGroupAreSettledInTheirOrderAsLongAsTheyExist) {
  LateChecksOfGroup all;
  std::vector<int> seen;
  const auto make = [&](int number) {
    auto checks = std::make_shared<LateChecks>();
    all.add(checks, {0});
    checks->add(torch::zeros({1}), [&seen, number](const Tensor&) { seen.push_back(number); });
    return checks;
  };
  const auto first = make(1);
  make(2);  // its checks are destroyed at once
  const auto third = make(3);
  all.settle({0});
  EXPECT_THAT(seen, ElementsAre(1, 3));
}

TEST(LateChecks, AFailedLookDoesNotLeaveTheOthersPending) {
  LateChecksOfGroup all;
  int looks = 0;
  const auto add = [&](const std::shared_ptr<LateChecks>& to, const char* failure) {
    to->add(torch::zeros({1}), [&looks, failure](const Tensor&) {
      ++looks;
      throw std::runtime_error(failure);
    });
  };
  const auto one = std::make_shared<LateChecks>(), other = std::make_shared<LateChecks>();
  add(one, "first");
  add(one, "second");
  add(other, "third");
  all.add(one, {0, 1});
  all.add(other, {1, 0});
  EXPECT_THAT(
      [&] {
        all.settle({0, 1});
      },
      testing::ThrowsMessage<std::runtime_error>(testing::StrEq("first")));
  EXPECT_EQ(looks, 3);
  all.settle({0, 1});
  EXPECT_EQ(looks, 3);
}

TEST(LateChecks, OfRanksThatAreNotAllPresentAreLookedAtAloneAndStay) {
  LateChecksOfGroup all;
  const auto checks = std::make_shared<LateChecks>();
  std::string seen;
  checks->add(
      torch::zeros({1}), [&](const Tensor&) { seen += "together "; },
      [&](const Tensor&) { seen += "alone "; });
  all.add(checks, {0, 1});
  all.settle({1, 2});
  all.forget({1, 2});
  all.settle({2, 1, 0});
  all.settle({2, 1, 0});
  EXPECT_EQ(seen, "alone together ");
  checks->add(torch::zeros({1}), [&](const Tensor&) { seen += "forgotten "; });
  all.forget({0, 1});
  all.settle({0, 1});
  EXPECT_EQ(seen, "alone together ");
}

// The group takes no tensors of the CPU, like a group that has only the nccl backend.
TEST(LateRequests, OfAGroupOfADeviceWaitForNoStream) {
  const torch::Device device = QueueDevice::install();
  testing_support::RunningStore store;
  testing_support::run_ranks(2, [&](int rank) {
    ProcessGroup group(make_cpu_backend(form_rank(store.port(), "aa", rank, "world"),
                                        std::vector<torch::DeviceType>{torch::kPrivateUse1}),
                       device, kPatience);
    ASSERT_FALSE(group.takes(torch::kCPU));
    LateRequests requests(group);
    QueueDevice::close_stream();  // begin() does not wait for the stream
    requests.send({rank == 0, false});
    QueueDevice::open_stream();
    EXPECT_THAT(requests.take_previous({false, false}), ElementsAre(true, false));
    requests.send({false, rank == 1});
    group.barrier();              // now the requests have been exchanged
    QueueDevice::close_stream();  // last() does not wait for it, either
    EXPECT_THAT(requests.take_previous({false, false}), ElementsAre(false, true));
    QueueDevice::open_stream();
    QueueDevice::drain();
  });
}

}  // namespace
}  // namespace ddprun
