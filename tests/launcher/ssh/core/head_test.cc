#include "launcher/ssh/core/head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using std::chrono::seconds;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// Returns one line for each action.
std::vector<std::string> lines_of(const std::vector<HeadAction>& actions) {
  struct Text {
    std::string operator()(const Connect& a) { return "connect " + std::to_string(a.host); }
    std::string operator()(const SendPlan& a) {
      return "plan " + std::to_string(a.host) + " " + a.endpoint + " " + a.peer;
    }
    std::string operator()(const PassSignal& a) {
      return "signal " + std::to_string(a.host) + " " + std::to_string(a.number);
    }
    std::string operator()(const Disconnect& a) {
      return "disconnect " + std::to_string(a.host) + (a.by_force ? " by force" : "");
    }
    std::string operator()(const Report& a) { return (a.is_error ? "error " : "info ") + a.text; }
    std::string operator()(const Finish& a) { return "finish " + std::to_string(a.exit_code); }
  };
  std::vector<std::string> lines;
  for (const HeadAction& action : actions) lines.push_back(std::visit(Text(), action));
  return lines;
}

// A head and its time. The hosts are a, b, c ...
struct Job {
  explicit Job(int hosts, int at_once = 64)
      : head({.hosts = names(hosts),
              .version = "1",
              .program = "/bin/ddprun",
              .connect_timeout = seconds(10),
              .grace = seconds(30),
              .at_once = at_once}) {}
  static std::vector<std::string> names(int count) {
    std::vector<std::string> all;
    for (int i = 0; i < count; ++i) all.push_back(std::string("me@") + static_cast<char>('a' + i));
    return all;
  }
  std::vector<std::string> start() { return lines_of(head.start(now)); }
  std::vector<std::string> step(const HeadEvent& event) { return lines_of(head.step(now, event)); }
  std::vector<std::string> after(Duration time) {
    now += time;
    return step(TimePassed{});
  }
  std::vector<std::string> greet(int host, const std::string& address) {
    return step(Greeted{host, "1", "/bin/ddprun", address});
  }
  // Makes all agents run.
  void run(int hosts) {
    start();
    for (int i = 0; i < hosts; ++i) greet(i, "10.0.0." + std::to_string(i + 1));
    for (int i = 0; i < hosts; ++i) step(Ready{i, i == 0 ? "10.0.0.1:2000" : ""});
  }

  Head head;
  TimePoint now{seconds(1000)};
};

TEST(Head, NamesAHostThatSshCannotReach) {
  Job job(2);
  job.start();
  job.greet(0, "10.0.0.1");
  EXPECT_THAT(job.step(SshEnded{1, 255, "ssh: connect to host b port 22: No route to host"}),
              ElementsAre("error host me@b: ssh cannot connect: ssh: connect to host b port 22: No "
                          "route to host",
                          "signal 0 15"));
  job.step(AgentEnded{0, 143});
  EXPECT_THAT(job.step(SshEnded{0, 143, ""}), ElementsAre("finish 64"));
}

TEST(Head, NamesAHostWithoutDdprun) {
  Job job(1);
  job.start();
  EXPECT_THAT(
      job.step(SshEnded{0, 127, "sh: not found"}),
      ElementsAre(AllOf(HasSubstr("error host me@a: has no ddprun"), HasSubstr("/bin/ddprun")),
                  "finish 64"));
}

TEST(Head, QuotesAProgramThatEndsBeforeItGreets) {
  Job job(1);
  job.start();
  EXPECT_THAT(job.step(SshEnded{0, 2, "ddprun: error: the program is missing"}),
              ElementsAre("error host me@a: ddprun did not start there (exit code 2): ddprun: "
                          "error: the program is missing",
                          "finish 64"));
}

TEST(Head, RefusesAnotherVersion) {
  Job job(2);
  job.start();
  EXPECT_THAT(job.step(Greeted{1, "2", "/opt/ddprun", ""}),
              ElementsAre(AllOf(HasSubstr("error host me@b: has ddprun 2 (/opt/ddprun)"),
                                HasSubstr("this is ddprun 1")),
                          "disconnect 1", "disconnect 0"));
  EXPECT_THAT(job.step(SshEnded{0, 143, ""}), IsEmpty());
  EXPECT_THAT(job.step(SshEnded{1, 0, ""}), ElementsAre("finish 64"));
}

