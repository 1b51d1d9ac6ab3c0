#include "launcher/options/core/launch_options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ParseNodes, TakesANumberOrARange) {
  EXPECT_EQ(*parse_nodes("2"), (NodeRange{2, 2}));
  EXPECT_EQ(*parse_nodes("1:4"), (NodeRange{1, 4}));
}

TEST(ParseNodes, SaysWhatWouldBeRight) {
  EXPECT_THAT(parse_nodes("3:2").error().cause, HasSubstr("2:3"));
  for (const char* bad :
       {"", "0", "-1", "two", "1:2:3", "1:", ":2", "0:2", "2.5", " 2", "1:32768"}) {
    EXPECT_FALSE(parse_nodes(bad)) << bad;
  }
}

TEST(ParseSlots, TakesANumberOrWhatToCount) {
  EXPECT_EQ(parse_slots("8")->number, 8);
  EXPECT_EQ(parse_slots("cpu")->kind, SlotCount::Kind::kCpus);
  EXPECT_EQ(parse_slots("gpu")->kind, SlotCount::Kind::kGpus);
  EXPECT_EQ(parse_slots("auto")->kind, SlotCount::Kind::kAuto);
  for (const char* bad : {"", "0", "-2", "many", "1e3", "99999999999"})
    EXPECT_FALSE(parse_slots(bad)) << bad;
}

TEST(ParseStreams, TakesOneForAllOrAMap) {
  EXPECT_EQ(parse_streams("3")->of(LocalRank(5)), Streams::kBoth);
  const StreamMap map = *parse_streams("0:3,10:1");
  EXPECT_EQ(map.of(LocalRank(0)), Streams::kBoth);
  EXPECT_EQ(map.of(LocalRank(10)), Streams::kOut) << "torchrun cannot do this one";
  EXPECT_EQ(map.of(LocalRank(1)), Streams::kNone);
  for (const char* bad : {"", "4", "-1", "a", "0:4", "0:1,", "0:1:2", "-1:2"})
    EXPECT_FALSE(parse_streams(bad)) << bad;
}

TEST(ParseRdzvConf, TakesKeysAndValues) {
  EXPECT_EQ(parse_rdzv_conf("a=1,b=x=y")->at("b"), "x=y");
  EXPECT_TRUE(parse_rdzv_conf("")->empty());
  EXPECT_FALSE(parse_rdzv_conf("a"));
  EXPECT_FALSE(parse_rdzv_conf("=1"));
}

TEST(ParseWorkerStore, TakesOneOfTwoWords) {
  EXPECT_EQ(*parse_word(kWorkerStoreWords, "agent"), WorkerStore::kAgent);
  EXPECT_EQ(*parse_word(kWorkerStoreWords, "rank0"), WorkerStore::kRank0);
  EXPECT_EQ(parse_word(kWorkerStoreWords, "0").error().cause,
            "invalid value '0' (expected agent or rank0)");
}

TEST(PlanRendezvous, SaysWhatAStoreOfRank0CannotDo) {
  LaunchOptions options;
  options.worker_store = WorkerStore::kRank0;
  options.store_allow = "10.0.0.0/8";
  const Result<Rendezvous> plan = plan_rendezvous(options);
  ASSERT_TRUE(plan);
  ASSERT_EQ(plan->remarks.size(), 1U);
  EXPECT_TRUE(plan->remarks[0].starts_with("--store-allow has no effect")) << plan->remarks[0];
  options.on_join = OnJoin::kCheckpoint;
  const Result<Rendezvous> refused = plan_rendezvous(options);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().kind, ErrorKind::kInvalidArgument);
  EXPECT_TRUE(refused.error().message().starts_with("--worker-store: "))
      << refused.error().message();
}

TEST(ParseBind, TakesOurWordsAndTorchrunsForItsOwnOption) {
  for (const auto& [policy, word] : kBindWords) EXPECT_EQ(*parse_word(kBindWords, word), policy);
  for (const auto& [policy, word] : kNumaBindingWords) {
    EXPECT_EQ(*parse_word(kNumaBindingWords, word), policy);
    EXPECT_FALSE(parse_word(kBindWords, word));
  }
  EXPECT_EQ(parse_word(kBindWords, "socket").error().cause,
            "invalid value 'socket' (expected none, auto, core, numa or gpu)");
  EXPECT_THAT(parse_word(kNumaBindingWords, "core").error().cause,
              HasSubstr("exclusive or core-complex"));
  EXPECT_EQ(*parse_word(kGpuVisibilityWords, "own"), GpuVisibility::kOwn);
  EXPECT_EQ(parse_word(kGpuVisibilityWords, "").error().cause,
            "invalid value '' (expected all or own)");
}

