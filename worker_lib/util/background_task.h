// BackgroundTask: does one thing at a time on a thread of its own, while the caller does something else.
//
//   beside.begin([&] { digest.add(piece); });
//   fill(next_piece);
//   beside.join();  // what it used may change from now on
//
// One owner thread. The thread is started by the first begin() and ends with the object; where none
// can be started, begin() does the work.
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
  // Waits as join() does.
  ~BackgroundTask();
  BackgroundTask(const BackgroundTask&) = delete;
  BackgroundTask& operator=(const BackgroundTask&) = delete;

  // After join(). The task must not throw; what it uses is its own until join().
  void begin(std::function<void()> task);
  void join();

 private:
  void run();

  const std::string name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::function<void()> task_;  // empty: nothing is being done
  bool closing_ = false;
  std::thread thread_;
};

}  // namespace ddprun
