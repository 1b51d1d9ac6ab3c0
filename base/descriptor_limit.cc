#include "base/descriptor_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <climits>

namespace ddprun {

std::optional<rlimit> raise_descriptor_limit() {
  rlimit before{};
  if (getrlimit(RLIMIT_NOFILE, &before) != 0) return std::nullopt;
  const rlimit raised{before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

void make_room_for_descriptors(std::size_t count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t room = std::min({rlim_t{count}, limit.rlim_cur, rlim_t{INT_MAX}});
  if (room == 0) return;
  const int last = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, static_cast<int>(room - 1));
  if (last >= 0) close(last);
}

}  // namespace ddprun