// localhost and the host's own name, or a name and an address.
TEST(Head, RefusesAHostUnderTwoNames) {
  Job job(3);
  job.start();
  job.step(Greeted{0, "1", "/bin/ddprun", "", ""});
  job.step(Greeted{1, "1", "/bin/ddprun", "", "machine 1"});
  EXPECT_THAT(job.step(Greeted{2, "1", "/bin/ddprun", "", "machine 1"}),
              testing::Contains("error host me@c: it is the host me@b again: give it once, with "
                                "all its slots"));
  for (const int host : {0, 1}) job.step(SshEnded{host, 255, ""});
  EXPECT_THAT(job.step(SshEnded{2, 255, ""}), ElementsAre("finish 2"));
}

TEST(Head, NamesAllHostsThatDoNotAnswerInTime) {
  Job job(3);
  job.start();
  job.greet(1, "10.0.0.2");
  EXPECT_EQ(job.head.deadline(), job.now + seconds(10));
  EXPECT_THAT(job.after(seconds(9)), IsEmpty());
  EXPECT_THAT(
      job.after(seconds(1)),
      ElementsAre(HasSubstr("error host me@a: no answer over ssh within 10.0 s"), "disconnect 0",
                  HasSubstr("error host me@c: no answer"), "disconnect 2", "disconnect 1"));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(job.step(SshEnded{i, 255, ""}), IsEmpty());
  // An ssh that does not end is killed.
  EXPECT_EQ(job.head.deadline(), job.now + Head::kSshPatience);
  EXPECT_THAT(job.after(Head::kSshPatience), ElementsAre("disconnect 2 by force"));
  EXPECT_THAT(job.step(SshEnded{2, 137, ""}), ElementsAre("finish 64"));
}

TEST(Head, NamesAHostThatRefusesItsPlan) {
  Job job(2);
  job.start();
  job.greet(0, "10.0.0.1");
  EXPECT_THAT(job.step(PlanRefused{0, "no directory /data", 2}),
              ElementsAre("error host me@a: no directory /data", "disconnect 0", "disconnect 1"));
  job.step(SshEnded{0, 2, ""});
  EXPECT_THAT(job.step(SshEnded{1, 255, ""}), ElementsAre("finish 2"));
}

TEST(Head, NamesAHostThatDoesNotStartItsAgent) {
  Job job(1);
  job.start();
  job.greet(0, "");
  EXPECT_THAT(job.after(Head::kReadyPatience),
              ElementsAre(HasSubstr("error host me@a: did not start its agent within 120.0 s"),
                          "disconnect 0"));
}

TEST(Head, EndsTheOthersWhenAConnectionIsLost) {
  Job job(3);
  job.run(3);
  EXPECT_THAT(job.step(SshEnded{2, 255, "Timeout, server c not responding."}),
              ElementsAre("error host me@c: the ssh connection was lost: Timeout, server c not "
                          "responding.",
                          "signal 0 15", "signal 1 15"));
  // What follows from it is not reported.
  EXPECT_THAT(job.step(SshEnded{1, 255, "reset"}), IsEmpty());
  job.step(AgentEnded{0, 143});
  EXPECT_THAT(job.step(SshEnded{0, 143, ""}), ElementsAre("finish 68"));
}

TEST(Head, EndsWithTheCodeOfALostNodeThoughTheOthersEndedFirst) {
  Job job(2);
  job.run(2);
  job.step(AgentEnded{0, 143});
  job.step(SshEnded{0, 143, ""});
  EXPECT_THAT(job.step(SshEnded{1, 255, "closed"}),
              ElementsAre("error host me@b: the ssh connection was lost: closed", "finish 68"));
}

TEST(Head, EndsWithTheCodeOfALostServiceIfNode0IsLost) {
  Job job(2);
  job.run(2);
  EXPECT_THAT(job.step(SshEnded{0, 255, ""}),
              ElementsAre("error host me@a: the ssh connection was lost", "signal 1 15"));
  job.step(AgentEnded{1, 143});
  EXPECT_THAT(job.step(SshEnded{1, 143, ""}), ElementsAre("finish 67"));
}