TEST(PlanRendezvous, BindingIsAskedForInOneWay) {
  LaunchOptions options;
  EXPECT_EQ(options.bind_policy(), BindPolicy::kNone);
  options.numa_binding = BindPolicy::kSocket;
  EXPECT_EQ(options.bind_policy(), BindPolicy::kSocket);
  EXPECT_TRUE(plan_rendezvous(options));
  options.bind = BindPolicy::kNone;
  EXPECT_EQ(plan_rendezvous(options).error().message(),
            "--numa-binding: cannot be used with --bind");
}

TEST(ParseOnJoin, TakesOneOfThreeWords) {
  EXPECT_EQ(*parse_word(kOnJoinWords, "now"), OnJoin::kNow);
  EXPECT_EQ(*parse_word(kOnJoinWords, "checkpoint"), OnJoin::kCheckpoint);
  EXPECT_EQ(*parse_word(kOnJoinWords, "restart"), OnJoin::kRestart);
  EXPECT_EQ(parse_word(kOnJoinWords, "later").error().cause,
            "invalid value 'later' (expected now, checkpoint or restart)");
  EXPECT_FALSE(parse_word(kOnJoinWords, ""));
}

// --- plan_rendezvous ---

LaunchOptions with(NodeRange nodes, const std::string& endpoint = "") {
  LaunchOptions options;
  options.nodes = nodes;
  options.rdzv_endpoint = endpoint;
  return options;
}

TEST(PlanRendezvous, OneNodeNeedsNothing) {
  EXPECT_EQ(plan_rendezvous(with({1, 1}))->mode, Rendezvous::Mode::kLocal);
  LaunchOptions standalone = with({1, 1}, "node0:1");
  standalone.standalone = true;
  const Rendezvous plan = *plan_rendezvous(standalone);
  EXPECT_EQ(plan.mode, Rendezvous::Mode::kLocal);
  EXPECT_EQ(plan.remarks.size(), 1u) << "the endpoint is not ignored in silence";
  // torchrun ignores these options too, without a remark.
  standalone = with({1, 1});
  standalone.standalone = true;
  standalone.rdzv_backend = RdzvBackend::kEtcd;
  standalone.rdzv_id = "run7";
  standalone.node_rank = 1;
  EXPECT_THAT(plan_rendezvous(standalone)->remarks,
              testing::ElementsAre(HasSubstr("--rdzv-backend"), HasSubstr("--rdzv-id"),
                                   HasSubstr("--node-rank")));
  LaunchOptions alone = with({1, 1});
  alone.node_rank = 1;
  EXPECT_THAT(plan_rendezvous(alone).error().message(),
              HasSubstr("invalid value '1' (expected 0 with --nnodes=1)"));
  alone.rdzv_backend = RdzvBackend::kC10d;
  EXPECT_THAT(plan_rendezvous(alone)->remarks, testing::ElementsAre(HasSubstr("--node-rank")));
}

TEST(PlanRendezvous, NamesHaveABound) {
  LaunchOptions options = with({1, 1});
  options.rdzv_id = std::string(kMaxNameBytes, 'x');
  EXPECT_TRUE(plan_rendezvous(options));
  options.rdzv_id += 'x';
  ASSERT_FALSE(plan_rendezvous(options));
  EXPECT_EQ(plan_rendezvous(options).error().doing, "--rdzv-id");
}

TEST(PlanRendezvous, AnEndpointIsWhereTheNodesMeet) {
  const Rendezvous plan = *plan_rendezvous(with({2, 4}, "node0"));
  EXPECT_EQ(plan.mode, Rendezvous::Mode::kDynamic);
  EXPECT_EQ(plan.endpoint, (HostPort{"node0", 29400}));
  EXPECT_EQ(plan_rendezvous(with({2, 2}, "node0:1234"))->endpoint.port, 1234);
  const Rendezvous v6 = *plan_rendezvous(with({2, 2}, "[fe80::1]:77"));
  EXPECT_EQ(v6.endpoint, (HostPort{"fe80::1", 77}));
  EXPECT_EQ(plan_rendezvous(with({2, 2}, "fe80::1"))->endpoint.host, "fe80::1");
}

