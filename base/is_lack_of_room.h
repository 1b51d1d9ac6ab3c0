// is_lack_of_room(): which errors of a disk go away when something is removed from it. Pure; any thread.
#pragma once

#include <cerrno>

namespace ddprun {

constexpr bool is_lack_of_room(int sys_errno) { return sys_errno == ENOSPC || sys_errno == EDQUOT; }

}  // namespace ddprun
