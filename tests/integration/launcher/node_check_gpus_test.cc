// Tests the check of GPUs by --node-check, with a double of the CUDA driver that runs the PTX.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <fstream>
#include <optional>
#include <thread>

#include "base/pipe.h"
#include "base/write_all.h"
#include "launcher/node_check/node_check.h"
#include "tests/integration/launcher/launcher_frame.h"
#include "tests/support/read_file.h"
#include "tests/support/whole.h"

namespace ddprun::testing_support {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// Limits that the double keeps, and a machine with a sanitizer or other work.
const std::string kCheck = "--node-check=gpu=1,core=5000,memory=1,loopback=0.1";

// Variables of a host with two GPUs and this fault.
Variables two_gpus(const std::string& fault, const std::string& driver = CUDA_DOUBLE_DIR) {
  return {{"LD_LIBRARY_PATH", driver}, {"DDPRUN_TEST_GPUS", "1b,9d"}, {"DDPRUN_TEST_CUDA", fault}};
}

// Returns a plan that a healthy host passes, also with a sanitizer. ddprun: the program that checks
// GPUs.
NodeCheckPlan plan_of(const std::string& ddprun, const GpuPatience& patience) {
  return {.limits = {.core = std::chrono::seconds(5),
                     .memory = 1e6,
                     .loopback = 1e5,
                     .gpu = 1,
                     .throttled = 0.99},
          .workers = 2,
          .ddprun = ddprun,
          .gpu_patience = patience};
}

class NodeCheckGpusTest : public LauncherTest {
 protected:
  // Runs a job of two workers, which --node-check refuses. Returns what it reports.
  std::string refused(const Variables& variables) {
    auto job = start({kCheck, "--nproc-per-node=2", "sh", "-c", "echo started"}, variables);
    EXPECT_EQ(job->wait(), 68) << job->err();
    EXPECT_EQ(job->out(), "");
    return job->err();
  }