TEST(PlanRendezvous, SeveralServicesHaveEachTheirOwnPort) {
  const Result<Rendezvous> plan = plan_rendezvous(with({2, 4}, "r1:1234,[::1]:77,r3"));
  ASSERT_TRUE(plan) << plan.error().message();
  EXPECT_EQ(plan->mode, Rendezvous::Mode::kDynamic);
  EXPECT_EQ(plan->endpoint, (HostPort{"r1", 1234}));
  EXPECT_EQ(plan->other_services, (std::vector<HostPort>{{"::1", 77}, {"r3", 29400}}));
  EXPECT_EQ(services_text(*plan), "r1:1234, [::1]:77, r3:29400");
  for (const char* bad : {"r1,", ",r1", "r1,,r2", "r1,r2:0", "r1,r2:x", "r1,r1:29400", "r1,:1"}) {
    ASSERT_FALSE(plan_rendezvous(with({1, 1}, bad))) << bad;
    EXPECT_EQ(plan_rendezvous(with({1, 1}, bad)).error().doing, "--rdzv-endpoint") << bad;
  }
  std::string many = "r1";
  for (int i = 2; i <= 17; ++i) many += ",r" + std::to_string(i);
  EXPECT_THAT(plan_rendezvous(with({1, 1}, many)).error().message(), HasSubstr("at most 16"));
  for (const RdzvBackend backend : {RdzvBackend::kStatic, RdzvBackend::kC10d}) {
    LaunchOptions options = with({2, 2}, "r1,r2");
    options.rdzv_backend = backend;
    ASSERT_FALSE(plan_rendezvous(options)) << "a node of the job would serve";
    EXPECT_EQ(plan_rendezvous(options).error().doing, "--rdzv-endpoint");
  }
}

TEST(PlanRendezvous, WithEtcdTheNodesElectTheOneThatServes) {
  for (const RdzvBackend backend : {RdzvBackend::kEtcd, RdzvBackend::kEtcdV2}) {
    LaunchOptions options = with({2, 4}, "e1,e2:1234");
    options.rdzv_backend = backend;
    ASSERT_FALSE(plan_rendezvous(options)) << "all jobs would meet in one";
    EXPECT_EQ(plan_rendezvous(options).error().doing, "--rdzv-id");
    options.rdzv_id = "team/a%";
    const Result<Rendezvous> plan = plan_rendezvous(options);
    ASSERT_TRUE(plan) << plan.error().message();
    EXPECT_EQ(plan->mode, Rendezvous::Mode::kEtcd);
    EXPECT_EQ(plan->etcd.members, (std::vector<HostPort>{{"e1", 2379}, {"e2", 1234}}));
    EXPECT_EQ(plan->etcd.prefix, "/ddprun-jobs/team%2Fa%25") << "no job's keys are in another's";
    EXPECT_FALSE(plan->etcd.uses_tls);
    EXPECT_TRUE(plan->remarks.empty());
    EXPECT_EQ(services_text(*plan), "etcd e1:2379, e2:1234");
    options.rdzv_conf = {{"protocol", "https"}, {"cacert", "ca.pem"}, {"etcd_prefix", "/x/"}};
    EXPECT_EQ(plan_rendezvous(options)->etcd.prefix, "/x/team%2Fa%25");
    EXPECT_EQ(plan_rendezvous(options)->etcd.ca, "ca.pem");
    EXPECT_TRUE(plan_rendezvous(options)->remarks.empty());
  }
}

TEST(PlanRendezvous, OnlyAPortThatWasMadeFromTheSchedulersJobHasNextOnes) {
  LaunchOptions options = with({2, 2}, "node0:20812");
  EXPECT_TRUE(plan_rendezvous(options)->next_ports.empty()) << "it was given";
  ClusterPlan cluster;
  cluster.endpoint = {"node0", 20812};
  cluster.next_ports = {20813, 20814};
  options.cluster = cluster;
  options.taken = Taken::kNodes;
  EXPECT_EQ(plan_rendezvous(options)->next_ports, cluster.next_ports);
  options.taken = Taken::kWorkers;
  EXPECT_TRUE(plan_rendezvous(options)->next_ports.empty());
  options.taken = Taken::kNodes;
  options.rdzv_endpoint = "node0:20812,node1:20812";
  EXPECT_TRUE(plan_rendezvous(options)->next_ports.empty()) << "they are of one service";
  options.rdzv_endpoint = "node0:1234";
  EXPECT_TRUE(plan_rendezvous(options)->next_ports.empty()) << "the user gave what was missing";
}

