// Tests worlds that form without a launcher, with threads as ranks. start_by_hand_test tests
// them with processes.
#include "worker_lib/store/world_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "base/small_file.h"
#include "rendezvous/net/listen.h"
#include "tests/support/client_of.h"
#include "tests/support/eventually.h"
#include "tests/support/held_port.h"
#include "tests/support/map_store.h"
#include "tests/support/rank_threads.h"
#include "tests/support/running_store.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/thread_ids.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/store/result_store.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing_support::eventually;
using testing_support::HeldPort;
using testing_support::kPatience;
using testing_support::MapStore;
using testing_support::RunningStore;
using testing_support::TemporaryDirectory;

// --- one rank

struct RankOf {
  int rank = 0;
  int size = 2;
  Duration timeout = kPatience;
};

WorldStoreOptions rank_of(const RankOf& place, const StartPlan& where) {
  WorldStoreOptions options{.plan = where, .timeout = place.timeout};
  options.plan.env.rank = Rank(place.rank);
  options.plan.env.world_size = place.size;
  options.plan.place = "the test's place";
  return options;
}
WorldStoreOptions at(const HostPort& address, const RankOf& place) {
  return rank_of(place, {.meet_at = MeetAt::kAddress, .address = address});
}
WorldStoreOptions at(const HeldPort& port, const RankOf& place) {
  return at(HostPort{"127.0.0.1", port.port()}, place);
}
WorldStoreOptions at_file(const std::string& file, const RankOf& place) {
  return rank_of(place, {.meet_at = MeetAt::kFile, .file = file});
}
WorldStoreOptions in_store(std::shared_ptr<Store> store, const RankOf& place) {
  WorldStoreOptions options = rank_of(place, {.meet_at = MeetAt::kGivenStore});
  options.given = std::move(store);
  return options;
}

std::unique_ptr<WorldStore> open(const WorldStoreOptions& options) {
  Result<std::unique_ptr<WorldStore>> store = WorldStore::open(options);
  if (!store) throw std::runtime_error(store.error().message());
  return std::move(*store);
}

Error error_of(const WorldStoreOptions& options) {
  const auto store = WorldStore::open(options);
  EXPECT_FALSE(store) << "it has opened";
  return store ? Error() : store.error();
}

Result<std::unique_ptr<CpuGroup>> form(WorldStore& world, const WorldStoreOptions& options) {
  return CpuGroup::form(*world.store(), {.rank = options.plan.env.rank,
                                         .world_size = options.plan.env.world_size,
                                         .node_id = "node",
                                         .name = world.name(),
                                         .address = world.address(),
                                         .timeout = options.timeout});
}

// Runs one rank: opens the store, forms the group, makes one sum and leaves.
void take_part(const WorldStoreOptions& options) {
  const auto world = open(options);
  auto group = form(*world, options);
  if (!group) throw std::runtime_error(group.error().message());
  world->world_is_formed();
  float x = 1;
  const WritableBytes bytes(reinterpret_cast<char*>(&x), sizeof x);
  const auto summed =
      (*group)->all_reduce(list_of(bytes), ElementType::kF32, ReduceOp::kSum, kPatience);
  if (!summed) throw std::runtime_error(summed.error().message());
  EXPECT_EQ(x, static_cast<float>(options.plan.env.world_size));
  group->reset();
  EXPECT_TRUE(world->await_leave(kPatience));
}

// --- worlds that form

TEST(WorldStore, Rank0HostsAtTheAddressForAnyNumberOfRanks) {
  const HeldPort port;
  for (const int size : {2, 3, 2}) {  // directly one after the other, at the same port
    testing_support::run_ranks(
        size, [&](int rank) { take_part(at(port, {.rank = rank, .size = size})); });
  }
  EXPECT_TRUE(listen_tcp(HostPort{"127.0.0.1", port.port()})) << "the port is free";
}

TEST(WorldStore, RanksMayComeInAnyOrder) {
  const HeldPort port;
  for (const std::vector<int>& order : {std::vector{0, 1, 2}, {2, 1, 0}, {1, 0, 2}}) {
    std::atomic<int> next = 0;
    testing_support::run_ranks(3, [&](int rank) {
      const auto turn = std::ranges::find(order, rank) - order.begin();
      ASSERT_TRUE(eventually([&] { return next >= turn; }));
      std::thread go_on([&] {
        testing_support::let_pass(milliseconds(20));  // the others must come while this rank waits
        ++next;
      });
      take_part(at(port, {.rank = rank, .size = 3}));
      go_on.join();
    });
  }
}

