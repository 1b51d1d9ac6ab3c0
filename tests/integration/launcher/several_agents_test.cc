// Tests several agents on this host. They form a job at a service, or one of them runs the
// service.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <regex>
#include <set>
#include <thread>

#include "base/parse_number.h"
#include "base/poll_until.h"
#include "rendezvous/net/listen.h"
#include "rendezvous/net/tcp_address.h"
#include "rendezvous/protocol/control_codec.h"
#include "tests/integration/rendezvous/rendezvous_frame.h"
#include "tests/support/client_of.h"
#include "tests/support/held_port.h"
#include "tests/support/http_get.h"

namespace ddprun::testing_support {
namespace {

using testing::HasSubstr;
using testing::Not;

using std::chrono::seconds;

class TwoAgents : public RendezvousTest {
 protected:
  std::string start_service() {
    service_ = start_rendezvous({"--listen=127.0.0.1:0"});
    return listening_address(*service_);
  }
  static Arguments of_two_workers(const std::string& endpoint, const Arguments& options,
                                  const std::string& script) {
    return node(endpoint, joined({"--nproc-per-node=2"}, options), script);
  }
  void TearDown() override {
    if (service_) end(*service_);
    RendezvousTest::TearDown();
  }

  std::unique_ptr<ChildProcess> service_;
};

constexpr const char* kSayPlace =
    "echo rank $RANK of $WORLD_SIZE node $GROUP_RANK store $MASTER_ADDR:$MASTER_PORT";

TEST_F(TwoAgents, MeetAtTheServiceInAnyOrderAndShareAStore) {
  const std::string endpoint = start_service();
  auto one = start(of_two_workers(endpoint, {"--node-rank=1"}, kSayPlace));
  ASSERT_TRUE(one->wait_for_err("waiting: 1 of 2 nodes here")) << one->err();
  auto zero = start(of_two_workers(endpoint, {"--node-rank=0"}, kSayPlace));
  ASSERT_EQ(zero->wait(), 0) << zero->err();
  ASSERT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(zero->out(), HasSubstr("rank 1 of 4 node 0 store"));
  EXPECT_THAT(one->out(), HasSubstr("rank 3 of 4 node 1 store"));
  const auto store = [](const std::string& out) { return out.substr(out.rfind("store")); };
  EXPECT_EQ(store(lines_of(zero->out())[0]), store(lines_of(one->out())[0]));
}

TEST_F(TwoAgents, WhyAJobWasStoppedIsSaidOnceOnTheOtherNode) {
  const HeldPort held;
  auto a = start(of_two_workers(held.endpoint(), {"--node-rank=0"}, "echo up; exec sleep 1000"));
  ASSERT_TRUE(a->wait_for_err("waiting: 1 of 2 nodes here")) << a->err();
  auto b = start(of_two_workers(held.endpoint(), {"--node-rank=1"}, "echo up; exec sleep 1000"));
  ASSERT_TRUE(a->wait_for_out("up") && b->wait_for_out("up")) << a->err() << b->err();
  a->signal(SIGTERM);
  EXPECT_EQ(a->wait(), 143) << a->err();
  EXPECT_EQ(b->wait(), 143) << b->err();
  EXPECT_THAT(lines_of(b->err()).back(),
              testing::ContainsRegex(
                  "^ddprun: error: job 'job' ended: the job was stopped: [^:]* received SIGTERM$"));
}

// The workers of node 1 save for 12 s. This is longer than the service of node 0 waits for agents
// that only have to receive a verdict.
TEST_F(TwoAgents, TheNodeWithTheServiceWaitsForWorkersThatStillSave) {
  const HeldPort held;
  const auto run = [&](const std::string& rank, const std::string& save) {
    return start(of_two_workers(held.endpoint(), {"--node-rank=" + rank, "--lease=1"},
                                "trap '" + save +
                                    "; echo saved; exit' TERM; echo up; "
                                    "while :; do sleep 0.1; done"));
  };
  auto zero = run("0", ":");
  ASSERT_TRUE(zero->wait_for_err("waiting: 1 of 2 nodes here")) << zero->err();
  auto one = run("1", "sleep 12");
  ASSERT_TRUE(zero->wait_for_out("up") && one->wait_for_out("up")) << zero->err() << one->err();
  zero->signal(SIGTERM);
  EXPECT_EQ(one->wait(), 143) << one->err();
  EXPECT_EQ(zero->wait(), 143) << zero->err();
  EXPECT_THAT(one->out(), HasSubstr("saved")) << one->err();
}

TEST_F(TwoAgents, OneOfThemServesWhenNobodyElseDoes) {
  const HeldPort held;
  const std::string endpoint = held.endpoint();
  auto a = start(of_two_workers(endpoint, {}, kSayPlace));
  auto b = start(of_two_workers(endpoint, {}, kSayPlace));
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_EQ(lines_of(a->out() + b->out()).size(), 4u);
}

TEST_F(TwoAgents, TorchrunsStaticModeNeedsOnePortForEverything) {
  const HeldPort held;
  const std::string port = std::to_string(held.port());
  const auto run = [&](const std::string& rank) {
    return start_shell(
        {"--nnodes=2", "--master-addr=127.0.0.1", "--master-port=" + port, "--node-rank=" + rank},
        kSayPlace);
  };
  auto one = run("1");
  auto zero = run("0");
  ASSERT_EQ(zero->wait(), 0) << zero->err();
  ASSERT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(one->out(), HasSubstr("rank 1 of 2 node 1 store 127.0.0.1:" + port));
}

TEST_F(TwoAgents, TheOnePortOfStaticModeAnswersHttpAsWell) {
  const HeldPort held;
  const std::string port = std::to_string(held.port());
  auto job = start_shell(
      {"--nnodes=1", "--master-addr=127.0.0.1", "--master-port=" + port, "--rdzv-id=seen"},
      until_go_after("echo started"));
  ASSERT_TRUE(job->wait_for_out("started")) << job->err();
  EXPECT_EQ(http_get(held.port(), "/readyz").status, 200);
  const std::string metrics = http_get(held.port(), "/metrics").body;
  EXPECT_THAT(metrics, HasSubstr("ddprun_job_generation{job=\"seen\"} 0\n"));
  EXPECT_THAT(metrics, HasSubstr("ddprun_store_connections 0\n"));
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(TwoAgents, AFailureOnOneNodeRestartsBoth) {
  const std::string endpoint = start_service();
  const std::string script =
      "echo gen $DDPRUN_GENERATION rank $RANK; [ $DDPRUN_GENERATION = 1 ] && exit 0; [ $RANK = 3 ] "
      "&& kill -9 $$; "
      "exec sleep 1000";
  const Arguments options{"--max-restarts=1"};
  auto a = start(of_two_workers(endpoint, options, script));
  auto b = start(of_two_workers(endpoint, options, script));
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  EXPECT_THAT((a->out() + b->out()), HasSubstr("gen 1 rank 0"));
  for (const auto* job : {a.get(), b.get()}) {
    EXPECT_THAT(job->err(), HasSubstr("restart 1 of 1: rank 3"));
  }
}

TEST_F(TwoAgents, BothEndWithTheFirstFailuresCode) {
  const std::string endpoint = start_service();
  const std::string script = "[ $RANK = 2 ] && exit 9; exec sleep 1000";
  auto a = start(of_two_workers(endpoint, {}, script));
  auto b = start(of_two_workers(endpoint, {}, script));
  EXPECT_EQ(a->wait(), 9) << a->err();
  EXPECT_EQ(b->wait(), 9) << b->err();
}

TEST_F(TwoAgents, AnElasticJobGoesOnWithoutAKilledNode) {
  const std::string endpoint = start_service();
  const std::string script =
      "echo gen $DDPRUN_GENERATION world $WORLD_SIZE; [ $WORLD_SIZE = 2 ] && exit 0; exec sleep "
      "1000";
  const Arguments options{"--nnodes=1:2", "--max-restarts=1"};
  auto a = start(of_two_workers(endpoint, options, script));
  auto b = start(of_two_workers(endpoint, options, script));
  ASSERT_TRUE(a->wait_for_out("gen 0 world 4") && b->wait_for_out("gen 0 world 4"));
  kill(tree_of(*b).agent, SIGKILL);
  EXPECT_EQ(a->wait(seconds(15)), 0) << a->err();
  EXPECT_THAT(a->out(), HasSubstr("gen 1 world 2"));
  EXPECT_THAT(a->err(), HasSubstr("was lost"));
}

// Any client of the store may announce it: `store.set("ddprun/checkpoint", step)` in Python.
TEST_F(TwoAgents, ANewcomerJoinsWhenTheWorkersAnnounceACheckpoint) {
  const std::string endpoint = start_service();
  const std::string script =
      until_go_after("echo gen $DDPRUN_GENERATION world $WORLD_SIZE at $MASTER_PORT.");
  const std::string logs = directory_ / "logs";
  const Arguments options{"--nnodes=1:2", "--on-join=checkpoint", "--rdzv-conf=last_call_timeout=0",
                          "--log-dir=" + logs, "-t1"};
  auto a = start(of_two_workers(endpoint, options, script));
  ASSERT_TRUE(a->wait_for_out("gen 0 world 2 at ")) << a->err();
  auto b = start(of_two_workers(endpoint, options, script));
  ASSERT_TRUE(b->wait_for_err("joins at the next checkpoint that is announced")) << b->err();
  EXPECT_THAT(a->err(), Not(HasSubstr("stopping")));
  const std::string at = a->out().substr(a->out().find(" at ") + 4);
  const auto port = parse_number<std::uint16_t>(at.substr(0, at.find('.')));
  ASSERT_TRUE(port) << at;
  auto store = client_of(*port);
  ASSERT_TRUE(store) << store.error().message();
  ASSERT_TRUE((*store)->set(kCheckpointKey, "100"));
  ASSERT_TRUE(a->wait_for_out("gen 1 world 4") && b->wait_for_out("gen 1 world 4")) << a->err();
  EXPECT_TRUE(a->wait_for_err("a node joined at a checkpoint"));
  let_go();
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_EQ(b->wait(), 0) << b->err();
  // No restart was used. The second generation of an attempt does not replace the logs of the
  // first.
  std::multiset<std::string> attempts;
  for (const auto& node : std::filesystem::directory_iterator(logs)) {
    for (const std::string& attempt : listing(node.path())) attempts.insert(attempt);
  }
  EXPECT_THAT(attempts, testing::UnorderedElementsAre("attempt_0", "attempt_0", "attempt_0.g1"));
}

// If the nodes share a file system, each has its own directory, which names its host and node.
TEST_F(TwoAgents, LogsOfSeveralNodesInOneDirectoryNameTheirHostAndNode) {
  const std::string endpoint = start_service();
  const std::string logs = directory_ / "logs";
  const Arguments options{"--log-dir=" + logs, "-r3"};
  const std::string script = "echo out of rank $RANK; echo err of rank $RANK >&2";
  auto zero = start(of_two_workers(endpoint, joined(options, {"--node-rank=0"}), script));
  auto one = start(of_two_workers(endpoint, joined(options, {"--node-rank=1"}), script));
  ASSERT_EQ(zero->wait(), 0) << zero->err();
  ASSERT_EQ(one->wait(), 0) << one->err();
  const std::vector<std::string> nodes = listing(logs);
  ASSERT_EQ(nodes.size(), 2u);
  for (int node = 0; node < 2; ++node) {
    const std::string ending = "_" + host_name() + "_" + std::to_string(node);
    const auto found = std::ranges::find_if(
        nodes, [&](const std::string& name) { return name.ends_with(ending); });
    ASSERT_NE(found, nodes.end()) << ending << ": " << testing::PrintToString(nodes);
    EXPECT_THAT(*found, testing::StartsWith("job_"));
    for (int local = 0; local < 2; ++local) {
      const std::string worker = logs + "/" + *found + "/attempt_0/" + std::to_string(local);
      const std::string rank = std::to_string(2 * node + local);
      EXPECT_EQ(read_file(worker + "/stdout.log"), "out of rank " + rank + "\n");
      EXPECT_EQ(read_file(worker + "/stderr.log"), "err of rank " + rank + "\n");
    }
  }
}

TEST_F(TwoAgents, TheLeaseOfTheServiceReachesTheWorkers) {
  const HeldPort held;
  for (const Arguments& where :
       std::vector<Arguments>{{"--standalone"}, {"--rdzv-endpoint=" + held.endpoint()}}) {
    auto job = start_shell(joined(where, {"--lease=7.5"}), "echo lease $DDPRUN_LEASE_MS");
    EXPECT_EQ(job->wait(), 0) << job->err();
    EXPECT_THAT(job->out(), HasSubstr("lease 7500"));
  }
}

TEST_F(TwoAgents, ADeadServiceWithItsNodeEndsTheJobOnTheOthers) {
  const HeldPort held;
  const std::string endpoint = held.endpoint();
  auto host = start(of_two_workers(endpoint, {}, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(host->wait_for_err("waiting"));
  auto other = start(of_two_workers(endpoint, {}, "echo ready; exec sleep 1000"));
  ASSERT_TRUE(other->wait_for_out("ready"));
  const TimePoint killed = BootClock::now();
  kill(tree_of(*host).agent, SIGKILL);
  EXPECT_EQ(other->wait(), 67) << other->err();
  EXPECT_LT(BootClock::now() - killed, seconds(25));
  EXPECT_THAT(other->err(), HasSubstr("inside the agent on"));
}

TEST_F(TwoAgents, AnOutageOfTheServiceBelowTheAgentsPatienceGoesUnnoticed) {
  const std::string endpoint = start_service();
  auto a = start(of_two_workers(endpoint, {"--nnodes=1", "--max-restarts=0"},
                                until_go_after("echo ready $DDPRUN_GENERATION")));
  ASSERT_TRUE(a->wait_for_out("ready 0"));
  service_->signal(SIGSTOP);
  let_pass(seconds(2));
  service_->signal(SIGCONT);
  let_go();
  EXPECT_EQ(a->wait(), 0) << a->err();
  EXPECT_THAT(a->err(), Not(HasSubstr("has not answered")));
}

// The service of the test sends all its messages at once, so that the agent reads them in one
// piece.
TEST_F(LauncherTest, AStopThatComesWithItsAssignmentFindsWorkersThatCouldNotBeStarted) {
  std::ofstream(directory_ / "broken") << "no program at all";
  std::filesystem::permissions(directory_ / "broken", std::filesystem::perms::owner_all);
  Result<Listener> service = listen_tcp({"127.0.0.1", 0});
  ASSERT_TRUE(service);
  auto job = start({"--rdzv-endpoint=" + to_text(service->address), "./broken"});
  UniqueFd agent;
  // Waits until a hello comes.
  for (char byte = 0; !agent.valid() || recv(agent.get(), &byte, 1, MSG_PEEK) != 1;) {
    pollfd ready{service->socket.get(), POLLIN, 0};
    ASSERT_EQ(poll_until({&ready, 1}, in(kPatience)), 1) << job->err();
    agent = UniqueFd(accept4(service->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  Assignment assignment;
  assignment.store = {"127.0.0.1", service->address.port};
  assignment.reason = "start";
  const Verdict verdict{.success = false, .exit_code = 64, .headline = "it ends", .ends = {}};
  const std::string all = *encode(ServiceMessage(Welcome{.instance = "i",
                                                         .heartbeat_interval = seconds(10),
                                                         .agent_patience = seconds(40),
                                                         .embedded = false,
                                                         .host = "h"})) +
                          *encode(ServiceMessage(assignment)) +
                          *encode(ServiceMessage(Stop{Generation(0), "another one failed"})) +
                          *encode(ServiceMessage(End{verdict}));
  ASSERT_EQ(send(agent.get(), all.data(), all.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(all.size()));
  EXPECT_EQ(job->wait(), 64) << job->err();
  EXPECT_THAT(job->err(), HasSubstr("it ends"));
}

TEST_F(TwoAgents, APortThatIsTakenIsNamed) {
  const std::string endpoint = start_service();
  const std::string port = endpoint.substr(endpoint.rfind(':') + 1);
  auto job = start({"--master-port=" + port, "true"});
  EXPECT_EQ(job->wait(), 69);
  EXPECT_THAT(job->err(), HasSubstr(port));
  EXPECT_THAT(job->err(), HasSubstr("in use"));
  EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
}

// Two tasks of a step of Slurm on this host, whose port another program has.
class TakenPort : public TwoAgents {
 protected:
  void SetUp() override {
    TwoAgents::SetUp();
    for (int port = 20000 + getpid() % 9000; !taken_; ++port) {
      Result<Listener> listener = listen_tcp({"127.0.0.1", static_cast<std::uint16_t>(port)});
      if (listener) taken_ = std::move(*listener);
    }
  }
  std::uint16_t port() const { return taken_->address.port; }
  // The port is made from the last four digits of the job's number.
  std::unique_ptr<ChildProcess> start_task(int node, const Arguments& options,
                                           const std::string& script, int more = 0) const {
    ChildProcess::Options task =
        environment({{"SLURM_JOB_ID", std::to_string(port() - 20000 + more)},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_NODEID", std::to_string(node)},
                     {"SLURM_STEP_NODELIST", "127.0.0.1,node1"},
                     {"SLURM_STEP_TASKS_PER_NODE", "1(x2)"}});
    task.input = "/dev/null";
    return std::make_unique<ChildProcess>(
        joined({program("ddprun")}, options, {"sh", "-c", script}), task);
  }
  // Runs the job. Expects that its nodes meet at another port.
  void expect_other_port(const Arguments& options = {}, int more = 0) const {
    auto one = start_task(1, options, kSayPlace, more);
    auto zero = start_task(0, options, kSayPlace, more);
    EXPECT_EQ(zero->wait(), 0) << zero->err();
    EXPECT_EQ(one->wait(), 0) << one->err();
    EXPECT_THAT(zero->out(), HasSubstr("rank 0 of 2"));
    EXPECT_THAT(one->out(), HasSubstr("rank 1 of 2"));
    EXPECT_THAT(zero->err(),
                testing::ContainsRegex("ddprun: port " + std::to_string(port()) +
                                       " is taken; the rendezvous is at 127.0.0.1:[23][0-9]{4}\n"));
    EXPECT_THAT(one->err(), Not(HasSubstr("is taken")));
  }
  // Plays the other program: calls `talk` with each connection, until the object goes.
  void serve(std::function<void(UniqueFd&)> talk) {
    talker_ = std::jthread([this, talk = std::move(talk)](const std::stop_token& stop) {
      while (!stop.stop_requested()) {
        pollfd ready{taken_->socket.get(), POLLIN, 0};
        if (poll(&ready, 1, 20) != 1) continue;
        UniqueFd peer(accept4(taken_->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
        if (peer.valid()) talk(peer);
      }
    });
  }

  std::optional<Listener> taken_;
  std::jthread talker_;
};

TEST_F(TakenPort, AProgramThatSaysNothingHoldsNobodyUp) { expect_other_port(); }

TEST_F(TakenPort, AProgramThatClosesConnectionsAtOnceIsPassedOver) {
  serve([](UniqueFd& peer) { peer.reset(); });
  expect_other_port();
}

TEST_F(TakenPort, AnHttpServerIsPassedOver) {
  serve([](UniqueFd& peer) {
    constexpr std::string_view kAnswer = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
    char bytes[4096];
    if (recv(peer.get(), bytes, sizeof bytes, 0) > 0)
      send(peer.get(), kAnswer.data(), kAnswer.size(), MSG_NOSIGNAL);
  });
  expect_other_port();
}

// Agents of the job would be welcome there, too.
TEST_F(TakenPort, ARendezvousServiceThatIsNotTheJobsIsPassedOver) {
  taken_->socket.reset();
  service_ = start_rendezvous({"--listen=127.0.0.1:" + std::to_string(port())});
  listening_address(*service_);
  expect_other_port();
}

TEST_F(TakenPort, AServiceOfAnotherJobOfTheUserIsPassedOver) {
  taken_->socket.reset();
  auto first = start(node("127.0.0.1:" + std::to_string(port()), {}, "true"));
  ASSERT_TRUE(first->wait_for_err("waiting: 1 of 2 nodes here")) << first->err();
  expect_other_port();
  first->signal(SIGTERM);
  EXPECT_EQ(first->wait(), 143) << first->err();
}

TEST_F(TakenPort, TwoJobsWithTheIdThatTheUserGaveBothDoNotMeet) {
  taken_->socket.reset();
  const Arguments id{"--rdzv-id=train"};
  auto zero = start_task(0, id, "true");
  ASSERT_TRUE(zero->wait_for_err("waiting: 1 of 2 nodes here")) << zero->err();
  expect_other_port(id, 10000);
  auto one = start_task(1, id, "true");
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
}

TEST_F(TakenPort, AJobThatMeetsThereDoesNotTakeAnotherOne) {
  taken_->socket.reset();
  auto zero = start_task(0, {}, "true");
  ASSERT_TRUE(zero->wait_for_err("waiting: 1 of 2 nodes here")) << zero->err();
  EXPECT_THAT(zero->err(), Not(HasSubstr("is taken")));
  auto other = start(node("127.0.0.1:" + std::to_string(port()), {}, "true"));
  EXPECT_EQ(other->wait(), 66) << other->err();
  EXPECT_THAT(other->err(), HasSubstr("this service is only for job '"));
  auto one = start_task(1, {}, "true");
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
}

TEST_F(TakenPort, TheErrorNamesAllPortsThatWereTried) {
  auto one = start_task(1, {"--rdzv-conf=join_timeout=1"}, "true");
  EXPECT_EQ(one->wait(), 65) << one->err();
  const std::regex line("no rendezvous service answered at 127.0.0.1:" + std::to_string(port()) +
                        " to 127.0.0.1:" + std::to_string(port() + 7) + " within 1.0 s");
  EXPECT_TRUE(std::regex_search(one->err(), line)) << one->err();
}

}  // namespace
}  // namespace ddprun::testing_support
