// Tests the output of a rank and its last calls on the service's page: what the agent is asked,
// when it is asked no more, and who may read them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <list>

#include "rendezvous/auth/core/proof.h"
#include "rendezvous/http/rank_tails.h"
#include "rendezvous/service/page_requests.h"
#include "rendezvous/service/server.h"
#include "tests/support/control_frame.h"
#include "tests/support/hello_of.h"
#include "tests/support/http_get.h"
#include "tests/support/raw_tcp_client.h"
#include "tests/support/running_service.h"

namespace ddprun {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::StartsWith;
using testing_support::await;
using testing_support::hello_of;
using testing_support::http_get;
using testing_support::RawTcpClient;
using testing_support::RunningService;
using testing_support::say;
using What = OutputDirective::What;

const std::string kLine = "{\"rank\":0,\"stream\":\"stdout\",\"text\":\"<b>\\n\"}\n";
const std::string kEvent = "data: {\"text\":\"<b>\\n\"}\n\n";

class ServerWithTails : public testing::Test {
 protected:
  // Lets the agent begin this job.
  static void begin_job(RawTcpClient& agent, const std::string& job, bool supports_output = true) {
    Hello hello = hello_of(job, "agent of " + job);
    hello.node.supports_output = supports_output;
    hello.node.supports_flight = supports_output;
    say(agent, hello);
    ASSERT_TRUE(await<Assignment>(agent));
  }
  void ask(RawTcpClient& browser, const std::string& path, const std::string& fields = "") const {
    browser.send("GET " + path + " HTTP/1.1\r\nHost: here:1\r\n" + fields + "\r\n");
  }
  // Opens the output of rank 0. Returns the head of the answer.
  std::string open(RawTcpClient& browser, const std::string& job = "job") const {
    ask(browser, "/output/0?job=" + job);
    return browser.receive_through("\r\n\r\n");
  }
  // Begins a job, and opens the output of its rank 0. Returns what the agent is asked; nullopt: it
  // is not.
  std::optional<OutputDirective> follow(RawTcpClient& agent, RawTcpClient& browser) const {
    begin_job(agent, "job");
    if (HasFatalFailure()) return std::nullopt;
    open(browser);
    return await<OutputDirective>(agent);
  }
  // Returns the status of a request that is answered at once.
  std::string status_of(const std::string& path, const std::string& fields = "") const {
    RawTcpClient browser(service_.port());
    ask(browser, path, fields);
    return browser.receive_through("\r\n").substr(9, 3);
  }
  std::string why_no_output(const std::string& host) const {
    RawTcpClient browser(service_.port());
    browser.send("GET /rights HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n");
    const std::string answer = browser.receive(1 << 16);
    const std::string field = "\"why_no_output\":\"";
    const std::size_t begin = answer.find(field) + field.size();
    return answer.substr(begin, answer.find('"', begin) - begin);
  }

  // An agent that is silent in a test is not lost: that would also end what it is asked.
  RunningService service_{{.times = {.lease = std::chrono::minutes(10)}, .service_id = "s"}};
};

TEST_F(ServerWithTails, TheAgentIsAskedWhileABrowserReadsAndNoLonger) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  RawTcpClient browser(service_.port());
  EXPECT_THAT(open(browser), HasSubstr("Content-Type: text/event-stream\r\n"));
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  EXPECT_EQ(begin->what, What::kBegin);
  EXPECT_EQ(begin->rank, Rank(0));
  EXPECT_EQ(begin->lines, RankTails::kLines);
  EXPECT_TRUE(begin->follow);
  for (int i = 0; i < 2; ++i) {
    say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
    const auto next = await<OutputDirective>(agent);
    ASSERT_TRUE(next);
    EXPECT_EQ(next->what, What::kNext);
    say(agent, OutputPage{.inquiry = begin->inquiry, .lines = kLine});
    EXPECT_EQ(browser.receive_through("\n\n"), kEvent) << "it is pushed";
  }
  browser.close();
  const auto end = await<OutputDirective>(agent);
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, (OutputDirective{.what = What::kEnd, .inquiry = begin->inquiry}));
}

