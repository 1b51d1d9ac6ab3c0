// CpuSet: some CPUs of a machine, by the numbers that the kernel gives them, and the text in which
// the kernel and taskset write it: "0-3,8". A value type; any thread.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>

namespace ddprun {

using CpuSet = std::set<int>;

// "0-3,8"; "none" for no CPU.
std::string to_text(const CpuSet& cpus);

// The kernel's list, with or without its newline. nullopt: it is anything else, or names a CPU that
// no machine has.
std::optional<CpuSet> parse_cpu_list(std::string_view text);

// What is in both.
CpuSet common(const CpuSet& one, const CpuSet& other);

}  // namespace ddprun
