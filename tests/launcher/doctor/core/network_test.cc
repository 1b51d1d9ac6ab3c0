#include <algorithm>

#include "tests/launcher/doctor/core/frame.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace testing_support;

// --- names ---

TEST(DoctorHostName, HasToResolve) {
  DoctorFacts facts = healthy_facts();
  facts.names.own.outcome = LookUp::Outcome::kNotFound;
  facts.names.own.why = "Name or service not known";
  const Finding finding = finding_of(facts, "host-name");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.seen, HasSubstr("node0 does not resolve: Name or service not known"));
  EXPECT_THAT(finding.advice, HasSubstr("/etc/hosts"));
}

TEST(DoctorHostName, IsAProblemWhenNobodyAnswersAndAWarningWhenItTakesHalfASecond) {
  DoctorFacts facts = healthy_facts();
  facts.names.own.took = milliseconds(499);
  EXPECT_EQ(level_of(facts, "host-name"), Level::kOk);
  facts.names.own.took = milliseconds(500);
  EXPECT_EQ(level_of(facts, "host-name"), Level::kWarning);
  facts.names.own.took = seconds(1);
  EXPECT_EQ(level_of(facts, "host-name"), Level::kProblem);
  facts.names.own.outcome = LookUp::Outcome::kSilent;
  facts.names.own.took = seconds(3);
  EXPECT_EQ(level_of(facts, "host-name"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "host-name").seen, HasSubstr("did not answer within 3.0 s"));
}

TEST(DoctorHostName, OnLoopbackIsAWarningForSeveralNodesAlone) {
  DoctorFacts facts = healthy_facts();
  facts.names.own.found = {"127.0.1.1"};
  facts.names.own_is_loopback = true;
  EXPECT_EQ(level_of(facts, "host-name"), Level::kOk);
  facts.job.several_nodes = true;
  EXPECT_EQ(level_of(facts, "host-name"), Level::kWarning);
  EXPECT_THAT(finding_of(facts, "host-name").advice, HasSubstr("GLOO_SOCKET_IFNAME"));
}

TEST(DoctorHostName, OfAnotherHostIsAWarning) {
  DoctorFacts facts = healthy_facts();
  facts.names.own_is_here = false;
  EXPECT_EQ(level_of(facts, "host-name"), Level::kWarning);
}

TEST(DoctorNameService, IsJudgedByWhichServerIsSilent) {
  DoctorFacts facts = healthy_facts();
  auto& servers = facts.names.servers;
  servers[1].outcome = NameServer::Outcome::kSilent;
  EXPECT_EQ(level_of(facts, "name-service"), Level::kWarning);
  std::swap(servers[0], servers[1]);
  EXPECT_EQ(level_of(facts, "name-service"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "name-service").seen, HasSubstr("10.0.1.53 did not answer"));
  servers[1].outcome = NameServer::Outcome::kFailed;
  servers[1].why = "Connection refused";
  EXPECT_EQ(level_of(facts, "name-service"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "name-service").seen,
              HasSubstr("10.0.0.53 cannot be queried: Connection refused"));
  servers[0].outcome = NameServer::Outcome::kFailed;
  EXPECT_EQ(level_of(facts, "name-service"), Level::kProblem);
}

TEST(DoctorNameService, IsNotMissedWhereThereIsNone) {
  DoctorFacts facts = healthy_facts();
  facts.names.servers.clear();
  EXPECT_EQ(level_of(facts, "name-service"), Level::kOk);
}

TEST(DoctorNameService, WarnsOfASlowServer) {
  DoctorFacts facts = healthy_facts();
  facts.names.servers[0].took = milliseconds(500);
  EXPECT_EQ(level_of(facts, "name-service"), Level::kWarning);
  facts.names.servers[0].took = seconds(1);
  EXPECT_EQ(level_of(facts, "name-service"), Level::kProblem);
}

TEST(DoctorAddressNames, AreAskedForByPyTorchAndMayNotBeSilent) {
  DoctorFacts facts = healthy_facts();
  facts.names.of_addresses.push_back({.asked = "::ffff:10.0.0.1", .took = milliseconds(500)});
  EXPECT_EQ(level_of(facts, "address-names"), Level::kWarning);
  facts.names.of_addresses.back().took = seconds(1);
  EXPECT_EQ(level_of(facts, "address-names"), Level::kProblem);
  facts.names.of_addresses.back() = {
      .asked = "::ffff:10.0.0.1", .outcome = LookUp::Outcome::kSilent, .took = seconds(3)};
  const Finding finding = finding_of(facts, "address-names");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.seen, HasSubstr("within 3.0 s for the name of ::ffff:10.0.0.1"));
  EXPECT_THAT(finding.advice,
              AllOf(HasSubstr("'::ffff:10.0.0.1 NAME' in /etc/hosts"), HasSubstr("RES_OPTIONS")));
}

