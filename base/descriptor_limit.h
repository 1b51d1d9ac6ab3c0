// The limit of open descriptors of this process. Any thread; the limit is the kernel's.
#pragma once

#include <sys/resource.h>

#include <optional>

namespace ddprun {

// Raises the soft limit to the hard one: every client of a service takes a descriptor, and the
// usual soft limit of 1024 is for programs that use select(). Returns the limit as it was, for
// processes that are started from here; nullopt where it could not be read.
std::optional<rlimit> raise_descriptor_limit();

}  // namespace ddprun
