// ChildProcess: a program that a test starts, reads, signals and waits for. Every wait has a
// deadline; what still runs when the object goes away is killed.
//
// The output is read by a thread of its own, so that the program never waits for the test. The
// test's thread calls everything.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/unique_fd.h"

namespace ddprun::testing_support {

inline constexpr Duration kPatience = std::chrono::seconds(20);

class ChildProcess {
 public:
  struct Options {
    std::vector<std::pair<std::string, std::string>> variables;  // over the test's own
    std::string directory;                                       // to run in
    bool own_session = false;  // so that a test can signal the whole group of it
  };

  // argv[0] is looked up in PATH.
  explicit ChildProcess(std::vector<std::string> argv) : ChildProcess(std::move(argv), Options()) {}
  ChildProcess(std::vector<std::string> argv, Options options);
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // What was written so far.
  std::string out() const;
  std::string err() const;
  // Waits until stdout (or stderr) contains the text; false when the time is over or the program
  // has closed the stream without saying it.
  bool wait_for_out(const std::string& text, Duration allowed = kPatience);
  bool wait_for_err(const std::string& text, Duration allowed = kPatience);

  // Waits for the end: the exit code, 128+n for signal n; nullopt when the time is over.
  std::optional<int> wait(Duration allowed = kPatience);

 private:
  void read_output();
  bool wait_for(const std::string& stream, const bool& closed, const std::string& text,
                Duration allowed);

  pid_t pid_ = -1;
  UniqueFd pidfd_;
  UniqueFd out_pipe_;
  UniqueFd err_pipe_;
  UniqueFd stop_read_;
  UniqueFd stop_write_;
  std::optional<int> exit_code_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string out_;
  std::string err_;
  bool out_closed_ = false;
  bool err_closed_ = false;
  std::thread reader_;
};

// Waits until the condition holds; false when the time is over. Looks again every few milliseconds:
// for what the kernel announces to nobody.
template <class Condition>
bool eventually(Condition&& condition, Duration allowed = kPatience);

// Processes whose environment has this variable set to this value: how a test finds what its
// workers have left behind, whoever their parent is by now.
std::vector<pid_t> processes_with(const std::string& variable, const std::string& value);

void pause_briefly();

template <class Condition>
bool eventually(Condition&& condition, Duration allowed) {
  const TimePoint deadline = BootClock::now() + allowed;
  while (!condition()) {
    if (BootClock::now() > deadline) return false;
    pause_briefly();
  }
  return true;
}

}  // namespace ddprun::testing_support