// Each rank begins again as soon as it has ended. No rank waits for the others in between.
TEST(WorldStore, RanksBeginAgainAtOnce) {
  const HeldPort port;
  const TemporaryDirectory directory;
  const RunningStore launchers;
  const auto own = std::make_shared<MapStore>();
  const auto in_launchers = [&](const RankOf& place) {
    return rank_of(place, {.meet_at = MeetAt::kAgentStore,
                           .address = HostPort{"127.0.0.1", launchers.port()}});
  };
  testing_support::run_ranks(3, [&](int rank) {
    const RankOf place{.rank = rank, .size = 3};
    for (int turn = 0; turn < 5; ++turn) take_part(at(port, place));
    for (int turn = 0; turn < 5; ++turn) take_part(at_file(directory / "init", place));
    for (int turn = 0; turn < 5; ++turn) take_part(in_store(own, place));
    for (int turn = 0; turn < 5; ++turn) take_part(in_launchers(place));
  });
}

// An attempt that failed, or that was in another store, does not count.
TEST(WorldStore, ARankThatHasTriedInVainMeetsTheOthersAllTheSame) {
  const RunningStore store, another;
  const auto in = [](const RunningStore& one, const RankOf& place) {
    return rank_of(place,
                   {.meet_at = MeetAt::kAgentStore, .address = HostPort{"127.0.0.1", one.port()}});
  };
  open(in(store, {.rank = 1}));
  testing_support::run_ranks(2, [&](int rank) { take_part(in(another, {.rank = rank})); });
  testing_support::run_ranks(2, [&](int rank) { take_part(in(store, {.rank = rank})); });
}

TEST(WorldStore, RanksMeetAtAFileWhichIsGoneAfterwards) {
  const TemporaryDirectory directory;
  for (const int size : {2, 3}) {
    testing_support::run_ranks(size, [&](int rank) {
      take_part(at_file(directory / "init", {.rank = rank, .size = size}));
    });
    EXPECT_TRUE(testing_support::listing(directory.path()).empty());
  }
}

TEST(WorldStore, RanksMeetInAStoreOfTheirOwnOneWorldAfterTheOther) {
  const auto store = std::make_shared<MapStore>();
  for (const int size : {2, 3, 2}) {
    testing_support::run_ranks(
        size, [&](int rank) { take_part(in_store(store, {.rank = rank, .size = size})); });
  }
  EXPECT_THAT(store->keys(), testing::Each(testing::StartsWith("ddprun/by-hand/none/")));
}

TEST(WorldStore, TheNameOfThisHostMeansAllOfItsAddresses) {
  const HeldPort port;
  const auto numeric = open(at(HostPort{"127.0.0.1", port.port()}, {}));
  EXPECT_EQ(numeric->address(), "127.0.0.1") << "where the others are, too";
  const HeldPort other;
  const std::string name = host_name();
  if (!resolve({name, 0}, kPatience)) GTEST_SKIP() << "this host does not know its name";
  const auto named = open(at(HostPort{name, other.port()}, {}));
  EXPECT_TRUE(testing_support::client_of(other.port())) << "loopback is one of them";
}

TEST(WorldStore, TheAddressForTheOthersCanBeGiven) {
  const HeldPort port;
  WorldStoreOptions options = at(port, {});
  options.local_address = "127.0.0.0/8";
  EXPECT_EQ(open(options)->address(), "127.0.0.1");
  options.local_address = "nonsense!";
  EXPECT_THAT(error_of(options).message(), HasSubstr("InitOptions::local_address: 'nonsense!'"));
}

// --- a store that runs already

TEST(WorldStore, Rank0UsesAStoreOfOursThatStandsByAgainAndAgain) {
  RunningStore standing;
  const HostPort address{"127.0.0.1", standing.port()};
  for (int run = 0; run < 3; ++run) {
    testing_support::run_ranks(2, [&](int rank) { take_part(at(address, {.rank = rank})); });
  }
}