// --- the endpoint ---

TEST(DoctorEndpoint, HasToResolve) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.endpoint->look_up.outcome = LookUp::Outcome::kNotFound;
  EXPECT_EQ(level_of(facts, "endpoint"), Level::kProblem);
  facts.network.endpoint->look_up.outcome = LookUp::Outcome::kSilent;
  EXPECT_EQ(level_of(facts, "endpoint"), Level::kProblem);
  facts.network.endpoint->look_up.outcome = LookUp::Outcome::kFound;
  facts.network.endpoint->look_up.took = milliseconds(500);
  EXPECT_EQ(level_of(facts, "endpoint"), Level::kWarning);
  facts.network.endpoint->look_up.took = seconds(1);
  EXPECT_EQ(level_of(facts, "endpoint"), Level::kProblem);
}

TEST(DoctorEndpoint, OnLoopbackIsNoPlaceForSeveralNodes) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.endpoint->address.host = "localhost";
  EXPECT_EQ(level_of(facts, "endpoint"), Level::kProblem);
  facts.job.several_nodes = false;
  EXPECT_EQ(level_of(facts, "endpoint"), Level::kOk);
}

TEST(DoctorEndpointReach, TellsAFirewallFromAHostWhereNobodyListens) {
  DoctorFacts facts = facts_with_endpoint();
  ConnectTry& first = facts.network.endpoint->tries[0];
  facts.network.endpoint->service.reset();
  first.outcome = ConnectTry::Outcome::kRefused;
  EXPECT_EQ(level_of(facts, "endpoint-reach"), Level::kWarning);
  facts.network.endpoint->is_here = true;
  EXPECT_EQ(level_of(facts, "endpoint-reach"), Level::kOk);
  EXPECT_THAT(finding_of(facts, "endpoint-reach").seen, HasSubstr("would start the service here"));
  facts.network.endpoint->is_here = false;
  first.outcome = ConnectTry::Outcome::kSilent;
  first.took = milliseconds(3500);
  EXPECT_EQ(level_of(facts, "endpoint-reach"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "endpoint-reach").seen, "10.0.0.2:29400: no answer within 3.5 s");
  EXPECT_THAT(finding_of(facts, "endpoint-reach").advice, HasSubstr("firewall"));
  first.outcome = ConnectTry::Outcome::kFailed;
  first.why = "Network is unreachable";
  EXPECT_EQ(level_of(facts, "endpoint-reach"), Level::kProblem);
}

TEST(DoctorEndpointReach, WarnsWhereTheFirstOfSeveralAddressesDoesNotWork) {
  DoctorFacts facts = facts_with_endpoint();
  auto& tries = facts.network.endpoint->tries;
  tries.push_back({.address = "fd00::2", .outcome = ConnectTry::Outcome::kSilent});
  EXPECT_EQ(level_of(facts, "endpoint-reach"), Level::kOk);
  std::swap(tries[0], tries[1]);
  EXPECT_EQ(level_of(facts, "endpoint-reach"), Level::kWarning);
}

TEST(DoctorService, IsAProblemWhereItWouldNotTakeThisNode) {
  using Outcome = ServiceAnswer::Outcome;
  DoctorFacts facts = facts_with_endpoint();
  for (const auto& [outcome, words] :
       {std::pair(Outcome::kWantsTls, "requires TLS"), std::pair(Outcome::kTlsFailed, "TLS with"),
        std::pair(Outcome::kWantsKey, "requires a key"),
        std::pair(Outcome::kRefusesKey, "same key"),
        std::pair(Outcome::kNoLeader, "no service leads"),
        std::pair(Outcome::kOther, "not a rendezvous service"),
        std::pair(Outcome::kSilent, "sends nothing")}) {
    facts.network.endpoint->service->outcome = outcome;
    EXPECT_EQ(level_of(facts, "service"), Level::kProblem) << words;
    EXPECT_THAT(finding_of(facts, "service").seen, HasSubstr(words));
  }
}

