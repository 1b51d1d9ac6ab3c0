// Tests init_with() as far as one process can: the environment, the choice of device and
// backend, worlds of one, and missing ranks. Worlds of several ranks are in
// worker_processes_test.cc.
#include "ddprun/context.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <atomic>
#include <set>

#include "rendezvous/net/listen.h"
#include "tests/support/client_of.h"
#include "tests/support/eventually.h"
#include "tests/support/expect_dist_error.h"
#include "tests/support/held_port.h"
#include "tests/support/map_store.h"
#include "tests/support/rank_threads.h"
#include "tests/support/read_file.h"
#include "tests/support/running_store.h"
#include "tests/support/thread_ids.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/nccl/double.h"
#include "tests/worker_lib/support/queue_device.h"
#include "tests/worker_lib/support/recording_backend.h"
#include "tests/worker_lib/support/scoped_environment.h"
#include "worker_lib/nccl/backend_nccl.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing_support::dist_error_of;

constexpr const char* kNobodysPort = "1";  // tcpmux: nothing listens there

TEST(Context, WithoutALauncherThereIsAWorldOfOne) {
  const ScopedEnvironment none({});
  Context context = init_with({}, nullptr);
  EXPECT_EQ(context.rank(), 0);
  EXPECT_EQ(context.world_size(), 1);
  EXPECT_EQ(context.local_rank(), 0);
  EXPECT_EQ(context.local_world_size(), 1);
  EXPECT_EQ(context.generation(), 0);
  EXPECT_EQ(context.run_id(), "none");
  EXPECT_EQ(context.device(), torch::kCPU);
  EXPECT_EQ(context.group().backend_name(), "cpu");
  EXPECT_EQ(context.group().timeout(), std::chrono::minutes(30));
}

TEST(Context, AWorldOfOneHasNoThreadsAndItsCollectivesAreCopies) {
  const ScopedEnvironment none({});
  const std::set<std::string> threads = testing_support::thread_ids();
  Context context = init_with({}, nullptr);
  ProcessGroup& group = context.group();
  const torch::Tensor x = torch::ones({3});
  group.all_reduce(x);
  group.broadcast(x);
  const torch::Tensor y = torch::zeros({3});
  group.all_gather({y}, x);
  group.barrier();
  EXPECT_TRUE(torch::equal(y, torch::ones({3})));
  EXPECT_EQ(group.all_gather_object("one"), std::vector<nlohmann::json>{"one"});
  EXPECT_TRUE(testing_support::has_no_thread_beyond(threads));
}

// Loading torch_cuda costs 0.1 s at every start, and 350 MB.
TEST(Context, AProgramForTheCpuDoesNotLoadTheCudaPartOfLibTorch) {
  const std::string loaded = testing_support::read_file("/proc/self/maps");
  EXPECT_THAT(loaded, HasSubstr("libtorch_cpu"));
  EXPECT_THAT(loaded, testing::Not(HasSubstr("libtorch_cuda")));
}

TEST(Context, UnderALauncherAWorldOfOneNeedsNoStore) {
  const ScopedEnvironment launched({{"RANK", "0"},
                                    {"WORLD_SIZE", "1"},
                                    {"MASTER_ADDR", "192.0.2.1"},
                                    {"TORCHELASTIC_RUN_ID", "job"},
                                    {"DDPRUN_GENERATION", "4"},
                                    {"TORCHELASTIC_RESTART_COUNT", "2"}});
  const Context context = init_with({}, nullptr);
  EXPECT_EQ(context.generation(), 4);
  EXPECT_EQ(context.restart_count(), 2);
  EXPECT_EQ(context.run_id(), "job");
}

TEST(Context, AMovedContextKeepsItsGroup) {
  const ScopedEnvironment none({});
  Context context = init_with({}, nullptr);
  ProcessGroup* group = &context.group();
  Context moved = std::move(context);
  EXPECT_EQ(&moved.group(), group);
}

