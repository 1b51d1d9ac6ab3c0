// How many descriptors this process may open, and how many the kernel has room for. Any thread.
#pragma once

#include <sys/resource.h>

#include <cstddef>
#include <optional>

namespace ddprun {

// Raises the soft limit to the hard one: every client of a service takes a descriptor, and the
// usual soft limit of 1024 is for programs that use select(). Returns the limit as it was, for
// processes that are started from here; nullopt where it could not be read.
std::optional<rlimit> raise_descriptor_limit();

// Has the kernel make its table of this process's descriptors large enough for `count` at once. The
// table grows by doubling, and in a process of several threads every growth waits until all
// processors have passed through the scheduler: about 20 ms (expand_fdtable() in Linux's
// fs/file.c). So: before the first thread. What cannot be had, the limit included, is left out.
void make_room_for_descriptors(std::size_t count);

}  // namespace ddprun