TEST(DoctorService, OfAnotherVersionIsAWarning) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.endpoint->service->version = "1.2.4";
  EXPECT_EQ(level_of(facts, "service"), Level::kWarning);
  facts.network.endpoint->service->version = "";  // the service does not say its version
  EXPECT_EQ(level_of(facts, "service"), Level::kOk);
}

TEST(DoctorService, MayStandBy) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.endpoint->service->version = "";
  facts.network.endpoint->service->why = "it stands by: r2:29400 leads";
  EXPECT_EQ(level_of(facts, "service"), Level::kOk);
  EXPECT_THAT(finding_of(facts, "service").seen, HasSubstr("; it stands by: r2:29400 leads"));
}

TEST(DoctorServices, ShouldAllAnswer) {
  DoctorFacts facts = facts_with_endpoint();
  EXPECT_EQ(std::ranges::count(diagnose(facts), "services", &Finding::id), 0);
  EndpointFacts other = *facts.network.endpoint;
  other.address.host = "r2";
  facts.network.other_services = {other, other};
  EXPECT_EQ(level_of(facts, "services"), Level::kOk);
  facts.network.other_services[1].service.reset();
  facts.network.other_services[1].tries[0].outcome = ConnectTry::Outcome::kRefused;
  EXPECT_EQ(level_of(facts, "services"), Level::kWarning);
  EXPECT_THAT(finding_of(facts, "services").seen,
              AllOf(HasSubstr("2 of 3 rendezvous services answer; r2:"), HasSubstr("refused")));
  facts.network.other_services[0] = facts.network.other_services[1];
  facts.network.endpoint->service->outcome = ServiceAnswer::Outcome::kSilent;
  EXPECT_EQ(level_of(facts, "services"), Level::kProblem);
}

TEST(DoctorEtcd, HasToWriteSoon) {
  DoctorFacts facts = facts_with_endpoint();
  EtcdMember member{.address = {"e1", 2379}, .version = "3.4.23", .has_leader = true};
  facts.network.etcd = EtcdFacts{.members = {member, member}, .write_took = milliseconds(1)};
  EtcdFacts& etcd = *facts.network.etcd;
  EXPECT_EQ(level_of(facts, "etcd"), Level::kOk);
  EXPECT_THAT(finding_of(facts, "etcd").seen,
              HasSubstr("etcd 3.4.23: 2 of 2 given members answer; a durable write takes 1 ms"));
  etcd.cluster_size = 1;
  EXPECT_EQ(level_of(facts, "etcd"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "etcd").seen, HasSubstr("but etcd has only 1 in its cluster"));
  etcd.cluster_size = 3;
  EXPECT_EQ(level_of(facts, "etcd"), Level::kOk) << "not all members were given";
  etcd.members[1].trouble = "Connection refused";
  EXPECT_EQ(level_of(facts, "etcd"), Level::kWarning);
  etcd.members[1].trouble = "";
  etcd.members[1].size = std::int64_t{1700} << 20;
  EXPECT_EQ(level_of(facts, "etcd"), Level::kWarning) << "of 2 GiB";
  etcd.members[1].quota = std::int64_t{8} << 30;
  EXPECT_EQ(level_of(facts, "etcd"), Level::kOk);
  etcd.write_took = milliseconds(60);
  EXPECT_EQ(level_of(facts, "etcd"), Level::kWarning);
  etcd.write_took = milliseconds(500);
  EXPECT_EQ(level_of(facts, "etcd"), Level::kProblem);
  etcd.write_took = milliseconds(1);
  etcd.alarms = {"NOSPACE"};
  EXPECT_EQ(level_of(facts, "etcd"), Level::kProblem);
  etcd.alarms.clear();
  etcd.write_took.reset();
  etcd.write_trouble = "no leader";
  EXPECT_EQ(level_of(facts, "etcd"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "etcd").seen, HasSubstr("a write fails: no leader"));
}

// --- addresses ---

TEST(DoctorSourceAddress, NotesThatThereIsAnotherNetwork) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.interfaces.push_back({"ib0", "10.1.0.1"});
  const Finding finding = finding_of(facts, "source-address");
  EXPECT_EQ(finding.level, Level::kNote);
  EXPECT_THAT(finding.seen, AllOf(HasSubstr("10.0.0.1 (eth0)"), HasSubstr("10.1.0.1 (ib0)")));
  EXPECT_THAT(finding.advice, HasSubstr("--local-addr=ib0"));
  facts.network.local = LocalAddressFacts{.wanted = "ib0", .found = "10.1.0.1", .is_here = true};
  EXPECT_EQ(level_of(facts, "source-address"), Level::kOk);
}