  // Returns what a check of the node finds with these variables. before: what a shell runs before
  // each process that checks GPUs. "$4" is the number of the GPU in the second check.
  std::string found(const Variables& variables, const GpuPatience& patience,
                    const std::string& before = "") {
    const std::string script = directory_ / "ddprun";
    {
      std::ofstream file(script);
      file << "#!/bin/sh\n";
      for (const auto& [name, value] : environment(variables).variables) {
        file << "export " << name << "='" << value << "'\n";
      }
      file << before << "\n";
      file << "exec " << program("ddprun") << " \"$@\"\n";
    }
    std::filesystem::permissions(script, std::filesystem::perms::owner_all);
    boost::asio::io_context io;
    std::optional<std::string> result;
    NodeCheck check(io, [&](Generation, const std::string& fault) { result = fault; });
    check.begin(plan_of(script, patience));
    EXPECT_TRUE(eventually_on(
        io, [&] { return result.has_value(); }, std::chrono::minutes(2)));
    return result.value_or("no result");
  }
};

TEST_F(NodeCheckGpusTest, HealthyGpusAreFit) {
  auto job = start({kCheck, "--nproc-per-node=2", "true"}, two_gpus(""));
  EXPECT_EQ(job->wait(), 0) << job->err();
  auto check = start({kGpuCheckCommand, "2", "1"}, two_gpus(""));
  EXPECT_EQ(check->wait(), 0) << check->err();
  EXPECT_THAT(check->out(), HasSubstr("gpus 0000:1b:00.0 0000:9d:00.0\n"));
  EXPECT_THAT(check->out(), HasSubstr("\n0 \n"));
  EXPECT_THAT(check->out(), HasSubstr("\n1 \n"));
}

TEST_F(NodeCheckGpusTest, TheSpeedsOfTheSlowestGpuAndFaultsAreMeasured) {
  auto fit = start({kGpuSpeedsCommand}, two_gpus(""));
  EXPECT_EQ(fit->wait(), 0) << fit->err();
  const auto speeds = read_gpu_speeds(fit->out());
  ASSERT_TRUE(speeds) << fit->out();
  EXPECT_EQ(speeds->gpus, 2);
  EXPECT_EQ(speeds->fault, "");
  EXPECT_GT(speeds->multiplies_per_s, 1e5);
  EXPECT_LT(speeds->multiplies_per_s, 1e10);

  // 512 KiB in 20 ms are 26 MB/s.
  auto slow = start({kGpuSpeedsCommand}, two_gpus("slow-copy@1"));
  EXPECT_EQ(slow->wait(), 0) << slow->err();
  const auto slowest = read_gpu_speeds(slow->out());
  ASSERT_TRUE(slowest) << slow->out();
  EXPECT_LT(slowest->bytes_per_s, 27e6);

  auto crash = start({kGpuSpeedsCommand}, two_gpus("crash@1"));
  EXPECT_EQ(crash->wait(), 0) << crash->err();
  const auto left = read_gpu_speeds(crash->out());
  ASSERT_TRUE(left) << crash->out();
  EXPECT_GT(left->bytes_per_s, 1e6) << "the other GPU is measured again";
  EXPECT_EQ(left->fault, "gpu 1 (0000:9d:00.0): its check ended without a result");
}

TEST_F(NodeCheckGpusTest, FindsEachFaultOfAGpu) {
  for (int i = 0; i < (is_whole() ? 100 : 1); ++i) {
    for (const char* bit : {"bit-at-0@1", "bit-at-1@1"}) {
      EXPECT_THAT(refused(two_gpus(bit)),
                  HasSubstr("gpu 1 (0000:9d:00.0): memory: 2 words are not what was written"));
    }
    EXPECT_THAT(refused(two_gpus("wrong-product@0")),
                ContainsRegex("gpu 0 \\(0000:1b:00.0\\): a known product gave [0-9]+ instead of"));
  }
}

TEST_F(NodeCheckGpusTest, FindsASlowGpu) {
  // 512 KiB in 20 ms are 26 MB/s.
  auto job = start({"--node-check=gpu=100,core=5000,memory=1,loopback=0.1", "true"},
                   two_gpus("slow-copy"));
  EXPECT_EQ(job->wait(), 68) << job->err();
  EXPECT_THAT(job->err(),
              ContainsRegex("gpu 0 \\(0000:1b:00.0\\): memory: [0-9.]+ MB/s \\(limit 100 MB/s\\)"));
}

TEST_F(NodeCheckGpusTest, ACallOfTheDriverThatFailsIsNamed) {
  EXPECT_THAT(refused(two_gpus("cuMemAlloc@1")),
              HasSubstr("gpu 1 (0000:9d:00.0): cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY"));
  for (const char* call : {"cuDevicePrimaryCtxRetain", "cuCtxSynchronize", "cuMemcpyDtoH"}) {
    const std::string expected = std::string(call) + ": CUDA_ERROR_INVALID_VALUE";
    EXPECT_THAT(refused(two_gpus(call)), HasSubstr("gpu 0 (0000:1b:00.0): " + expected)) << call;
  }
  EXPECT_THAT(refused(two_gpus("cuDeviceGetCount")),
              HasSubstr("gpu: cuDeviceGetCount: CUDA_ERROR_INVALID_VALUE"));
  EXPECT_THAT(refused(two_gpus("init=999")), HasSubstr("gpu: cuInit: error 999"));
}

TEST_F(NodeCheckGpusTest, ADriverThatLacksAFunctionIsNamed) {
  EXPECT_THAT(refused(two_gpus("", POOR_CUDA_DOUBLE_DIR)),
              HasSubstr("gpu: libcuda.so.1 has no function cuLaunchKernel"));
}

TEST_F(NodeCheckGpusTest, GpusThatHangAreNamedAndTheirProcessEnds) {
  const GpuPatience patience{std::chrono::seconds(5), std::chrono::seconds(4)};
  const std::string why = "no result within 4.0 s";
  EXPECT_EQ(found(two_gpus("hang"), patience),
            "gpu 0 (0000:1b:00.0): " + why + "; gpu 1 (0000:9d:00.0): " + why);
}

// The driver holds up all GPUs of the process while one of them hangs. The other one has to be done
// in time when it is checked again. The first check has to tell only which GPUs there are.
TEST_F(NodeCheckGpusTest, OnlyTheGpuThatHangsIsNamed) {
  const GpuPatience patience{std::chrono::seconds(5), std::chrono::seconds(20)};
  EXPECT_EQ(found(two_gpus("hang-all@1"), patience),
            "gpu 1 (0000:9d:00.0): no result within 20.0 s");
}

// In the second check the driver lists one GPU less, which works. The others get other numbers.
TEST_F(NodeCheckGpusTest, AGpuThatIsLostBeforeTheSecondCheckIsNamed) {
  const GpuPatience patience{std::chrono::seconds(5), std::chrono::seconds(60)};
  const auto later = [](const std::string& gpus) {
    return "test -z \"$4\" || export DDPRUN_TEST_CUDA= DDPRUN_TEST_GPUS=" + gpus;
  };
  const std::string first = "gpu 0 (0000:1b:00.0): ", second = "gpu 1 (0000:9d:00.0): ";
  const std::string lost = "the driver does not list it any more";
  EXPECT_EQ(found(two_gpus("hang"), patience, later("1b")), second + lost);
  EXPECT_EQ(found(two_gpus("hang"), patience, later("9d")),
            first + lost + "; " + second +
                "the driver gives it another number now, so another GPU was lost");
  EXPECT_EQ(found(two_gpus("hang"), patience, later("")), first + lost + "; " + second + lost);
}

TEST_F(NodeCheckGpusTest, ACheckThatIsDroppedKillsItsProcessAndStartsNoOther) {
  const std::string script = directory_ / "ddprun", started = directory_ / "started";
  std::ofstream(script) << "#!/bin/sh\necho gpus a b\necho $$ >>" << started
                        << "\nexec sleep 1000\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  const auto is_started = [&] { return read_file(started).ends_with('\n'); };
  // The number is the process's id, and there is only one line.
  const auto is_killed = [&] {
    int status = 0;
    return waitpid(std::stoi(read_file(started)), &status, WNOHANG) > 0 && WIFSIGNALED(status);
  };
  boost::asio::io_context io;
  NodeCheck check(io, [](Generation, const std::string&) { ADD_FAILURE() << "it was dropped"; });
  check.begin(plan_of(script, {std::chrono::minutes(10), std::chrono::minutes(10)}));
  ASSERT_TRUE(eventually(is_started));
  check.end();
  EXPECT_TRUE(eventually(is_killed));
  io.run();

  std::filesystem::remove(started);
  const Pipe stop = *make_pipe();
  std::thread blocked([&] {
    check_gpus({.ddprun = script,
                .gpus = 2,
                .limit = 1,
                .patience = {std::chrono::minutes(10), std::chrono::minutes(10)},
                .stop = stop.read.get()});
  });
  EXPECT_TRUE(eventually(is_started));
  EXPECT_TRUE(write_all(stop.write.get(), "s"));
  blocked.join();
  EXPECT_TRUE(eventually(is_killed));
  const std::string lines = read_file(started);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 1) << lines;
}