TEST(Head, ConnectsAFewHostsAtATime) {
  Job job(4, 2);
  EXPECT_THAT(job.start(), ElementsAre("connect 0", "connect 1"));
  EXPECT_THAT(job.greet(1, "10.0.0.2"), ElementsAre("connect 2"));
  EXPECT_THAT(job.greet(0, "10.0.0.1"), ElementsAre("connect 3", "plan 0  "));
}

TEST(Head, GivesTheEndpointOfNode0ToTheOthers) {
  Job job(3);
  job.start();
  EXPECT_THAT(job.greet(1, "10.0.0.2"), IsEmpty());
  EXPECT_THAT(job.greet(0, "10.0.0.1"), ElementsAre("plan 0  "));
  EXPECT_THAT(job.step(Ready{0, "10.0.0.1:2000"}), ElementsAre("plan 1 10.0.0.1:2000 "));
  EXPECT_THAT(job.greet(2, "10.0.0.3"), ElementsAre("plan 2 10.0.0.1:2000 "));
  EXPECT_THAT(job.step(Ready{1, ""}), IsEmpty());
  job.now += seconds(2);
  EXPECT_THAT(job.step(Ready{2, ""}),
              ElementsAre("info 3 agents started over ssh in 2.0 s, rendezvous at 10.0.0.1:2000"));
}

TEST(Head, TellsNode0APeerIfItsAddressIsLoopback) {
  for (const char* address : {"127.0.0.1", "::1", "fe80::1%eth0", ""}) {
    Job job(3);
    job.start();
    EXPECT_THAT(job.greet(0, address), IsEmpty());
    EXPECT_THAT(job.greet(2, "10.0.0.3"), ElementsAre("plan 0  10.0.0.3"));
    Job unknown(2);
    unknown.start();
    unknown.greet(0, address);
    EXPECT_THAT(unknown.greet(1, address), ElementsAre("plan 0  b"));
  }
  Job alone(1);
  alone.start();
  EXPECT_THAT(alone.greet(0, "127.0.0.1"), ElementsAre("plan 0  "));
}

TEST(Head, EndsWithTheFirstCodeThatIsNotZero) {
  Job job(3);
  job.run(3);
  EXPECT_THAT(job.step(AgentEnded{0, 0}), IsEmpty());
  job.step(AgentEnded{2, 5});
  job.step(AgentEnded{1, 6});
  job.step(SshEnded{0, 0, ""});
  job.step(SshEnded{1, 6, ""});
  EXPECT_THAT(job.step(SshEnded{2, 5, ""}), ElementsAre("finish 5"));
  EXPECT_THAT(job.step(SshEnded{2, 5, ""}), IsEmpty());
}

TEST(Head, EndsWithAWorkersCode255) {
  Job job(1);
  job.run(1);
  job.step(AgentEnded{0, 255});
  EXPECT_THAT(job.step(SshEnded{0, 255, ""}), ElementsAre("finish 255"));
}

TEST(Head, EndsAgentsThatOutliveTheFirstOne) {
  Job job(2);
  job.run(2);
  job.step(AgentEnded{0, 70});
  job.step(SshEnded{0, 70, ""});
  EXPECT_THAT(job.after(seconds(30) + Head::kEndPatience), ElementsAre("signal 1 15"));
  EXPECT_THAT(
      job.after(seconds(30) + Head::kEndPatience),
      ElementsAre(HasSubstr("error host me@b: its agent has not ended in time"), "disconnect 1"));
  EXPECT_THAT(job.step(SshEnded{1, 255, ""}), ElementsAre("finish 70"));
}

TEST(Head, WaitsForTheLongestGraceOfAHost) {
  Job job(1);
  job.start();
  job.greet(0, "10.0.0.1");
  job.step(Ready{0, "", seconds(90)});
  job.step(AgentEnded{0, 0});
  EXPECT_EQ(job.head.deadline(), job.now + seconds(90) + Head::kEndPatience);
}

