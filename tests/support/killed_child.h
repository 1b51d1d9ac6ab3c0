// KilledChild: a process that repeats something and reports its progress until the test kills
// it. The test chooses the moment.
//
// The process is forked from the test and continues with a copy of its memory. So the test must
// have no other threads when it makes a KilledChild. One owner thread.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <functional>

#include "base/pipe.h"
#include "tests/support/eventually.h"

namespace ddprun::testing_support {

class KilledChild {
 public:
  using Tell = std::function<void(std::int64_t)>;

  // Starts the process. If `body` returns or throws, the process ends early; was_killed() then
  // returns false.
  explicit KilledChild(const std::function<void(const Tell&)>& body) {
    Result<Pipe> pipe = make_pipe();
    if (!pipe) return;
    progress_ = std::move(pipe->read);
    const UniqueFd tell = std::move(pipe->write);
    pid_ = ::fork();
    if (pid_ != 0) return;
    try {
      body([&](std::int64_t how_far) {
        if (::write(tell.get(), &how_far, sizeof how_far) != sizeof how_far) ::_exit(1);
      });
    } catch (...) {
      ::_exit(2);
    }
    ::_exit(3);
  }
  ~KilledChild() { (void)kill_after(0, {}, 0); }
  KilledChild(const KilledChild&) = delete;
  KilledChild& operator=(const KilledChild&) = delete;

  // Kills the process `delay` after its `count`th report. Returns its last report; `none` if it
  // has reported nothing.
  std::int64_t kill_after(int count, Duration delay, std::int64_t none) {
    std::int64_t last = none;
    if (pid_ <= 0) return last;
    const auto read_one = [&] {
      std::int64_t how_far = 0;
      if (::read(progress_.get(), &how_far, sizeof how_far) != sizeof how_far) return false;
      last = how_far;
      return true;
    };
    while (count > 0 && read_one()) --count;
    let_pass(delay);
    ::kill(pid_, SIGKILL);
    while (read_one()) {
    }
    ::waitpid(pid_, &status_, 0);
    pid_ = -1;
    return last;
  }

  // Returns whether SIGKILL ended the process. False: it ended by itself before.
  bool was_killed() const { return WIFSIGNALED(status_) && WTERMSIG(status_) == SIGKILL; }

 private:
  pid_t pid_ = -1;
  UniqueFd progress_;
  int status_ = 0;
};

}  // namespace ddprun::testing_support
