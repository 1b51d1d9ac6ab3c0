#include "base/fork_mark.h"

#include <pthread.h>

namespace ddprun::detail {

unsigned count_forks() {
  static const int counts =
      pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });
  static_cast<void>(counts);  // if it fails (out of memory), a child is taken for its parent
  return forks.load(std::memory_order_relaxed);
}

}  // namespace ddprun::detail
