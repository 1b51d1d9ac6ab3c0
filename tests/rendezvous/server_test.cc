// The rendezvous service on a real socket, and agents that are no friends of it.
#include "rendezvous/server.h"

#include <gtest/gtest.h>

#include <csignal>
#include <future>

#include "rendezvous/control_codec.h"
#include "rendezvous/state_codec.h"
#include "tests/support/eventually.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/running_service.h"
#include "tests/support/temporary_directory.h"

namespace ddprun {
namespace {

using testing_support::RawTcpClient;

class ServerTest : public testing::Test {
 protected:
  static Hello hello(const std::string& job, const std::string& agent) {
    Hello hello;
    hello.job.id = job;
    hello.node = {
        .agent_id = agent, .host = agent, .slots = 1, .node_rank = {}, .address = "127.0.0.1"};
    return hello;
  }

  // The next message of the service; a Refused where the connection ended instead.
  static ServiceMessage next(RawTcpClient& client) {
    const std::string header = client.receive(kControlHeaderBytes);
    if (header.size() < kControlHeaderBytes) return Refused{"closed"};
    std::size_t length = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      length |= std::size_t{static_cast<unsigned char>(header[4 + i])} << (8 * i);
    }
    const auto message = decode_service_message(client.receive(length));
    if (!message) return Refused{message.error().message()};
    return *message;
  }
  template <class T>
  static std::optional<T> await(RawTcpClient& client) {
    while (true) {
      const ServiceMessage message = next(client);
      if (const T* wanted = std::get_if<T>(&message)) return *wanted;
      if (std::holds_alternative<Refused>(message)) return std::nullopt;
    }
  }
  static void say(RawTcpClient& client, const AgentMessage& message) {
    client.send(*encode(message));
  }
  static void send_json(RawTcpClient& client, const std::string& json) {
    std::string frame(kControlMagic);
    for (int shift = 0; shift < 32; shift += 8) {
      frame += static_cast<char>((json.size() >> shift) & 0xff);
    }
    client.send(frame + json);
  }

