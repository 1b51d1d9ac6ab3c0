// Tests `ddprun flight` on real processes: the call of each rank, also of a stopped rank, and
// the record that a killed rank leaves.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/integration/launcher/control_jobs_frame.h"

namespace ddprun::testing_support {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

class FlightTest : public ControlByServiceTest {
 protected:
  std::unique_ptr<ChildProcess> play(const std::string& plays, Arguments options = {}) const {
    return launch(joined(joined({"--nproc-per-node=2", "--rdzv-id=train"}, options),
                         {program("hang_worker"), plays}));
  }
  json flight(const Arguments& more = {}) const {
    return run_ddprun(joined({"flight", "--json"}, more)).object();
  }
  // Returns the flight record once all ranks have made this number of calls.
  json flight_after(std::size_t calls) const {
    json seen;
    EXPECT_TRUE(eventually([&] {
      seen = flight();
      if (!seen.contains("ranks") || seen["ranks"].size() != 2) return false;
      for (const json& rank : seen["ranks"]) {
        if (rank["calls"].size() != calls) return false;
      }
      return true;
    })) << seen.dump(2);
    return seen;
  }
  json flight_where_rank_1_is_stopped() const {
    json seen;
    EXPECT_TRUE(eventually([&] {
      seen = flight();
      return seen.contains("ranks") && seen["ranks"].size() == 2 && seen["ranks"][1]["stopped"] &&
             seen["ranks"][0]["calls"].size() == 9;
    })) << seen.dump(2);
    return seen;
  }
  static std::vector<std::string> kinds_of(const json& seen) {
    std::vector<std::string> kinds;
    for (const json& finding : seen["findings"]) kinds.push_back(finding["kind"]);
    return kinds;
  }
  std::string flight_file() const {
    for (const auto& entry : std::filesystem::recursive_directory_iterator(directory_ / "logs")) {
      if (entry.path().filename() == "flight.json") return entry.path();
    }
    return "";
  }
};

TEST_F(FlightTest, WhatEachRankIsInIsToldAlsoOfOneThatIsStopped) {
  auto job = play("0:wait,1:stop");
  const json seen = flight_where_rank_1_is_stopped();
  ASSERT_EQ(seen["ranks"][0]["calls"].size(), 9u);
  const json waiting = seen["ranks"][0]["calls"][8];
  EXPECT_EQ(waiting["call"], "all_reduce");
  EXPECT_EQ(waiting["collective"], 9);
  EXPECT_EQ(waiting["bytes"], 4096);
  EXPECT_FALSE(waiting.contains("ended_ns"));
  EXPECT_EQ(seen["ranks"][1]["calls"].size(), 8u);
  EXPECT_EQ(seen["ranks"][1]["step"], 7);
  EXPECT_THAT(kinds_of(seen), ElementsAre("behind", "stopped"));

  const CommandResult words = run_ddprun({"flight", "--last=2", "train"});
  EXPECT_EQ(words.code, 0) << words.err;
  EXPECT_THAT(words.out, AllOf(HasSubstr("): running, stopped, step 7; 8 calls, the last 2:"),
                               HasSubstr("in progress"), HasSubstr("4.0 KiB")));
  EXPECT_THAT(words.out, HasSubstr("behind: rank 1 has not come to all_reduce of 4096 bytes (sum "
                                   "of float32) (collective 9 of "
                                   "the world), where rank 0 has waited "));
  EXPECT_THAT(words.out,
              HasSubstr("rank 1: stopped, in no call; the last one, all_reduce of 4096"));
  const CommandResult compared = run_ddprun({"flight", "--compare"});
  EXPECT_THAT(compared.out, AllOf(HasSubstr("behind: "), Not(HasSubstr("number"))));
  const CommandResult one = run_ddprun({"flight", "--rank=0"});
  EXPECT_THAT(one.out, AllOf(HasSubstr("rank 0 ("), Not(HasSubstr("rank 1 ("))));
  EXPECT_EQ(run_ddprun({"flight", "--rank=7"}).code, 74);
  EXPECT_EQ(run_ddprun({"stop", "--now"}).code, 0);
  job->wait();
}

TEST_F(FlightTest, CallsThatDifferAreNamedWithWhereTheyCameFrom) {
  setenv("DDPRUN_TRACE", "1", 1);
  auto job = play("0:wait,1:other");
  unsetenv("DDPRUN_TRACE");
  const json seen = flight_after(9);
  ASSERT_THAT(kinds_of(seen), testing::Contains("mismatch"));
  const std::string text = seen["findings"][0]["text"];
  EXPECT_THAT(text, HasSubstr("collective 9 of the world differs between ranks: rank 0 called "
                              "all_reduce of 4096 bytes (sum of float32), from "));
  EXPECT_THAT(text, HasSubstr("rank 1 called all_gather of 4194304 bytes"));
  EXPECT_THAT(text, HasSubstr("hang_worker")) << "the program, as addr2line takes it";
  EXPECT_EQ(run_ddprun({"stop", "--now"}).code, 0);
  job->wait();
}

TEST_F(FlightTest, WhatAKilledRankHasDoneIsKept) {
  auto job = play("0:wait,1:wait", {"--log-dir=logs"});
  const json seen = flight_after(9);
  kill(seen["ranks"][1]["pid"].get<pid_t>(), SIGKILL);
  EXPECT_EQ(job->wait(), 128 + SIGKILL) << job->err();
  const std::string path = flight_file();
  ASSERT_NE(path, "") << job->err();
  EXPECT_THAT(path, HasSubstr("/attempt_0/flight.json"));
  EXPECT_THAT(job->err(), HasSubstr("the last calls of this node's ranks: ddprun flight " + path));
  const json file = json::parse(read_file(path));
  ASSERT_EQ(file.size(), 2u);
  EXPECT_EQ(file[1]["rank"], 1);
  EXPECT_EQ(file[1]["lives"], false);
  ASSERT_EQ(file[1]["calls"].size(), 9u);
  EXPECT_EQ(file[1]["calls"][8]["collective"], 9);
  EXPECT_FALSE(file[1]["calls"][8].contains("ended_ns"));

  const CommandResult words = run_ddprun({"flight", path});
  EXPECT_EQ(words.code, 0) << words.err;
  EXPECT_THAT(words.out, AllOf(HasSubstr("ended: rank 1: "), HasSubstr("SIGKILL"),
                               HasSubstr("in all_reduce of 4096 bytes")));
  const CommandResult trace = run_ddprun({"flight", "--chrome-trace=trace.json", path});
  EXPECT_EQ(trace.code, 0) << trace.err;
  const json events = json::parse(read_file(directory_ / "trace.json"))["traceEvents"];
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const json& event) { return event["name"] == "all_reduce"; }),
            18);
}

