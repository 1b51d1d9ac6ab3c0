// ForkMark: tells whether this process is still the one that made an object. The child of a
// fork has copies of all objects, but none of their threads. It shares the objects' files and
// memory with its parent: what the child ends is ended for both. Any thread.
#pragma once

#include <atomic>

namespace ddprun {

namespace detail {
// Number of forks between the first process of this program and this one, counted from the
// first ForkMark on.
inline std::atomic<unsigned> forks{0};
unsigned count_forks();
}  // namespace detail

class ForkMark {
 public:
  ForkMark() : forks_(detail::count_forks()) {}

  // Returns whether the process that calls this is the one that made the mark, with no fork in
  // between.
  bool is_ours() const { return detail::forks.load(std::memory_order_relaxed) == forks_; }

 private:
  unsigned forks_;
};

}  // namespace ddprun
