#include "base/usable_cpus.h"

#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <numeric>
#include <thread>

namespace ddprun {

std::vector<int> usable_cpus() {
  // The kernel refuses a set that is too small for all CPUs that the host may have.
  constexpr std::size_t kMostSets = 64;
  std::vector<cpu_set_t> sets(1);
  std::vector<int> cpus;
  while (sets.size() <= kMostSets) {
    const std::size_t bytes = sets.size() * sizeof(cpu_set_t);
    std::fill(sets.begin(), sets.end(), cpu_set_t{});
    if (sched_getaffinity(0, bytes, sets.data()) == 0) {
      for (std::size_t cpu = 0; cpu < bytes * 8; ++cpu) {
        if (CPU_ISSET_S(cpu, bytes, sets.data())) cpus.push_back(static_cast<int>(cpu));
      }
      return cpus;
    }
    if (errno != EINVAL) break;
    sets.resize(sets.size() * 2);
  }
  cpus.resize(std::max(1U, std::thread::hardware_concurrency()));
  std::iota(cpus.begin(), cpus.end(), 0);
  return cpus;
}

}  // namespace ddprun
