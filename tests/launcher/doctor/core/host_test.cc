#include "tests/launcher/doctor/core/frame.h"

namespace ddprun {
namespace {

using std::chrono::minutes;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using namespace testing_support;

TEST(DoctorProgram, HasToBeThere) {
  DoctorFacts facts = healthy_facts();
  EXPECT_EQ(finding_of(facts, "program").seen, "");
  facts.program_error = "./train: no such file";
  EXPECT_EQ(level_of(facts, "program"), Level::kProblem);
}

TEST(DoctorSharedMemory, OfDockersSizeIsAProblem) {
  DoctorFacts facts = healthy_facts();
  Space& space = facts.shared_memory.space;
  const auto level = [&](std::uint64_t bytes) {
    space.total = space.available = bytes;
    return level_of(facts, "shared-memory");
  };
  EXPECT_EQ(level(64 * kMiB), Level::kProblem);
  EXPECT_EQ(level(64 * kMiB + 1), Level::kWarning);
  EXPECT_EQ(level(kGiB - 1), Level::kWarning);
  EXPECT_EQ(level(kGiB), Level::kOk);
  facts.job.workers_here = 64;
  EXPECT_EQ(level(4 * kGiB - 1), Level::kWarning);
  EXPECT_EQ(level(4 * kGiB), Level::kOk);
}

TEST(DoctorSharedMemory, SaysWhetherItIsSmallOrFull) {
  DoctorFacts facts = healthy_facts();
  facts.shared_memory.space.available = 16 * kMiB;
  facts.shared_memory.files = 3;
  facts.shared_memory.file_bytes = 15 * kGiB;
  Finding finding = finding_of(facts, "shared-memory");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.seen, HasSubstr("3 files there with 15.0 GiB"));
  EXPECT_THAT(finding.advice, HasSubstr("ls -lS /dev/shm"));
  facts.shared_memory.space.total = 16 * kMiB;
  finding = finding_of(facts, "shared-memory");
  EXPECT_THAT(finding.seen, HasSubstr("/dev/shm has 16.0 MiB"));
  EXPECT_THAT(finding.advice, HasSubstr("--shm-size"));
}

TEST(DoctorSharedMemory, HasToBeThereAndWritable) {
  DoctorFacts facts = healthy_facts();
  facts.shared_memory.space.why_not_writable = "Permission denied";
  EXPECT_EQ(level_of(facts, "shared-memory"), Level::kProblem);
  facts.shared_memory.why_missing = "No such file or directory";
  EXPECT_THAT(finding_of(facts, "shared-memory").seen, HasSubstr("/dev/shm does not exist"));
}

TEST(DoctorTemporaryDirectory, HasToHaveRoom) {
  DoctorFacts facts = healthy_facts();
  Space& space = facts.temporary;
  const auto level = [&](std::uint64_t bytes) {
    space.available = bytes;
    return level_of(facts, "temporary-directory");
  };
  EXPECT_EQ(level(kMiB - 1), Level::kProblem);
  EXPECT_EQ(level(kMiB), Level::kWarning);
  EXPECT_EQ(level(256 * kMiB), Level::kOk);
  space.free_inodes = 0;
  EXPECT_EQ(level(kGiB), Level::kProblem);
  space.free_inodes = 1;
  space.why_not_writable = "Read-only file system";
  EXPECT_EQ(level(kGiB), Level::kProblem);
}

TEST(DoctorOpenFiles, AreJudgedByWhatIsNeeded) {
  DoctorFacts facts = healthy_facts();
  const auto level = [&](std::uint64_t soft) {
    facts.limits.open_files.soft = soft;
    return level_of(facts, "open-files");
  };
  EXPECT_EQ(level(255), Level::kProblem);
  EXPECT_EQ(level(256), Level::kWarning);
  EXPECT_EQ(level(1023), Level::kWarning);
  EXPECT_EQ(level(1024), Level::kNote);
  EXPECT_EQ(level(4096), Level::kOk);
  facts.job.workers_here = 64;
  EXPECT_EQ(level(1024), Level::kProblem) << "64 + 16 for each worker";
}

TEST(DoctorOpenFiles, SaysHowFarTheUserCanRaiseThem) {
  DoctorFacts facts = healthy_facts();
  facts.limits.open_files = {1024, 524288};
  EXPECT_THAT(finding_of(facts, "open-files").advice, HasSubstr("ulimit -n 65536 before"));
  facts.limits.open_files = {1024, 8192};
  EXPECT_THAT(finding_of(facts, "open-files").advice, HasSubstr("ulimit -n 8192 before"));
  facts.limits.open_files = {1024, 1024};
  EXPECT_THAT(finding_of(facts, "open-files").advice, HasSubstr("limits.conf"));
}

TEST(DoctorProcesses, CountsWhatIsLeftOfTheUsersAndTheCgroups) {
  DoctorFacts facts = healthy_facts();
  facts.job.workers_here = 2;  // the check wants room for 128 processes
  facts.limits.own_processes = 1000;
  const auto level = [&](std::uint64_t limit) {
    facts.limits.processes.soft = limit;
    return level_of(facts, "processes");
  };
  EXPECT_EQ(level(1127), Level::kProblem);
  EXPECT_EQ(level(1128), Level::kWarning);
  EXPECT_EQ(level(1511), Level::kWarning);
  EXPECT_EQ(level(1512), Level::kOk);
  EXPECT_EQ(level(10), Level::kProblem) << "more are there than may be";
  level(kUnlimited);
  facts.cgroup.pids_max = 200;
  facts.cgroup.pids_now = 73;
  const Finding finding = finding_of(facts, "processes");
  EXPECT_EQ(finding.level, Level::kProblem);
  EXPECT_THAT(finding.seen, HasSubstr("73 and may have 200 (pids.max)"));
  EXPECT_THAT(finding.advice, HasSubstr("pids.max"));
}

TEST(DoctorProcesses, AreAWarningWhereTheLimitDoesNotHoldForRoot) {
  DoctorFacts facts = healthy_facts();
  facts.limits.processes.soft = 20;
  facts.limits.processes_bind = false;
  const Finding finding = finding_of(facts, "processes");
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_THAT(finding.effect, HasSubstr("does not apply to root"));
}

TEST(DoctorLockedMemory, IsAProblemWhereThereIsRdma) {
  DoctorFacts facts = healthy_facts();
  facts.limits.locked_memory.soft = 8 * kMiB;
  EXPECT_EQ(level_of(facts, "locked-memory"), Level::kOk);
  facts.limits.locked_memory.soft = 64 * 1024 - 1;
  EXPECT_EQ(level_of(facts, "locked-memory"), Level::kWarning);
  facts.limits.rdma_devices = {"mlx5_0"};
  facts.limits.locked_memory.soft = kGiB;
  EXPECT_EQ(level_of(facts, "locked-memory"), Level::kProblem);
  EXPECT_THAT(finding_of(facts, "locked-memory").seen, HasSubstr("mlx5_0"));
  facts.limits.locked_memory_binds = false;
  EXPECT_EQ(level_of(facts, "locked-memory"), Level::kWarning);
  facts.limits.locked_memory.soft = kUnlimited;
  EXPECT_EQ(level_of(facts, "locked-memory"), Level::kOk);
}

TEST(DoctorMemory, IsWhatTheCgroupLeavesToEachWorker) {
  DoctorFacts facts = healthy_facts();
  facts.job.workers_here = 4;
  facts.cgroup.memory_max = 2 * kGiB;
  EXPECT_EQ(level_of(facts, "memory"), Level::kOk);
  facts.cgroup.memory_max = 2 * kGiB - 1;
  const Finding finding = finding_of(facts, "memory");
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_THAT(finding.seen, HasSubstr("(memory.max)"));
  facts.cgroup.memory_max.reset();
  facts.machine.memory_available = kGiB;
  EXPECT_THAT(finding_of(facts, "memory").advice,
              HasSubstr("end the programs that use the memory"));
}

TEST(DoctorMemory, HasNoLimitOfAddressSpace) {
  DoctorFacts facts = healthy_facts();
  facts.limits.address_space.soft = 32 * kGiB;
  EXPECT_EQ(level_of(facts, "memory"), Level::kWarning);
  facts.gpus.count = 1;
  EXPECT_EQ(level_of(facts, "memory"), Level::kProblem);
}

TEST(DoctorCores, HaveToBeAsManyAsWorkers) {
  DoctorFacts facts = healthy_facts();
  facts.job.workers_here = 8;
  EXPECT_EQ(level_of(facts, "cores"), Level::kOk);
  facts.job.workers_here = 9;
  EXPECT_EQ(level_of(facts, "cores"), Level::kWarning);
  facts.job.workers_here = 1;
  facts.machine.usable_cores = 2;
  EXPECT_EQ(finding_of(facts, "cores").seen, "2 of 8 cores can be used (cpuset)");
  EXPECT_EQ(level_of(facts, "cores"), Level::kOk);
  facts.machine.usable_cores = 1;
  EXPECT_EQ(level_of(facts, "cores"), Level::kWarning);
  facts.machine.online_cores = 1;
  EXPECT_EQ(level_of(facts, "cores"), Level::kOk) << "there are no others";
}

TEST(DoctorCpuQuota, BelowTheCoresMakesThreadsStop) {
  DoctorFacts facts = healthy_facts();
  facts.cgroup.cpus = 8.0;
  EXPECT_EQ(level_of(facts, "cpu-quota"), Level::kOk);
  facts.cgroup.cpus = 5.5;
  facts.job.workers_here = 2;
  const Finding finding = finding_of(facts, "cpu-quota");
  EXPECT_EQ(finding.level, Level::kWarning);
  EXPECT_THAT(finding.seen, HasSubstr("5.5 cores' time of 8"));
  EXPECT_THAT(finding.advice, HasSubstr("OMP_NUM_THREADS=2 "));
}

TEST(DoctorCgroup, IsNeverMoreThanANote) {
  DoctorFacts facts = healthy_facts();
  facts.cgroup.controllers = {"hugetlb"};
  EXPECT_EQ(level_of(facts, "cgroup"), Level::kNote);
  facts.cgroup.can_make_children = false;
  EXPECT_EQ(level_of(facts, "cgroup"), Level::kNote);
  facts.cgroup.path = "";
  EXPECT_EQ(level_of(facts, "cgroup"), Level::kNote);
}

TEST(DoctorClock, IsComparedWithTheServices) {
  DoctorFacts facts = facts_with_endpoint();
  const auto level = [&](Duration ahead) {
    facts.network.endpoint->service->clock_ahead = ahead;
    return level_of(facts, "clock");
  };
  EXPECT_EQ(level(seconds(2) - Duration(1)), Level::kOk);
  EXPECT_EQ(level(seconds(2)), Level::kWarning);
  EXPECT_EQ(level(-seconds(2)), Level::kWarning);
  EXPECT_THAT(finding_of(facts, "clock").seen, HasSubstr("2.0 s behind"));
  EXPECT_EQ(level(minutes(5)), Level::kProblem);
}

TEST(DoctorClock, IsComparedWithThatOfEtcdsMembers) {
  DoctorFacts facts = healthy_facts();
  EtcdMember near{.address = {"e1", 2379}, .clock_ahead = seconds(1)};
  EtcdMember jumped{.address = {"e2", 2379}, .clock_ahead = -minutes(60)};
  facts.network.etcd = EtcdFacts{.members = {near, jumped, near}};
  EXPECT_EQ(level_of(facts, "clock"), Level::kProblem);
  const Finding found = finding_of(facts, "clock");
  EXPECT_EQ(found.seen, "the clock is synchronised; that of etcd at e2:2379 is 60.0 min behind");
  EXPECT_EQ(found.advice, "start chrony or systemd-timesyncd on both hosts");
}

TEST(DoctorClock, ThatNobodySynchronisesIsNotedWhereItCannotBeCompared) {
  DoctorFacts facts = healthy_facts();
  facts.clock.synchronised = false;
  EXPECT_EQ(level_of(facts, "clock"), Level::kNote);
  facts.clock.synchronised.reset();
  EXPECT_EQ(level_of(facts, "clock"), Level::kOk);
  facts = facts_with_endpoint();
  facts.clock.synchronised = false;
  EXPECT_EQ(level_of(facts, "clock"), Level::kOk) << "it agrees with the service's";
}

TEST(DoctorClockSource, HasToBeFast) {
  DoctorFacts facts = healthy_facts();
  for (const char* fast : {"tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"}) {
    facts.clock.source = fast;
    EXPECT_EQ(level_of(facts, "clock-source"), Level::kOk) << fast;
  }
  for (const char* slow : {"hpet", "acpi_pm"}) {
    facts.clock.source = slow;
    EXPECT_EQ(level_of(facts, "clock-source"), Level::kWarning) << slow;
  }
}

TEST(DoctorDebuggers, AreNotedWhereAHangCouldNotBeLookedInto) {
  DoctorFacts facts = healthy_facts();
  facts.debuggers.ptrace_scope = 1;
  EXPECT_EQ(level_of(facts, "debuggers"), Level::kOk) << "an agent may look into its descendants";
  facts.debuggers.has_py_spy = false;
  EXPECT_EQ(level_of(facts, "debuggers"), Level::kNote) << "gdb shows no line of a Python program";
  facts.debuggers.has_py_spy = true;
  facts.debuggers.has_gdb = false;
  EXPECT_EQ(level_of(facts, "debuggers"), Level::kNote) << "py-spy shows nothing of a C++ program";
  facts.debuggers.has_gdb = true;
  facts.debuggers.ptrace_scope = 2;
  EXPECT_EQ(level_of(facts, "debuggers"), Level::kNote);
  facts.debuggers = {};
  EXPECT_EQ(level_of(facts, "debuggers"), Level::kNote);
}

}  // namespace
}  // namespace ddprun