TEST_F(FlightTest, AGenerationThatEndsWellLeavesNone) {
  auto job = play("", {"--log-dir=logs"});
  EXPECT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(flight_file(), "");
}

TEST_F(FlightTest, TheServiceTellsOfAllNodes) {
  start_service();
  const auto node = [&] {
    return launch({"--rdzv-endpoint=" + endpoint_, "--rdzv-id=train", "--nnodes=2",
                   "--nproc-per-node=1", program("hang_worker"), "0:wait,1:load"});
  };
  auto first = node();
  auto second = node();
  ASSERT_TRUE(first->wait_for_out("ready")) << first->err();
  ASSERT_TRUE(second->wait_for_out("ready")) << second->err();
  const CommandResult asked = ask({"flight", "--json", "train"});
  ASSERT_EQ(asked.code, 0) << asked.err;
  const json seen = asked.object();
  ASSERT_EQ(seen["ranks"].size(), 2u) << asked.err;
  EXPECT_EQ(seen["ranks"][0]["calls"].size(), 9u);
  EXPECT_EQ(seen["ranks"][1]["calls"].size(), 8u);
  EXPECT_THAT(kinds_of(seen), ElementsAre("behind"));
  EXPECT_THAT(ask({"flight", "--rank=1", "train"}).out,
              AllOf(HasSubstr("rank 1 ("), Not(HasSubstr("rank 0 ("))));
  const CommandResult traced = ask({"trace", "-o", "all.json", "train"});
  EXPECT_EQ(traced.code, 0) << traced.err;
  EXPECT_THAT(
      read_file(directory_ / "all.json"),
      AllOf(HasSubstr("\"rank 1 on "), HasSubstr("generation 0 with 2 workers on 2 nodes")));
  EXPECT_EQ(ask({"flight", "nobody"}).code, 72);
  EXPECT_EQ(ask({"stop", "--now", "train"}).code, 0);
  first->wait();
  second->wait();
}

// --- ranks that ddprun did not start

class FlightOfProcesses : public FlightTest {
 protected:
  // Starts rank `rank` of two.
  std::unique_ptr<ChildProcess> rank(int rank, const std::string& plays) const {
    return std::make_unique<ChildProcess>(
        Arguments{program("hang_worker"), plays},
        environment({{"RANK", std::to_string(rank)}, {"WORLD_SIZE", "2"}}));
  }
  static std::string pid_of(const std::unique_ptr<ChildProcess>& process) {
    return std::to_string(process->pid());
  }
};

