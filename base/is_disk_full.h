// is_disk_full(): which errors of a disk go away when something is removed from it. Pure; any thread.
#pragma once

#include <cerrno>

namespace ddprun {

constexpr bool is_disk_full(int sys_errno) { return sys_errno == ENOSPC || sys_errno == EDQUOT; }

}  // namespace ddprun
