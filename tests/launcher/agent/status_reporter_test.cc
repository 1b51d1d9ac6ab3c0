#include "launcher/agent/status_reporter.h"

#include <gtest/gtest.h>

#include <array>
#include <boost/asio/buffer.hpp>
#include <csignal>
#include <functional>
#include <optional>
#include <vector>

#include "launcher/control/server.h"
#include "launcher/output/console_writer.h"
#include "launcher/output/core/interrupt_tracebacks.h"
#include "launcher/output/json_lines.h"
#include "launcher/output/log_writer.h"
#include "launcher/plan/agent_config.h"
#include "launcher/process/file_work.h"
#include "rendezvous/protocol/control_codec.h"
#include "tests/support/clone_is_fork.h"
#include "tests/support/eventually.h"
#include "tests/support/hello_of.h"
#include "tests/support/played_service.h"

namespace ddprun {
namespace {

using testing_support::eventually_on;
using testing_support::hello_of;

constexpr Generation kGeneration{3};

class StatusReporterTest : public testing::Test {
 protected:
  StatusReporterTest() {
    config_.command = {"/bin/sleep", {"1000"}};
    config_.options.node_rank = 1;  // another one has the service
    config_.options.max_restarts = 3;
    config_.rendezvous.mode = Rendezvous::Mode::kStatic;
    config_.rendezvous.endpoint = service_.address();
  }

  // Connects to the service, which then has got the agent's Hello.
  void join() {
    ASSERT_TRUE(rendezvous_.join({.hello = [](const std::string&) { return hello_of("job", "a"); },
                                  .directive = [](const Directive&) {},
                                  .answer = [](const Answer&) {},
                                  .forward_signal = [](const ForwardSignal&) {},
                                  .output_directive = [](const OutputDirective&) {},
                                  .steps_directive = [](const StepsDirective&) {},
                                  .lost = [](const ServiceLost&) {},
                                  .refused = [](const ServiceRefused&) {}}));
    rendezvous_.start();
    ASSERT_TRUE(until([this] { return service_.has_accepted(); }));
    service_.say(*encode(ServiceMessage(Welcome{.instance = "instance",
                                                .heartbeat_interval = std::chrono::hours(1),
                                                .agent_patience = std::chrono::hours(3)})));
    ASSERT_TRUE(until([this] { return !rendezvous_.link().instance().empty(); }));
  }

  // Begins a generation on this node, without workers.
  void run(const Assignment& assignment = {.generation = kGeneration}) {
    supervisor_.step(assignment, BootClock::now());
    ASSERT_EQ(supervisor_.state(), Supervisor::State::kRunning);
    reporter_.generation_began();
  }

  // Ends this generation at the order of the service.
  void end(Generation generation) {
    const WorkerEnd killed{.kind = EndKind::kSignaled, .code = SIGTERM};
    for (const SupervisorEvent& event : std::vector<SupervisorEvent>{
             Stop{.generation = generation, .reason = "test"}, WorkersEnded{{killed}}, TreeEmpty{}})
      supervisor_.step(event, BootClock::now());
    ASSERT_EQ(supervisor_.state(), Supervisor::State::kIdle);
  }

  template <class Condition>
  bool until(Condition&& condition) {
    return eventually_on(io_, condition);
  }
  // Runs the io_context for this time, because that much must pass.
  void pass(Duration time) {
    const TimePoint end = BootClock::now() + time;
    EXPECT_TRUE(until([&] { return BootClock::now() >= end; }));
  }

  // Returns the messages of this type that the service has got since the last call.
  template <class Message>
  std::vector<Message> heard() {
    std::array<char, 4096> some;
    boost::system::error_code error;
    service_.agent().non_blocking(true);
    frames_.append({some.data(), service_.agent().read_some(boost::asio::buffer(some), error)});
    std::vector<Message> found;
    for (auto frame = frames_.next(); frame && *frame; frame = frames_.next()) {
      const Result<AgentMessage> message = decode<AgentMessage>(**frame);
      if (!message) ADD_FAILURE() << message.error().message();
      if (const Message* wanted = message ? std::get_if<Message>(&*message) : nullptr)
        found.push_back(*wanted);
    }
    return found;
  }
  template <class Message>
  std::optional<Message> next_heard() {
    std::vector<Message> found;
    if (!until([&] { return !(found = heard<Message>()).empty(); })) return std::nullopt;
    EXPECT_EQ(found.size(), 1u);
    return found.front();
  }

  void expect_no_steps() {
    rendezvous_.link().send_now(StepReport{.generation = Generation(99)});
    const auto next = next_heard<StepReport>();
    ASSERT_TRUE(next);
    EXPECT_EQ(next->generation, Generation(99)) << "another one was sent before";
  }

