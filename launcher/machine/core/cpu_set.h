// CpuSet: some CPUs of a machine, by the kernel's numbers. Also reads and writes the text form
// of the kernel and taskset: "0-3,8". A value type; any thread.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace ddprun {

using CpuSet = std::set<int>;

// Returns "0-3,8", for example; "none" for an empty set.
std::string to_text(const CpuSet& cpus);

// Parses the kernel's list, with or without its newline. nullopt: it is not such a list, or
// names a CPU number that no machine has.
std::optional<CpuSet> parse_cpu_list(std::string_view text);

// Returns the CPUs that are in both sets.
CpuSet common(const CpuSet& one, const CpuSet& other);

}  // namespace ddprun
