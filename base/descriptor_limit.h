// Sets how many descriptors this process may open, and how many the kernel has room for. Any
// thread.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <optional>

namespace ddprun {

// Raises the soft limit to the hard one. Every client of a service takes a descriptor, and the
// usual soft limit of 1024 is for programs that use select(). Returns the previous limit, for
// processes that are started from here. nullopt: the limit could not be read.
std::optional<rlimit> raise_descriptor_limit();

// Makes the kernel's table of this process's descriptors large enough for `count` at once.
// Otherwise the table grows by doubling. In a process with several threads, each growth waits
// until all processors have passed through the scheduler: about 20 ms (expand_fdtable() in
// Linux's fs/file.c). Call this before the first thread is started. `count` is cut to the
// limit; failures are ignored.
void make_room_for_descriptors(std::size_t count);

}  // namespace ddprun