TEST_F(FlightOfProcesses, WhatEachRankIsInIsToldAlsoOfOneThatIsStopped) {
  auto first = rank(0, "0:wait,1:stop");
  auto second = rank(1, "0:wait,1:stop");
  ASSERT_TRUE(first->wait_for_out("ready") && second->wait_for_out("ready")) << first->err();
  const std::string pids = "--pid=" + pid_of(second) + "," + pid_of(first);
  json seen;
  EXPECT_TRUE(eventually([&] {  // it reports its call, and then stops itself
    seen = flight({pids});
    return seen.contains("ranks") && seen["ranks"].size() == 2 && seen["ranks"][1]["stopped"];
  })) << seen.dump(2);
  EXPECT_EQ(seen["ranks"][0]["rank"], 0);
  EXPECT_EQ(seen["ranks"][0]["pid"], first->pid());
  EXPECT_EQ(seen["ranks"][0]["state"], "running");
  EXPECT_EQ(seen["ranks"][0]["calls"].size(), 9u);
  EXPECT_EQ(seen["ranks"][1]["local_rank"], 1);
  EXPECT_EQ(seen["ranks"][1]["calls"].size(), 8u);
  EXPECT_EQ(seen["ranks"][1]["step"], 7);
  EXPECT_THAT(kinds_of(seen), ElementsAre("behind", "stopped"));
  const CommandResult compared = run_ddprun({"flight", pids, "--compare"});
  EXPECT_EQ(compared.code, 0) << compared.err;
  EXPECT_THAT(compared.out,
              HasSubstr("behind: rank 1 has not come to all_reduce of 4096 bytes (sum of float32) "
                        "(collective 9 of the world), where rank 0 has waited "));
}

TEST_F(FlightOfProcesses, OthersThatWereNamedAreSaidAndTheRanksAreShown) {
  auto lonely = rank(0, "0:load,1:load");
  auto second = rank(1, "0:load,1:load");
  ASSERT_TRUE(lonely->wait_for_out("ready") && second->wait_for_out("ready"));
  const CommandResult some =
      run_ddprun({"flight", "--pid", pid_of(lonely), "--pid=" + std::to_string(getpid())});
  EXPECT_EQ(some.code, 0) << some.err;
  EXPECT_THAT(some.out, HasSubstr("rank 0 (local rank 0 on "));
  EXPECT_THAT(some.err, HasSubstr("process " + std::to_string(getpid()) +
                                  " has no flight record of its own"));
  EXPECT_EQ(run_ddprun({"flight", "--rank=1", "--pid=" + pid_of(lonely)}).code, 74);
}

TEST_F(FlightOfProcesses, OfSeveralJobsAreRefusedAndOfNoneTellNothing) {
  auto one = rank(0, "0:load");
  auto second = rank(1, "");
  ASSERT_TRUE(one->wait_for_out("ready"));
  EXPECT_EQ(second->wait(), 0) << second->err();
  auto another = rank(0, "0:load");
  ASSERT_TRUE(another->wait_for_out("ready"));
  const CommandResult both = run_ddprun({"flight", "--pid=" + pid_of(one) + "," + pid_of(another)});
  EXPECT_EQ(both.code, 2);
  EXPECT_EQ(both.err, "ddprun: error: --pid: process " + pid_of(one) + " and process " +
                          pid_of(another) + " are both rank 0: give the processes of one job\n");
  const CommandResult gone = run_ddprun({"flight", "--pid=" + pid_of(second)});
  EXPECT_EQ(gone.code, 72);
  EXPECT_EQ(gone.err, "ddprun: error: --pid: there is no process " + pid_of(second) + "\n");
}

TEST_F(FlightOfProcesses, ThatDdprunHasStartedAreTheJobs) {
  auto job = play("0:wait,1:wait");
  const json seen = flight_after(9);
  const std::string pid = std::to_string(seen["ranks"][0]["pid"].get<pid_t>());
  const CommandResult worker = run_ddprun({"flight", "--pid=" + pid});
  EXPECT_EQ(worker.code, 72);
  EXPECT_THAT(worker.err, HasSubstr("process " + pid +
                                    " has no flight record of its own: it is not a rank of this "
                                    "ddprun's library, or ddprun started it"));
  EXPECT_EQ(run_ddprun({"stop", "--now"}).code, 0);
  job->wait();
}