TEST(PlanRendezvous, TorchrunsStaticCommandLineMeansItsMaster) {
  LaunchOptions options = with({2, 2});
  options.master_addr = "10.0.0.1";
  options.node_rank = 1;
  Rendezvous plan = *plan_rendezvous(options);
  EXPECT_EQ(plan.mode, Rendezvous::Mode::kStatic);
  EXPECT_EQ(plan.endpoint, (HostPort{"10.0.0.1", 29500}));
  options.master_port = 1234;
  EXPECT_EQ(plan_rendezvous(options)->endpoint.port, 1234);
  LaunchOptions explicit_static = with({2, 2}, "node0:5");
  explicit_static.rdzv_backend = RdzvBackend::kStatic;
  EXPECT_EQ(plan_rendezvous(explicit_static)->mode, Rendezvous::Mode::kStatic);
  EXPECT_EQ(plan_rendezvous(explicit_static)->endpoint.port, 5);
}

TEST(PlanRendezvous, AGivenMasterPortIsKeptOnASingleNode) {
  LaunchOptions options = with({1, 1});
  options.master_port = 29501;
  const Rendezvous plan = *plan_rendezvous(options);
  EXPECT_EQ(plan.mode, Rendezvous::Mode::kStatic);
  EXPECT_EQ(plan.endpoint, (HostPort{"127.0.0.1", 29501}));
}

TEST(PlanRendezvous, ReadsTimesFromTheConfAndRemarksOnWhatDoesNothing) {
  LaunchOptions options = with({2, 4}, "node0");
  options.rdzv_conf = {{"join_timeout", "7"}, {"last_call_timeout", "0.5"}, {"close_timeout", "3"}};
  const Rendezvous plan = *plan_rendezvous(options);
  EXPECT_EQ(plan.join_timeout, seconds(7));
  EXPECT_EQ(plan.last_call, milliseconds(500));
  EXPECT_EQ(plan.remarks.size(), 1u);
}

// torchrun also ignores unknown keys.
TEST(PlanRendezvous, RemarksOnceOnAllUnknownKeysOfTheConf) {
  LaunchOptions options = with({2, 4}, "node0");
  options.rdzv_conf = {{"joint_timeout", "7"}, {"use_agent_store", "1"}};
  const Rendezvous plan = *plan_rendezvous(options);
  ASSERT_EQ(plan.remarks.size(), 1u);
  EXPECT_EQ(plan.remarks[0],
            "--rdzv-conf: unknown keys are ignored, as with torchrun: 'joint_timeout' (did you "
            "mean join_timeout?), 'use_agent_store'");
}

