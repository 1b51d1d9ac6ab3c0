// Checks of this host: memory, limits, cgroups, cores, clock. See launcher/doctor/core/doctor.h.
#include <algorithm>
#include <array>
#include <cmath>

#include "base/counted.h"
#include "base/joined.h"
#include "base/printed.h"
#include "launcher/doctor/core/doctor.h"
#include "launcher/options/core/bytes_text.h"

namespace ddprun {
namespace {

using enum Level;

constexpr std::uint64_t kMiB = 1024 * 1024;
constexpr std::uint64_t kGiB = 1024 * kMiB;

std::uint64_t workers(const DoctorFacts& facts) {
  return static_cast<std::uint64_t>(std::max(1, facts.job.workers_here));
}

std::string workers_text(const DoctorFacts& facts) { return counted(workers(facts), "worker"); }

std::optional<Finding> judge_program(const DoctorFacts& facts) {
  if (facts.program_error.empty()) return std::nullopt;
  return Finding{.level = kProblem,
                 .seen = facts.program_error,
                 .effect = "no worker starts: exit code 2",
                 .advice = "correct the path; every node needs the program and the directory"};
}

// --- shared memory and disk ----------------------------------------------------------------------

std::optional<Finding> judge_shared_memory(const DoctorFacts& facts) {
  // Docker's default. With it, DataLoader workers and NCCL fail.
  constexpr std::uint64_t kDockers = 64 * kMiB;
  const SharedMemoryFacts& shm = facts.shared_memory;
  const std::uint64_t wanted = std::max(kGiB, 64 * kMiB * workers(facts));
  const std::string larger =
      "make it larger: docker run --shm-size=8g (or --ipc=host); in Kubernetes an emptyDir with "
      "medium: Memory at /dev/shm; else mount -o remount,size=8g /dev/shm";
  const std::string effect =
      "when it is full, PyTorch's DataLoader workers die of SIGBUS, and NCCL between GPUs of this "
      "node fails (ddprun's cpu backend works without it)";
  if (!shm.why_missing.empty() || !shm.space.why_not_writable.empty()) {
    const bool missing = !shm.why_missing.empty();
    return Finding{.level = kProblem,
                   .seen = missing ? "/dev/shm does not exist: " + shm.why_missing
                                   : "cannot write to /dev/shm: " + shm.space.why_not_writable,
                   .effect = "PyTorch's DataLoader workers and NCCL between GPUs of this node fail",
                   .advice = "mount -t tmpfs -o size=8g,mode=1777 tmpfs /dev/shm"};
  }
  const Space& space = shm.space;
  Finding finding{.seen = "/dev/shm has " + bytes_text(space.total) + ", of these " +
                          bytes_text(space.available) + " free",
                  .details = {{"total_bytes", space.total},
                              {"available_bytes", space.available},
                              {"files", shm.files}}};
  if (shm.files > 0) {
    finding.seen += "; " + counted(shm.files, "file") + " there with " + bytes_text(shm.file_bytes);
  }
  if (space.available >= wanted) return finding;
  finding.rate(space.available <= kDockers ? kProblem : kWarning, effect,
               space.total >= wanted ? "other programs fill it: `ls -lS /dev/shm` lists the "
                                       "files; remove those of programs that have ended"
                                     : larger);
  return finding;
}

std::optional<Finding> judge_temporary(const DoctorFacts& facts) {
  const Space& space = facts.temporary;
  Finding finding{.seen = space.path + " (TMPDIR) has " + bytes_text(space.available) + " free",
                  .details = {{"available_bytes", space.available}}};
  const std::string make_room = "make room, or set TMPDIR to another disk";
  if (!space.why_not_writable.empty()) {
    finding.seen = space.path + " (TMPDIR) is not writable: " + space.why_not_writable;
    finding.rate(kProblem, "ddprun does not start: exit code 73",
                 "set TMPDIR to a writable directory");
  } else if (space.free_inodes == 0 || space.available < kMiB) {
    if (space.free_inodes == 0) finding.seen += ", but no free inode";
    finding.rate(kProblem, "ddprun and most programs fail when they create a file", make_room);
  } else if (space.available < 256 * kMiB) {
    finding.rate(kWarning,
                 "it holds logs without --log-dir, and caches of compiled kernels and Python",
                 make_room);
  }
  return finding;
}

// --- limits --------------------------------------------------------------------------------------

std::string limit_text(std::uint64_t limit) {
  return limit == kUnlimited ? "unlimited" : std::to_string(limit);
}

// Returns the beginning of an effect of a limit. exempts: it does not apply to this user, root.
std::string exempt_root(bool exempts) {
  return exempts ? "the limit does not apply to root with all its capabilities; for others: " : "";
}

std::optional<Finding> judge_open_files(const DoctorFacts& facts) {
  const Limit& limit = facts.limits.open_files;
  // For the agent's pipes, files and pidfds, and for its store's connections.
  const std::uint64_t needed = std::max<std::uint64_t>(256, 64 + 16 * workers(facts));
  Finding finding{.seen = "a process may have " + limit_text(limit.soft) +
                          " open files (ulimit -n; " + limit_text(limit.hard) + " at most)",
                  .details = {{"soft", limit_text(limit.soft)}, {"hard", limit_text(limit.hard)}}};
  if (limit.soft >= 4096) return finding;
  const bool too_few = limit.soft < needed;
  finding.rate(
      too_few             ? kProblem
      : limit.soft < 1024 ? kWarning
                          : kNote,
      too_few ? "ddprun needs some " + std::to_string(needed) + " for " + workers_text(facts) +
                    ", and workers need more: they end with 'Too many open files'"
              : "DataLoader workers that share tensors, and NCCL with many peers, end with 'Too "
                "many open files'",
      limit.hard >= 4096
          ? "ulimit -n " + std::to_string(std::min<std::uint64_t>(limit.hard, 65536)) +
                " before ddprun"
          : "raise it: limits.conf, LimitNOFILE= of the service that starts jobs, docker run "
            "--ulimit nofile=65536");
  return finding;
}

std::optional<Finding> judge_processes(const DoctorFacts& facts) {
  const LimitFacts& limits = facts.limits;
  const CgroupFacts& cgroup = facts.cgroup;
  // Threads count too: PyTorch's pools, autograd, NCCL, and DataLoader workers with their own
  // threads.
  const std::uint64_t needed = 64 * workers(facts);
  const auto room_in = [](std::uint64_t limit, std::uint64_t used) {
    return limit == kUnlimited ? kUnlimited : limit - std::min(limit, used);
  };
  const std::uint64_t by_user = room_in(limits.processes.soft, limits.own_processes);
  const std::uint64_t by_cgroup =
      cgroup.pids_max ? room_in(*cgroup.pids_max, cgroup.pids_now) : kUnlimited;
  Finding finding{
      .seen = "this user has " + std::to_string(limits.own_processes) +
              " processes and threads and may have " + limit_text(limits.processes.soft) +
              " (ulimit -u)",
      .details = {{"limit", limit_text(limits.processes.soft)}, {"used", limits.own_processes}}};
  if (cgroup.pids_max) {
    finding.seen += "; the cgroup has " + std::to_string(cgroup.pids_now) + " and may have " +
                    std::to_string(*cgroup.pids_max) + " (pids.max)";
    finding.details.emplace_back("pids_max", *cgroup.pids_max);
  }
  const std::uint64_t binding = std::min(limits.processes_bind ? by_user : kUnlimited, by_cgroup);
  const std::uint64_t room = std::min(by_user, by_cgroup);
  if (room >= 4 * needed) return finding;
  finding.rate(binding < needed ? kProblem : kWarning,
               exempt_root(binding >= 4 * needed) + workers_text(facts) + " may want " +
                   std::to_string(needed) +
                   " and more (threads count): fork and pthread_create then fail with 'Resource "
                   "temporarily unavailable'",
               by_cgroup < by_user
                   ? "raise pids.max: TasksMax= of the unit, docker run --pids-limit"
                   : "ulimit -u, or nproc in limits.conf");
  return finding;
}

std::optional<Finding> judge_locked_memory(const DoctorFacts& facts) {
  const LimitFacts& limits = facts.limits;
  const std::uint64_t soft = limits.locked_memory.soft;
  const bool unlimited = soft == kUnlimited;
  const std::string amount = unlimited ? "without limit" : "up to " + bytes_text(soft);
  Finding finding{.seen = "memory can be locked " + amount + " (ulimit -l)",
                  .details = {{"soft", limit_text(soft)}}};
  const std::string advice =
      "ulimit -l unlimited: memlock in limits.conf, LimitMEMLOCK=infinity of the service "
      "that starts jobs (slurmd), docker run --ulimit memlock=-1";
  if (limits.rdma_devices.empty()) {
    if (unlimited) return finding;
    if (soft >= 64 * 1024) {
      finding.seen += "; this is enough without an RDMA device";
      return finding;
    }
    finding.rate(kWarning, "io_uring and pinned buffers of data loaders fail above this limit",
                 advice);
  } else {
    finding.seen += "; RDMA devices: " + joined(limits.rdma_devices);
    if (unlimited) return finding;
    finding.rate(
        limits.locked_memory_binds ? kProblem : kWarning,
        exempt_root(!limits.locked_memory_binds) +
            "NCCL registers its buffers with them: 'ibv_reg_mr failed', 'Cannot allocate memory'",
        advice);
  }
  return finding;
}

std::optional<Finding> judge_memory(const DoctorFacts& facts) {
  const std::optional<std::uint64_t>& cgroup = facts.cgroup.memory_max;
  const MachineFacts& machine = facts.machine;
  const bool limited = cgroup && *cgroup < machine.memory;
  Finding finding{
      .seen = "the machine has " + bytes_text(machine.memory) + ", of these " +
              bytes_text(machine.memory_available) + " are free",
      .details = {{"total_bytes", machine.memory}, {"available_bytes", machine.memory_available}}};
  if (limited) {
    finding.seen += "; the cgroup may have " + bytes_text(*cgroup) + " (memory.max)";
    finding.details.emplace_back("memory_max", *cgroup);
  }
  if (facts.limits.address_space.soft != kUnlimited) {
    finding.seen +=
        "; address space up to " + bytes_text(facts.limits.address_space.soft) + " (ulimit -v)";
    finding.rate(
        facts.gpus.count > 0 ? kProblem : kWarning,
        "CUDA fails, because it reserves more address space than there is memory; other programs "
        "end with 'Cannot allocate memory'",
        "ulimit -v unlimited before ddprun; limit memory by a cgroup instead");
    return finding;
  }
  const std::uint64_t room = std::min(limited ? *cgroup : machine.memory, machine.memory_available);
  if (machine.memory == 0 || room >= 512 * kMiB * workers(facts)) return finding;
  finding.rate(
      kWarning,
      "PyTorch itself takes about 0.5 GiB for each worker: the kernel kills workers (exit code "
      "137) with " +
          workers_text(facts),
      limited && *cgroup <= machine.memory_available
          ? "give the job more memory: --mem of Slurm, resources of the pod, docker run -m"
          : "end the programs that use the memory, or start fewer workers");
  return finding;
}

// --- cores ---------------------------------------------------------------------------------------

std::optional<Finding> judge_cores(const DoctorFacts& facts) {
  const MachineFacts& machine = facts.machine;
  const auto usable = static_cast<std::uint64_t>(machine.usable_cores);
  Finding finding{.seen = std::to_string(usable) + " of " + counted(machine.online_cores, "core") +
                          " can be used (cpuset)",
                  .details = {{"usable", machine.usable_cores}, {"online", machine.online_cores}}};
  if (workers(facts) > usable) {
    finding.rate(kWarning,
                 workers_text(facts) +
                     " share them: in every collective each waits until the others have had a core",
                 "start fewer workers, or let the scheduler give more cores (srun --cpus-per-task, "
                 "docker run --cpuset-cpus)");
  } else if (usable == 1 && machine.online_cores > 1) {
    finding.rate(
        kWarning, "data loading, autograd and the agent share one core with the worker",
        "srun gives a task one core without --cpus-per-task; `taskset -p $$` shows the shell's "
        "cores");
  }
  return finding;
}

std::optional<Finding> judge_cpu_quota(const DoctorFacts& facts) {
  const std::optional<double>& cpus = facts.cgroup.cpus;
  if (!cpus) return Finding{.seen = "the cgroup has no CPU quota"};
  Finding finding{.seen = "the cgroup may use " + printed("%.1f", *cpus) + " cores' time of " +
                          std::to_string(facts.machine.usable_cores) + " (cpu.max)",
                  .details = {{"cpus", *cpus}}};
  if (*cpus >= facts.machine.usable_cores) return finding;
  const double each = *cpus / static_cast<double>(workers(facts));
  finding.rate(
      kWarning,
      "programs see all " + std::to_string(facts.machine.usable_cores) +
          " cores and start a thread for each; all threads then stop together for the rest of "
          "each 0.1 s",
      "OMP_NUM_THREADS=" + std::to_string(std::max(1, static_cast<int>(std::floor(each)))) +
          " for the workers; whole cores are better than a quota: docker run --cpuset-cpus, "
          "Kubernetes' static CPU manager");
  return finding;
}

// --- cgroups, clock, debuggers -------------------------------------------------------------------

std::optional<Finding> judge_cgroup(const DoctorFacts& facts) {
  const CgroupFacts& cgroup = facts.cgroup;
  const std::string effect =
      "ddprun ends the processes of a job one by one, not all at once; out-of-memory kills are "
      "read from the count of the whole machine";
  if (cgroup.path.empty()) {
    return Finding{
        .level = kNote,
        .seen = "no cgroup of version 2 is visible here",
        .effect = effect,
        .advice =
            "boot with systemd.unified_cgroup_hierarchy=1; mount /sys/fs/cgroup into containers"};
  }
  Finding finding{.seen = "ddprun can make a cgroup of v2 below " + cgroup.path,
                  .details = {{"path", cgroup.path}, {"controllers", joined(cgroup.controllers)}}};
  const auto& controllers = cgroup.controllers;
  if (!cgroup.can_make_children) {
    finding.seen = "ddprun cannot make a cgroup below " + cgroup.path;
    finding.rate(kNote, effect,
                 "systemd-run --user --scope -p Delegate=yes ddprun ..., or run as root");
  } else if (std::ranges::count(controllers, "memory") == 0) {
    finding.seen += ", without the memory controller";
    finding.rate(kNote, "out-of-memory kills are read from the count of the whole machine",
                 "delegate it: Delegate=memory pids; if both versions are mounted, v1 has it");
  }
  return finding;
}

std::optional<Finding> judge_clock(const DoctorFacts& facts) {
  std::optional<Duration> ahead;
  if (facts.network.endpoint && facts.network.endpoint->service) {
    ahead = facts.network.endpoint->service->clock_ahead;
  }
  std::string whose = "the service's";
  if (facts.network.etcd) {
    for (const EtcdMember& one : facts.network.etcd->members) {
      if (!one.clock_ahead ||
          (ahead && std::chrono::abs(*one.clock_ahead) < std::chrono::abs(*ahead)))
        continue;
      ahead = one.clock_ahead;
      whose = "that of etcd at " + to_text(one.address);
    }
  }
  const std::optional<bool>& synchronised = facts.clock.synchronised;
  Finding finding{
      .seen = !synchronised   ? "the kernel does not say whether the clock is synchronised"
              : *synchronised ? "the clock is synchronised"
                              : "the clock is not synchronised, as far as the kernel knows"};
  if (synchronised) finding.details.emplace_back("synchronised", *synchronised);
  if (ahead) {
    const double seconds = std::chrono::duration<double>(*ahead).count();
    const Duration size = std::chrono::abs(*ahead);
    finding.details.emplace_back("service_ahead_s", seconds);
    finding.seen += "; " + whose + " is " + to_text(size) + (seconds >= 0 ? " ahead" : " behind");
    if (size >= std::chrono::seconds(2)) {
      finding.rate(
          size >= std::chrono::minutes(5) ? kProblem : kWarning,
          "ddprun never compares clocks of hosts; but times in logs do not match, and after some "
          "minutes of difference munge, Kerberos and new certificates are refused",
          "start chrony or systemd-timesyncd on both hosts");
      return finding;
    }
  } else if (synchronised && !*synchronised) {
    finding.rate(
        kNote,
        "times in logs of nodes do not match; munge and certificates need clocks that agree within "
        "minutes",
        "start chrony or systemd-timesyncd; a container uses its host's clock");
  }
  return finding;
}

std::optional<Finding> judge_clock_source(const DoctorFacts& facts) {
  const std::string& source = facts.clock.source;
  if (source.empty()) return std::nullopt;
  Finding finding{.seen = "the kernel's clock source is " + source,
                  .details = {{"source", source}}};
  constexpr std::array<std::string_view, 5> kSlow{"hpet", "acpi_pm", "jiffies", "pit",
                                                  "refined-jiffies"};
  if (std::ranges::count(kSlow, source) == 0) return finding;
  finding.rate(
      kWarning,
      "reading the clock is a system call of a microsecond or more, and PyTorch, NCCL and "
      "profilers read it often",
      "boot with tsc=reliable if the CPU's counter is stable; `dmesg | grep -i tsc` shows why the "
      "kernel does not use it");
  return finding;
}

std::optional<Finding> judge_debuggers(const DoctorFacts& facts) {
  const DebuggerFacts& debuggers = facts.debuggers;
  std::vector<std::string> there;
  if (debuggers.has_gdb) there.push_back("gdb");
  if (debuggers.has_py_spy) there.push_back("py-spy");
  Finding finding{.seen = there.empty() ? "neither gdb nor py-spy is in PATH"
                                        : joined(there) + (there.size() > 1 ? " are" : " is") +
                                              " available for backtraces of hung workers",
                  .details = {{"gdb", debuggers.has_gdb},
                              {"py_spy", debuggers.has_py_spy},
                              {"ptrace_scope", debuggers.ptrace_scope}}};
  if (debuggers.ptrace_scope > 1) {
    finding.seen += ", but kernel.yama.ptrace_scope is " + std::to_string(debuggers.ptrace_scope);
    finding.rate(kNote, "a hang is reported without backtraces of the workers",
                 "sysctl kernel.yama.ptrace_scope=1");
  } else if (there.empty()) {
    finding.rate(
        kNote,
        "a hang is reported without backtraces of the workers, only with what they wait for in the "
        "kernel",
        "install gdb for C++, and pip install py-spy for Python");
  } else if (!debuggers.has_py_spy) {
    finding.rate(
        kNote,
        "a hang of a Python program is reported without Python's frames, and gdb needs seconds for "
        "each worker",
        "pip install py-spy, for Python programs");
  } else if (!debuggers.has_gdb) {
    finding.rate(kNote, "a hang of a C++ program is reported without its stack",
                 "install gdb, for C++ programs");
  }
  return finding;
}

}  // namespace

std::vector<Check> host_checks() {
  return {{"program", judge_program},
          {"shared-memory", judge_shared_memory},
          {"temporary-directory", judge_temporary},
          {"open-files", judge_open_files},
          {"processes", judge_processes},
          {"locked-memory", judge_locked_memory},
          {"memory", judge_memory},
          {"cores", judge_cores},
          {"cpu-quota", judge_cpu_quota},
          {"cgroup", judge_cgroup},
          {"clock", judge_clock},
          {"clock-source", judge_clock_source},
          {"debuggers", judge_debuggers}};
}

}  // namespace ddprun
