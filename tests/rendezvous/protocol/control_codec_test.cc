#include "rendezvous/protocol/control_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

namespace ddprun {
namespace {

using testing::HasSubstr;
using testing::Not;

WorkerEnd some_end() {
  WorkerEnd end;
  end.kind = EndKind::kSignaled;
  end.code = SIGKILL;
  end.core_dumped = true;
  end.out_of_memory = OutOfMemory::kLikely;
  end.on_request = true;
  end.finished = true;
  end.unseen = std::chrono::milliseconds(1250);
  end.after_stop = true;
  end.rank = Rank(5);
  end.local_rank = LocalRank(1);
  end.node_rank = NodeRank(2);
  end.host = "node2";
  end.pid = 99;
  end.message = "why";
  end.stderr_tail = {"line 1", "line 2"};
  end.step = -3;
  end.age = std::chrono::milliseconds(30);
  return end;
}

// Returns the JSON of a frame.
std::string body(const Result<std::string>& frame) { return frame->substr(kControlHeaderBytes); }

// Returns a hello with one field replaced. An unauthenticated peer may send it.
std::string hello_with(const std::string& path, const nlohmann::json& value) {
  Hello hello;
  hello.node.agent_id = "x";
  hello.status.ends = {some_end()};
  auto json = nlohmann::json::parse(body(encode(AgentMessage(hello))));
  json[nlohmann::json::json_pointer(path)] = value;
  return json.dump();
}

TEST(ControlCodec, AHelloComesBackAsItWas) {
  Hello hello;
  hello.version = "1.2.3";
  hello.job = {.id = "j",
               .nodes = {2, 4},
               .max_restarts = 3,
               .join_timeout = std::chrono::seconds(7),
               .last_call = std::chrono::seconds(2),
               .on_join = OnJoin::kCheckpoint,
               .node_failures = 5};
  hello.job.restart_rules = {
      .window = std::chrono::seconds(90), .final_codes = {{2, 2}, {64, 78}}, .on_progress = true};
  hello.node = {.agent_id = "x", .host = "h", .slots = 8, .node_rank = 1, .address = "10.0.0.2"};
  hello.status = {.phase = AgentPhase::kStopping,
                  .generation = Generation(4),
                  .ends = {some_end()},
                  .store_port = 1234,
                  .leaving = 15,
                  .checkpoints = 6,
                  .asked_to_save = true,
                  .step = 120,
                  .times = {.first_step = 101,
                            .since_first = std::chrono::milliseconds(1900),
                            .checkpoint = std::chrono::milliseconds(250),
                            .stopped = std::chrono::milliseconds(30)},
                  .snapshots = {{.rank = Rank(3),
                                 .local_rank = LocalRank(1),
                                 .node_rank = NodeRank(1),
                                 .host = "h",
                                 .pid = 9,
                                 .flight = FlightState::kWaiting,
                                 .collective = 57,
                                 .call = "recv of 8 bytes from rank 1",
                                 .peer = 1,
                                 .waited = std::chrono::seconds(60),
                                 .is_late = true,
                                 .is_stopped = true,
                                 .step = 119,
                                 .group = UINT64_MAX,
                                 .group_name = "tp0",
                                 .group_ranks = {1, 3},
                                 .waits_in = "torch.distributed.barrier",
                                 .doing = "state S",
                                 .frames = {"main"},
                                 .stderr_tail = {"last"}},
                                {}},
                  .left = {LocalRank(1), LocalRank(5)},
                  .log_trouble = "log files are not written"};
  const auto decoded = decode<AgentMessage>(body(encode(AgentMessage(hello))));
  ASSERT_TRUE(decoded) << decoded.error().message();
  const Hello& back = std::get<Hello>(*decoded);
  EXPECT_EQ(back.version, "1.2.3");
  EXPECT_EQ(back.job.nodes, (NodeRange{2, 4}));
  EXPECT_EQ(back.job.on_join, OnJoin::kCheckpoint);
  EXPECT_EQ(back.job.node_failures, 5);
  EXPECT_EQ(back.job.restart_rules, hello.job.restart_rules);
  EXPECT_EQ(back.job.join_timeout, std::chrono::seconds(7));
  EXPECT_EQ(back.node.node_rank, 1);
  EXPECT_EQ(back.node.slots, 8);
  EXPECT_EQ(back.status, hello.status);
  EXPECT_EQ(back.assignment, std::nullopt);
  EXPECT_EQ(back.cluster_job, "");
  hello.assignment = Assignment{.generation = Generation(4), .restart_count = 2};
  hello.cluster_job = "812.0";
  const auto again = decode<AgentMessage>(body(encode(AgentMessage(hello))));
  ASSERT_TRUE(again) << again.error().message();
  EXPECT_EQ(std::get<Hello>(*again).assignment, hello.assignment);
  EXPECT_EQ(std::get<Hello>(*again).cluster_job, "812.0");
}

TEST(ControlCodec, AWelcomeSaysWhetherTheServiceIsThatOfTheJobAlone) {
  for (const bool own : {false, true}) {
    const Welcome welcome{.instance = "x.1",
                          .heartbeat_interval = std::chrono::seconds(1),
                          .agent_patience = std::chrono::seconds(4),
                          .own = own};
    const auto decoded = decode<ServiceMessage>(body(encode(ServiceMessage(welcome))));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(std::get<Welcome>(*decoded).own, own);
  }
}

TEST(ControlCodec, ARefusalSaysWhetherTheServiceIsThatOfTheJob) {
  for (const bool is_of_job : {false, true}) {
    const auto decoded =
        decode<ServiceMessage>(body(encode(ServiceMessage(Refused{"no", is_of_job}))));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(std::get<Refused>(*decoded).is_of_job, is_of_job);
  }
}

TEST(ControlCodec, AWelcomeAndEachDirectiveHaveTheTermOfTheirService) {
  ServiceMessage messages[] = {Welcome{.heartbeat_interval = std::chrono::seconds(1),
                                       .agent_patience = std::chrono::seconds(4)},
                               Wait{"why"}, Assignment{}, Stop{Generation(1), "why"}, End{}};
  for (ServiceMessage& message : messages) {
    const std::string without = body(encode(message));
    EXPECT_THAT(without, Not(HasSubstr("term"))) << "a service without etcd has none";
    EXPECT_EQ(term_of(*decode<ServiceMessage>(without)), 0);
    set_term(message, 9'000'000'000);
    const auto decoded = decode<ServiceMessage>(body(encode(message)));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(term_of(*decoded), 9'000'000'000);
  }
  ServiceMessage ack = HeartbeatAck{1};
  set_term(ack, 5);
  EXPECT_EQ(term_of(ack), std::nullopt);
  EXPECT_FALSE(decode<ServiceMessage>(R"({"type":"wait","reason":"why","term":-1})"));
}

TEST(ControlCodec, AStandbyNamesTheServiceThatLeads) {
  const std::string bytes = body(encode(ServiceMessage(Silence{"why", "r2:29400"})));
  EXPECT_EQ(std::get<Silence>(*decode<ServiceMessage>(bytes)).leader, "r2:29400");
  EXPECT_EQ(std::get<Silence>(*decode<ServiceHandshakeMessage>(bytes)).leader, "r2:29400");
  EXPECT_THAT(body(encode(ServiceMessage(Silence{"why"}))), Not(HasSubstr("leader")));
  EXPECT_FALSE(decode<ServiceMessage>(R"({"type":"silence","reason":"why","leader":"a\nb"})"));
}

// Versions before "loss" tell only by the message that a lease expired.
TEST(ControlCodec, AnExpiredLeaseIsReadFromTheMessageOfAnOlderVersion) {
  const WorkerEnd end{.kind = EndKind::kNodeLost,
                      .message = std::string(kSilentFor) + "5.0 s",
                      .loss = NodeLoss::kReported};
  const std::string now = body(encode(ServiceMessage(End{{.ends = {end}}})));
  const std::string field = R"("loss":"reported",)";
  ASSERT_NE(now.find(field), std::string::npos) << now;
  std::string older = now;
  older.erase(older.find(field), field.size());
  const auto loss_in = [](const std::string& frame) {
    const Result<ServiceMessage> read = decode<ServiceMessage>(frame);
    EXPECT_TRUE(read) << read.error().message();
    return std::get<End>(*read).verdict.ends[0].loss;
  };
  EXPECT_EQ(loss_in(older), NodeLoss::kLeaseExpired);
  EXPECT_EQ(loss_in(now), NodeLoss::kReported) << "the field counts, not the message";
}

// Versions before "unfit" refuse a word of "loss" that they do not know.
TEST(ControlCodec, ANodeThatIsNotFitIsALostNodeForAnOlderVersion) {
  const WorkerEnd end{
      .kind = EndKind::kNodeLost, .message = "memory: 100 MB/s", .loss = NodeLoss::kUnfit};
  std::string frame = body(encode(ServiceMessage(End{{.ends = {end}}})));
  EXPECT_THAT(frame, Not(HasSubstr(R"("loss")")));
  const auto loss_in = [](const std::string& text) {
    const Result<ServiceMessage> read = decode<ServiceMessage>(text);
    EXPECT_TRUE(read) << read.error().message();
    return std::get<End>(*read).verdict.ends[0].loss;
  };
  EXPECT_EQ(loss_in(frame), NodeLoss::kUnfit);
  const std::string field = R"("unfit":true)";
  ASSERT_NE(frame.find(field), std::string::npos) << frame;
  frame.replace(frame.find(field), field.size(), R"("later":true)");
  EXPECT_EQ(loss_in(frame), NodeLoss::kReported) << "what an older version reads";
}

// Versions before "cause" tell only by the headline why a job ended. A later one may have others.
TEST(ControlCodec, TheCauseIsReadFromTheHeadlineOfAnOlderVersion) {
  const Verdict stopped = stopped_verdict(143, "why");
  const std::string now = body(encode(ServiceMessage(End{stopped})));
  const std::string field = R"("cause":"stopped",)";
  ASSERT_NE(now.find(field), std::string::npos) << now;
  std::string older = now;
  older.erase(older.find(field), field.size());
  std::string newer = now;
  newer.replace(newer.find(field), field.size(), R"("cause":"not known here",)");
  for (const std::string& frame : {now, older, newer}) {
    const Result<ServiceMessage> read = decode<ServiceMessage>(frame);
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(std::get<End>(*read).verdict, stopped);
  }
  Verdict failed{.headline = "the job was stopped: so says a worker", .ends = {WorkerEnd{}}};
  set_not_restarted(failed, "why");
  const auto read = decode<ServiceMessage>(body(encode(ServiceMessage(End{failed}))));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(std::get<End>(*read).verdict, failed) << "the fields count, not the headline";
}

TEST(ControlCodec, EveryMessageComesBackAsItsOwnType) {
  Hello hello;
  hello.node.agent_id = "x";
  const std::vector<AgentMessage> from_agents{hello,
                                              AgentStatus{},
                                              Heartbeat{3},
                                              Leave{15, "why"},
                                              UserRequest{.number = 1},
                                              OutputPage{.inquiry = 1, .lines = "{}\n"},
                                              StepReport{}};
  ASSERT_EQ(from_agents.size(), std::variant_size_v<AgentMessage>);
  for (const AgentMessage& message : from_agents) {
    const auto decoded = decode<AgentMessage>(body(encode(message)));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(decoded->index(), message.index());
  }
  Verdict verdict{.success = false,
                  .exit_code = 137,
                  .headline = "h",
                  .ends = {some_end()},
                  .generation = Generation(2),
                  .restarts_used = 1,
                  .max_restarts = 1};
  const std::vector<ServiceMessage> from_service{
      Welcome{"s-1", std::chrono::seconds(1), std::chrono::seconds(4), true, "h"},
      Refused{"no"},
      Silence{"it is started again"},
      HeartbeatAck{3},
      Wait{"1 of 2"},
      Assignment{},
      Stop{Generation(1), "r"},
      End{verdict},
      Answer{.number = 1, .done = true, .text = "it is under way"},
      ForwardSignal{.generation = Generation(1), .signal = 10, .rank = Rank(3)},
      OutputDirective{.inquiry = 4},
      StepsDirective{}};
  ASSERT_EQ(from_service.size(), std::variant_size_v<ServiceMessage>);
  for (const ServiceMessage& message : from_service) {
    const auto decoded = decode<ServiceMessage>(body(encode(message)));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(decoded->index(), message.index());
  }
  const auto refused =
      decode<ServiceMessage>(body(encode(ServiceMessage(Refused{.reason = "no", .term = 7}))));
  EXPECT_EQ(std::get<Refused>(*refused).term, 7);
  const HeartbeatAck ack{
      .number = 3, .next = std::chrono::milliseconds(1025), .ranks_every = std::chrono::seconds(2)};
  const auto read = decode<ServiceMessage>(body(encode(ServiceMessage(ack))));
  EXPECT_EQ(std::get<HeartbeatAck>(*read).next, ack.next);
  EXPECT_EQ(std::get<HeartbeatAck>(*read).ranks_every, ack.ranks_every);
  EXPECT_TRUE(decode<ServiceMessage>(R"({"type":"heartbeat_ack","number":3})"))
      << "of an older one";
  const End ended{.verdict = verdict, .runs_end_commands = true};
  const auto end = decode<ServiceMessage>(body(encode(ServiceMessage(ended))));
  EXPECT_EQ(std::get<End>(*end).verdict.ends, verdict.ends);
  EXPECT_TRUE(std::get<End>(*end).runs_end_commands);
}

TEST(ControlCodec, TimesOfStepsComeBack) {
  const StepReport report{
      .generation = Generation(3),
      .steps = {{.step = -7, .whole_us = 4'294'967'295, .own_us = {1, 2}},
                {.step = 8, .whole_us = 0, .own_us = {}}},
      .shares = {{.local_rank = LocalRank(2), .shares = {.data = 12.34, .forward = 50}},
                 {.local_rank = LocalRank(5), .shares = {.checkpoint = 100}}}};
  const auto read = decode<AgentMessage>(body(encode(AgentMessage(report))));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(std::get<StepReport>(*read), report);
  const StepsDirective directive{.generation = Generation(3),
                                 .steps = 64,
                                 .asks_shares = true,
                                 .slow = {{.local_rank = LocalRank(1), .cost = "the others wait"}},
                                 .lines = {"rank 9 is slow"}};
  const auto decoded = decode<ServiceMessage>(body(encode(ServiceMessage(directive))));
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(std::get<StepsDirective>(*decoded), directive);
  // Older ones have no shares.
  EXPECT_TRUE(decode<AgentMessage>(R"({"type":"steps","generation":3,"steps":[]})"));
  EXPECT_THAT(body(encode(AgentMessage(StepReport{}))), Not(HasSubstr("shares")));
  EXPECT_THAT(body(encode(ServiceMessage(StepsDirective{}))), Not(HasSubstr("shares")));
}

TEST(ControlCodec, SharesOfStepsThatAreNoSharesAreRefused) {
  const auto with = [](const std::string& shares) {
    return decode<AgentMessage>(R"({"type":"steps","generation":0,"steps":[],"shares":)" + shares +
                                "}");
  };
  const std::string parts = R"("forward":1,"backward":2.5,"communication":0,"checkpoint":0})";
  const std::string one = R"({"local_rank":0,)" + parts;
  EXPECT_TRUE(with("[" + one + "]"));
  for (const std::string& wrong :
       {R"({"local_rank":-1,)" + parts, "{" + parts, std::string(R"({"local_rank":0})"),
        R"({"local_rank":0,"data":"1",)" + parts, R"({"local_rank":0,"data":null,)" + parts,
        std::string("7"), std::string("null")}) {
    EXPECT_FALSE(with("[" + wrong + "]")) << wrong;
  }
  EXPECT_FALSE(with("{}"));
  std::string many = "[" + one;
  for (std::size_t i = 1; i <= kMaxReportedWorkers; ++i) many += "," + one;
  EXPECT_FALSE(with(many + "]"));
}

TEST(ControlCodec, TimesOfStepsOutOfBoundsAreRefused) {
  const auto with = [](const std::string& steps) {
    return decode<AgentMessage>(R"({"type":"steps","generation":0,"steps":)" + steps + "}");
  };
  const auto step = [](const std::string& own) {
    return R"({"step":1,"whole_us":2,"own_us":)" + own + "}";
  };
  EXPECT_TRUE(with("[" + step("[0,4294967295]") + "]"));
  for (const char* own : {"7", "[-1]", "[4294967296]", "[0.5]", "[\"1\"]", "[null]", "{}"}) {
    EXPECT_FALSE(with("[" + step(own) + "]")) << own;
  }
  EXPECT_FALSE(with(R"([{"step":1,"whole_us":-1,"own_us":[]}])"));
  std::string workers = "[0";
  for (std::size_t i = 1; i <= kMaxReportedWorkers; ++i) workers += ",0";
  EXPECT_FALSE(with("[" + step(workers + "]") + "]"));
  std::string many = "[" + step("[0]");
  for (std::size_t i = 1; i <= kMaxReportedSteps; ++i) many += "," + step("[0]");
  EXPECT_FALSE(with(many + "]"));
}

TEST(ControlCodec, TheLargestReportOfStepsFitsIntoAFrame) {
  StepReport report;
  const StepTimes step{.step = std::numeric_limits<std::int64_t>::min(),
                       .whole_us = 4'294'967'295,
                       .own_us = std::vector<std::uint32_t>(kMaxReportedWorkers, 4'294'967'295)};
  report.steps.assign(kMaxReportedSteps, step);
  const StepShares shares{33.33, 33.33, 33.33, 33.33, 33.33};
  report.shares.assign(kMaxReportedWorkers, {LocalRank(65'535), shares});
  EXPECT_TRUE(encode(AgentMessage(report)));
}

TEST(ControlCodec, AHeartbeatMayHaveTheRanks) {
  EXPECT_THAT(body(encode(AgentMessage(Heartbeat{3}))), Not(HasSubstr("ranks")));
  EXPECT_THAT(body(encode(ServiceMessage(HeartbeatAck{3}))), Not(HasSubstr("watched")));
  Heartbeat beat{.number = 3, .ranks = {.generation = Generation(2)}};
  beat.ranks.rows = {{.rank = Rank(8), .local_rank = LocalRank(0), .state = "running"},
                     {.rank = Rank(9),
                      .local_rank = LocalRank(1),
                      .pid = 4711,
                      .state = "killed by SIGKILL",
                      .step = -5,
                      .total_steps = 10'000,
                      .steps_per_second = 0.5,
                      .collective = "all_reduce 12",
                      .waiting_s = 1.25,
                      .cpu_percent = 99.5,
                      .memory_bytes = 1 << 20,
                      .gpu_percent = 37,
                      .gpu_memory_bytes = std::int64_t{1} << 36,
                      .gpu_own_memory_bytes = std::int64_t{1} << 35,
                      .step_percent = StepShares{.data = 62.04,
                                                 .forward = 10,
                                                 .backward = 17.5,
                                                 .communication = 3,
                                                 .checkpoint = 0.01},
                      .slow = "why"}};
  const auto read = decode<AgentMessage>(body(encode(AgentMessage(beat))));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(std::get<Heartbeat>(*read).ranks, beat.ranks);
  const HeartbeatAck ack{.number = 3, .is_watched = true};
  EXPECT_TRUE(std::get<HeartbeatAck>(*decode<ServiceMessage>(body(encode(ServiceMessage(ack)))))
                  .is_watched);
}

TEST(ControlCodec, RanksOutOfBoundsAreRefused) {
  const auto with = [](const std::string& ranks) {
    return decode<AgentMessage>(R"({"type":"heartbeat","number":1,"generation":0,"ranks":)" +
                                ranks + "}");
  };
  const std::string row = R"({"rank":0,"local_rank":0,"state":"running")";
  EXPECT_TRUE(with("[" + row + R"(,"of a later version":1}])"));
  EXPECT_FALSE(with("7"));
  EXPECT_FALSE(with("[" + row + R"(,"collective":")" + std::string(129, 'x') + "\"}]"));
  EXPECT_FALSE(with("[" + row + R"(,"cpu_percent":"x"}])"));
  EXPECT_FALSE(with("[" + row + R"(,"memory_bytes":-1}])"));
  EXPECT_FALSE(with("[" + row + R"(,"total_steps":0}])"));
  EXPECT_FALSE(with("[" + row + R"(,"gpu_memory_bytes":-1}])"));
  EXPECT_FALSE(with("[" + row + R"(,"gpu_percent":"x"}])"));
  EXPECT_FALSE(with("[" + row + R"(,"gpu_own_memory_bytes":-1}])"));
  const auto shares = [&](const std::string& backward) {
    return with("[" + row + R"(,"step_percent":{"forward":1,"communication":0,"checkpoint":0)" +
                backward + "}}]");
  };
  EXPECT_TRUE(shares(R"(,"backward":9,"of a later version":1)"));
  EXPECT_FALSE(shares(""));
  EXPECT_FALSE(shares(R"(,"backward":"x")"));
  EXPECT_FALSE(with("[" + row + R"(,"step_percent":[]}])"));
  std::string many = "[" + row + "}";
  for (std::size_t i = 1; i <= kMaxRankRows; ++i) many += "," + row + "}";
  EXPECT_FALSE(with(many + "]"));
}

// The largest report must fit into a frame, or it would end the agent's connection.
TEST(ControlCodec, TheLargestReportOfRanksFitsIntoAFrame) {
  const std::string text(kMaxRankTextBytes, 'x');
  const std::int64_t most = std::numeric_limits<std::int64_t>::max();
  Heartbeat beat;
  for (std::size_t i = 0; i < kMaxRankRows; ++i) {
    beat.ranks.rows.push_back({.rank = Rank(2147483647),
                               .local_rank = LocalRank(2147483647),
                               .pid = 2147483647,
                               .state = text,
                               .step = -most,
                               .total_steps = most,
                               .steps_per_second = 1.2345678901234567e-300,
                               .collective = text,
                               .waiting_s = 1.2345678901234567e-300,
                               .cpu_percent = 1.2345678901234567e-300,
                               .memory_bytes = most,
                               .gpu_percent = 1.2345678901234567e-300,
                               .gpu_memory_bytes = most,
                               .gpu_own_memory_bytes = most,
                               .step_percent = StepShares{.data = 1.2345678901234567e-300,
                                                          .forward = 1.2345678901234567e-300,
                                                          .backward = 1.2345678901234567e-300,
                                                          .communication = 1.2345678901234567e-300,
                                                          .checkpoint = 1.2345678901234567e-300},
                               .slow = text});
  }
  EXPECT_TRUE(encode(AgentMessage(beat)));
}

TEST(ControlCodec, WhatIsSaidOfOutputKeepsEveryField) {
  const UserRequest request{.what = UserRequest::What::kLogs,
                            .number = 7,
                            .job = "j",
                            .by = "ada",
                            .rank = Rank(3),
                            .lines = 5,
                            .follow = true};
  EXPECT_EQ(std::get<UserRequest>(*decode<AgentMessage>(body(encode(AgentMessage(request))))),
            request);
  const UserRequest flight{
      .what = UserRequest::What::kFlight, .number = 7, .job = "j", .by = "ada", .rank = Rank(3)};
  EXPECT_EQ(std::get<UserRequest>(*decode<AgentMessage>(body(encode(AgentMessage(flight))))),
            flight);
  const OutputPage page{
      .inquiry = 9, .lines = "{\"text\":\"\\u0001\"}\n", .is_ready = true, .is_last = true};
  EXPECT_EQ(std::get<OutputPage>(*decode<AgentMessage>(body(encode(AgentMessage(page))))), page);
  for (const OutputDirective& directive :
       {OutputDirective{.inquiry = 9, .rank = Rank(3), .lines = 5, .follow = true},
        OutputDirective{.inquiry = 9, .flight = true},
        OutputDirective{.what = OutputDirective::What::kNext, .inquiry = 9},
        OutputDirective{.what = OutputDirective::What::kEnd, .inquiry = 9}}) {
    EXPECT_EQ(
        std::get<OutputDirective>(*decode<ServiceMessage>(body(encode(ServiceMessage(directive))))),
        directive);
  }
  const Answer answer{
      .number = 7, .done = true, .text = "t", .page = "{}\n", .more = true, .no_workers = true};
  EXPECT_EQ(std::get<Answer>(*decode<ServiceMessage>(body(encode(ServiceMessage(answer))))),
            answer);
}

TEST(ControlCodec, ThereIsNoMoreOutputInAMessageThanMayBe) {
  OutputPage page{.lines = std::string(kMaxPageBytes, '\1')};
  EXPECT_FALSE(encode(AgentMessage(page))) << "its frame would be too long";
  page.lines = std::string(kMaxPageBytes, '\\');
  EXPECT_TRUE(decode<AgentMessage>(body(encode(AgentMessage(page)))));
  page.lines += 'x';
  EXPECT_FALSE(decode<AgentMessage>(body(encode(AgentMessage(page)))));
  OutputDirective directive{.lines = kMaxLogLines};
  EXPECT_TRUE(decode<ServiceMessage>(body(encode(ServiceMessage(directive)))));
  ++directive.lines;
  EXPECT_FALSE(decode<ServiceMessage>(body(encode(ServiceMessage(directive)))));
  UserRequest request{.what = UserRequest::What::kLogs, .lines = -1};
  EXPECT_FALSE(decode<AgentMessage>(body(encode(AgentMessage(request)))));
}

TEST(ControlCodec, AWaitTellsTheNewestGenerationWhereThereIsOne) {
  for (const Wait& wait : {Wait{"1 of 2", Generation(7)}, Wait{"1 of 2"}}) {
    const auto decoded = decode<ServiceMessage>(body(encode(ServiceMessage(wait))));
    ASSERT_TRUE(decoded) << decoded.error().message();
    EXPECT_EQ(std::get<Wait>(*decoded).generation, wait.generation);
    EXPECT_EQ(std::get<Wait>(*decoded).reason, wait.reason);
  }
}

TEST(ControlCodec, AnAssignmentKeepsEveryField) {
  Assignment assignment{Generation(3), NodeRank(1), 2, Rank(4), 8, {"10.1.1.1", 5555}, 2, 5, "why"};
  assignment.lease = std::chrono::seconds(7);
  assignment.peers = {"10.1.1.1", "fd00::1"};
  const auto decoded = decode<ServiceMessage>(body(encode(ServiceMessage(assignment))));
  ASSERT_TRUE(decoded);
  EXPECT_EQ(std::get<Assignment>(*decoded), assignment);
}

TEST(ControlCodec, AHelloSaysAllAddressesOfItsNode) {
  Hello hello;
  hello.node.agent_id = "a";
  hello.node.other_addresses = {"10.1.1.1", "fd00::1"};
  const auto decoded = decode<AgentMessage>(body(encode(AgentMessage(hello))));
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(std::get<Hello>(*decoded).node.other_addresses, hello.node.other_addresses);
  hello.node.other_addresses.resize(kMaxAddresses + 1);
  EXPECT_FALSE(decode<AgentMessage>(body(encode(AgentMessage(hello)))));
}

TEST(ControlCodec, WhatWorkersWroteNeedNotBeText) {
  AgentStatus status;
  status.ends.push_back(some_end());
  status.ends.back().stderr_tail = {std::string("\xff\xfe bytes \x80")};
  EXPECT_TRUE(decode<AgentMessage>(body(encode(AgentMessage(status)))));
}

TEST(ControlCodec, UnknownFieldsAreIgnoredAndMissingOnesAreNamed) {
  EXPECT_TRUE(decode<AgentMessage>(R"({"type":"heartbeat","number":1,"later":true})"));
  const auto bad = decode<AgentMessage>(R"({"type":"heartbeat"})");
  ASSERT_FALSE(bad);
  EXPECT_EQ(bad.error().kind, ErrorKind::kProtocol);
  EXPECT_THAT(bad.error().message(), HasSubstr("number"));
}

TEST(ControlCodec, RejectsWhatIsNoMessage) {
  for (const char* text :
       {"", "{", "[]", "17", R"({"type":5})", R"({"type":"nonsense"})",
        R"({"type":"status","phase":"lazy","generation":0,"ends":[],"store_port":0,"leaving":0})",
        R"({"type":"heartbeat","number":"one"})"}) {
    EXPECT_FALSE(decode<AgentMessage>(text)) << text;
  }
}

TEST(ControlCodec, WhatEarlierVersionsDidNotSayIsAsItWasThen) {
  using nlohmann::json;
  Hello hello;
  hello.node.agent_id = "x";
  hello.job.on_join = OnJoin::kRestart;
  hello.assignment = Assignment{.lease = std::chrono::seconds(60)};
  json text = json::parse(body(encode(AgentMessage(hello))));
  for (const char* field : {"on_join", "node_failures"}) {
    ASSERT_EQ(text["job"].erase(field), 1u) << field;
  }
  ASSERT_EQ(text["status"].erase("checkpoints"), 1u);
  ASSERT_EQ(text["assignment"].erase("lease_ms"), 1u);
  const auto decoded = decode<AgentMessage>(text.dump());
  ASSERT_TRUE(decoded) << decoded.error().message();
  const Hello& back = std::get<Hello>(*decoded);
  EXPECT_EQ(back.job.on_join, OnJoin::kNow);
  EXPECT_EQ(back.job.node_failures, 3);
  EXPECT_EQ(back.status.checkpoints, 0);
  EXPECT_EQ(back.assignment->lease, kDefaultLease);
}

// So a receiver can skip a message type of a later version, and nothing else.
// Recorded between an agent and a service of the version before services on etcd.
TEST(ControlCodec, MessagesOfTheVersionBeforeEtcdAreRead) {
  std::ifstream file(DDPRUN_SOURCE_DIR "/tests/data/control_messages_before_etcd.txt");
  std::string sender, json;
  std::vector<ServiceMessage> of_service;
  std::vector<AgentMessage> of_agent;
  while (file >> sender && std::getline(file >> std::ws, json)) {
    if (sender == "agent") {
      const auto message = decode<AgentMessage>(json);
      ASSERT_TRUE(message) << message.error().message() << json;
      of_agent.push_back(*message);
    } else {
      const auto message = decode<ServiceMessage>(json);
      ASSERT_TRUE(message) << message.error().message() << json;
      EXPECT_EQ(term_of(*message).value_or(0), 0) << json;
      of_service.push_back(*message);
    }
  }
  ASSERT_EQ(of_agent.size(), 3u);
  ASSERT_EQ(of_service.size(), 6u);
  const Hello& hello = std::get<Hello>(of_agent[0]);
  EXPECT_EQ(hello.job.nodes, (NodeRange{2, 2}));
  EXPECT_FALSE(hello.node.supports_stacks);
  EXPECT_EQ(std::get<AgentStatus>(of_agent[2]).ends.at(0).code, SIGTERM);
  EXPECT_EQ(std::get<Welcome>(of_service[0]).instance, "d69f4dd3dfce2953-1");
  const Assignment& assignment = std::get<Assignment>(of_service[3]);
  EXPECT_EQ(assignment.restart_count, 1);
  ASSERT_TRUE(assignment.failure);
  EXPECT_EQ(assignment.failure->exit_code, 3);
  EXPECT_EQ(std::get<Stop>(of_service[4]).generation, Generation(0));
  EXPECT_TRUE(std::get<End>(of_service[5]).verdict.success);
}

TEST(ControlCodec, ATypeThatItDoesNotKnowIsAnErrorOfItsOwn) {
  const auto later = decode<ServiceMessage>(R"({"type":"fireworks","at":"midnight"})");
  ASSERT_FALSE(later);
  EXPECT_EQ(later.error().kind, ErrorKind::kUnsupported);
  EXPECT_THAT(later.error().message(), HasSubstr("fireworks"));
  EXPECT_EQ(decode<AgentMessage>(R"({"type":"fireworks"})").error().kind, ErrorKind::kUnsupported);
  EXPECT_EQ(decode<AgentMessage>(R"({"type":5})").error().kind, ErrorKind::kProtocol);
  EXPECT_EQ(decode<ServiceMessage>(R"({"type":"stop"})").error().kind, ErrorKind::kProtocol);
}

TEST(ControlCodec, AHelloOfAnotherProtocolIsReadWhateverElseItSays) {
  for (const char* text :
       {R"({"type":"hello","protocol":7})", R"({"type":"hello","protocol":7,"version":[7,0]})",
        R"({"type":"hello","protocol":9007199254740993,"version":"x"})",
        R"({"type":"hello","protocol":-1,"job":"none"})"}) {
    const auto decoded = decode<AgentMessage>(text);
    ASSERT_TRUE(decoded) << text << ": " << decoded.error().message();
    EXPECT_NE(std::get<Hello>(*decoded).protocol, kControlProtocol);
  }
}

TEST(ControlCodec, AHelloOfAnotherProtocolNeedsOnlyItsVersions) {
  const auto decoded = decode<AgentMessage>(R"({"type":"hello","protocol":7,"version":"7.0"})");
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(std::get<Hello>(*decoded).protocol, 7);
}

TEST(ControlCodec, RefusesNumbersThatNobodyMeans) {
  using nlohmann::json;
  constexpr std::int64_t kHuge = std::numeric_limits<std::int64_t>::max();
  const std::vector<std::pair<const char*, json>> wrong{
      {"/job/min_nodes", 0},
      {"/job/min_nodes", -1},
      {"/job/max_nodes", 0},
      {"/job/max_nodes", kMaxNodes + 1},
      {"/job/max_nodes", (std::int64_t{1} << 32) + 1},  // 1, if it were truncated
      {"/job/max_restarts", -1},
      {"/job/join_timeout_ms", -1},
      {"/job/join_timeout_ms", kHuge},
      {"/job/last_call_ms", kHuge / 1'000'000},
      {"/job/last_call_ms", 1e300},
      {"/node/slots", 0},
      {"/node/slots", kMaxSlots + 1},
      {"/node/slots", 1.5},
      {"/node/slots", true},
      {"/node/slots", "1"},
      {"/node/node_rank", kHuge},
      {"/node/agent_id", ""},
      {"/status/generation", -2},
      {"/status/generation", kHuge},
      {"/status/generation", std::numeric_limits<std::uint64_t>::max()},
      {"/status/more_ends", -1},
      {"/status/store_port", 65536},
      {"/status/leaving", 65},
      {"/status/ends/0/code", kHuge},
      {"/status/ends/0/code", -1},
      {"/status/ends/0/rank", -1},
      {"/status/ends/0/pid", -1},
      {"/status/ends/0/age_ms", kHuge},
      {"/status/ends/0/age_ms", -1},
  };
  ASSERT_TRUE(decode<AgentMessage>(hello_with("/job/min_nodes", 1)));
  EXPECT_FALSE(decode<AgentMessage>(hello_with("/job/min_nodes", 2))) << "of at most one";
  for (const auto& [path, value] : wrong) {
    const auto decoded = decode<AgentMessage>(hello_with(path, value));
    ASSERT_FALSE(decoded) << path << " = " << value;
    EXPECT_EQ(decoded.error().kind, ErrorKind::kProtocol);
    const std::string field = std::string(path).substr(std::string(path).rfind('/') + 1);
    EXPECT_THAT(decoded.error().message(), HasSubstr(field));
  }
}

TEST(ControlCodec, RefusesTextsWithoutMeasure) {
  for (const char* path : {"/job/id", "/node/agent_id", "/node/host", "/node/address", "/version",
                           "/instance", "/status/ends/0/host"}) {
    EXPECT_TRUE(decode<AgentMessage>(hello_with(path, std::string(kMaxNameBytes, 'x')))) << path;
    EXPECT_FALSE(decode<AgentMessage>(hello_with(path, std::string(kMaxNameBytes + 1, 'x'))))
        << path;
    EXPECT_FALSE(decode<AgentMessage>(hello_with(path, "a\nb"))) << path;
    EXPECT_FALSE(decode<AgentMessage>(hello_with(path, "a\x7f"))) << path;
  }
}

TEST(ControlCodec, TheHandshakeIsWhatWasMeant) {
  const auto knock = decode<AgentHandshakeMessage>(
      body(encode(AgentHandshakeMessage(Knock{.version = "0.1", .job = "j", .nonce = "n"}))));
  ASSERT_TRUE(knock);
  EXPECT_EQ(std::get<Knock>(*knock).protocol, kControlProtocol);
  EXPECT_EQ(std::get<Knock>(*knock).version, "0.1");
  EXPECT_EQ(std::get<Knock>(*knock).job, "j");
  EXPECT_EQ(std::get<Knock>(*knock).nonce, "n");
  const auto proof = decode<AgentHandshakeMessage>(body(encode(AgentHandshakeMessage(Proof{"p"}))));
  EXPECT_EQ(std::get<Proof>(proof.value()).proof, "p");
  const auto challenge =
      decode<ServiceHandshakeMessage>(body(encode(ServiceHandshakeMessage(Challenge{"n"}))));
  EXPECT_EQ(std::get<Challenge>(challenge.value()).nonce, "n");
  const auto proven =
      decode<ServiceHandshakeMessage>(body(encode(ServiceHandshakeMessage(Proven{"p"}))));
  EXPECT_EQ(std::get<Proven>(proven.value()).proof, "p");
  // The service refuses with the same message at any time.
  const auto refused =
      decode<ServiceHandshakeMessage>(body(encode(ServiceMessage(Refused{"why"}))));
  EXPECT_EQ(std::get<Refused>(refused.value()).reason, "why");
}

TEST(ControlCodec, TheHandshakeByMungeIsWhatWasMeant) {
  const auto knock = decode<AgentHandshakeMessage>(
      body(encode(AgentHandshakeMessage(Knock{.method = ProofMethod::kMunge, .version = "0.1"}))));
  EXPECT_EQ(std::get<Knock>(knock.value()).method, ProofMethod::kMunge);
  const auto challenge = decode<ServiceHandshakeMessage>(
      body(encode(ServiceHandshakeMessage(Challenge{"n", UserId(4'294'967'295)}))));
  EXPECT_EQ(std::get<Challenge>(challenge.value()).user, UserId(4'294'967'295));
  const auto open = decode<ServiceHandshakeMessage>(body(encode(ServiceHandshakeMessage(Open()))));
  EXPECT_TRUE(std::holds_alternative<Open>(open.value()));
  const auto silence =
      decode<ServiceHandshakeMessage>(body(encode(ServiceMessage(Silence{"why"}))));
  EXPECT_EQ(std::get<Silence>(silence.value()).reason, "why");
  EXPECT_FALSE(decode<ServiceHandshakeMessage>(R"({"type":"challenge","nonce":"n","user":-1})"));
  EXPECT_FALSE(decode<AgentHandshakeMessage>(
      R"({"type":"knock","method":"magic","protocol":1,"version":"v","job":"j","nonce":"n"})"));
}

TEST(ControlCodec, OtherMessagesAreNoPartOfTheHandshake) {
  const auto other = decode<AgentHandshakeMessage>(body(encode(AgentMessage(Heartbeat{1}))));
  EXPECT_TRUE(std::holds_alternative<NoHandshake>(other.value()));
  EXPECT_FALSE(decode<AgentHandshakeMessage>("{}"));
  EXPECT_FALSE(decode<AgentHandshakeMessage>(R"({"type":"proof","proof":7})"));
  EXPECT_TRUE(decode<AgentHandshakeMessage>(R"({"type":"knock","protocol":9,"version":"2"})"))
      << "of another protocol nothing else is sure to be there";
}

TEST(ControlCodec, AnErrorShowsLittleOfWhatCameAndNoControlCharacters) {
  const auto decoded =
      decode<AgentMessage>(R"({"type":"\u001b[2J\n)" + std::string(100'000, 'x') + R"("})");
  ASSERT_FALSE(decoded);
  const std::string message = decoded.error().message();
  EXPECT_LT(message.size(), 500u);
  EXPECT_THAT(message, Not(HasSubstr("\n")));
  EXPECT_THAT(message, Not(HasSubstr("\x1b")));
}

TEST(ControlCodec, WhatFitsIntoNoFrameIsAnError) {
  const auto frame = encode(ServiceMessage(Refused{std::string(kMaxControlFrameBytes, 'x')}));
  ASSERT_FALSE(frame);
  EXPECT_EQ(frame.error().kind, ErrorKind::kProtocol);
  EXPECT_THAT(frame.error().message(), HasSubstr("refused"));
}

// keep_likeliest() bounds what an agent or the service reports of a failure. The longest report
// fits.
TEST(ControlCodec, TheLongestTaleOfAFailureFitsIntoAFrame) {
  const std::string awkward(3000, '\x01');  // JSON needs six bytes for each
  WorkerEnd end = some_end();
  end.after_stop = false;
  end.host = std::string(3000, '"');  // a name
  end.message = awkward;
  end.stderr_tail.assign(30, awkward);
  Verdict verdict;
  verdict.ends.assign(1000, end);
  verdict.more_ends = static_cast<int>(keep_likeliest(verdict.ends));
  verdict.headline = describe(verdict.ends.front());
  const auto frame = encode(ServiceMessage(End{verdict}));
  ASSERT_TRUE(frame) << frame.error().message();
  const auto decoded = decode<ServiceMessage>(body(frame));
  ASSERT_TRUE(decoded) << decoded.error().message();
  EXPECT_EQ(std::get<End>(*decoded).verdict.ends, verdict.ends);
  EXPECT_EQ(std::get<End>(*decoded).verdict.more_ends, 1000 - static_cast<int>(kMaxEnds));
}

TEST(FrameReader, CutsFramesOutOfPiecesOfAnySize) {
  const std::string bytes =
      *encode(AgentMessage(Heartbeat{1})) + *encode(AgentMessage(Heartbeat{2}));
  for (std::size_t piece = 1; piece <= bytes.size(); ++piece) {
    FrameReader reader;
    std::vector<std::uint64_t> numbers;
    for (std::size_t at = 0; at < bytes.size(); at += piece) {
      reader.append(std::string_view(bytes).substr(at, piece));
      while (true) {
        const auto frame = reader.next();
        ASSERT_TRUE(frame);
        if (!*frame) break;
        numbers.push_back(std::get<Heartbeat>(*decode<AgentMessage>(**frame)).number);
      }
    }
    ASSERT_EQ(numbers, (std::vector<std::uint64_t>{1, 2})) << "pieces of " << piece;
  }
}

TEST(FrameReader, RejectsAWrongMagicAtItsFirstByteAndAHugeLengthAtItsHeader) {
  FrameReader http;
  http.append("G");
  EXPECT_FALSE(http.next());
  FrameReader huge;
  huge.append(std::string("DDPR\xff\xff\xff\xff", 8));
  EXPECT_FALSE(huge.next());
}

}  // namespace
}  // namespace ddprun
