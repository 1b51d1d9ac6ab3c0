// NcclPause: the pause between two polls of NCCL or CUDA, which do not notify when they are
// done.
//
// Most waits end at once, the others take milliseconds. So it first yields, and sleeps later.
// The sleeps are short, because a barrier needs its answer soon. A spinning thread would take a
// core that the program may need. Use one object per wait, on one thread.
#pragma once

#include <chrono>
#include <thread>

namespace ddprun {

class NcclPause {
 public:
  void take() {
    if (++taken_ < 100) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  int taken_ = 0;
};

}  // namespace ddprun