  testing_support::RunningService service_;
};

TEST_F(ServerTest, AHelloThatCannotBeMeantEndsItsOwnConnectionOnly) {
  RawTcpClient friendly(service_.port());
  say(friendly, hello("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));
  const auto bad = [&](const std::string& nodes, const std::string& slots,
                       const std::string& generation, const std::string& timeout) {
    RawTcpClient stranger(service_.port());
    send_json(stranger,
              R"({"type":"hello","protocol":1,"version":"x","instance":"","job":{"id":"bad",)" +
                  nodes + R"(,"max_restarts":0,"join_timeout_ms":)" + timeout +
                  R"(,"last_call_ms":0},"node":{"agent_id":"b","host":"b","slots":)" + slots +
                  R"(,"address":"127.0.0.1"},"status":{"phase":"idle","generation":)" + generation +
                  R"(,"ends":[],"store_port":0,"leaving":0}})");
    EXPECT_TRUE(stranger.is_closed()) << nodes << slots << generation << timeout;
  };
  const std::string one = R"("min_nodes":1,"max_nodes":1)";
  bad(R"("min_nodes":0,"max_nodes":0)", "1", "-1", "1000");
  bad(R"("min_nodes":0,"max_nodes":2)", "1", "-1", "1000");
  bad(R"("min_nodes":2,"max_nodes":1)", "1", "-1", "1000");
  bad(one, "0", "-1", "1000");
  bad(one, "-5", "-1", "1000");
  bad(one, "1", "9223372036854775807", "1000");
  bad(one, "1", "-1", "9223372036854775807");
  say(friendly, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(friendly)) << "the service lives, and this job with it";
}

TEST_F(ServerTest, AFailureOfAThousandWorkersIsTold) {
  constexpr int kNodes = 10;
  constexpr int kSlots = 100;
  std::vector<std::unique_ptr<RawTcpClient>> agents;
  for (int node = 0; node < kNodes; ++node) {
    agents.push_back(std::make_unique<RawTcpClient>(service_.port()));
    Hello first = hello("large", "agent" + std::to_string(node));
    first.job.nodes = {kNodes, kNodes};
    first.node.slots = kSlots;
    say(*agents.back(), first);
  }
  for (int node = 0; node < kNodes; ++node) {
    RawTcpClient& agent = *agents[static_cast<std::size_t>(node)];
    const auto assignment = await<Assignment>(agent);
    ASSERT_TRUE(assignment);
    // As an agent would that clips nothing.
    AgentStatus status{.phase = AgentPhase::kIdle, .generation = assignment->generation};
    for (int i = 0; i < kSlots; ++i) {
      WorkerEnd end{.kind = EndKind::kSignaled, .code = SIGSEGV};
      end.rank = Rank(assignment->first_rank.value + i);
      end.host = "agent" + std::to_string(node);
      end.message = std::string(500, 'm');
      end.stderr_tail.assign(20, std::string(400, 'x'));
      status.ends.push_back(std::move(end));
    }
    say(agent, status);
  }
  for (const auto& agent : agents) {
    const auto end = await<End>(*agent);
    ASSERT_TRUE(end);
    ASSERT_FALSE(end->verdict.ends.empty());
    EXPECT_EQ(end->verdict.ends.front().stderr_tail.size(), 20u);
    EXPECT_EQ(end->verdict.ends.size() + static_cast<std::size_t>(end->verdict.more_ends),
              std::size_t{kNodes * kSlots});
  }
}

TEST_F(ServerTest, WhoDoesNotReadIsClosedAndTheOthersLiveOn) {
  RawTcpClient friendly(service_.port());
  say(friendly, hello("good", "a"));
  ASSERT_TRUE(await<Assignment>(friendly));
  RawTcpClient greedy(service_.port(), "127.0.0.1", 4096);
  say(greedy, hello("greedy", "b"));
  std::string beats;
  for (std::uint64_t i = 0; i < 1000; ++i) beats += *encode(AgentMessage(Heartbeat{i}));
  // Far more answers than the kernel and the service hold for somebody who does not read.
  EXPECT_TRUE(greedy.send_until_closed(beats, 1000));
  say(friendly, Heartbeat{1});
  EXPECT_TRUE(await<HeartbeatAck>(friendly));
}

// --- with a state directory ---

class DurableServerTest : public ServerTest {
 protected:
  void start() {
    service_.reset();
    Result<StateDirectory> directory = StateDirectory::open(temporary_.path());
    ASSERT_TRUE(directory) << directory.error().message();
    Result<ServiceState> state = decode_state(directory->image());
    ASSERT_TRUE(state) << state.error().message();
    service_.emplace(ServiceOptions{.service_id = "s"}, std::uint16_t{0},
                     KeptState{std::move(*directory), std::move(*state)});
  }
  bool has_logged(const std::string& text) {
    for (const std::string& line : service_->log_lines()) {
      if (line.find(text) != std::string::npos) return true;
    }
    return false;
  }

  TemporaryDirectory temporary_;
  std::optional<testing_support::RunningService> service_;
};

TEST_F(DurableServerTest, ARestartedServiceGoesOnWithTheJobAndItsAgentAlone) {
  start();
  Hello first = hello("j", "a");
  {
    RawTcpClient agent(service_->port());
    say(agent, first);
    const auto welcome = await<Welcome>(agent);
    ASSERT_TRUE(welcome);
    first.instance = welcome->instance;
    first.assignment = await<Assignment>(agent);
    ASSERT_TRUE(first.assignment);
  }
  start();
  first.status = {.phase = AgentPhase::kRunning, .generation = Generation(0)};
  RawTcpClient agent(service_->port());
  say(agent, first);
  const auto welcome = await<Welcome>(agent);
  ASSERT_TRUE(welcome);
  EXPECT_EQ(welcome->instance, first.instance);
  EXPECT_TRUE(testing_support::eventually([&] { return has_logged("took over generation 0"); }));
}

TEST_F(DurableServerTest, WithoutRoomItServesWhatRunsAdmitsNothingNewAndRecovers) {
  start();
  RawTcpClient running(service_->port());
  say(running, hello("running", "a"));
  ASSERT_TRUE(await<Assignment>(running));
  {
    const testing_support::FileSizeLimit limit(20);
    for (const char* job : {"new", "newer"}) {
      RawTcpClient newcomer(service_->port());
      say(newcomer, hello(job, job));
      const auto silence = await<Silence>(newcomer);
      ASSERT_TRUE(silence);
      EXPECT_NE(silence->reason.find("File too large"), std::string::npos) << silence->reason;
      EXPECT_TRUE(newcomer.is_closed());
    }
    say(running, Heartbeat{1});
    EXPECT_TRUE(await<HeartbeatAck>(running));
    EXPECT_TRUE(has_logged("nothing new is admitted"));
    EXPECT_FALSE(has_logged("has room again"));
  }
  ASSERT_TRUE(testing_support::eventually([&] { return has_logged("has room again"); }));
  RawTcpClient newcomer(service_->port());
  say(newcomer, hello("new", "new"));
  const auto assignment = await<Assignment>(newcomer);
  ASSERT_TRUE(assignment);
  EXPECT_EQ(assignment->restart_count, 0) << "what was refused has never been";
}

// A job that has to change while there is no room waits for it, and then goes on.
TEST_F(DurableServerTest, NothingIsToldThatIsNotSafe) {
  start();
  RawTcpClient agent(service_->port());
  say(agent, hello("j", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  {
    const testing_support::FileSizeLimit limit(20);
    say(agent, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
    ASSERT_TRUE(testing_support::eventually([&] { return has_logged("nothing new is admitted"); }));
    say(agent, Heartbeat{7});
    const ServiceMessage next_one = next(agent);
    ASSERT_TRUE(std::holds_alternative<HeartbeatAck>(next_one)) << "not the verdict";
  }
  EXPECT_TRUE(await<End>(agent));
}

TEST_F(DurableServerTest, DrainingWritesTellsEveryoneAndListensNoMore) {
  start();
  RawTcpClient agent(service_->port());
  say(agent, hello("j", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  std::promise<void> drained;
  service_->on_thread([&] { service_->server().drain([&] { drained.set_value(); }); });
  ASSERT_EQ(drained.get_future().wait_for(testing_support::kPatience), std::future_status::ready);
  ASSERT_TRUE(await<Silence>(agent));
  start();
  const Membership* job = nullptr;
  service_->on_thread([&] { job = service_->server().jobs().find("j"); });
  EXPECT_TRUE(job);
}

TEST_F(DurableServerTest, DrainingDoesNotWaitForADiskForEver) {
  start();
  RawTcpClient agent(service_->port());
  say(agent, hello("j", "a"));
  ASSERT_TRUE(await<Assignment>(agent));
  const testing_support::FileSizeLimit limit(20);
  say(agent, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  ASSERT_TRUE(testing_support::eventually([&] { return has_logged("nothing new is admitted"); }));
  const TimePoint begun = BootClock::now();
  std::promise<void> drained;
  service_->on_thread([&] { service_->server().drain([&] { drained.set_value(); }); });
  ASSERT_EQ(drained.get_future().wait_for(testing_support::kPatience), std::future_status::ready);
  EXPECT_GE(BootClock::now() - begun, RendezvousServer::kDrainTime);
  const auto silence = await<Silence>(agent);
  EXPECT_TRUE(silence) << "and no verdict";
  EXPECT_TRUE(has_logged("is lost"));
}

}  // namespace
}  // namespace ddprun