TEST_F(NodeCheckGpusTest, AJobEndsAtOnceWhileAGpuHangs) {
  auto job = start({kCheck, "true"}, two_gpus("hang"));
  ASSERT_TRUE(eventually([this] {
    return describe_processes(left_behind()).find(kGpuCheckCommand) != std::string::npos;
  })) << job->err();
  job->signal(SIGTERM);
  EXPECT_EQ(job->wait(), 128 + SIGTERM) << job->err();
}

TEST_F(NodeCheckGpusTest, ADriverThatCrashesHarmsOnlyTheCheck) {
  const std::string report = refused(two_gpus("crash@1"));
  EXPECT_THAT(report, HasSubstr("gpu 1 (0000:9d:00.0): its check ended without a result"));
  EXPECT_THAT(report, Not(HasSubstr("gpu 0"))) << "it is checked again, without the other one";
}

TEST_F(NodeCheckGpusTest, AGpuWithAFaultIsNamedBesideOneThatCrashes) {
  const std::string report = refused(two_gpus("crash@0,bit-at-1@1"));
  EXPECT_THAT(report, HasSubstr("gpu 0 (0000:1b:00.0): its check ended without a result; "
                                "gpu 1 (0000:9d:00.0): memory: 2 words"));
}

TEST_F(NodeCheckGpusTest, ACheckThatCannotBeStartedIsTold) {
  EXPECT_EQ(check_gpus({.ddprun = directory_ / "no-such", .limit = 1}),
            "gpu: its check could not be started");
}

TEST_F(NodeCheckGpusTest, ASmallLimitIsNotZero) {
  auto job = start({"--node-check=gpu=1e-7,core=5000,memory=1,loopback=0.1", "true"}, two_gpus(""));
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(NodeCheckGpusTest, ANodeWithoutGpusIsFit) {
  Variables none = two_gpus("");
  none[1].second = "";
  for (const Variables& variables : {none, two_gpus("init=34"), two_gpus("init=100")}) {
    auto job = start({kCheck, "true"}, variables);
    EXPECT_EQ(job->wait(), 0) << job->err();
  }
}

TEST_F(NodeCheckGpusTest, OnlyGpusThatWorkersUseAreChecked) {
  auto one_worker = start({kCheck, "true"}, two_gpus("bit-at-1@1"));
  EXPECT_EQ(one_worker->wait(), 0) << one_worker->err();
  auto off =
      start({"--node-check=gpu=0,core=5000,memory=1,loopback=0.1", "true"}, two_gpus("bit-at-1"));
  EXPECT_EQ(off->wait(), 0) << off->err();
}

TEST_F(NodeCheckGpusTest, TheHiddenCommandRefusesWrongArguments) {
  for (const Arguments& wrong : {Arguments{},
                                 {"1"},
                                 {"1", "1", "1"},
                                 {"1", "1", "-1"},
                                 {"1", "1", "x"},
                                 {"0", "1"},
                                 {"x", "1"},
                                 {"1", "-1"},
                                 {"1", "nan"}}) {
    Arguments arguments{kGpuCheckCommand};
    arguments.insert(arguments.end(), wrong.begin(), wrong.end());
    auto check = start(arguments, two_gpus(""));
    EXPECT_EQ(check->wait(), 2) << check->out();
    EXPECT_THAT(check->err(), HasSubstr("node-check-gpus: expected a number of GPUs"));
  }
}

}  // namespace
}  // namespace ddprun::testing_support
