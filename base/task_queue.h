// TaskQueue: runs tasks one after the other, in the order in which they were posted, on a thread
// of its own. BackgroundTask: does one task at a time while the caller does something else.
//
//   task.begin([&] { digest.add(piece); });
//   fill(next_piece);
//   task.join();  // from now on, what the task used may change
//
// One owner thread posts and begins. Tasks must not throw.
//
// A loop of its own on a thread (background_thread.h) is for work that is bounded in bytes rather
// than in tasks, or that is dropped when it is late: the writers of consoles and logs, and
// SummaryWriter.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/result.h"

namespace ddprun {

class TaskQueue {
 public:
  // name: of the thread, at most 15 characters, shown by debuggers.
  TaskQueue(std::string name, std::size_t most_waiting)
      : name_(std::move(name)), most_waiting_(most_waiting) {}
  // Returns when every posted task has run.
  ~TaskQueue();
  TaskQueue(const TaskQueue&) = delete;
  TaskQueue& operator=(const TaskQueue&) = delete;

  // Starts the thread, unless it runs. Call it before post().
  Result<void> start();
  // Waits for room if most_waiting tasks wait.
  void post(std::function<void()> task);
  // Waits until no task waits or runs, for at most `patience`.
  void await_idle(Duration patience);

 private:
  void run();

  const std::string name_;
  const std::size_t most_waiting_;
  std::mutex mutex_;
  std::condition_variable changed_;  // a task came, was taken or has finished, or closing_
  std::deque<std::function<void()>> waiting_;
  bool is_busy_ = false;
  bool closing_ = false;
  std::thread thread_;
};

class BackgroundTask {
 public:
  explicit BackgroundTask(std::string name) : queue_(std::move(name), 1) {}

  // Begins a task; if no thread can be started, does it here. REQUIRES: no task is in progress. The
  // caller must not change what it uses before join(), which the destructor does, too.
  void begin(std::function<void()> task) {
    if (!queue_.start()) return task();
    queue_.post(std::move(task));
  }
  void join() { queue_.await_idle(kLongestTimeout); }

 private:
  TaskQueue queue_;
};

}  // namespace ddprun
