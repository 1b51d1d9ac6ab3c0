// is_disk_full(): returns whether a disk error goes away when files are removed. Pure; any
// thread.
#pragma once

#include <cerrno>

namespace ddprun {

constexpr bool is_disk_full(int sys_errno) { return sys_errno == ENOSPC || sys_errno == EDQUOT; }

}  // namespace ddprun