TEST(PlanRendezvous, NamesTheOptionThatDoesNotFit) {
  struct Case {
    LaunchOptions options;
    std::string named;
  };
  std::vector<Case> cases;
  cases.push_back({with({2, 2}), "--nnodes"});
  LaunchOptions bad = with({1, 1});
  bad.rdzv_backend = RdzvBackend::kEtcd;
  cases.push_back({bad, "--rdzv-endpoint"});
  bad.rdzv_endpoint = "e1";
  bad.rdzv_conf = {{"protocol", "ftp"}};
  cases.push_back({bad, "--rdzv-conf"});
  bad.rdzv_conf = {{"cacert", "ca.pem"}};
  cases.push_back({bad, "--rdzv-conf"});
  bad.rdzv_conf = {{"protocol", "https"}, {"cert", "c.pem"}};
  cases.push_back({bad, "--rdzv-conf"});
  for (const char* prefix : {"jobs", "/team//jobs"}) {
    bad.rdzv_conf = {{"etcd_prefix", prefix}};
    cases.push_back({bad, "--rdzv-conf"});
  }
  bad = with({2, 2}, "node0:99999");
  cases.push_back({bad, "--rdzv-endpoint"});
  cases.push_back({with({2, 2}, ":29400"), "--rdzv-endpoint"});
  cases.push_back({with({2, 2}, "node0:"), "--rdzv-endpoint"});
  cases.push_back({with({2, 2}, "node0:0"), "--rdzv-endpoint"});
  cases.push_back({with({2, 2}, "[::1"), "--rdzv-endpoint"});
  bad = with({1, 1});
  bad.module = bad.no_python = true;
  cases.push_back({bad, "--no-python"});
  bad = with({1, 1});
  bad.module = bad.run_path = true;
  cases.push_back({bad, "--run-path"});
  bad = with({2, 2});
  bad.master_addr = "";
  cases.push_back({bad, "--master-addr"});
  bad = with({2, 2}, "node0");
  bad.times.given_heartbeat = bad.times.lease;
  cases.push_back({bad, "--heartbeat-interval"});
  bad = with({2, 2});
  bad.standalone = true;
  cases.push_back({bad, "--nnodes"});
  bad = with({1, 2});
  bad.master_addr = "h";
  cases.push_back({bad, "--nnodes"});
  bad = with({2, 2}, "node0");
  bad.rdzv_conf = {{"join_timeout", "soon"}};
  cases.push_back({bad, "--rdzv-conf"});
  bad = with({1, 1});
  bad.grace = bad.shutdown_timeout = seconds(1);
  cases.push_back({bad, "--shutdown-timeout"});
  bad = with({1, 2}, "node0");
  bad.node_rank = 2;
  cases.push_back({bad, "--node-rank: invalid value '2' (expected 0 to 1 with --nnodes=2)"});
  bad = with({2, 2});
  bad.master_addr = "node0";
  bad.node_rank = 2;
  cases.push_back({bad, "--node-rank"});
  for (const Case& one : cases) {
    const auto plan = plan_rendezvous(one.options);
    ASSERT_FALSE(plan) << one.named;
    EXPECT_THAT(plan.error().message(), HasSubstr(one.named));
  }
}

TEST(ListeningHost, OnlyLoopbackThatWasWrittenKeepsTheOthersOut) {
  const NodeRange two{2, 2};
  // Debian's /etc/hosts maps a host's own name to 127.0.1.1.
  EXPECT_EQ(listening_host({"node0", "127.0.1.1"}, two), "*");
  EXPECT_EQ(listening_host({"node0", "10.0.0.7"}, two), "*");
  EXPECT_EQ(listening_host({"127.example.org", "127.0.1.1"}, two), "*");
  EXPECT_EQ(listening_host({"localhost", "::1"}, two), "::1");
  EXPECT_EQ(listening_host({"127.0.0.1", "127.0.0.1"}, two), "127.0.0.1");
  EXPECT_EQ(listening_host({"::1", "::1"}, {1, 2}), "::1");
}

TEST(ListeningHost, AJobOfOneNodeIsReachedFromOutsideOnlyWhereItsEndpointIs) {
  EXPECT_EQ(listening_host({"node0", "127.0.1.1"}, {1, 1}), "127.0.1.1");
  EXPECT_EQ(listening_host({"node0", "10.0.0.7"}, {1, 1}), "*");
}

TEST(ParseUmask, IsOctal) {
  EXPECT_EQ(*parse_umask("027"), 027u);
  EXPECT_EQ(*parse_umask("0"), 0u);
  EXPECT_EQ(*parse_umask("777"), 0777u);
  for (const char* bad : {"", "8", "1000", "0x1f", "-1", "u=rwx", "22 "}) {
    EXPECT_FALSE(parse_umask(bad)) << bad;
  }
}

TEST(ParseVariable, IsCutAtItsFirstEqualsSign) {
  EXPECT_EQ(*parse_variable("A=b=c"), std::pair(std::string("A"), std::string("b=c")));
  EXPECT_EQ(parse_variable("EMPTY=")->second, "");
  for (const char* bad : {"", "A", "=b"}) {
    EXPECT_THAT(parse_variable(bad).error().cause, HasSubstr("NAME=VALUE")) << bad;
  }
}

TEST(ParseVariable, WhatTellsAWorkerItsPlaceIsNotTaken) {
  for (const char* bad : {"RANK=0", "LOCAL_RANK=0", "MASTER_PORT=1", "DDPRUN_GENERATION=3"}) {
    EXPECT_THAT(parse_variable(bad).error().cause, HasSubstr("cannot be set")) << bad;
  }
  EXPECT_TRUE(parse_variable("OMP_NUM_THREADS=4"));
  EXPECT_TRUE(parse_variable("TORCH_NCCL_ASYNC_ERROR_HANDLING=0"));
}

