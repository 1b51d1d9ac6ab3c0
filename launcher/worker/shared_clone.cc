#include "launcher/worker/shared_clone.h"

#include <fcntl.h>
#include <linux/sched.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstdint>

namespace ddprun {
namespace {

constexpr std::uint64_t kFlags = CLONE_VM | CLONE_VFORK | CLONE_PIDFD;

struct Birth {
  void (*body)(void*);
  void* argument;
  int cgroup;
};

// Runs in the child. Never returns.
[[noreturn, gnu::noinline]] void live(const Birth& birth) {
  if (birth.cgroup >= 0) {
    const int list = openat(birth.cgroup, "cgroup.procs", O_WRONLY | O_CLOEXEC);
    [[maybe_unused]] const ssize_t moved = write(list, "0", 1);
  }
  birth.body(birth.argument);
  leave_shared(127);
}

int enter(void* birth) { live(*static_cast<const Birth*>(birth)); }

// Calls clone3 in place. Returns twice: 0 in the child, the child's pid in the parent. Returns
// -ENOSYS on other architectures.
//
// Only clone3 can create a child inside a control group, but glibc has no wrapper for it. syscall()
// cannot be used, because it would return on a stack that the child has overwritten. So the
// instruction is inlined into a function whose frame stays, as vfork() does it.
[[gnu::always_inline]] inline long clone3_here(clone_args& arguments) {
#if defined(__x86_64__)
  long result = SYS_clone3;
  asm volatile("syscall"
               : "+a"(result)
               : "D"(&arguments), "S"(sizeof arguments)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long result asm("x0") = reinterpret_cast<long>(&arguments);
  register long size asm("x1") = sizeof arguments;
  register long number asm("x8") = SYS_clone3;
  asm volatile("svc #0" : "+r"(result) : "r"(size), "r"(number) : "memory");
  return result;
#else
  return -ENOSYS;
#endif
}

[[gnu::noinline]] long clone_into_cgroup(const Birth& birth, int& pidfd) {
  clone_args arguments{};
  arguments.flags = kFlags | CLONE_INTO_CGROUP;
  arguments.pidfd = reinterpret_cast<std::uintptr_t>(&pidfd);
  arguments.exit_signal = SIGCHLD;
  arguments.cgroup = static_cast<std::uint64_t>(birth.cgroup);
  const Birth in_its_cgroup{birth.body, birth.argument, -1};
  const long pid = clone3_here(arguments);
  if (pid == 0) live(in_its_cgroup);
  return pid;
}

[[gnu::noinline]] long clone_on_own_stack(const Birth& birth, int& pidfd) {
  alignas(std::max_align_t) std::array<std::byte, 64 << 10> stack;
  const int pid = clone(&enter, stack.data() + stack.size(), static_cast<int>(kFlags) | SIGCHLD,
                        const_cast<Birth*>(&birth), &pidfd);
  return pid < 0 ? -errno : pid;
}

}  // namespace

void leave_shared(int code) {
  while (true) syscall(SYS_exit_group, code);
}

Result<ClonedChild> start_sharing_memory(int cgroup, void (*body)(void*), void* argument) {
  const Birth birth{body, argument, cgroup};
  int pidfd = -1;
  long pid = cgroup >= 0 ? clone_into_cgroup(birth, pidfd) : -ENOSYS;
  // Without enough memory, processes or descriptors, clone() would fail too. After any other
  // error only clone3 may be refused, so clone() is tried.
  if (pid < 0 && pid != -EAGAIN && pid != -ENOMEM && pid != -EMFILE && pid != -ENFILE) {
    pid = clone_on_own_stack(birth, pidfd);
  }
  if (pid < 0) return system_error("make a process", static_cast<int>(-pid));
  return ClonedChild{static_cast<pid_t>(pid), UniqueFd(pidfd)};
}

}  // namespace ddprun
