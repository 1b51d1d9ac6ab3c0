// NcclPause: what a thread does between two looks at NCCL or CUDA, which tell nobody when they are
// done.
//
// Most of what is waited for is over at once, the rest takes milliseconds: first it yields, then it
// sleeps. The sleeps are short, as a barrier wants its answer soon; a spinning thread would cost the
// core that the program's own work may want. One wait, one thread.
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
