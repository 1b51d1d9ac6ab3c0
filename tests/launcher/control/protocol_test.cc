#include "launcher/control/protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "rendezvous/http/status_page.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using What = UserRequest::What;

TEST(ControlProtocol, ARequestIsReadAsItWasWritten) {
  for (const auto& [what, word] : kUserRequestWords) {
    UserRequest request{.what = what, .by = "ada on node0"};
    if (what == What::kSignal) {
      request.signal = 10;
      request.rank = Rank(3);
    }
    if (what == What::kStop) request.at_once = true;
    if (what == What::kLogs) {
      request.follow = true;
      request.lines = 5;
    }
    const Result<std::optional<UserRequest>> read = parse_request(request_line(request));
    ASSERT_TRUE(read) << read.error().message();
    EXPECT_EQ(*read, request);
  }
  const Result<std::optional<UserRequest>> who = parse_request(who_request_line("ada on node0"));
  ASSERT_TRUE(who) << who.error().message();
  EXPECT_EQ(*who, std::nullopt);
}

TEST(ControlProtocol, WhatIsNoRequestIsRefusedInWords) {
  const std::vector<std::pair<std::string, std::string>> bad{
      {"", "invalid request"},
      {"[]", "not a JSON object"},
      {"{}", "speaks version 1"},
      {R"({"version":2,"what":"who"})", "the request has version 2"},
      {R"({"version":1})", "what"},
      {R"({"version":1,"what":"dance"})", "unknown word 'dance'"},
      {R"({"version":1,"what":"signal"})", "has no signal"},
      {R"({"version":1,"what":"signal","signal":65})", "from 0 to 64"},
      {R"({"version":1,"what":"logs","lines":-1})", "lines is not a number"},
      {R"({"version":1,"what":"logs","rank":"x"})", "rank is not a number"},
      {R"({"version":1,"what":"stop","at_once":1})", "type"},
  };
  for (const auto& [line, words] : bad) {
    const Result<std::optional<UserRequest>> read = parse_request(line);
    ASSERT_FALSE(read) << line;
    EXPECT_THAT(read.error().cause, HasSubstr(words)) << line;
    EXPECT_EQ(read.error().cause.find('\n'), std::string::npos);
  }
}

TEST(ControlProtocol, WhoAsksIsShownWithoutControlCharacters) {
  const auto by = [](const char* line) { return parse_request(line).value().value().by; };
  EXPECT_EQ(by(R"({"version":1,"what":"status","by":"a\nb\u001b[31m"})"), "a?b?[31m");
  EXPECT_EQ(by(R"({"version":1,"what":"status"})"), "a user");
}

TEST(ControlProtocol, AnswersAreOneLineEach) {
  NodeView node{
      .job = "a\nb", .host = "h\xff", .pid = 7, .program = "p", .generation = Generation(2)};
  node.workers.push_back(
      {.rank = Rank(3), .local_rank = LocalRank(1), .pid = 9, .state = "running", .step = 120});
  node.assignment = Assignment{.node_rank = NodeRank(4), .restart_count = 1};
  node.ranks = {{.rank = Rank(3), .state = "running", .step = 120},
                {.rank = Rank(4), .state = "running", .step = 100}};
  const Moment now{};
  for (const std::string& line :
       {who_line(node, now), status_line(node, now, std::string("{\"jobs\":[\n{}\n]}\n")),
        status_line(node, now, Error{.cause = "silent\nservice"}),
        outcome_line(Outcome::kRefused, "a\nb"), ended_line(3, "x"), generation_line(node),
        output_line({Rank(1), OutputStream::kErr}, "a\nb\n"), dropped_line(5)}) {
    EXPECT_EQ(line.find('\n'), std::string::npos) << line;
    EXPECT_TRUE(json::accept(line)) << line;
  }
  const json status = json::parse(status_line(node, now, std::string("{\"jobs\":[\n{}\n]}\n")));
  EXPECT_EQ(status["service"]["jobs"].size(), 1u);
  EXPECT_EQ(status["node"]["workers"][0]["rank"], 3);
  EXPECT_EQ(status["node"]["workers"][0]["step"], 120);
  ASSERT_EQ(status["node"]["ranks"].size(), 2u);
  EXPECT_EQ(status["node"]["ranks"][0]["lag"], 0);
  EXPECT_EQ(status["node"]["ranks"][1]["lag"], 20);
  EXPECT_EQ(status["node"]["ranks"][1]["node"], 4);
  EXPECT_EQ(status["node"]["ranks"][1]["restarts"], 1);
  EXPECT_FALSE(json::parse(who_line(node, now))["node"].contains("ranks"));
}

TEST(ControlProtocol, OutputThatIsNoUtf8ComesAsHex) {
  const json text = json::parse(output_line({Rank(1), OutputStream::kOut}, "gr\xc3\xbc\xc3\x9f\n"));
  EXPECT_EQ(text["text"], "gr\xc3\xbc\xc3\x9f\n");
  EXPECT_EQ(text["stream"], "stdout");
  const json bytes = json::parse(output_line({Rank(1), OutputStream::kErr}, "\xff\n"));
  EXPECT_EQ(bytes["hex"], "ff0a");
  EXPECT_FALSE(bytes.contains("text"));
}

}  // namespace
}  // namespace ddprun
