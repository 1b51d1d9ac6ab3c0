// Tests --bind, --gpu-visibility and OMP_NUM_THREADS: the CPUs and variables of real workers
// on this host. Also tests what --show-binding draws for other machines.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "base/usable_cpus.h"
#include "launcher/machine/core/cpu_set.h"
#include "tests/integration/launcher/launcher_frame.h"

namespace ddprun::testing_support {
namespace {

using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

// A line of shell. It prints one line for each worker.
const char* const kTell =
    "echo cpus=$(grep Cpus_allowed_list /proc/self/status | cut -f2) omp=$OMP_NUM_THREADS";

CpuSet ours() {
  const std::vector<int> usable = usable_cpus();
  return {usable.begin(), usable.end()};
}

// Returns the number of cores. Each core counts once, by the text with which the kernel lists
// its threads.
int cores_of(const CpuSet& cpus) {
  std::set<std::string> cores;
  for (const int cpu : cpus) {
    const std::string siblings = read_file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) +
                                           "/topology/thread_siblings_list");
    cores.insert(siblings.empty() ? std::to_string(cpu) : siblings);
  }
  return static_cast<int>(cores.size());
}

class BindingTest : public LauncherTest {
 protected:
  void SetUp() override {
    LauncherTest::SetUp();
    unsetenv("OMP_NUM_THREADS");
    unsetenv("CUDA_VISIBLE_DEVICES");
    auto asked = start({"--show-binding"});
    if (asked->wait() != 0 && asked->err().find("install libhwloc") != std::string::npos) {
      GTEST_SKIP() << asked->err();
    }
  }

  // Starts ddprun on one CPU alone.
  std::unique_ptr<ChildProcess> start_on(int cpu, const Arguments& arguments) const {
    return std::make_unique<ChildProcess>(
        joined({"taskset", "-c", std::to_string(cpu), program("ddprun")}, arguments),
        environment());
  }

  // The lines that the workers printed, by rank.
  struct Printed {
    CpuSet cpus;
    std::string threads;
  };
  static std::map<int, Printed> printed_by(const ChildProcess& job) {
    std::map<int, Printed> printed;
    for (const std::string& line : lines_of(job.out())) {
      const std::size_t at = line.find("cpus=");
      const std::size_t omp = line.find(" omp=");
      if (at == std::string::npos || omp == std::string::npos) continue;
      const int rank = line.starts_with("[rank ") ? std::stoi(line.substr(6)) : 0;
      printed[rank] = {parse_cpu_list(line.substr(at + 5, omp - at - 5)).value_or(CpuSet()),
                       line.substr(omp + 5)};
    }
    return printed;
  }

  std::string drawing(const Arguments& options, Variables more) const {
    auto shown = start(joined({"--show-binding"}, options), std::move(more));
    EXPECT_EQ(shown->wait(), 0) << shown->err();
    EXPECT_EQ(shown->err(), "");
    return shown->out();
  }
};

// --- on this host

TEST_F(BindingTest, WithoutBindAWorkersAffinityIsItsAgents) {
  auto job = start_shell({"--nproc-per-node=2"}, kTell);
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(job->err(), "");
  const auto printed = printed_by(*job);
  ASSERT_EQ(printed.size(), 2u) << job->out();
  const std::string threads = std::to_string(std::max(1, cores_of(ours()) / 2));
  for (const auto& [rank, worker] : printed) {
    EXPECT_EQ(worker.cpus, ours());
    EXPECT_EQ(worker.threads, threads);
  }
}

