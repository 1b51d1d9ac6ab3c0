#include "launcher/doctor/service.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/version.h"
#include "rendezvous/net/listen.h"
#include "tests/support/running_service.h"

namespace ddprun {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::HasSubstr;
using Outcome = ServiceAnswer::Outcome;
using testing_support::RunningService;

constexpr const char* kKey = "a_key_of_more_than_sixteen_characters";

EndpointRequest request_of(std::uint16_t port, const std::string& key = "") {
  return {.option = "",
          .address = {"localhost", port},
          .nodes = {},
          .job = "job",
          .tls = nullptr,
          .key = key,
          .key_for_all = key};
}

ServiceAnswer ask(const EndpointRequest& request) {
  return ask_service(request, *numeric_address({"127.0.0.1", request.address.port}));
}

TEST(ParseUtc, ReadsWhatStatusPagesSay) {
  EXPECT_EQ(parse_utc("1970-01-02T00:00:01.500Z"), seconds(86401) + milliseconds(500));
  EXPECT_EQ(parse_utc("2026-11-22T11:50:53.000Z"), seconds(1795348253));
  for (const char* bad :
       {"", "now", "2026-13-01T00:00:00Z", "2026-02-30T00:00:00Z", "2026-01-01"}) {
    EXPECT_FALSE(parse_utc(bad)) << bad;
  }
}

std::string answer_of(const std::string& status, const std::string& body) {
  return "HTTP/1.1 " + status + "\r\nContent-Type: x\r\n\r\n" + body;
}

TEST(ReadStatusAnswer, FindsItsWordsInAPageThatIsCutOff) {
  const ServiceAnswer answer = read_status_answer(
      answer_of(
          "200 OK",
          R"({"version":"0.9","host":"node7","embedded":true,"time":"1970-01-01T00:01:40.000Z",)"
          R"("jobs":[{"id":"a","version":"of a job"},{"id")"),
      seconds(98));
  EXPECT_EQ(answer.outcome, Outcome::kService);
  EXPECT_EQ(answer.version, "0.9");
  EXPECT_EQ(answer.host, "node7");
  EXPECT_EQ(answer.clock_ahead, seconds(2));
}

TEST(ReadStatusAnswer, KnowsAStandby) {
  const ServiceAnswer standby = read_status_answer(
      answer_of("307 Temporary Redirect", "the leader has this page: r2:29400\n"), {});
  EXPECT_EQ(standby.outcome, Outcome::kService);
  EXPECT_EQ(standby.why, "it stands by: r2:29400 leads");
  EXPECT_EQ(
      read_status_answer(answer_of("503 Unavailable", "no service is known to lead\n"), {}).outcome,
      Outcome::kNoLeader);
  EXPECT_EQ(read_status_answer(answer_of("307 Temporary Redirect", "moved"), {}).outcome,
            Outcome::kOther);
}

TEST(ReadStatusAnswer, TellsOthersFromOurs) {
  EXPECT_EQ(read_status_answer("SSH-2.0-OpenSSH\r\n", {}).outcome, Outcome::kOther);
  EXPECT_EQ(read_status_answer("", {}).outcome, Outcome::kOther);
  EXPECT_EQ(read_status_answer("HTTP/1.1 200 OK\r\n", {}).outcome, Outcome::kOther);
  const ServiceAnswer nginx = read_status_answer(answer_of("404 Not Found", "<html>"), {});
  EXPECT_EQ(nginx.outcome, Outcome::kOther);
  EXPECT_THAT(nginx.why, HasSubstr("HTTP 404"));
  EXPECT_EQ(read_status_answer(answer_of("200 OK", R"({"version":"1"})"), {}).outcome,
            Outcome::kOther);
  EXPECT_EQ(read_status_answer(answer_of("401 Unauthorized", "log in"), {}).outcome,
            Outcome::kOther);
}

TEST(AskService, SeesVersionHostAndClock) {
  RunningService service({.host = "node7", .service_id = "s"});
  const ServiceAnswer answer = ask(request_of(service.port()));
  EXPECT_EQ(answer.outcome, Outcome::kService) << answer.why;
  EXPECT_EQ(answer.version, kVersion);
  EXPECT_EQ(answer.host, "node7");
  ASSERT_TRUE(answer.clock_ahead);
  EXPECT_LT(std::chrono::abs(*answer.clock_ahead), seconds(2)) << "it is the same clock";
}

TEST(AskService, ProvesTheKey) {
  RunningService service;
  service.set_keys(kKey);
  EXPECT_EQ(ask(request_of(service.port())).outcome, Outcome::kWantsKey);
  const ServiceAnswer right = ask(request_of(service.port(), kKey));
  EXPECT_EQ(right.outcome, Outcome::kService) << right.why;
  EXPECT_TRUE(right.has_proved);
  EXPECT_EQ(right.version, kVersion);
  const ServiceAnswer wrong = ask(request_of(service.port(), "another_key_just_as_long"));
  EXPECT_EQ(wrong.outcome, Outcome::kRefusesKey);
  EXPECT_THAT(wrong.why, HasSubstr("is not the key that this service has"));
}

TEST(AskService, ProvesAKeyThatIsTheJobsAlone) {
  RunningService service;
  service.set_keys("job a_key_of_this_job_alone");
  EndpointRequest request = request_of(service.port(), "a_key_of_this_job_alone");
  request.key_for_all = Secret();
  const ServiceAnswer answer = ask(request);
  EXPECT_EQ(answer.outcome, Outcome::kService) << answer.why;
  EXPECT_TRUE(answer.has_proved);
  EXPECT_EQ(answer.version, "") << "its page is for those with the key for every job";
}

TEST(AskService, AKeyThatTheServiceDoesNotWantIsADifference) {
  RunningService service;
  EXPECT_EQ(ask(request_of(service.port(), kKey)).outcome, Outcome::kRefusesKey);
}

TEST(AskService, DoesNotWaitForOneThatSaysNothing) {
  const Result<Listener> silent = listen_tcp(HostPort{"127.0.0.1", 0});
  ASSERT_TRUE(silent) << silent.error().message();
  const ServiceAnswer answer = ask(request_of(silent->address.port));
  EXPECT_EQ(answer.outcome, Outcome::kSilent);
  EXPECT_LT(answer.took, seconds(3));
}

}  // namespace
}  // namespace ddprun
