// WriterState: what a writer of output shares with its thread, and how the thread ends.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace ddprun {

struct WriterState {
  std::mutex mutex;
  std::condition_variable wake;
  std::function<void()> on_flushed;
  bool writing = false;
  bool over = false;  // the owner has gone, and its callbacks with it

  void say_flushed() {
    if (on_flushed) std::exchange(on_flushed, nullptr)();
  }
};

// Ends the writer's thread, if it has one. A thread in the middle of a write is detached; it
// calls nothing any more.
inline void end_writer(WriterState& state, std::thread& thread) {
  bool writing = false;
  {
    const std::lock_guard lock(state.mutex);
    state.over = true;
    state.on_flushed = nullptr;
    writing = state.writing;
  }
  state.wake.notify_one();
  if (!thread.joinable()) return;
  if (writing) {
    thread.detach();
  } else {
    thread.join();
  }
}

}  // namespace ddprun
