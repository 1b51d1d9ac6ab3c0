#include "base/spawn_program.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>

#include <string_view>

#include "base/concat.h"

namespace ddprun {
namespace {

std::vector<std::string> environment_with(const std::map<std::string, std::string>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    if (!variables.contains(std::string(text.substr(0, text.find('='))))) all.emplace_back(text);
  }
  for (const auto& [name, value] : variables) all.push_back(concat(name, "=", value));
  return all;
}

}  // namespace

std::vector<char*> exec_arguments(const std::vector<std::string>& words) {
  std::vector<char*> arguments;
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  return arguments;
}

Result<pid_t> spawn_program(const ProgramStart& start) {
  const std::vector<std::string> variables = environment_with(start.variables);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  const auto give = [&files](int from, int to) {
    if (from == ProgramStart::kNull) {
      posix_spawn_file_actions_addopen(&files, to, "/dev/null", O_RDWR, 0);
    } else if (from != to) {
      posix_spawn_file_actions_adddup2(&files, from, to);
    }
  };
  give(start.input, STDIN_FILENO);
  give(start.output, STDOUT_FILENO);
  give(start.errors, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  posix_spawnattr_setsigmask(&attributes, &none);
  posix_spawnattr_setsigdefault(&attributes, &all);
  const int group = start.has_own_group ? POSIX_SPAWN_SETPGROUP : 0;
  posix_spawnattr_setflags(
      &attributes, static_cast<short>(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | group));
  pid_t pid = 0;
  const int failed =
      posix_spawnp(&pid, start.words.front().c_str(), &files, &attributes,
                   exec_arguments(start.words).data(), exec_arguments(variables).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (failed != 0) return system_error("start " + start.words.front(), failed);
  return pid;
}

}  // namespace ddprun
