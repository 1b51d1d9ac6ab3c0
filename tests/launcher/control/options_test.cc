#include "launcher/control/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

namespace ddprun {
namespace {

using testing::HasSubstr;

ControlCommand command_of(std::string_view name) { return *parse_enum(kControlCommandWords, name); }

Result<ControlOptions> parse(std::string_view command, const std::vector<std::string>& arguments) {
  return parse_control_options(command_of(command), arguments);
}

TEST(ControlOptions, TakesOptionsAndTheJobInAnyOrder) {
  const Result<ControlOptions> logs =
      parse("logs", {"-f", "train", "--rank=3", "-n", "7", "--json"});
  ASSERT_TRUE(logs) << logs.error().message();
  EXPECT_TRUE(logs->follow && logs->json);
  EXPECT_EQ(logs->rank, Rank(3));
  EXPECT_EQ(logs->lines, 7);
  EXPECT_EQ(logs->job, "train");
}

TEST(ControlOptions, FlightRecordsAreOfAJobOrOfFiles) {
  const Result<ControlOptions> job =
      parse("flight", {"--last=3", "--compare", "--chrome-trace=t", "--rank=1", "train"});
  ASSERT_TRUE(job) << job.error().message();
  EXPECT_EQ(job->last, 3);
  EXPECT_TRUE(job->only_compares);
  EXPECT_EQ(job->trace_file, "t");
  EXPECT_EQ(job->rank, Rank(1));
  EXPECT_EQ(job->job, "train");
  EXPECT_TRUE(job->files.empty());
  const Result<ControlOptions> files = parse("flight", {"flight.json", "logs/other"});
  ASSERT_TRUE(files) << files.error().message();
  EXPECT_EQ(files->files, (std::vector<std::string>{"flight.json", "logs/other"}));
  EXPECT_EQ(files->job, "");
  for (const char* id : {"team/train", "train.json"}) {
    const Result<ControlOptions> named = parse("flight", {"--", id});
    ASSERT_TRUE(named) << named.error().message();
    EXPECT_EQ(named->job, id);
    EXPECT_TRUE(named->files.empty());
  }
  EXPECT_FALSE(parse("flight", {"flight.json", "train"})) << "one of both";
  EXPECT_FALSE(parse("flight", {"--rdzv-endpoint=node0", "flight.json"}));
  EXPECT_FALSE(parse("flight", {"--rdzv-endpoint=node0"})) << "which job?";
  for (const char* none : {"-1", "1025", "x"}) {
    EXPECT_FALSE(parse("flight", {"--last", none})) << none;
  }
  EXPECT_FALSE(parse("logs", {"--last=3"})) << "of another command";
  const Result<ControlOptions> processes = parse("flight", {"--pid=7,8", "--pid", "9"});
  ASSERT_TRUE(processes) << processes.error().message();
  EXPECT_EQ(processes->processes, (std::vector<pid_t>{7, 8, 9}));
  for (const char* none : {"0", "-1", "x", "7,", ",7", "7,,8", "99999999999"}) {
    EXPECT_EQ(parse("flight", {"--pid", none}).error().message(),
              "--pid: invalid value '" + std::string(none) +
                  "' (expected process ids, such as 4711 or 4711,4712)");
  }
  for (const char* other : {"train", "flight.json"}) {
    EXPECT_FALSE(parse("flight", {"--pid=7", other})) << "one of both";
  }
  EXPECT_FALSE(parse("flight", {"--pid=7", "--rdzv-endpoint=node0", "train"}));
  EXPECT_FALSE(parse("stop", {"train.json", "a/b"})) << "one job at a time";
}

TEST(ControlOptions, ATraceIsOfAJobOrOfFilesAndHasAnOutput) {
  const Result<ControlOptions> job = parse("trace", {"-o", "t.json.gz", "train"});
  ASSERT_TRUE(job) << job.error().message();
  EXPECT_TRUE(job->is_trace);
  EXPECT_EQ(job->what, UserRequest::What::kFlight);
  EXPECT_EQ(job->trace_file, "t.json.gz");
  EXPECT_EQ(job->job, "train");
  EXPECT_EQ(parse("trace", {"--output=t.json", "a.json"})->files.size(), 1u);
  EXPECT_EQ(parse("trace", {"train"}).error().message(),
            "-o: the value is missing (expected FILE, such as trace.json.gz)");
  EXPECT_FALSE(parse("trace", {"-o", "t.txt"}));
  EXPECT_FALSE(parse("flight", {"-o", "t.json"})) << "of another command";
  EXPECT_FALSE(parse("flight", {})->is_trace);
}

TEST(ControlOptions, ASignalIsItsNameOrItsNumber) {
  for (const char* name : {"USR1", "SIGUSR1", "sigusr1", "usr1"}) {
    const Result<ControlOptions> signal = parse("signal", {name, "train"});
    ASSERT_TRUE(signal) << signal.error().message();
    EXPECT_EQ(signal->signal, SIGUSR1);
    EXPECT_EQ(signal->job, "train");
  }
  EXPECT_EQ(parse("signal", {"9"})->signal, 9);
  for (const char* none : {"0", "65", "-1", "USR3", ""}) {
    EXPECT_FALSE(parse("signal", {"--", none})) << none;
  }
}

TEST(ControlOptions, TheServiceIsReachedWithTheOptionsOfAJob) {
  const Result<ControlOptions> stop = parse(
      "stop", {"--rdzv_endpoint", "node0:29400", "--rdzv-key-file=k", "--timeout=5", "train"});
  ASSERT_TRUE(stop) << stop.error().message();
  EXPECT_EQ(stop->service.rdzv_endpoint, "node0:29400");
  EXPECT_EQ(stop->service.rdzv_key_file, "k");
  EXPECT_EQ(stop->timeout, std::chrono::seconds(5));
  EXPECT_FALSE(parse("logs", {"--rdzv-endpoint=node0"}));
  EXPECT_FALSE(parse("stop", {"--rdzv-endpoint=node0"})) << "which job?";
  EXPECT_FALSE(parse("stop", {"--rdzv-endpoint=", "train"})) << "of this host?";
  EXPECT_TRUE(parse("status", {"--rdzv-endpoint=node0"})) << "all of them";
}

TEST(ControlOptions, AnElectedServiceIsThatOfAJob) {
  const Result<ControlOptions> status = parse(
      "status",
      {"--rdzv-backend=etcd", "--rdzv-endpoint=e1,e2", "--rdzv-conf=etcd_prefix=/team", "train"});
  ASSERT_TRUE(status) << status.error().message();
  EXPECT_EQ(status->service.rdzv_backend, RdzvBackend::kEtcd);
  EXPECT_EQ(parse("status", {"--rdzv-backend=etcd", "--rdzv-endpoint=e1"}).error().message(),
            "--rdzv-backend: give the id of a job: each job elects its service");
  for (const std::string other : {"static", "etcd-v3", "zookeeper"}) {
    EXPECT_EQ(parse("status", {"--rdzv-backend=" + other, "--rdzv-endpoint=e1"}).error().message(),
              "--rdzv-backend: invalid value '" + other +
                  "' (expected etcd or etcd-v2; other services need only --rdzv-endpoint)");
  }
}

TEST(ControlOptions, HowAServiceIsAskedIsNoUseWithoutOne) {
  EXPECT_EQ(parse("stop", {"--rdzv-key-file=k", "train"}).error().message(),
            "--rdzv-key-file: needs --rdzv-endpoint=HOST:PORT");
}

TEST(ControlOptions, WhatIsNoOptionIsSaidWithTheNearestOne) {
  EXPECT_EQ(parse("status", {"--jsn"}).error().message(),
            "unknown option --jsn: did you mean --json?");
  for (const char* none : {"---", "--frobnicate", "-x"}) {
    EXPECT_THAT(
        parse("status", {none}).error().message(),
        HasSubstr("unknown option " + std::string(none) + "; ddprun status --help lists them"));
  }
}

TEST(ControlOptions, AJobMayBeCalledAsAnOption) {
  const Result<ControlOptions> stop = parse("stop", {"--", "--now"});
  ASSERT_TRUE(stop);
  EXPECT_EQ(stop->job, "--now");
  EXPECT_FALSE(stop->at_once);
}

TEST(ControlOptions, HelpNamesEveryOption) {
  EXPECT_THAT(control_help(command_of("stop")), HasSubstr("--timeout SECONDS"));
  EXPECT_THAT(control_help(command_of("logs")), HasSubstr("-f, --follow"));
  EXPECT_THAT(control_help(command_of("signal")), HasSubstr("--rdzv-tls-ca FILE"));
  EXPECT_EQ(control_usage(command_of("logs")), "[--rank N] [-f] [-n N] [JOB]");
  EXPECT_EQ(control_usage(command_of("trace")), "[-o FILE] [JOB | FILE...]");
  EXPECT_THAT(control_help(command_of("trace")), HasSubstr("-o, --output FILE"));
  EXPECT_EQ(
      control_usage(command_of("flight")),
      "[--rank N] [--last N] [--compare] [--chrome-trace FILE] [--pid PID,...] [JOB | FILE...]");
}

}  // namespace
}  // namespace ddprun