// The agent gives 64 KiB at a turn. The service takes no more than it may keep before a pause.
TEST_F(ServerWithTails, AFloodIsFetchedInPartsWithPausesAndGoesOn) {
  RawTcpClient agent(service_.port()), browser(service_.port());
  const auto begin = follow(agent, browser);
  ASSERT_TRUE(begin);
  const std::string text(kOutputPageBytes - 200, 'x');
  const std::string line = "{\"rank\":0,\"stream\":\"stdout\",\"text\":\"" + text + "\\n\"}\n";
  say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
  const int pages = 3 * static_cast<int>(OutputInquiries::kTurns);
  const auto begun = std::chrono::steady_clock::now();
  for (int i = 0; i < pages; ++i) {
    const auto next = await<OutputDirective>(agent);
    ASSERT_TRUE(next && next->what == What::kNext) << i;
    say(agent, OutputPage{.inquiry = begin->inquiry, .lines = line, .is_ready = i + 1 < pages});
  }
  EXPECT_GE(std::chrono::steady_clock::now() - begun, RankTails::kPause)
      << "without a pause a flood takes the service's time";
  const std::string end = "end\\n\"}\n\n";
  say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
  ASSERT_TRUE(await<OutputDirective>(agent));
  say(agent, OutputPage{.inquiry = begin->inquiry,
                        .lines = "{\"rank\":0,\"stream\":\"stdout\",\"text\":\"end\\n\"}\n"});
  EXPECT_THAT(browser.receive_through(end), EndsWith(end));
}

TEST_F(ServerWithTails, WhatIsMissingIsOneLine) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  RawTcpClient browser(service_.port());
  open(browser);
  ASSERT_TRUE(await<OutputDirective>(agent));
  agent.close();
  EXPECT_THAT(browser.receive_through("\n\n"),
              testing::AllOf(StartsWith("data: {\"text\":\"ddprun: the connection with "),
                             HasSubstr("is missing until it reconnects\\n\"}")));
}

TEST_F(ServerWithTails, AnAgentThatIsTooOldIsNamed) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job", false));
  RawTcpClient browser(service_.port());
  open(browser);
  EXPECT_THAT(browser.receive_through("\n\n"),
              HasSubstr("too old to send it: ddprun on agent of job"));
}

TEST_F(ServerWithTails, ARequestThatCannotBeAnsweredEndsWithTheReason) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  const auto reason = [&](const std::string& path) {
    RawTcpClient browser(service_.port());
    ask(browser, path);
    browser.receive_through("\r\n\r\n");
    return browser.receive_through("\n\n");
  };
  const std::string begin = "event: end\ndata: {\"why\":\"";
  EXPECT_EQ(reason("/output/0?job=%3Cb%3E"), begin + "this service has no job '<b>'\"}\n\n");
  EXPECT_THAT(reason("/output/7?job=job"),
              StartsWith(begin + "--rank: invalid value '7' (expected 0"));
  for (const char* path :
       {"/output/-1?job=a", "/output/x?job=a", "/output/?job=a", "/output/99999999999?job=a"}) {
    EXPECT_EQ(status_of(path), "404") << path;
  }
  for (const char* path :
       {"/output/0", "/output/0?", "/output/0?job=<b>", "/output/0?job=%zz",
        "/output/0?job=job&x=1", "/output/0?jobs=job", "/output/0?job=", "/output/0?job=a%00"}) {
    EXPECT_EQ(status_of(path), "400") << path;
  }
}

TEST_F(ServerWithTails, TheLastCallsAreThoseOfTheAgentAsItSendsThem) {
  RawTcpClient agent(service_.port()), browser(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  ask(browser, "/flight/0?job=job", "Connection: close\r\n");
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  EXPECT_EQ(begin->what, What::kBegin);
  EXPECT_TRUE(begin->flight);
  EXPECT_EQ(begin->rank, Rank(0));
  say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
  ASSERT_TRUE(await<OutputDirective>(agent)) << "its turn";
  const std::string line = "{\"flight\":{\"rank\":0,\"calls\":[{\"call\":\"<b>\"}]}}\n";
  say(agent, OutputPage{.inquiry = begin->inquiry, .lines = line, .is_last = true});
  const std::string answer = browser.receive(1 << 16);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("Content-Type: application/x-ndjson\r\n"));
  EXPECT_THAT(answer, HasSubstr("X-Content-Type-Options: nosniff\r\n"));
  EXPECT_THAT(answer, EndsWith("\r\n\r\n" + line));
}

