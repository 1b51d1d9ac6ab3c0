// CpuAffinity: the CPUs of a process as the kernel takes them, made ready before it is forked.
// Immutable; any thread.
#pragma once

#include <sched.h>

#include <vector>

#include "launcher/machine/core/cpu_set.h"

namespace ddprun {

class CpuAffinity {
 public:
  // No CPU: whatever calls take() stays where it is.
  explicit CpuAffinity(const CpuSet& cpus) {
    if (cpus.empty()) return;
    sets_.resize(static_cast<std::size_t>(*cpus.rbegin()) / CPU_SETSIZE + 1);
    for (const int cpu : cpus) CPU_SET_S(cpu, size(), sets_.data());
  }

  // The calling thread, and what it starts, runs there alone. False: see errno; EINVAL where none of
  // the CPUs is its to use. Async-signal-safe: for between fork and exec.
  bool take() const { return sets_.empty() || sched_setaffinity(0, size(), sets_.data()) == 0; }

 private:
  std::size_t size() const { return sets_.size() * sizeof(cpu_set_t); }

  std::vector<cpu_set_t> sets_;  // one after the other, as many as the highest number needs
};

}  // namespace ddprun
