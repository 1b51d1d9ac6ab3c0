#include "base/descriptor_limit.h"

namespace ddprun {

std::optional<rlimit> raise_descriptor_limit() {
  rlimit before{};
  if (getrlimit(RLIMIT_NOFILE, &before) != 0) return std::nullopt;
  const rlimit raised{before.rlim_max, before.rlim_max};
  setrlimit(RLIMIT_NOFILE, &raised);
  return before;
}

}  // namespace ddprun