TEST_F(ServerWithTails, CallsThatCannotComeHaveTheReasonInOneLine) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  const auto answer = [&](const std::string& path) {
    RawTcpClient browser(service_.port());
    ask(browser, path, "Connection: close\r\n");
    const std::string text = browser.receive(1 << 16);
    return text.substr(9, 4) + text.substr(text.find("\r\n\r\n") + 4);
  };
  EXPECT_EQ(answer("/flight/0?job=%3Cb%3E"), "409 this service has no job '<b>'\n");
  EXPECT_THAT(answer("/flight/7?job=job"), StartsWith("409 --rank: invalid value '7' (expected 0"));
  EXPECT_EQ(answer("/flight/0?jobs=job"), "400 the form is /flight/0?job=ID\n");
  EXPECT_EQ(status_of("/flight/-1?job=job"), "404");
  EXPECT_EQ(status_of("/flight/0?job=job", "Origin: http://there:1\r\n"), "403");
  RawTcpClient browser(service_.port());
  browser.send("GET /flight/0?job=job HTTP/1.1\r\nHost: evil.example:1\r\n\r\n");
  EXPECT_THAT(browser.receive_through("\r\n"), StartsWith("HTTP/1.1 403 "));
}

TEST_F(ServerWithTails, ABrowserThatClosesWhileItsQuestionWaitsDoesNoHarm) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  for (std::size_t i = 0; i < 2 * PageRequests::kMost; ++i) {
    RawTcpClient browser(service_.port());
    ask(browser, "/flight/0?job=job");
    const auto begin = await<OutputDirective>(agent);
    ASSERT_TRUE(begin && begin->flight) << i;
    browser.close();
    EXPECT_EQ(status_of("/healthz"), "200");
    say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
    ASSERT_TRUE(await<OutputDirective>(agent)) << "its turn";
    say(agent, OutputPage{.inquiry = begin->inquiry, .is_last = true});
  }
  EXPECT_EQ(status_of("/healthz"), "200");
}