TEST(WorldStore, Rank0DoesNotUseAStoreInWhichOthersHaveKeys) {
  RunningStore standing;
  testing_support::client_of(standing.port()).value()->set("init/", "1");
  const Error error =
      error_of(at(HostPort{"127.0.0.1", standing.port()}, {.timeout = milliseconds(200)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(),
              AllOf(HasSubstr("the port is taken, and the store there is another job's"),
                    HasSubstr("Give each job its own port")));
}

TEST(WorldStore, APortThatSomethingElseHasIsSaid) {
  const Listener silent = listen_tcp(HostPort{"127.0.0.1", 0}).value();
  const Error error = error_of(at(silent.address, {.timeout = milliseconds(200)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(), HasSubstr("host the store at " + to_text(silent.address) +
                                         ": the port is taken, and connect to store"));
}

TEST(WorldStore, AnAddressOfAnotherHostCannotBeHosted) {
  const Error error = error_of(at(HostPort{"192.0.2.1", 1}, {.timeout = milliseconds(200)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("192.0.2.1 is not an address of this host"),
                                     HasSubstr("Start rank 0 on the host that has the address")));
}

TEST(WorldStore, Rank0WaitsALittleForAnEarlierRunToEnd) {
  const HeldPort port;
  auto earlier = open(at(port, {}));
  std::thread ends([&] {
    testing_support::let_pass(milliseconds(300));
    earlier.reset();
  });
  EXPECT_NO_THROW(open(at(port, {})));
  ends.join();
}

// --- other jobs at the same address

TEST(WorldStore, ASecondRank0IsToldThatThereIsOne) {
  const HeldPort port;
  const auto first = open(at(port, {}));
  const Error error = error_of(at(port, {.timeout = seconds(1)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("a rank 0 of run 'none' is there already"),
                                     HasSubstr("another job uses this store")));
}

TEST(WorldStore, ASecondRank0AtAFileIsToldThatThereIsOne) {
  const TemporaryDirectory directory;
  const std::string file = directory / "init";
  const auto first = open(at_file(file, {}));
  const Error error = error_of(at_file(file, {.timeout = seconds(3)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(), AllOf(HasSubstr("join at " + file + ": another job's rank 0 is at "),
                                     HasSubstr("Give each job its own file")));
  EXPECT_NO_THROW(open(at_file(file, {.rank = 1}))) << "the first one is not disturbed";
}

TEST(WorldStore, ARankThatIsThereAlreadyIsNotLetIn) {
  const HeldPort port;
  const auto host = open(at(port, {}));
  const auto first = open(at(port, {.rank = 1}));
  const Error error = error_of(at(port, {.rank = 1, .timeout = seconds(1)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(), HasSubstr("a rank 1 is already in this world"));
}

TEST(WorldStore, ARankOfAWorldOfAnotherSizeIsNotLetIn) {
  const HeldPort port;
  const auto host = open(at(port, {.size = 2}));
  const Error error = error_of(at(port, {.rank = 1, .size = 3, .timeout = seconds(1)}));
  EXPECT_EQ(error.kind, ErrorKind::kConnection);
  EXPECT_THAT(error.message(), HasSubstr("rank 0's world has 2 ranks, this rank's has 3"));
}

TEST(WorldStore, ARankThatFindsAnEarlierRunWaitsForItsOwn) {
  const HeldPort port;
  auto earlier = open(at(port, {}));
  auto earlier_1 = open(at(port, {.rank = 1}));
  std::thread next([&] { take_part(at(port, {.rank = 1})); });
  testing_support::let_pass(milliseconds(200));
  earlier_1.reset();
  earlier.reset();
  take_part(at(port, {}));
  next.join();
}

// --- ranks that do not come

TEST(WorldStore, WithoutRank0TheOthersNameIt) {
  const HeldPort port;
  const TemporaryDirectory directory;
  const RankOf one{.rank = 1, .timeout = milliseconds(200)};
  const RunningStore empty;
  for (const WorldStoreOptions& options :
       {at(port, one), at(HostPort{"127.0.0.1", empty.port()}, one), at_file(directory / "f", one),
        in_store(std::make_shared<MapStore>(), one)}) {
    const TimePoint start = BootClock::now();
    const Error error = error_of(options);
    EXPECT_EQ(error.peer_rank, 0) << error.message();
    EXPECT_THAT(error.message(), HasSubstr("rank 0"));
    EXPECT_LT(BootClock::now() - start, seconds(5));
  }
}

TEST(WorldStore, TheFirstWhoseTimeIsUpTellsTheOthersWhoDidNotCome) {
  const HeldPort port;
  testing_support::run_ranks(2, [&](int rank) {
    const TimePoint start = BootClock::now();
    const WorldStoreOptions options = at(
        port, {.rank = rank, .size = 4, .timeout = rank == 0 ? Duration(seconds(2)) : kPatience});
    const auto world = open(options);
    const auto group = form(*world, options);
    ASSERT_FALSE(group);
    EXPECT_EQ(group.error().kind, ErrorKind::kTimeout);
    EXPECT_THAT(group.error().message(), HasSubstr("ranks 2 and 3 did not come"));
    EXPECT_LT(BootClock::now() - start, seconds(10));
    world->await_leave(seconds(2));
  });
}

// --- files of jobs that were killed

TEST(WorldStore, AFileOfAnEarlierRunLeadsNobodyAstray) {
  const TemporaryDirectory directory;
  const HeldPort dead;
  const RunningStore foreign;
  for (const std::uint16_t port : {dead.port(), foreign.port()}) {
    const std::string file = directory.write(
        "init", "ddprun-meeting-1\n127.0.0.1\n" + std::to_string(port) + "\n0123456789abcdef\n");
    EXPECT_THAT(error_of(at_file(file, {.rank = 1, .timeout = seconds(1)})).message(),
                AllOf(HasSubstr("connect to rank 0 at " + file), HasSubstr("rank 0 has not come"),
                      HasSubstr("a job that has ended")));
    testing_support::run_ranks(2, [&](int rank) { take_part(at_file(file, {.rank = rank})); });
    EXPECT_FALSE(std::filesystem::exists(file));
  }
}

TEST(WorldStore, AFileOfARank0ThatDoesNotAnswerIsNotReplaced) {
  const TemporaryDirectory directory;
  const Listener silent = listen_tcp(HostPort{"127.0.0.1", 0}).value();
  const std::string text = "ddprun-meeting-1\n127.0.0.1\n" + std::to_string(silent.address.port) +
                           "\n0123456789abcdef\n";
  const std::string file = directory.write("init", text);
  for (const Duration timeout : {Duration(milliseconds(500)), Duration(seconds(3))}) {
    const Error error = error_of(at_file(file, {.timeout = timeout}));
    EXPECT_EQ(error.kind, ErrorKind::kConnection);
    EXPECT_THAT(error.message(),
                AllOf(HasSubstr("join at " + file + ": a process at "),
                      HasSubstr("accepts connections and does not answer. If it is not")));
  }
  EXPECT_EQ(text_of(file), text);
}

TEST(WorldStore, AFileOfAnotherProgramIsNotTouched) {
  const TemporaryDirectory directory;
  const std::string file = directory.write("train.py", "import torch\n");
  for (const int rank : {0, 1}) {
    const Error error = error_of(at_file(file, {.rank = rank}));
    EXPECT_EQ(error.kind, ErrorKind::kCorrupt);
    EXPECT_THAT(error.message(), HasSubstr("it was not written by this version of ddprun"));
  }
  EXPECT_EQ(std::filesystem::file_size(file), 13u);
}

// --- the end

TEST(WorldStore, TheHostWaitsUntilTheOthersHaveLeft) {
  const HeldPort port;
  auto host = open(at(port, {}));
  auto guest = open(at(port, {.rank = 1}));
  EXPECT_FALSE(host->await_leave(milliseconds(20)));
  std::thread leaves([&] {
    testing_support::let_pass(milliseconds(100));
    ResultStore(*guest->store()).set("k", "v").value();  // the host still serves the store
    guest.reset();
  });
  EXPECT_TRUE(host->await_leave(kPatience));
  leaves.join();
}

TEST(WorldStore, NothingIsLeftOfTheHost) {
  std::thread([] {}).join();  // with the first thread, ThreadSanitizer starts one of its own
  const std::set<std::string> threads = testing_support::thread_ids();
  const HeldPort port;
  open(at(port, {}));
  EXPECT_TRUE(eventually([&] { return testing_support::has_no_thread_beyond(threads); }));
  EXPECT_TRUE(listen_tcp(HostPort{"127.0.0.1", port.port()}));
}

}  // namespace
}  // namespace ddprun