TEST_F(BindingTest, BoundWorkersHaveCpusOfTheirOwnAndAThreadForEachCore) {
  if (cores_of(ours()) < 2) GTEST_SKIP() << "needs two cores";
  for (const std::string policy : {"auto", "core", "numa"}) {
    SCOPED_TRACE(policy);
    auto job = start_shell({"--nproc-per-node=2", "--bind", policy}, kTell);
    ASSERT_EQ(job->wait(), 0) << job->err();
    auto printed = printed_by(*job);
    ASSERT_EQ(printed.size(), 2u) << job->out();
    EXPECT_FALSE(printed[0].cpus.empty());
    EXPECT_FALSE(printed[1].cpus.empty());
    EXPECT_EQ(common(printed[0].cpus, printed[1].cpus), CpuSet{});
    for (const int rank : {0, 1}) {
      EXPECT_EQ(common(printed[rank].cpus, ours()), printed[rank].cpus);
      EXPECT_EQ(printed[rank].threads, std::to_string(cores_of(printed[rank].cpus)));
    }
    EXPECT_EQ(lines_of(job->err()).size(), 1u) << job->err();
    EXPECT_THAT(job->err(), HasSubstr("--bind " + policy));
    EXPECT_THAT(job->err(), HasSubstr(": local rank 0 on CPUs " + to_text(printed[0].cpus) +
                                      "; 1 on CPUs " + to_text(printed[1].cpus) + "\n"));
  }
}

TEST_F(BindingTest, WorkersAreBoundAgainAfterARestart) {
  auto job = start_shell({"--nproc-per-node=1", "--bind=core", "--max-restarts=1"},
                         std::string(kTell) + "; [ $TORCHELASTIC_RESTART_COUNT = 1 ] || exit 3");
  ASSERT_EQ(job->wait(), 0) << job->err();
  EXPECT_EQ(lines_of(job->out()).size(), 2u);
  for (const std::string& line : lines_of(job->out())) {
    EXPECT_THAT(line, HasSubstr("cpus=" + to_text(ours())));
  }
}

TEST_F(BindingTest, OnOneCpuOfTheSchedulerAutoSharesAndCoreRefuses) {
  const int cpu = *ours().rbegin();
  auto shared = start_on(cpu, {"--nproc-per-node=2", "--bind=auto", "sh", "-c", kTell});
  ASSERT_EQ(shared->wait(), 0) << shared->err();
  const auto printed = printed_by(*shared);
  ASSERT_EQ(printed.size(), 2u);
  for (const auto& [rank, worker] : printed) {
    EXPECT_EQ(worker.cpus, CpuSet{cpu});
    EXPECT_EQ(worker.threads, "1");
  }
  EXPECT_THAT(shared->err(), HasSubstr("warning: --bind auto: 1 usable core for 2 workers: "));

  auto refused = start_on(cpu, {"--nproc-per-node=2", "--bind=core", "true"});
  EXPECT_EQ(refused->wait(), 2);
  EXPECT_EQ(refused->err(),
            "ddprun: error: --bind: 1 usable core for 2 workers: start at most 1, or give --bind "
            "auto, which lets them share\n");
}

TEST_F(BindingTest, ThreadsAreTheCoresForEachWorkerUnlessTheyAreSet) {
  auto one = start_shell({}, kTell);
  ASSERT_EQ(one->wait(), 0);
  EXPECT_EQ(printed_by(*one)[0].threads, std::to_string(cores_of(ours())));
  auto on_one_cpu = start_on(*ours().begin(), {"sh", "-c", kTell});
  ASSERT_EQ(on_one_cpu->wait(), 0);
  EXPECT_EQ(printed_by(*on_one_cpu)[0].threads, "1");
  for (const Arguments& options : {Arguments{"--nproc-per-node=2"}, Arguments{"--bind=auto"}}) {
    auto set = start_shell(options, kTell, {{"OMP_NUM_THREADS", "17"}});
    ASSERT_EQ(set->wait(), 0) << set->err();
    EXPECT_EQ(printed_by(*set)[0].threads, "17");
  }
  auto given = start_shell({"--env=OMP_NUM_THREADS=3"}, kTell);
  ASSERT_EQ(given->wait(), 0) << given->err();
  EXPECT_EQ(printed_by(*given)[0].threads, "3");
}

TEST_F(BindingTest, ADryRunShowsTheCpusOfEachWorker) {
  auto dry = start({"--dry-run", "--bind=auto", "true"});
  ASSERT_EQ(dry->wait(), 0) << dry->err();
  EXPECT_THAT(dry->out(), HasSubstr("worker with local rank 0, on CPUs " + to_text(ours()) + "\n"));
}