TEST_F(FlightTest, WhatCannotBeShownIsSaid) {
  EXPECT_EQ(run_ddprun({"flight"}).code, 72);
  const CommandResult missing = run_ddprun({"flight", "./nothing.json"});
  EXPECT_EQ(missing.code, 73);
  EXPECT_THAT(missing.err, HasSubstr("read ./nothing.json"));
  directory_.write("odd.json", "{}");
  const CommandResult odd = run_ddprun({"flight", "odd.json"});
  EXPECT_EQ(odd.code, 73);
  EXPECT_THAT(odd.err, HasSubstr("odd.json: not a flight.json"));
  directory_.write("none.json", "[]");
  EXPECT_THAT(run_ddprun({"flight", "none.json"}).out, HasSubstr("no calls were recorded"));
  const CommandResult nowhere =
      run_ddprun({"flight", "--chrome-trace=/nowhere/trace", "none.json"});
  EXPECT_EQ(nowhere.code, 73);
  EXPECT_THAT(nowhere.err, HasSubstr("--chrome-trace: write /nowhere/trace"));
}

// --- stacks

TEST_F(FlightTest, StacksShowWhereEachRankIs) {
  if (std::system("command -v gdb >/dev/null") != 0) GTEST_SKIP() << "gdb is not installed";
  start_service();
  // Ranks 0 and 2 sleep, rank 1 waits for a pipe that has no writer.
  ASSERT_EQ(mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  const std::string script =
      "echo $$ >pid.new.$RANK; mv pid.new.$RANK pid.$RANK; "
      "if [ $RANK = 1 ]; then exec cat pipe; fi; exec sleep 1000";
  auto job = launch({"--rdzv-endpoint=" + endpoint_, "--rdzv-id=train", "--nproc-per-node=3", "sh",
                     "-c", script});
  const auto pid_of_rank = [this](int rank) {
    return std::atoi(read_file(directory_ / ("pid." + std::to_string(rank))).c_str());
  };
  const auto executes = [&](int rank, const std::string& name) {
    const pid_t pid = pid_of_rank(rank);
    return pid > 0 && read_file("/proc/" + std::to_string(pid) + "/comm") == name + "\n";
  };
  ASSERT_TRUE(eventually([&] {
    return executes(0, "sleep") && executes(1, "cat") && executes(2, "sleep");
  })) << job->err();

  const CommandResult here = run_ddprun({"stacks", "train"});
  EXPECT_EQ(here.code, 0) << here.err;
  EXPECT_THAT(here.out, AllOf(HasSubstr("ranks 0,2: "), HasSubstr("nanosleep"),
                              HasSubstr("\nrank 1: "), HasSubstr("open")));
  const CommandResult of_one = run_ddprun({"stacks", "--json", "--rank=1"});
  ASSERT_EQ(of_one.code, 0) << of_one.err;
  const json one = of_one.object();
  ASSERT_EQ(one.at("ranks").size(), 1u) << one.dump(2);
  EXPECT_EQ(one["ranks"][0]["rank"], 1);
  EXPECT_EQ(one["ranks"][0]["pid"], pid_of_rank(1));
  const CommandResult remote = ask({"stacks", "--json", "train"});
  EXPECT_EQ(remote.code, 0) << remote.err;
  EXPECT_EQ(remote.object()["ranks"].size(), 3u) << remote.out;
  EXPECT_EQ(run_ddprun({"stacks", "--rank=7"}).code, 74);

  ASSERT_EQ(kill(pid_of_rank(0), SIGSTOP), 0);
  ASSERT_TRUE(eventually([&] {
    const CommandResult seen = run_ddprun({"stacks", "--json", "--rank=0"});
    if (seen.code != 0) return false;
    const json rank = seen.object().at("ranks").at(0);
    return rank.at("is_stopped") == true && rank.at("frames").empty();
  }));
  EXPECT_EQ(run_ddprun({"stop", "--now"}).code, 0);
  EXPECT_EQ(run_ddprun({"stacks"}).code, 72);
}

TEST_F(FlightTest, StacksNameTheCallThatARankWaitsIn) {
  if (std::system("command -v gdb >/dev/null") != 0) GTEST_SKIP() << "gdb is not installed";
  auto job = play("0:wait,1:stop");
  json ranks;
  ASSERT_TRUE(eventually([&] {
    ranks = run_ddprun({"stacks", "--json"}).object()["ranks"];
    return ranks.size() == 2 && ranks[0].contains("call") && ranks[1]["is_stopped"] == true;
  })) << ranks.dump(2);
  EXPECT_THAT(ranks[0]["call"].get<std::string>(), HasSubstr("all_reduce"));
  EXPECT_THAT(ranks[0]["frames"].dump(), HasSubstr("pause")) << "its stack is there, too";
  const CommandResult words = run_ddprun({"stacks"});
  EXPECT_THAT(words.out, AllOf(HasSubstr("rank 0: in all_reduce"), HasSubstr("rank 1: state T")));
  EXPECT_EQ(run_ddprun({"stop", "--now"}).code, 0);
}

}  // namespace
}  // namespace ddprun::testing_support
