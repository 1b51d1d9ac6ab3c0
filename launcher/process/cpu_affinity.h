// CpuAffinity: a set of CPUs in the kernel's format, prepared before a process is forked.
// Immutable; any thread.
#pragma once

#include <sched.h>

#include <vector>

#include "launcher/machine/core/cpu_set.h"

namespace ddprun {

class CpuAffinity {
 public:
  // Keeps the set for take(). With an empty set, take() changes nothing.
  explicit CpuAffinity(const CpuSet& cpus) {
    if (cpus.empty()) return;
    sets_.resize(static_cast<std::size_t>(*cpus.rbegin()) / CPU_SETSIZE + 1);
    for (const int cpu : cpus) CPU_SET_S(cpu, size(), sets_.data());
  }

  // Binds the calling thread, and what it starts, to these CPUs. Returns false with errno set
  // on failure; EINVAL if this process may use none of the CPUs. Async-signal-safe: for use
  // between fork and exec.
  bool take() const { return sets_.empty() || sched_setaffinity(0, size(), sets_.data()) == 0; }

 private:
  std::size_t size() const { return sets_.size() * sizeof(cpu_set_t); }

  std::vector<cpu_set_t> sets_;  // consecutive sets, as many as the highest CPU number needs
};

}  // namespace ddprun