  boost::asio::io_context io_{1};
  testing_support::PlayedService service_{io_};
  AgentConfig config_;
  std::vector<std::string> lines_;
  Logger log_{"test", [this](std::string_view line) { lines_.emplace_back(line); }};
  ConsoleWriter console_{[] {}};
  LogWriter logs_{{.on_drained = [] {}, .warn = [](const std::string&) {}}};
  JsonLines json_{"job", "host"};
  InterruptTracebacks interrupts_;
  FileWork files_;
  FrameReader frames_;
  Supervisor supervisor_{{.host = "host", .grace = std::chrono::seconds(1)}};
  RendezvousHandler rendezvous_{io_, log_, config_};
  GenerationStore store_{io_, log_, config_, rendezvous_, [](Generation) {}};
  bool has_ended_ = false;
  NodeWorkers workers_{config_,
                       {io_, log_, console_, logs_, interrupts_, json_, files_, std::nullopt},
                       {.ended = [this](const WorkersEnded&) { has_ended_ = true; },
                        .is_running = [] { return true; }}};
  StatusReporter reporter_{{io_, log_, config_, supervisor_, workers_, store_, rendezvous_},
                           getpid()};
};

TEST_F(StatusReporterTest, ReportsComeAfterEverLongerPausesWhileTheGenerationRuns) {
  join();
  run();
  const TimePoint began = BootClock::now();
  reporter_.report_later();
  const auto first = next_heard<AgentStatus>();
  const TimePoint reported = BootClock::now();
  ASSERT_TRUE(first);
  EXPECT_EQ(first->generation, kGeneration);
  EXPECT_EQ(first->phase, AgentPhase::kRunning);
  EXPECT_GE(reported - began, NodeProgress::kFirstPause);
  ASSERT_TRUE(next_heard<AgentStatus>());
  EXPECT_GE(BootClock::now() - began, 3 * NodeProgress::kFirstPause);
  reporter_.generation_began();  // the pauses begin anew
  reporter_.report_later();
  supervisor_.step(UserSignal{SIGTERM}, BootClock::now());  // the workers are told to end
  ASSERT_EQ(supervisor_.state(), Supervisor::State::kStopping);
  pass(NodeProgress::kFirstPause * 3 / 2);
  EXPECT_TRUE(heard<AgentStatus>().empty());
}

TEST_F(StatusReporterTest, OnlyNode0ReportsByItself) {
  join();
  run({.generation = kGeneration, .node_rank = NodeRank(1), .node_count = 2});
  reporter_.report_later();
  pass(NodeProgress::kFirstPause * 3 / 2);
  EXPECT_TRUE(heard<AgentStatus>().empty());
}

// A timer would wake the agent.
TEST_F(StatusReporterTest, AJobOfThisNodeAloneHasNoTimer) {
  config_.rendezvous.mode = Rendezvous::Mode::kLocal;
  run();
  reporter_.report_later();
  EXPECT_EQ(io_.run(), 0u);
}

TEST_F(StatusReporterTest, NothingIsReportedAfterTheEnd) {
  join();
  run();
  EXPECT_EQ(reporter_.ranks().generation, kGeneration);
  reporter_.report_later();
  reporter_.close();
  EXPECT_EQ(reporter_.ranks(), RankReport());
  pass(NodeProgress::kFirstPause * 3 / 2);
  EXPECT_TRUE(heard<AgentStatus>().empty());
  reporter_.report_steps({.generation = kGeneration, .steps = 1, .lines = {"rank 1 is slow"}});
  EXPECT_EQ(lines_.size(), 1u) << "its user is told";
  expect_no_steps();
}

TEST_F(StatusReporterTest, StepsAreReportedOnlyInTheGenerationThatIsAskedFor) {
  join();
  run();
  reporter_.report_steps({.generation = Generation(2), .steps = 1, .lines = {"rank 1 is slow"}});
  reporter_.report_steps({.generation = kGeneration, .steps = 1});
  const auto report = next_heard<StepReport>();
  ASSERT_TRUE(report);
  EXPECT_EQ(report->generation, kGeneration);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_NE(lines_[0].find("rank 1 is slow"), std::string::npos);
  supervisor_.step(UserSignal{SIGTERM}, BootClock::now());
  reporter_.report_steps({.generation = kGeneration, .steps = 1});
  expect_no_steps();
}

TEST_F(StatusReporterTest, OnlyTheFirstRanksOfTheJobAreShown) {
  const int first = static_cast<int>(kMaxRankRows);
  EXPECT_EQ(reporter_.ranks(), RankReport()) << "before any generation";
  run({.generation = kGeneration, .first_rank = Rank(first - 1)});
  EXPECT_EQ(reporter_.ranks().generation, kGeneration);
  end(kGeneration);
  run({.generation = Generation(4), .first_rank = Rank(first)});
  EXPECT_EQ(reporter_.ranks(), RankReport());
}

TEST_F(StatusReporterTest, ARankIsSlowUntilTheServiceOrTheEndOfItsGenerationSaysOtherwise) {
  if (testing_support::kCloneIsFork) GTEST_SKIP() << testing_support::kNoSharedClone;
  join();
  ControlServer control(io_, {}, {}, config_.slots);
  run();
  workers_.start({.generation = kGeneration}, "instance", control);
  const auto cost = [this] {
    const std::vector<RankRow> rows = reporter_.rank_rows();
    EXPECT_EQ(rows.size(), 1u);
    return rows.empty() ? "no row" : rows[0].slow;
  };
  EXPECT_EQ(cost(), "");
  const std::vector<SlowRank> slow{{LocalRank(0), "the others wait 12 % of each step"}};
  reporter_.report_steps({.generation = kGeneration, .steps = 1, .slow = slow});
  EXPECT_EQ(cost(), slow[0].cost);
  EXPECT_EQ(reporter_.ranks().rows[0].slow, slow[0].cost);
  reporter_.report_steps({.generation = kGeneration, .steps = 1});
  EXPECT_EQ(cost(), "");
  reporter_.report_steps({.generation = kGeneration, .steps = 1, .slow = slow});
  reporter_.generation_ends();
  EXPECT_EQ(cost(), "");
  workers_.signal(SIGKILL, std::nullopt);
  EXPECT_TRUE(until([this] { return has_ended_; }));
}

TEST_F(StatusReporterTest, TheTimeOfASuspensionIsReported) {
  run();
  EXPECT_EQ(reporter_.status().times.stopped, Duration());
  reporter_.suspended();
  ASSERT_TRUE(until([this] { return reporter_.status().times.stopped > Duration(); }));
  reporter_.resumed();
  const Duration stopped = reporter_.status().times.stopped;
  EXPECT_GT(stopped, Duration());
  reporter_.resumed();
  EXPECT_EQ(reporter_.status().times.stopped, stopped);
  reporter_.generation_began();
  EXPECT_EQ(reporter_.status().times.stopped, Duration());
}

TEST_F(StatusReporterTest, TheStatusSaysWhatIsWrongWithLogFiles) {
  EXPECT_EQ(reporter_.status().log_trouble, "");
  reporter_.set_log_trouble("7 bytes are missing");
  EXPECT_EQ(reporter_.status().log_trouble, "7 bytes are missing");
}

TEST_F(StatusReporterTest, TheStatusHasThePortOfTheNextStore) {
  EXPECT_EQ(reporter_.status().store_port, 0);
  ASSERT_TRUE(store_.prepare());
  EXPECT_NE(store_.port(), 0);
  EXPECT_EQ(reporter_.status().store_port, store_.port());
}

TEST_F(StatusReporterTest, TheViewHasTheAssignmentOfTheGenerationOnly) {
  EXPECT_FALSE(reporter_.has_started_workers());
  EXPECT_EQ(reporter_.view().assignment, std::nullopt);
  EXPECT_EQ(reporter_.view().meets, to_text(service_.address()));
  run();
  EXPECT_TRUE(reporter_.has_started_workers());
  ASSERT_TRUE(reporter_.view().assignment);
  EXPECT_EQ(reporter_.view().assignment->generation, kGeneration);
  end(kGeneration);
  // Another generation runs, without this node.
  supervisor_.step(Wait{.reason = "test", .generation = Generation(4)}, BootClock::now());
  EXPECT_EQ(reporter_.view().generation, Generation(4));
  EXPECT_EQ(reporter_.view().assignment, std::nullopt);
  config_.rendezvous.mode = Rendezvous::Mode::kLocal;
  EXPECT_EQ(reporter_.view().meets, "");
}

TEST_F(StatusReporterTest, TheStatusLineHasTheRestartsThatAreLeft) {
  EXPECT_EQ(reporter_.status_facts().restarts_left, 3);
  EXPECT_LT(reporter_.status_facts().generation, Generation(0));
  run({.generation = kGeneration, .world_size = 8, .restart_count = 2});
  EXPECT_EQ(reporter_.status_facts().generation, kGeneration);
  EXPECT_EQ(reporter_.status_facts().world_size, 8);
  EXPECT_EQ(reporter_.status_facts().restarts_left, 1);
  end(kGeneration);
  run({.generation = Generation(4), .restart_count = 5});  // by a service of another budget
  EXPECT_EQ(reporter_.status_facts().restarts_left, 0);
  end(Generation(4));
  run({.generation = Generation(5), .restart_count = 5, .restarts_left = 7});
  EXPECT_EQ(reporter_.status_facts().restarts_left, 7);
}

}  // namespace
}  // namespace ddprun
