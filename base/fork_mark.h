// ForkMark: whether this process is still the one that made something. The child of a fork has
// copies of all objects, but none of their threads, and shares the files and the memory that they
// stand for with its parent: what the child ends is ended for both. Any thread.
#pragma once

#include <atomic>

namespace ddprun {

namespace detail {
// That lie between this process and the first one of its program, from the first ForkMark on.
inline std::atomic<unsigned> forks{0};
unsigned count_forks();
}  // namespace detail

class ForkMark {
 public:
  ForkMark() : forks_(detail::count_forks()) {}

  // Whether no fork lies between the process that made this and the one that asks.
  bool is_ours() const { return detail::forks.load(std::memory_order_relaxed) == forks_; }

 private:
  unsigned forks_;
};

}  // namespace ddprun
