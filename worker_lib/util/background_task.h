// BackgroundTask: does one task at a time on a thread of its own, while the caller does
// something else.
//
//   task.begin([&] { digest.add(piece); });
//   fill(next_piece);
//   task.join();  // from now on, what the task used may change
//
// One owner thread. The first begin() starts the thread, which ends with the object. If no
// thread can be started, begin() does the task itself.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

namespace ddprun {

class BackgroundTask {
 public:
  // name: of the thread, at most 15 characters.
  explicit BackgroundTask(std::string name) : name_(std::move(name)) {}
  // Waits until the task is done, as join() does.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // Begins a task. REQUIRES: no task is in progress. The task must not throw. The caller must
  // not change what it uses before join().
  void begin(std::function<void()> task);
  void join();

 private:
  void run();

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: no task is in progress
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ddprun