TEST(Context, ABadVariableIsNamed) {
  const ScopedEnvironment bad({{"RANK", "5"}, {"WORLD_SIZE", "2"}});
  const DistError failure = dist_error_of([] { init_with({}, nullptr); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kInvalidArgument);
  EXPECT_STREQ(failure.what(),
               "ddprun::init: read environment variable RANK: invalid value '5' (expected an "
               "integer from 0 to 1)");
}

// --- device and backend

struct BadChoice {
  InitOptions options;
  DistError::Kind kind;
  std::string message;
};

TEST(Context, SaysWhyADeviceOrABackendCannotBeHad) {
  using Kind = DistError::Kind;
  const ScopedEnvironment none({});
  const std::vector<BadChoice> cases{
      {{.backend = "gloo"},
       Kind::kInvalidArgument,
       "ddprun::init: there is no backend 'gloo'; there are cpu and nccl"},
      {{.device = torch::kMeta},
       Kind::kInvalidArgument,
       "ddprun::init: device meta is not known here; there are cpu and cuda"},
      {{.device = torch::kCPU, .backend = "cuda:cpu"},
       Kind::kInvalidArgument,
       "ddprun::init: backend cuda:cpu is for device cuda, not cpu"},
      {{.device = torch::kMeta, .backend = "cpu"},
       Kind::kInvalidArgument,
       "ddprun::init: backend cpu cannot carry tensors on meta: LibTorch has no streams for it"},
      {{.device = torch::kCUDA, .backend = "cpu"},
       Kind::kUnsupported,
       "ddprun::init: there is no GPU here, or no driver for it"},
      {{.backend = "nccl"},
       Kind::kUnsupported,
       "ddprun::init: backend nccl needs a program that is linked with ddprun::worker_cuda; this "
       "one is linked with ddprun::worker"},
      {{.timeout = seconds(0)},
       Kind::kInvalidArgument,
       "ddprun::init: timeout must be more than zero"},
  };
  for (const BadChoice& bad : cases) {
    const DistError failure = dist_error_of([&] { init_with(bad.options, nullptr); });
    EXPECT_EQ(failure.kind(), bad.kind) << bad.message;
    EXPECT_EQ(failure.what(), bad.message);
  }
}

TEST(Context, AGpuThatDoesNotExistIsRefused) {
  const ScopedEnvironment none({});
  NcclDouble cuda;
  BackendFactory factory(NcclDouble::api());
  cuda.set_device_count(2);
  const InitOptions third{.device = torch::Device(torch::kCUDA, 2)};
  EXPECT_STREQ(dist_error_of([&] { init_with(third, &factory); }).what(),
               "ddprun::init: device cuda:2 does not exist; there are 2 GPUs, cuda:0 to cuda:1");
  cuda.set_device_count(0);
  EXPECT_STREQ(dist_error_of([&] { init_with({.backend = "nccl"}, &factory); }).what(),
               "ddprun::init: there is no GPU here, or no driver for it");
}

TEST(Context, WithoutAGpuAProgramForGpusRunsOnTheCpu) {
  const ScopedEnvironment none({});
  NcclDouble cuda;
  BackendFactory factory(NcclDouble::api());
  cuda.set_device_count(0);
  Context context = init_with({}, &factory);
  EXPECT_EQ(context.device(), torch::kCPU);
  EXPECT_EQ(context.group().backend_name(), "cpu");
}

// --- backends that the program brings

BackendKind recording_kind(BackendRecord& record) {
  return {.name = "mine", .devices = {torch::kPrivateUse1}, .make = [&](const BackendStart& start) {
            EXPECT_EQ(start.store, nullptr);  // a world of one has none
            return std::make_unique<RecordingBackend>(record, start.rank, start.size,
                                                      start.device.type());
          }};
}

TEST(Context, EachTensorGoesToTheBackendOfItsDevice) {
  const ScopedEnvironment none({});
  const torch::Device device = QueueDevice::install();
  BackendRecord record;
  Context context = init_with({.device = device,
                               .backend = "cpu:cpu,privateuseone:mine",
                               .more_backends = {recording_kind(record)}},
                              nullptr);
  ProcessGroup& group = context.group();
  EXPECT_EQ(group.backend_name(), "cpu:cpu,privateuseone:mine");
  EXPECT_TRUE(group.takes(torch::kCPU));
  EXPECT_TRUE(group.takes(torch::kPrivateUse1));
  EXPECT_FALSE(group.takes(torch::kCUDA));

  const torch::Tensor host = torch::ones({2});
  const torch::Tensor there = QueueDevice::put(host);
  group.all_reduce(host, {.timeout = seconds(5)});
  group.all_reduce(there, {.timeout = seconds(5)});
  group.reduce(there, {.timeout = seconds(5)});
  group.broadcast(there, {.timeout = seconds(5)});
  group.all_gather({there}, there, {.timeout = seconds(5)});
  group.reduce_scatter(QueueDevice::put(host), {there}, {.timeout = seconds(5)});
  group.gather({there}, there, {.timeout = seconds(5)});
  group.scatter(there, {there}, {.timeout = seconds(5)});
  group.all_to_all({QueueDevice::put(host)}, {there}, {.timeout = seconds(5)});
  group.barrier({.timeout = seconds(5)});
  group.monitored_barrier(seconds(5));
  EXPECT_THAT(record.calls,
              ElementsAre("all_reduce [2] sum in 5.0 s", "reduce sum root 0 in 5.0 s",
                          "broadcast [2] root 0 in 5.0 s", "all_gather [2] of [2] in 5.0 s",
                          "reduce_scatter [2] of [2] sum in 5.0 s", "gather [2] root 0 in 5.0 s",
                          "scatter [2] root 0 in 5.0 s", "all_to_all [2] of [2] in 5.0 s",
                          "barrier in 5.0 s", "monitored_barrier in 5.0 s"));
  record.calls.clear();
  EXPECT_EQ(group.all_gather_object({{"a", 1}})[0].at("a"), 1);  // runs on the host
  EXPECT_THAT(record.calls, IsEmpty());
  group.abort("enough");
  EXPECT_EQ(record.aborted, "enough");
  EXPECT_EQ(dist_error_of([&] { group.all_reduce(host); }).kind(), DistError::Kind::kStopped);
}

TEST(Context, ABackendOfTheProgramsOwnMayBeTheOnlyOne) {
  const ScopedEnvironment none({});
  const torch::Device device = QueueDevice::install();
  BackendRecord record;
  {
    Context context = init_with(
        {.device = device, .backend = "mine", .more_backends = {recording_kind(record)}}, nullptr);
    EXPECT_EQ(context.group().backend_name(), "recording");
    EXPECT_STREQ(dist_error_of([&] { context.group().all_reduce(torch::ones({1})); }).what(),
                 "all_reduce: tensor must be on privateuseone, the group's device, but is on cpu");
  }
}

// The colors are wrong, as after a call that was aborted while a stream waited for it.
TEST(Context, ASplitWhoseColorsDidNotComeIsRefused) {
  const ScopedEnvironment none({});
  BackendRecord record;
  record.gather = [](TensorList outputs, TensorList) {
    for (const torch::Tensor& output : outputs) output.fill_(9);
  };
  BackendKind kind = recording_kind(record);
  kind.devices = {torch::kCPU};
  Context context =
      init_with({.device = torch::kCPU, .backend = "mine", .more_backends = {kind}}, nullptr);
  EXPECT_DIST_ERROR(context.group().split(3), DistError::Kind::kStopped,
                    HasSubstr("the exchange of colors ended without this rank's own"));
}

TEST(Context, SaysWhatIsWrongWithABackendOfTheProgramsOwn) {
  const ScopedEnvironment none({});
  BackendRecord record;
  const auto refusal = [](BackendKind kind) {
    return std::string(dist_error_of([&] {
                         init_with({.backend = "mine", .more_backends = {std::move(kind)}},
                                   nullptr);
                       }).what());
  };
  BackendKind kind = recording_kind(record);
  kind.devices = {torch::kCPU};
  for (const char* name : {"", "cpu", "nccl", "a:b", "a,b"}) {
    BackendKind misnamed = kind;
    misnamed.name = name;
    EXPECT_THAT(refusal(misnamed), HasSubstr("is not a backend name")) << name;
  }
  BackendKind nowhere = kind;
  nowhere.devices = {};
  EXPECT_EQ(refusal(nowhere), "ddprun::init: more_backends: mine has no device");
  BackendKind empty = kind;
  empty.make = nullptr;
  EXPECT_EQ(refusal(empty), "ddprun::init: more_backends: mine has no make function");
  BackendKind none_made = kind;
  none_made.make = [](const BackendStart&) { return nullptr; };
  EXPECT_EQ(refusal(none_made),
            "ddprun::init of rank 0 of 1: make a backend mine: its make() returned null");
  BackendKind throws = kind;
  throws.make = [](const BackendStart&) -> std::unique_ptr<Backend> {
    throw std::runtime_error("no switch");
  };
  EXPECT_EQ(refusal(throws), "ddprun::init of rank 0 of 1: make a backend mine: no switch");
}

// --- deadlines

TEST(Context, TheDeadlineIsTheOptionElseTheEnvironmentsElsePyTorchs) {
  const auto timeout_of = [](const InitOptions& options) {
    return init_with(options, nullptr).group().timeout();
  };
  {
    const ScopedEnvironment none({});
    EXPECT_EQ(timeout_of({}), minutes(30));
    EXPECT_EQ(timeout_of({.timeout = seconds(7)}), seconds(7));
  }
  const ScopedEnvironment said(std::map<std::string, std::string>{{"DDPRUN_TIMEOUT", "90.5"}});
  EXPECT_EQ(timeout_of({}), milliseconds(90500));
  EXPECT_EQ(timeout_of({.timeout = seconds(7)}), seconds(7));
}

TEST(Context, ADeadlineThatIsNoTimeIsNamed) {
  for (const char* bad : {"0", "-1", "soon", "10m", " 5"}) {
    const ScopedEnvironment said(std::map<std::string, std::string>{{"DDPRUN_TIMEOUT", bad}});
    EXPECT_EQ(dist_error_of([] { init_with({}, nullptr); }).what(),
              "ddprun::init: read environment variable DDPRUN_TIMEOUT: invalid value '" +
                  std::string(bad) + "' (expected seconds above zero)");
  }
}

// --- checks

TEST(Context, WhatToVerifyIsTheOptionElseTheEnvironments) {
  const std::string nan_found = "gives holds 1 NaN";
  const torch::Tensor bad = torch::full({1}, std::numeric_limits<float>::quiet_NaN());
  const ScopedEnvironment said(std::map<std::string, std::string>{{"DDPRUN_VERIFY", "1"}});
  Context checked = init_with({}, nullptr);
  EXPECT_THAT(dist_error_of([&] { checked.group().all_reduce(bad); }).what(), HasSubstr(nan_found));
  EXPECT_THAT(dist_error_of([&] { checked.new_group({0})->all_reduce(bad); }).what(),
              HasSubstr(nan_found));
  Context not_checked = init_with({.verify = Verify()}, nullptr);
  not_checked.group().all_reduce(bad);
  setenv("DDPRUN_VERIFY", "all", 1);
  EXPECT_STREQ(dist_error_of([] { init_with({}, nullptr); }).what(),
               "ddprun::init: read environment variable DDPRUN_VERIFY: invalid value 'all' "
               "(expected 1, nan, results or 0)");
}

// No store is served, so the group is never formed. Until then the double records the order of
// calls.
TEST(Context, TheDeviceIsLocalRankModuloDevicesAndCurrentBeforeAnythingElse) {
  const ScopedEnvironment launched({{"RANK", "5"},
                                    {"WORLD_SIZE", "6"},
                                    {"LOCAL_RANK", "5"},
                                    {"LOCAL_WORLD_SIZE", "6"},
                                    {"MASTER_PORT", kNobodysPort}});
  NcclDouble cuda;
  BackendFactory factory(NcclDouble::api());
  cuda.set_device_count(4);
  const DistError failure =
      dist_error_of([&] { init_with({.timeout = milliseconds(50)}, &factory); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kConnection) << failure.what();
  EXPECT_EQ(NcclDouble::current_device(), 1);
  EXPECT_EQ(cuda.calls().front(), "get_device_count");
  EXPECT_EQ(cuda.calls().back(), "set_device");
  NcclDouble::api().set_device(0);
}

// --- missing peers

TEST(Context, ByHandItNamesRank0WhoseStoreItWaitsFor) {
  for (const std::string host : {"127.0.0.1", "::1"}) {
    const ScopedEnvironment by_hand(
        {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", host}, {"MASTER_PORT", kNobodysPort}});
    const DistError failure =
        dist_error_of([] { init_with({.timeout = milliseconds(50)}, nullptr); });
    EXPECT_EQ(failure.kind(), DistError::Kind::kConnection);
    EXPECT_EQ(failure.peer_rank(), 0);
    EXPECT_THAT(failure.what(), AllOf(HasSubstr("ddprun::init of rank 1 of 2: connect to store " +
                                                to_text(HostPort{host, 1})),
                                      HasSubstr("rank 0, which hosts the store, has not come")));
  }
}

TEST(Context, ABadInitMethodIsRefused) {
  const ScopedEnvironment none({});
  EXPECT_DIST_ERROR(init_with({.init_method = "tcp://h:0"}, nullptr),
                    DistError::Kind::kInvalidArgument,
                    HasSubstr("ddprun::init: init_method 'tcp://h:0': port 0 cannot be used"));
}

TEST(Context, NamesTheRanksThatDidNotCome) {
  const testing_support::RunningStore store;
  const ScopedEnvironment launched({{"RANK", "1"},
                                    {"WORLD_SIZE", "4"},
                                    {"MASTER_PORT", std::to_string(store.port())},
                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  const DistError failure =
      dist_error_of([] { init_with({.timeout = milliseconds(1000)}, nullptr); });
  EXPECT_EQ(failure.kind(), DistError::Kind::kTimeout);
  EXPECT_THAT(failure.what(), AllOf(HasSubstr("ddprun::init of rank 1 of 4: "),
                                    HasSubstr(": ranks 0, 2 and 3 did not come (waited ")));
}

TEST(Context, ItsKeysBeginWithItsOwnPrefixAndNameTheGeneration) {
  testing_support::RunningStore store;
  const std::string port = std::to_string(store.port());
  const ScopedEnvironment launched({{"RANK", "1"},
                                    {"WORLD_SIZE", "2"},
                                    {"MASTER_PORT", port},
                                    {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                    {"TORCHELASTIC_RUN_ID", "job"},
                                    {"DDPRUN_GENERATION", "3"}});
  dist_error_of([] { init_with({.timeout = milliseconds(1000)}, nullptr); });
  const auto client = value_or_throw(testing_support::client_of(store.port()));
  const auto keys = client->list_keys();
  ASSERT_FALSE(keys->empty());
  EXPECT_THAT(*keys, testing::Each(testing::StartsWith("ddprun/job/generation-3/")));
}

// --- ranks that are threads: each states its own rank

void sum_over(const InitOptions& options) {
  Context context = init_with(options, nullptr);
  EXPECT_EQ(context.rank(), *options.rank);
  const torch::Tensor x = torch::ones({3});
  context.group().all_reduce(x);
  EXPECT_TRUE(torch::equal(x, torch::full({3}, static_cast<float>(*options.world_size))));
}

TEST(Context, AProgramsOwnStoreServes) {
  const ScopedEnvironment none({});
  const auto store = std::make_shared<testing_support::MapStore>();
  testing_support::run_ranks(3, [&](int rank) {
    sum_over({.timeout = seconds(20), .rank = rank, .world_size = 3, .store = store});
  });
}

TEST(Context, Rank0HostsTheStoreOfTcp) {
  const ScopedEnvironment none({});
  const testing_support::HeldPort port;
  testing_support::run_ranks(3, [&](int rank) {
    sum_over({.timeout = seconds(20),
              .init_method = "tcp://" + port.endpoint(),
              .rank = rank,
              .world_size = 3});
  });
}

TEST(Context, AStoreThatPyTorchServesIsUsedWhereItIsSaidToBeThere) {
  const ScopedEnvironment said(
      std::map<std::string, std::string>{{"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  c10d::TCPStoreOptions server;
  server.port = 0;
  server.isServer = true;
  server.waitWorkers = false;
  const c10::intrusive_ptr<c10d::TCPStore> store =
      c10::make_intrusive<c10d::TCPStore>("127.0.0.1", server);
  testing_support::run_ranks(3, [&](int rank) {
    sum_over({.timeout = seconds(20),
              .init_method = "tcp://127.0.0.1:" + std::to_string(store->getPort()),
              .rank = rank,
              .world_size = 3});
  });
}

// Rank 0's context is the first to end. The store that it hosts stays until the others have
// ended.
TEST(Context, TheStoreOutlivesRank0sGroupAsLongAsItIsNeeded) {
  const ScopedEnvironment none({});
  const testing_support::HeldPort port;
  std::atomic<bool> is_rank0_leaving = false;
  testing_support::run_ranks(2, [&](int rank) {
    Context context = init_with({.timeout = seconds(20),
                                 .init_method = "tcp://" + port.endpoint(),
                                 .rank = rank,
                                 .world_size = 2},
                                nullptr);
    context.group().barrier();
    if (rank == 0) {
      is_rank0_leaving = true;
      return;
    }
    ASSERT_TRUE(testing_support::eventually([&] { return is_rank0_leaving.load(); }));
    testing_support::let_pass(milliseconds(100));  // it would end in this time if it did not wait
    const auto store = connect_tcp_store({.port = port.port()});
    store->set("k", "v");
    EXPECT_EQ(store->get("k", seconds(20)), "v");
  });
  EXPECT_TRUE(listen_tcp(HostPort{"127.0.0.1", port.port()})) << "another program has the port";
}

// The other ranks need nothing more from a world that has failed.
TEST(Context, Rank0DoesNotWaitWhereTheGroupHasFailed) {
  const ScopedEnvironment none({});
  const testing_support::HeldPort port;
  std::atomic<bool> is_rank0_gone = false;
  testing_support::run_ranks(2, [&](int rank) {
    const InitOptions options{.timeout = seconds(20),
                              .init_method = "tcp://" + port.endpoint(),
                              .rank = rank,
                              .world_size = 2};
    if (rank == 0) {
      {
        Context context = init_with(options, nullptr);
        context.group().abort("for the test");
      }
      is_rank0_gone = true;
      return;
    }
    Context context = init_with(options, nullptr);
    EXPECT_TRUE(testing_support::eventually([&] { return is_rank0_gone.load(); }, seconds(5)));
  });
}

TEST(Context, ByHandNothingIsLeftOfRank0sStore) {
  const ScopedEnvironment none({});
  const testing_support::HeldPort port;
  const std::set<std::string> threads = testing_support::thread_ids();
  testing_support::run_ranks(2, [&](int rank) {
    sum_over({.timeout = seconds(20),
              .init_method = "tcp://" + port.endpoint(),
              .rank = rank,
              .world_size = 2});
  });
  EXPECT_TRUE(
      testing_support::eventually([&] { return testing_support::has_no_thread_beyond(threads); }));
}

}  // namespace
}  // namespace ddprun