TEST_F(ServerWithTails, CallsOfAJobThatEndsMeanwhileHaveAnAnswer) {
  RawTcpClient agent(service_.port()), browser(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  ask(browser, "/flight/0?job=job", "Connection: close\r\n");
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  say(agent, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  const std::string answer = browser.receive(1 << 16);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr("no answer within 3.0 s from agent of job"));
}

TEST_F(ServerWithTails, AnAgentThatIsLostAfterItsFirstPartIsNamed) {
  RawTcpClient agent(service_.port()), browser(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  ask(browser, "/flight/0?job=job", "Connection: close\r\n");
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  say(agent, OutputPage{.inquiry = begin->inquiry, .is_ready = true});
  ASSERT_TRUE(await<OutputDirective>(agent)) << "its turn";
  const std::string line = "{\"flight\":{\"rank\":0,\"goes_on\":true}}\n";
  say(agent, OutputPage{.inquiry = begin->inquiry, .lines = line, .is_ready = true});
  ASSERT_TRUE(await<OutputDirective>(agent)) << "the next turn";
  agent.close();
  const std::string answer = browser.receive(1 << 16);
  EXPECT_THAT(answer, StartsWith("HTTP/1.1 200 "));
  EXPECT_THAT(answer, HasSubstr(line));
  EXPECT_THAT(answer, HasSubstr("connection with "));
}

TEST_F(ServerWithTails, QuestionsForCallsAreBounded) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  std::list<RawTcpClient> browsers;
  for (std::size_t i = 0; i < PageRequests::kMostLooks; ++i) {
    ask(browsers.emplace_back(service_.port()), "/flight/0?job=job");
    const auto begin = await<OutputDirective>(agent);
    ASSERT_TRUE(begin && begin->flight) << i;
  }
  EXPECT_EQ(status_of("/flight/0?job=job"), "503");
}

TEST_F(ServerWithTails, BrowsersAreBoundedAndLeaveRoomForCommands) {
  RawTcpClient agent(service_.port());
  ASSERT_NO_FATAL_FAILURE(begin_job(agent, "job"));
  std::list<RawTcpClient> browsers;
  std::vector<OutputDirective> begun;
  for (std::size_t i = 0; i < RankTails::kOfJob; ++i) {
    open(browsers.emplace_back(service_.port()));
    const auto begin = await<OutputDirective>(agent);
    ASSERT_TRUE(begin);
    begun.push_back(*begin);
  }
  RawTcpClient more(service_.port());
  open(more);
  EXPECT_THAT(more.receive_through("\n\n"),
              StartsWith("event: end\ndata: {\"why\":\"too many pages"));
  RawTcpClient command(service_.port());
  say(command, UserRequest{.what = UserRequest::What::kLogs, .number = 1, .job = "job"});
  const auto answer = await<Answer>(command);
  ASSERT_TRUE(answer);
  EXPECT_TRUE(answer->done) << answer->text;
  ASSERT_TRUE(await<OutputDirective>(agent));
  browsers.pop_front();
  const auto end = await<OutputDirective>(agent);
  ASSERT_TRUE(end);
  EXPECT_EQ(*end, (OutputDirective{.what = What::kEnd, .inquiry = begun.front().inquiry}));
  RawTcpClient another(service_.port());
  open(another);
  const auto begin = await<OutputDirective>(agent);
  ASSERT_TRUE(begin);
  EXPECT_EQ(begin->what, What::kBegin);
}

TEST_F(ServerWithTails, OfAllJobsTheBrowsersAreBounded) {
  std::list<RawTcpClient> agents;
  std::list<RawTcpClient> browsers;
  for (std::size_t i = 0; i < RankTails::kMost; ++i) {
    const std::string job = "job" + std::to_string(i / RankTails::kOfJob);
    if (i % RankTails::kOfJob == 0) {
      ASSERT_NO_FATAL_FAILURE(begin_job(agents.emplace_back(service_.port()), job));
    }
    open(browsers.emplace_back(service_.port()), job);
    ASSERT_TRUE(await<OutputDirective>(agents.back()));
  }
  ASSERT_NO_FATAL_FAILURE(begin_job(agents.emplace_back(service_.port()), "other"));
  RawTcpClient more(service_.port());
  open(more, "other");
  EXPECT_THAT(more.receive_through("\n\n"), HasSubstr("and 32 of all): close one"));
}

TEST_F(ServerWithTails, NoOtherSiteMayRead) {
  EXPECT_EQ(why_no_output("here:1"), "");
  EXPECT_EQ(why_no_output("127.0.0.1:1"), "");
  EXPECT_EQ(why_no_output("evil.example:1"),
            "open this page by the numeric address of the service: evil.example:1 may be the name "
            "of another site");
  EXPECT_EQ(status_of("/output/0?job=job", "Origin: http://here:1\r\n"), "200");
  EXPECT_EQ(status_of("/output/0?job=job", "Origin: http://there:1\r\n"), "403");
  RawTcpClient browser(service_.port());
  browser.send("GET /output/0?job=job HTTP/1.1\r\nHost: evil.example:1\r\n\r\n");
  EXPECT_THAT(browser.receive_through("\r\n"), StartsWith("HTTP/1.1 403 "));
}

TEST_F(ServerWithTails, ATokenThatReadsThePagesReadsNoOutput) {
  service_.set_keys("0123456789abcdef");
  const std::string token = "Authorization: Bearer " + read_token_of("0123456789abcdef") + "\r\n";
  EXPECT_EQ(status_of("/status.json", token), "200");
  for (const char* path : {"/output/0?job=job", "/flight/0?job=job"}) {
    EXPECT_EQ(status_of(path, token), "403") << path;
    EXPECT_EQ(status_of(path), "401") << path;
  }
  EXPECT_THAT(why_no_output("here:1"), HasSubstr("write token"));
}

TEST_F(ServerWithTails, TheEndOfTheJobIsTheEnd) {
  RawTcpClient agent(service_.port()), browser(service_.port());
  const auto begin = follow(agent, browser);
  ASSERT_TRUE(begin);
  say(agent, OutputPage{.inquiry = begin->inquiry, .lines = kLine, .is_last = true});
  say(agent, AgentStatus{.phase = AgentPhase::kFinished, .generation = Generation(0)});
  const std::string end = "event: end\ndata: {}\n\n";
  EXPECT_EQ(browser.receive_through(end), kEvent + end);
}

}  // namespace
}  // namespace ddprun
