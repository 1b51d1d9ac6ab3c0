#include "worker_lib/store/core/start_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

namespace ddprun {
namespace {

using testing::HasSubstr;
using Variables = std::map<std::string, std::string>;

EnvLookup lookup_in(Variables variables) {
  return [variables = std::move(variables)](std::string_view name) -> std::optional<std::string> {
    const auto found = variables.find(std::string(name));
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
}

const Variables kLaunched{{"RANK", "5"},
                          {"WORLD_SIZE", "8"},
                          {"LOCAL_RANK", "1"},
                          {"LOCAL_WORLD_SIZE", "4"},
                          {"GROUP_RANK", "1"},
                          {"MASTER_ADDR", "10.0.0.7"},
                          {"MASTER_PORT", "4321"},
                          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                          {"TORCHELASTIC_RUN_ID", "job"},
                          {"DDPRUN_GENERATION", "3"}};

StartPlan plan(const StartRequest& request, const Variables& variables = {}) {
  const Result<StartPlan> plan = plan_start(request, lookup_in(variables));
  EXPECT_TRUE(plan) << plan.error().message();
  return plan ? *plan : StartPlan();
}

TEST(StartPlan, WithoutAnythingItIsAWorldOfOne) {
  EXPECT_EQ(plan({}).meet_at, MeetAt::kNowhere);
  EXPECT_EQ(plan({.init_method = "env://"}).meet_at, MeetAt::kNowhere);
}

TEST(StartPlan, AWorldOfOneMeetsNowhere) {
  EXPECT_EQ(plan({}, {{"RANK", "0"}, {"WORLD_SIZE", "1"}}).meet_at, MeetAt::kNowhere);
  EXPECT_EQ(plan({.init_method = "tcp://h:1", .rank = 0, .world_size = 1}).meet_at,
            MeetAt::kNowhere);
  EXPECT_EQ(plan({.rank = 0, .world_size = 1, .has_store = true}).meet_at, MeetAt::kNowhere);
}

TEST(StartPlan, ByHandRank0HostsAtTheMastersAddressOrPyTorchsDefault) {
  const StartPlan defaults = plan({}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}});
  EXPECT_EQ(defaults.meet_at, MeetAt::kAddress);
  EXPECT_EQ(defaults.address, (HostPort{"127.0.0.1", 29500}));
  EXPECT_EQ(defaults.env.rank, Rank(1));
  const StartPlan said = plan(
      {}, {{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "7"}});
  EXPECT_EQ(said.address, (HostPort{"node0", 7}));
  EXPECT_EQ(said.place, "MASTER_ADDR:MASTER_PORT node0:7");
}

TEST(StartPlan, UnderALauncherItsStoreIsThere) {
  const StartPlan launched = plan({}, kLaunched);
  EXPECT_EQ(launched.meet_at, MeetAt::kAgentStore);
  EXPECT_EQ(launched.address, (HostPort{"10.0.0.7", 4321}));
  EXPECT_EQ(plan({.init_method = "env://"}, kLaunched).meet_at, MeetAt::kAgentStore);
  Variables hosts_itself = kLaunched;
  hosts_itself["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(plan({}, hosts_itself).meet_at, MeetAt::kAddress);
}

TEST(StartPlan, RankAndSizeMayStandInTheOptionsOrBehindTheMethod) {
  for (const StartRequest& request :
       {StartRequest{.init_method = "tcp://node0:7", .rank = 1, .world_size = 3},
        StartRequest{.init_method = "tcp://node0:7?rank=1&world_size=3"},
        StartRequest{.init_method = "tcp://node0:7/?world_size=3&rank=1"},
        StartRequest{.init_method = "tcp://node0:7?rank=1", .world_size = 3}}) {
    const StartPlan tcp = plan(request);
    EXPECT_EQ(tcp.meet_at, MeetAt::kAddress);
    EXPECT_EQ(tcp.address, (HostPort{"node0", 7}));
    EXPECT_EQ(tcp.env.rank, Rank(1));
    EXPECT_EQ(tcp.env.world_size, 3);
    EXPECT_EQ(tcp.env.local_rank, LocalRank(1)) << "as on a single node";
  }
}

TEST(StartPlan, OptionsGoOverTheVariablesOfEnv) {
  const StartPlan both = plan({.rank = 2, .world_size = 3}, {{"RANK", "0"}, {"WORLD_SIZE", "9"}});
  EXPECT_EQ(both.env.rank, Rank(2));
  EXPECT_EQ(both.env.world_size, 3);
  const StartPlan one = plan({.init_method = "env://?rank=2"}, {{"WORLD_SIZE", "9"}});
  EXPECT_EQ(one.env.rank, Rank(2));
  EXPECT_EQ(one.env.world_size, 9);
  const StartPlan neither = plan({.rank = 1, .world_size = 2});
  EXPECT_EQ(neither.address, (HostPort{"127.0.0.1", 29500}));
}

TEST(StartPlan, AnIpv6AddressStandsInBrackets) {
  EXPECT_EQ(plan({.init_method = "tcp://[fd00::7]:29500?rank=0&world_size=2"}).address,
            (HostPort{"fd00::7", 29500}));
}

TEST(StartPlan, AFileIsAnAbsolutePath) {
  const StartPlan file = plan({.init_method = "file:///shared/run 1?rank=0&world_size=2"});
  EXPECT_EQ(file.meet_at, MeetAt::kFile);
  EXPECT_EQ(file.file, "/shared/run 1");
  EXPECT_EQ(file.place, "init_method 'file:///shared/run 1?rank=0&world_size=2'");
}

TEST(StartPlan, OtherMethodsDoNotReadTheMastersVariables) {
  const Variables nonsense{{"MASTER_PORT", "0"}, {"MASTER_ADDR", ""}, {"LOCAL_RANK", "1"}};
  const StartPlan file = plan({.init_method = "file:///f", .rank = 0, .world_size = 2}, nonsense);
  EXPECT_EQ(file.meet_at, MeetAt::kFile);
  EXPECT_EQ(file.env.local_rank, LocalRank(1));
}

TEST(StartPlan, WithAnotherWorldUnderALauncherItsOtherVariablesStillTellOfTheProcess) {
  const StartPlan other =
      plan({.init_method = "tcp://node0:7", .rank = 0, .world_size = 2}, kLaunched);
  EXPECT_EQ(other.meet_at, MeetAt::kAddress);
  EXPECT_EQ(other.env.rank, Rank(0));
  EXPECT_EQ(other.env.world_size, 2);
  EXPECT_EQ(other.env.local_rank, LocalRank(1));
  EXPECT_EQ(other.env.generation, Generation(3));
}

TEST(StartPlan, NobodyHostsWhereAnAgentsStoreIsSaidToBe) {
  EXPECT_EQ(
      plan({.init_method = "tcp://10.0.0.7:4321", .rank = 0, .world_size = 2}, kLaunched).meet_at,
      MeetAt::kAgentStore);
  EXPECT_EQ(plan({.init_method = "tcp://h:7", .rank = 0, .world_size = 2},
                 {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})
                .meet_at,
            MeetAt::kAgentStore);
}

struct BadRequest {
  StartRequest request;
  Variables variables;
  std::string message;
};

TEST(StartPlan, SaysWhatWouldBeRight) {
  const std::vector<BadRequest> cases{
      {{.init_method = "tcp://h:1", .rank = 0, .world_size = 2, .has_store = true},
       {},
       "give an init_method or a store, not both"},
      {{.has_store = true}, {}, "the store needs rank and world_size in InitOptions"},
      {{.rank = 0, .has_store = true},
       {{"WORLD_SIZE", "2"}, {"RANK", "0"}},
       "the store needs rank and world_size in InitOptions"},
      {{.init_method = "tcp://h:1"},
       {{"WORLD_SIZE", "2"}, {"RANK", "0"}},
       "init_method 'tcp://h:1' needs rank and world_size in InitOptions, or ?rank=R&world_size=N "
       "after it"},
      {{.init_method = "file:///f?rank=0"},
       {},
       "init_method 'file:///f?rank=0' needs rank and world_size in InitOptions, or "
       "?rank=R&world_size=N after it"},
      {{.init_method = "mpi://"},
       {},
       "init_method 'mpi://': expected env://, tcp://HOST:PORT or file:///PATH, each optionally "
       "with ?rank=R&world_size=N"},
      {{.init_method = ""},
       {},
       "init_method '': expected env://, tcp://HOST:PORT or file:///PATH, each optionally with "
       "?rank=R&world_size=N"},
      {{.init_method = "tcp://h"},
       {},
       "init_method 'tcp://h': invalid value 'h' (expected HOST:PORT)"},
      {{.init_method = "tcp://h:0"},
       {},
       "init_method 'tcp://h:0': port 0 cannot be used: every rank must know the port"},
      {{.init_method = "tcp://h:70000"},
       {},
       "init_method 'tcp://h:70000': invalid value 'h:70000' (the port must be a number from 0 to "
       "65535)"},
      {{.init_method = "tcp://:1"},
       {},
       "init_method 'tcp://:1': the host is missing: expected tcp://HOST:PORT"},
      {{.init_method = "file://relative"},
       {},
       "init_method 'file://relative': expected the absolute path of a file, file:///PATH"},
      {{.init_method = "file:///directory/"},
       {},
       "init_method 'file:///directory/': expected the absolute path of a file, file:///PATH"},
      {{.init_method = "env://host:1"},
       {},
       "init_method 'env://host:1': nothing but ?rank=R&world_size=N may follow env://"},
      {{.init_method = "tcp://h:1?rank=x&world_size=2"},
       {},
       "init_method 'tcp://h:1?rank=x&world_size=2': rank: invalid value 'x' (expected an "
       "integer)"},
      {{.init_method = "tcp://h:1?size=2"},
       {},
       "init_method 'tcp://h:1?size=2': 'size=2': expected ?rank=R&world_size=N"},
      {{.init_method = "tcp://h:1?rank=0&world_size=2", .rank = 0},
       {},
       "rank is in InitOptions and in the init_method: give it once"},
      {{.init_method = "tcp://h:1?world_size=2", .rank = 0, .world_size = 2},
       {},
       "world_size is in InitOptions and in the init_method: give it once"},
      {{.init_method = "tcp://h:1", .rank = 2, .world_size = 2},
       {},
       "rank 2 is not in the range 0 to 1"},
      {{.init_method = "tcp://h:1", .rank = -1, .world_size = 2}, {}, "rank -1 is less than 0"},
      {{.init_method = "tcp://h:1", .rank = 0, .world_size = 0}, {}, "world_size 0 is less than 1"},
      {{.rank = 0}, {}, "rank is given, but neither world_size nor WORLD_SIZE is"},
      {{.init_method = "env://?world_size=2"},
       {},
       "world_size is given, but neither rank nor RANK is"},
  };
  for (const BadRequest& bad : cases) {
    const Result<StartPlan> plan = plan_start(bad.request, lookup_in(bad.variables));
    ASSERT_FALSE(plan) << bad.message;
    EXPECT_EQ(plan.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_EQ(plan.error().message(), bad.message);
  }
}

TEST(StartPlan, ABadVariableIsNamed) {
  const std::vector<std::pair<Variables, std::string>> cases{
      {{{"RANK", "0"}}, "read environment variable WORLD_SIZE: not set"},
      {{{"WORLD_SIZE", "2"}}, "read environment variable RANK: not set"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "0"}},
       "read environment variable MASTER_PORT: invalid value '0' (expected an integer from 1 to "
       "65535)"},
      {{{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", ""}},
       "read environment variable MASTER_ADDR: empty value"},
  };
  for (const auto& [variables, message] : cases) {
    const Result<StartPlan> plan = plan_start({}, lookup_in(variables));
    ASSERT_FALSE(plan) << message;
    EXPECT_EQ(plan.error().kind, ErrorKind::kInvalidArgument);
    EXPECT_THAT(plan.error().message(), HasSubstr(message));
  }
}

}  // namespace
}  // namespace ddprun