// --on-end and --on-failure of node 0 run when all workers have ended.
TEST(Head, WaitsForTheCommandsThatNode0RunsAtTheEnd) {
  const auto deadline_after = [](int first) {
    Job job(2);
    job.head = Head({.hosts = Job::names(2),
                     .version = "1",
                     .program = "/bin/ddprun",
                     .connect_timeout = seconds(10),
                     .grace = seconds(30),
                     .end_commands = seconds(60)});
    job.run(2);
    job.step(AgentEnded{first, 0});
    return *job.head.deadline() - job.now - Head::kEndPatience;
  };
  EXPECT_EQ(deadline_after(1), seconds(30 + 60));
  EXPECT_EQ(deadline_after(0), seconds(30)) << "node 0 has run them";
}

TEST(Head, PassesSignalsToAllAgents) {
  Job job(2);
  job.run(2);
  EXPECT_THAT(job.step(Signalled{SIGUSR1, false}), ElementsAre("signal 0 10", "signal 1 10"));
  EXPECT_THAT(job.step(Signalled{SIGINT, true}), ElementsAre("signal 0 2", "signal 1 2"));
  job.step(AgentEnded{0, 130});
  job.step(SshEnded{0, 130, ""});
  EXPECT_THAT(job.step(Signalled{SIGINT, true}), ElementsAre("signal 1 2"));
  job.step(AgentEnded{1, 130});
  EXPECT_THAT(job.step(SshEnded{1, 130, ""}), ElementsAre("finish 130"));
}

TEST(Head, PassesCtrlZToAgentsThatStart) {
  Job job(2);
  job.start();
  job.greet(0, "10.0.0.1");
  job.greet(1, "10.0.0.2");
  EXPECT_THAT(job.step(Signalled{SIGUSR1, false}), IsEmpty());
  EXPECT_THAT(job.step(Signalled{SIGTSTP, false}), ElementsAre("signal 0 20"));
  EXPECT_THAT(job.step(Signalled{SIGCONT, false}), ElementsAre("signal 0 18"));
}

TEST(Head, PostponesItsDeadlines) {
  Job job(2);
  job.start();
  job.head.postpone(seconds(7));
  EXPECT_EQ(job.head.deadline(), job.now + seconds(17));
  for (int i = 0; i < 2; ++i) job.greet(i, "10.0.0.1");
  for (int i = 0; i < 2; ++i) job.step(Ready{i, "10.0.0.1:2000"});
  job.step(AgentEnded{0, 0});
  job.head.postpone(seconds(7));
  EXPECT_EQ(job.head.deadline(), job.now + seconds(37) + Head::kEndPatience);
}

TEST(Head, SaysThatAHostWasLostBeforeItHadItsPlan) {
  Job job(2);
  job.start();
  job.greet(1, "10.0.0.2");
  EXPECT_THAT(job.step(SshEnded{1, 255, "closed"}),
              ElementsAre("error host me@b: the ssh connection was lost: closed", "disconnect 0"));
  EXPECT_THAT(job.step(SshEnded{0, 255, ""}), ElementsAre("finish 64"));
}

TEST(Head, DisconnectsWithTheThirdInterrupt) {
  Job job(1);
  job.run(1);
  for (int i = 0; i < 2; ++i) job.step(Signalled{SIGINT, true});
  EXPECT_THAT(job.step(Signalled{SIGINT, true}), ElementsAre(HasSubstr("error"), "disconnect 0"));
  EXPECT_THAT(job.step(SshEnded{0, 255, ""}), ElementsAre("finish 68"));
}

TEST(Head, DisconnectsHostsWithoutAnAgentAtASignal) {
  Job job(3, 2);
  job.start();
  job.greet(1, "10.0.0.2");
  EXPECT_THAT(job.step(Signalled{SIGUSR1, false}), IsEmpty());
  EXPECT_THAT(job.step(Signalled{SIGTERM, true}),
              ElementsAre("disconnect 0", "disconnect 1", "disconnect 2"));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(job.step(SshEnded{i, 255, ""}), IsEmpty());
  EXPECT_THAT(job.step(SshEnded{2, 255, ""}), ElementsAre("finish 143"));
}

}  // namespace
}  // namespace ddprun
