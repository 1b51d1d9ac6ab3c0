// ChildProcess: a program that a test starts, reads, signals and waits for.
//
// Every wait has a deadline. The destructor kills the program if it still runs. The kernel kills
// it if the test itself is killed.
//
// The test's thread calls everything. A thread of this class reads the output, so that the
// program never waits for the test.
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
    std::vector<std::pair<std::string, std::string>> variables;  // override the test's own
    std::string directory;                                       // the working directory
    bool own_session = false;  // the test can then signal its whole process group
    std::string input;         // the file used as standard input; empty: the test's own
    // Makes the three streams a terminal of this size, which is the controlling terminal of the
    // program's session. out() returns what the program writes to it.
    struct Size {
      int columns = 0;
      int rows = 0;
    };
    std::optional<Size> terminal;
  };

  // Starts the program. argv[0] is looked up in PATH.
  explicit ChildProcess(Arguments argv) : ChildProcess(std::move(argv), Options()) {}
  ChildProcess(Arguments argv, Options options);
  ~ChildProcess();

  pid_t pid() const { return pid_; }
  void signal(int number) const;

  // Types the text at the terminal; changes the terminal's size. REQUIRES: the program has a
  // terminal.
  void type(const std::string& text) const;
  void resize(Options::Size size) const;

  // Return what was written to stdout and stderr so far, without ddprun's lines on leftovers. At
  // its start it removes and names what other runs have left, among them runs of other tests.
  std::string out() const;
  std::string err() const;
  // Wait until stdout (or stderr) contains the text. Return false if the time is over or if the
  // program closes the stream first.
  bool wait_for_out(const std::string& text, Duration allowed = kPatience);
  bool wait_for_err(const std::string& text, Duration allowed = kPatience);

  // Returns the next line of stdout that line() has not returned yet. Returns nullopt if the
  // program closes the stream, or the time is over, before the line ends.
  std::optional<std::string> line(Duration allowed = kPatience);

  // Waits until the program ends. Returns its exit code, or 128+n if signal n ended it. nullopt:
  // the time is over.
  std::optional<int> wait(Duration allowed = kPatience);
  // Returns the result of the last wait().
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
  std::size_t next_line_ = 0;  // where line() continues in out_
  std::string err_;
  bool out_closed_ = false;
  bool err_closed_ = false;
  std::thread reader_;
};

// Returns the address in the line "...: listening on ADDRESS", which a service prints when it is
// ready. Fails the test if the line is missing.
std::string listening_address(ChildProcess& service);

// Returns the oldest child of a process; -1: it has none.
pid_t first_child_of(pid_t parent);

// Returns the processes whose environment has this variable with this value. A test finds with
// it the processes that its workers left running, whatever their parent is by now.
std::vector<pid_t> processes_with(const std::string& variable, const std::string& value);

}  // namespace ddprun::testing_support