TEST(DoctorSourceAddress, OfTheSameInterfaceIsNoOtherNetwork) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.interfaces.push_back({"eth0", "fd00::1"});
  EXPECT_EQ(level_of(facts, "source-address"), Level::kOk);
}

TEST(DoctorSourceAddress, HasToBeWhatLocalAddrSays) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.local = LocalAddressFacts{.wanted = "10.9.0.0/16", .why = "no address is in it"};
  EXPECT_EQ(level_of(facts, "source-address"), Level::kProblem);
  facts.network.local = LocalAddressFacts{.wanted = "10.9.0.7", .found = "10.9.0.7"};
  EXPECT_EQ(level_of(facts, "source-address"), Level::kNote) << "it may be a NAT's";
}

TEST(DoctorSourceAddress, NotesAHostWithLoopbackAlone) {
  DoctorFacts facts = healthy_facts();
  facts.network.interfaces.clear();
  EXPECT_EQ(level_of(facts, "source-address"), Level::kNote);
}

TEST(DoctorInterfaceVariables, HaveToNameAnInterface) {
  DoctorFacts facts = healthy_facts();
  const auto level = [&](const char* variable, const char* value) {
    facts.network.interface_variables = {{variable, value}};
    return level_of(facts, "interface-variables");
  };
  EXPECT_EQ(level("GLOO_SOCKET_IFNAME", "eth0"), Level::kOk);
  EXPECT_EQ(level("GLOO_SOCKET_IFNAME", "eth1,ib0"), Level::kOk);
  EXPECT_EQ(level("GLOO_SOCKET_IFNAME", "eth"), Level::kProblem) << "gloo takes whole names";
  EXPECT_EQ(level("GLOO_SOCKET_IFNAME", "eth1"), Level::kProblem);
  EXPECT_EQ(level("NCCL_SOCKET_IFNAME", "eth"), Level::kOk) << "NCCL takes beginnings";
  EXPECT_EQ(level("NCCL_SOCKET_IFNAME", "=eth"), Level::kProblem);
  EXPECT_EQ(level("NCCL_SOCKET_IFNAME", "=eth0"), Level::kOk);
  EXPECT_EQ(level("NCCL_SOCKET_IFNAME", "^docker"), Level::kOk);
  EXPECT_EQ(level("NCCL_SOCKET_IFNAME", "bond"), Level::kProblem);
}

// --- ports ---

TEST(DoctorEndpointPort, HasToBeFreeWhereThisHostIsToListen) {
  DoctorFacts facts = facts_with_endpoint();
  facts.network.endpoint->is_here = true;
  facts.network.endpoint->listening = ListenTry{.works = true};
  EXPECT_EQ(level_of(facts, "endpoint-port"), Level::kOk);
  facts.network.endpoint->listening =
      ListenTry{.why = "Address already in use", .holder = "python3 (pid 7)"};
  const Finding finding = finding_of(facts, "endpoint-port");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.seen,
              AllOf(HasSubstr("already in use"), HasSubstr("python3 (pid 7) uses it")));
}

TEST(DoctorEndpointPort, IsNotedWhereTheKernelGivesItAway) {
  DoctorFacts facts = facts_with_endpoint();
  const auto level = [&](std::uint16_t port) {
    facts.network.endpoint->address.port = port;
    return level_of(facts, "endpoint-port");
  };
  EXPECT_EQ(level(32767), Level::kOk);
  EXPECT_EQ(level(32768), Level::kNote);
  EXPECT_EQ(level(60999), Level::kNote);
  EXPECT_EQ(level(61000), Level::kOk);
  facts.network.reserved = {{40000, 40010}};
  EXPECT_EQ(level(40010), Level::kOk);
  EXPECT_EQ(level(40011), Level::kNote);
}

TEST(DoctorPortRange, NeedsAPortForTheStoreAndOneForEachWorker) {
  DoctorFacts facts = healthy_facts();
  facts.job.workers_here = 4;
  facts.network.ports = PortRangeFacts{.range = {29500, 29509}, .free = 5};
  EXPECT_EQ(level_of(facts, "port-range"), Level::kOk);
  facts.network.ports->free = 4;
  EXPECT_EQ(level_of(facts, "port-range"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "port-range").seen, "4 of 10 ports of 29500-29509 are free");
  facts.network.ports = PortRangeFacts{.range = {32000, 33000}, .free = 900};
  EXPECT_EQ(level_of(facts, "port-range"), Level::kNote);
}

}  // namespace
}  // namespace ddprun