TEST_F(BindingTest, ShowBindingDrawsThisHostAndStartsNothing) {
  const std::string plain = drawing({}, {});
  EXPECT_THAT(plain, HasSubstr("usable: CPUs " + to_text(ours()) + "\n"));
  EXPECT_THAT(plain, ContainsRegex("local rank 0: .* not bound\n"));
  drawing({"--bind=auto", "sh", "-c", "touch started"}, {});
  EXPECT_FALSE(std::filesystem::exists(directory_ / "started"));
  auto on_one_cpu = start_on(*ours().begin(), {"--show-binding", "--bind=numa"});
  ASSERT_EQ(on_one_cpu->wait(), 0) << on_one_cpu->err();
  EXPECT_THAT(on_one_cpu->out(),
              HasSubstr("local rank 0:  CPUs " + to_text(CpuSet{*ours().begin()}) + "  1 core"));
}

// --- on other machines

const Variables kTwoByTwo{{"HWLOC_SYNTHETIC", "pack:2 numa:2 l3:2 core:2 pu:2"}};

TEST_F(BindingTest, ShowBindingDrawsAMachineThatHwlocIsGiven) {
  const std::string text = drawing({"--bind=auto", "--nproc-per-node=8"}, kTwoByTwo);
  EXPECT_THAT(text, HasSubstr(": 2 packages, 4 NUMA nodes, 16 cores, 32 CPUs, "));
  EXPECT_THAT(text, HasSubstr("--bind auto (numa), 8 workers\n"));
  EXPECT_THAT(text, HasSubstr("  package 1\n    NUMA node 2  CPUs 16-23\n      4 4 | 5 5\n"));
  EXPECT_THAT(text, HasSubstr("local rank 7:  CPUs 28-31  2 cores  package 1  NUMA node 3"));
}

TEST_F(BindingTest, TorchrunsWordsMeanWhatTheyMeanThere) {
  const auto row = [&](const std::string& word, int rank) {
    const std::string text = drawing({"--numa-binding", word, "--nproc-per-node=8"}, kTwoByTwo);
    EXPECT_THAT(text, HasSubstr("--numa-binding " + word));
    const std::size_t at = text.find("local rank " + std::to_string(rank));
    return text.substr(at, text.find('\n', at) - at);
  };
  EXPECT_THAT(row("node", 1), HasSubstr("CPUs 0-7  "));
  EXPECT_THAT(row("node", 1), HasSubstr("OMP_NUM_THREADS=2  all of NUMA node 0, shared by 2"));
  EXPECT_THAT(row("socket", 1), HasSubstr("CPUs 0-15 "));
  EXPECT_THAT(row("exclusive", 1), HasSubstr("CPUs 4-7 "));
  EXPECT_THAT(row("core-complex", 7), HasSubstr("CPUs 28-31  2 cores"));
}

TEST_F(BindingTest, AMachineThatThisOneIsNotCanOnlyBeDrawn) {
  auto job = start({"--bind=auto", "true"}, kTwoByTwo);
  EXPECT_EQ(job->wait(), 2);
  EXPECT_THAT(job->err(),
              HasSubstr("--bind: HWLOC_XMLFILE or HWLOC_SYNTHETIC describes another machine"));
  EXPECT_EQ(lines_of(job->err()).size(), 1u);
}

// --- GPUs, with a double of the driver's library

const Variables kTwoGpus{
    {"LD_LIBRARY_PATH", NVML_DOUBLE_DIR},
    {"DDPRUN_TEST_GPUS", "1b,9d"},
    {"HWLOC_XMLFILE", DDPRUN_SOURCE_DIR "/tests/data/two-sockets-two-gpus.xml"}};

Variables with(Variables variables, const std::string& name, const std::string& value) {
  variables.emplace_back(name, value);
  return variables;
}

