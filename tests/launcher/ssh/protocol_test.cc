#include "launcher/ssh/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::HasSubstr;

TEST(SshProtocol, RefusesWhatIsNoPlan) {
  for (const char* bad : {"", "x", "{}", "\xa0"}) EXPECT_FALSE(decode_plan(bad)) << bad;
  std::string cut = encode_plan(NodePlan{.mark = "m"}).substr(kPlanSizeBytes);
  cut.pop_back();
  EXPECT_EQ(decode_plan(cut).error().kind, ErrorKind::kProtocol);
  EXPECT_THAT(decode_plan_size("\xff\xff\xff\xff").error().cause, HasSubstr("4294967295 bytes"));
}

TEST(SshProtocol, PassesAPlanUnchanged) {
  const NodePlan plan{.mark = "0a1b",
                      .key = "key",
                      .nodes = 3,
                      .node_rank = 2,
                      .endpoint = "10.0.0.1:2000",
                      .peer = "b",
                      .directory = "/data/\xff",
                      .environment = {{"A", "1"}, {"B", "a\nb"}},
                      .arguments = {"--nproc-per-node=2", "./train", "\xfe"},
                      .local_addr = "10.0.0.0/8",
                      .ports = {2000, 2010},
                      .files = {{"train", 0755, 12}}};
  const std::string bytes = encode_plan(plan);
  ASSERT_EQ(*decode_plan_size(bytes.substr(0, kPlanSizeBytes)), bytes.size() - kPlanSizeBytes);
  const Result<NodePlan> read = decode_plan(bytes.substr(kPlanSizeBytes));
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(read->mark, plan.mark);
  EXPECT_EQ(read->key, plan.key);
  EXPECT_EQ(read->nodes, plan.nodes);
  EXPECT_EQ(read->node_rank, plan.node_rank);
  EXPECT_EQ(read->endpoint, plan.endpoint);
  EXPECT_EQ(read->peer, plan.peer);
  EXPECT_EQ(read->directory, plan.directory);
  EXPECT_EQ(read->environment, plan.environment);
  EXPECT_EQ(read->arguments, plan.arguments);
  EXPECT_EQ(read->local_addr, plan.local_addr);
  EXPECT_EQ(read->ports, plan.ports);
  ASSERT_EQ(read->files.size(), 1u);
  EXPECT_EQ(read->files[0].path, "train");
  EXPECT_EQ(read->files[0].mode, 0755u);
  EXPECT_EQ(read->files[0].size, 12u);
}

TEST(SshProtocol, IgnoresOtherControlLines) {
  for (const char* bad : {"", "{", "[]", "1", "{}", R"({"ready":1})", R"({"ready":["a:1"]})",
                          R"({"ended":"x"})", R"({"greeted":["1"]})", R"({"refused":{}})"}) {
    EXPECT_FALSE(parse_control(0, bad)) << bad;
  }
}

TEST(SshProtocol, TakesNothingThatATerminalWouldObey) {
  const auto refused = std::get<PlanRefused>(*parse_control(0, R"({"refused":["\u001b[2J",-1]})"));
  EXPECT_EQ(refused.why, "?[2J");
  EXPECT_EQ(refused.exit_code, 0);
  for (const char* text : {R"({"ended":256})", R"({"ended":1e300})"})
    EXPECT_EQ(std::get<AgentEnded>(*parse_control(0, text)).exit_code, 255) << text;
}

TEST(SshProtocol, PassesEventsUnchanged) {
  const auto passed = [](const HeadEvent& event) {
    const std::string line = control_line("mark", event);
    EXPECT_TRUE(line.starts_with("mark {") && line.ends_with("}\n")) << line;
    return *parse_control(7, line.substr(5));
  };
  const auto greeted =
      std::get<Greeted>(passed(Greeted{0, "1.2", "/bin/ddprun", "10.0.0.1", "1a net"}));
  EXPECT_EQ(greeted.host, 7);
  EXPECT_EQ(greeted.version, "1.2");
  EXPECT_EQ(greeted.program, "/bin/ddprun");
  EXPECT_EQ(greeted.address, "10.0.0.1");
  EXPECT_EQ(greeted.machine, "1a net");
  EXPECT_TRUE(parse_control(0, R"({"greeted":["0.9","/bin/ddprun",""]})")) << "another version";
  const auto ready = std::get<Ready>(passed(Ready{0, "10.0.0.1:2", std::chrono::seconds(7)}));
  EXPECT_EQ(ready.endpoint, "10.0.0.1:2");
  EXPECT_EQ(ready.grace, std::chrono::seconds(7));
  const auto refused = std::get<PlanRefused>(passed(PlanRefused{0, "no \xff\n", 2}));
  EXPECT_EQ(refused.why, "no \xef\xbf\xbd?");
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_EQ(std::get<AgentEnded>(passed(AgentEnded{0, 255})).exit_code, 255);
  EXPECT_EQ(std::get<AgentEnded>(passed(AgentEnded{0, 255})).report, "");
  EXPECT_EQ(std::get<AgentEnded>(passed(AgentEnded{0, 1, "{\n\x1b\"}\n"})).report, "{\n\x1b\"}\n");
}

}  // namespace
}  // namespace ddprun
