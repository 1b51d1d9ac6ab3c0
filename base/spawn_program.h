// spawn_program(): starts a program by posix_spawn(). No signal is blocked or ignored in it,
// whatever this process does. Any thread.
#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <map>
#include <string>
#include <vector>

#include "base/result.h"

namespace ddprun {

struct ProgramStart {
  static constexpr int kNull = -1;  // /dev/null

  std::vector<std::string> words;  // the program, looked for in PATH, and its arguments
  std::map<std::string, std::string> variables = {};  // added to this process's environment
  // Descriptors that become its stdin, stdout and stderr.
  int input = kNull;
  int output = STDOUT_FILENO;
  int errors = STDERR_FILENO;
  // In a process group of its own, signals of the terminal do not reach it.
  bool has_own_group = false;
};

// Returns its process id. The caller reaps it. kSystem: it cannot be started.
Result<pid_t> spawn_program(const ProgramStart& start);

// Returns what exec() takes: pointers to the words, then a null pointer. The words must outlive it.
std::vector<char*> exec_arguments(const std::vector<std::string>& words);

}  // namespace ddprun