TEST_F(BindingTest, WorkersAreNextToTheirGpus) {
  for (const std::string policy : {"gpu", "auto"}) {
    const std::string text = drawing({"--bind=" + policy, "--nproc-per-node=2"}, kTwoGpus);
    EXPECT_THAT(text, HasSubstr("local rank 0:  CPUs 4-7  4 cores  package 1  NUMA node 1  GPU 0 "
                                "(0000:1b:00.0)  OMP_NUM_THREADS=4  all of NUMA node 1, next to "
                                "its GPU\n"));
    EXPECT_THAT(text, HasSubstr("local rank 1:  CPUs 0-3  "));
    EXPECT_THAT(text, HasSubstr("NUMA node 0  CPUs 0-3  GPU 1\n"));
  }
}

TEST_F(BindingTest, StatusHasTheUseOfTheGpuOfEachRank) {
  auto job = start_shell({"--nproc-per-node=2", "--rdzv-id=gpus"}, until_go_after("echo up"),
                         with(kTwoGpus, "CUDA_VISIBLE_DEVICES", "1,0"));
  ASSERT_TRUE(job->wait_for_out("up")) << job->err();
  std::string seen;
  EXPECT_TRUE(eventually([&] {
    auto status = start({"status", "gpus", "--json"});
    status->wait();
    seen = status->out();
    return seen.find("\"gpu_percent\":157") != std::string::npos;
  })) << seen;
  EXPECT_THAT(seen, ContainsRegex("\"gpu_memory_bytes\":168577466368,\"gpu_percent\":157[^}]*"
                                  "\"rank\":0"));
  EXPECT_THAT(seen, ContainsRegex("\"gpu_memory_bytes\":28991029248,\"gpu_percent\":27[^}]*"
                                  "\"rank\":1"));
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(BindingTest, StatusHasTheMemoryOfTheGpuThatTheProcessOfARankUses) {
  const Variables driver = with(kTwoGpus, "DDPRUN_TEST_GPU_PROCESSES", directory_ / "pids");
  auto job = start_shell({"--nproc-per-node=2", "--rdzv-id=gpus"},
                         until_go_after("echo $$ >> pids; echo up"), driver);
  ASSERT_TRUE(job->wait_for_out("up")) << job->err();
  nlohmann::json ranks;
  EXPECT_TRUE(eventually([&] {
    auto status = start({"status", "gpus", "--json"});
    status->wait();
    const nlohmann::json seen = nlohmann::json::parse(status->out(), nullptr, false);
    if (seen.is_discarded()) return false;
    ranks = seen.value("/agents/0/ranks"_json_pointer, nlohmann::json::array());
    return ranks.size() == 2 && std::ranges::all_of(ranks, [](const nlohmann::json& rank) {
             return rank.contains("gpu_own_memory_bytes");
           });
  })) << ranks;
  for (const nlohmann::json& rank : ranks) {
    EXPECT_EQ(rank.value("gpu_own_memory_bytes", 0LL),
              rank.value("gpu_memory_bytes", 0LL) - rank.value("pid", 0LL));
  }
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(BindingTest, ADriverThatDoesNotAnswerHoldsNothingUp) {
  auto job = start_shell({"--nproc-per-node=2", "--rdzv-id=gpus"}, until_go_after("echo up"),
                         with(kTwoGpus, "DDPRUN_TEST_GPU_HANGS", "1"));
  ASSERT_TRUE(job->wait_for_out("up")) << job->err();
  for (int i = 0; i < 3; ++i) {
    auto status = start({"status", "gpus", "--json"});
    EXPECT_EQ(status->wait(), 0) << status->err();
    EXPECT_THAT(status->out(), HasSubstr("\"memory_bytes\":"));
    EXPECT_THAT(status->out(), testing::Not(HasSubstr("gpu_percent")));
  }
  let_go();
  EXPECT_EQ(job->wait(), 0) << job->err();
}

TEST_F(BindingTest, TheGpuOfAWorkerIsThatOfCudaVisibleDevices) {
  const std::string text = drawing({"--bind=gpu", "--nproc-per-node=2"},
                                   with(kTwoGpus, "CUDA_VISIBLE_DEVICES", "GPU-9d,0"));
  EXPECT_THAT(text, HasSubstr("local rank 0:  CPUs 0-3  4 cores  package 0  NUMA node 0  GPU "
                              "GPU-9d (0000:9d:00.0)"));
  EXPECT_THAT(text, HasSubstr("local rank 1:  CPUs 4-7  4 cores  package 1  NUMA node 1  GPU 0 "));
}

TEST_F(BindingTest, FewerGpusThanWorkersAreNamedAndAutoGoesOnWithoutThem) {
  auto refused = start({"--show-binding", "--bind=gpu", "--nproc-per-node=3"}, kTwoGpus);
  EXPECT_EQ(refused->wait(), 2);
  EXPECT_EQ(refused->err(),
            "ddprun: error: --bind: 2 visible GPUs for 3 workers: start at most 2, or give --bind "
            "auto\n");
  EXPECT_THAT(drawing({"--bind=auto", "--nproc-per-node=3"}, kTwoGpus),
              ContainsRegex("local rank 2: .* its part of NUMA node 0\n"));
  auto hidden = start({"--bind=gpu", "true"}, with(kTwoGpus, "CUDA_VISIBLE_DEVICES", ""));
  EXPECT_EQ(hidden->wait(), 2);
  EXPECT_THAT(hidden->err(), HasSubstr("--bind: no GPU is visible here: "));
}

TEST_F(BindingTest, AWorkerMaySeeItsOwnGpuAlone) {
  const std::string tell = "echo $LOCAL_RANK ${CUDA_VISIBLE_DEVICES-unset}";
  auto all = start_shell({"--nproc-per-node=2"}, tell);
  ASSERT_EQ(all->wait(), 0) << all->err();
  EXPECT_THAT(all->out(), HasSubstr("[rank 1] 1 unset\n"));
  auto own = start_shell({"--nproc-per-node=2", "--gpu-visibility=own"}, tell);
  ASSERT_EQ(own->wait(), 0) << own->err();
  EXPECT_THAT(own->out(), HasSubstr("[rank 0] 0 0\n"));
  EXPECT_THAT(own->out(), HasSubstr("[rank 1] 1 1\n"));
  auto listed = start_shell({"--nproc-per-node=2", "--gpu-visibility=own"}, tell,
                            {{"CUDA_VISIBLE_DEVICES", "5,GPU-6,7"}});
  ASSERT_EQ(listed->wait(), 0) << listed->err();
  EXPECT_THAT(listed->out(), HasSubstr("[rank 0] 0 5\n"));
  EXPECT_THAT(listed->out(), HasSubstr("[rank 1] 1 GPU-6\n"));
  auto given = start_shell(
      {"--nproc-per-node=2", "--gpu-visibility=own", "--env=CUDA_VISIBLE_DEVICES=8,9"}, tell);
  ASSERT_EQ(given->wait(), 0) << given->err();
  EXPECT_THAT(given->out(), HasSubstr("[rank 1] 1 9\n"));
}

TEST_F(BindingTest, FewerGpusThanWorkersWhoAreToHaveTheirOwnAreNamed) {
  for (const std::string option : {"--gpu-visibility=own", "--virtual-local-rank"}) {
    const std::string name = option.substr(0, option.find('='));
    auto listed = start({"--nproc-per-node=3", option, "true"}, {{"CUDA_VISIBLE_DEVICES", "4,5"}});
    EXPECT_EQ(listed->wait(), 2);
    EXPECT_EQ(listed->err(),
              "ddprun: error: " + name +
                  ": CUDA_VISIBLE_DEVICES=4,5 has 2 GPUs for 3 workers: each needs its own\n");
    auto counted = start({"--nproc-per-node=3", option, "true"}, kTwoGpus);
    EXPECT_EQ(counted->wait(), 2);
    EXPECT_THAT(counted->err(), HasSubstr(name + ": this machine has 2 GPUs for 3 workers: "));
  }
}

}  // namespace
}  // namespace ddprun::testing_support
