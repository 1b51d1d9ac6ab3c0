// ChildProcess: a program that a test starts, reads, signals and waits for. Every wait has a
// deadline; what still runs when the object goes away, or when the test itself is killed, is
// killed.
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
#include "tests/support/eventually.h"

namespace ddprun::testing_support {

using Arguments = std::vector<std::string>;

inline Arguments joined(Arguments first, const Arguments& second, const Arguments& third = {}) {
  first.insert(first.end(), second.begin(), second.end());
  first.insert(first.end(), third.begin(), third.end());
  return first;
}

class ChildProcess {
 public:
  struct Options {
    std::vector<std::pair<std::string, std::string>> variables;  // over the test's own
    std::string directory;                                       // to run in
    bool own_session = false;  // so that a test can signal the whole group of it
    std::string input;         // file that is its standard input; empty: the test's own
    // Its three streams are a terminal of this size, the controlling one of its session; what it
    // writes is out().
    struct Size {
      int columns = 0;
      int rows = 0;
    };
    std::optional<Size> terminal;
  };

  // argv[0] is looked up in PATH.
  explicit ChildProcess(Arguments argv) : ChildProcess(std::move(argv), Options()) {}
  ChildProcess(Arguments argv, Options options);
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // REQUIRES: it has a terminal. What somebody types there; and another size of it.
  void type(const std::string& text) const;
  void resize(Options::Size size) const;

  // What was written so far.
  std::string out() const;
  std::string err() const;
  // Waits until stdout (or stderr) contains the text; false when the time is over or the program
  // has closed the stream without saying it.
  bool wait_for_out(const std::string& text, Duration allowed = kPatience);
  bool wait_for_err(const std::string& text, Duration allowed = kPatience);

  // The next line of stdout that line() has not returned yet; nothing when the program closes the
  // stream, or the time is over, before its end.
  std::optional<std::string> line(Duration allowed = kPatience);

  // Waits for the end: the exit code, 128+n for signal n; nullopt when the time is over.
  std::optional<int> wait(Duration allowed = kPatience);
  // What wait() has found.
  std::optional<int> exit_code() const { return exit_code_; }

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
  std::size_t next_line_ = 0;  // in out_
  std::string err_;
  bool out_closed_ = false;
  bool err_closed_ = false;
  std::thread reader_;
};

// The address in "...: listening on ADDRESS", the line of a service that is ready; empty: it has
// not said it.
std::string listening_address(ChildProcess& service);

// The child that a process has had the longest; -1: none.
pid_t first_child_of(pid_t parent);

// Processes whose environment has this variable set to this value: how a test finds what its
// workers have left behind, whoever their parent is by now.
std::vector<pid_t> processes_with(const std::string& variable, const std::string& value);

}  // namespace ddprun::testing_support