TEST(ParseNodeLimits, TakesMillisecondsAndMegabytesEachSecond) {
  NodeLimits limits;
  EXPECT_EQ(*parse_node_limits(""), limits);
  limits.memory = 4e9;
  EXPECT_EQ(*parse_node_limits("memory=4000"), limits) << "the others keep their defaults";
  limits.core = std::chrono::microseconds(20500);
  limits.loopback = 1e8;
  limits.link = 5e5;
  EXPECT_EQ(*parse_node_limits("memory=4000,loopback=100,link=0.5,core=20.5"), limits);
  limits.gpu = 0;
  EXPECT_EQ(*parse_node_limits("gpu=0,memory=4000,loopback=100,link=0.5,core=20.5"), limits);
}

TEST(ParseNodeLimits, SaysWhatWouldBeRight) {
  for (const char* bad :
       {"memory=0", "memory=-1", "memory=", "memory", "disk=1", "nan=1", "core=nan", "core=1e10",
        "gpu=-1", "gpu=", "link=0", "memory=4000,link", "memory=4000,"}) {
    const Result<NodeLimits> limits = parse_node_limits(bad);
    ASSERT_FALSE(limits) << bad;
    EXPECT_THAT(limits.error().cause, HasSubstr("expected limits such as memory=4000")) << bad;
  }
}

TEST(ParseLogBytes, TakesBytesAndPowersOf1024) {
  EXPECT_EQ(parse_log_bytes("0").value(), 0u);
  EXPECT_EQ(parse_log_bytes("5000").value(), 5000u);
  EXPECT_EQ(parse_log_bytes("4K").value(), 4096u);
  EXPECT_EQ(parse_log_bytes("100M").value(), 100u << 20);
  EXPECT_EQ(parse_log_bytes("3G").value(), std::uint64_t{3} << 30);
  for (const char* bad : {"", "K", "-1", "1k", "1 M", "4095", "1K", "99999999999G", "1T", "0x10"}) {
    ASSERT_FALSE(parse_log_bytes(bad)) << bad;
    EXPECT_THAT(parse_log_bytes(bad).error().message(), HasSubstr("100M")) << bad;
  }
}

TEST(ParseLogFormat, KnowsTextAndJson) {
  EXPECT_EQ(parse_word(kLogFormatWords, "json").value(), LogFormat::kJson);
  EXPECT_EQ(parse_word(kLogFormatWords, "text").value(), LogFormat::kText);
  EXPECT_FALSE(parse_word(kLogFormatWords, "xml"));
}

TEST(CheckOutput, RefusesWhatContradictsItselfAndSaysWhatDoesNothing) {
  LaunchOptions options;
  options.quiet = options.verbose = true;
  ASSERT_FALSE(check_output(options));
  EXPECT_THAT(check_output(options).error().message(), HasSubstr("--quiet"));
  options.verbose = false;
  options.log_max_bytes = 1 << 20;
  ASSERT_TRUE(check_output(options));
  ASSERT_EQ(options.remarks.size(), 1u);
  EXPECT_THAT(options.remarks[0], HasSubstr("--log-max-bytes has no effect"));
  options.remarks.clear();
  options.tee.by_rank[0] = Streams::kOut;
  ASSERT_TRUE(check_output(options));
  EXPECT_TRUE(options.remarks.empty());
}

TEST(CheckOutput, SaysThatNoLogFilesAreThereForTheStreamsThatWereAskedFor) {
  for (const bool tees : {false, true}) {
    LaunchOptions options;
    options.log_dir = "/dev/null";
    ASSERT_TRUE(check_output(options));
    EXPECT_TRUE(options.remarks.empty()) << "nobody has asked for files";
    (tees ? options.tee : options.redirects).by_rank[1] = Streams::kErr;
    ASSERT_TRUE(check_output(options));
    ASSERT_EQ(options.remarks.size(), 1u);
    EXPECT_EQ(options.remarks[0], std::string(tees ? "-t" : "-r") +
                                      " has no effect: with --log-dir=/dev/null there are no log "
                                      "files; all lines go to the console");
  }
}

}  // namespace
}  // namespace ddprun
