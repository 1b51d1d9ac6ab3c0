#include "launcher/program.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <sstream>

namespace ddprun {
namespace {

Error unusable(const std::string& name, std::string cause) {
  return Error{.kind = ErrorKind::kNotFound, .doing = name, .cause = std::move(cause)};
}

bool is_executable_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

std::optional<std::string> find_in_path(const std::string& name) {
  const char* path = std::getenv("PATH");
  std::istringstream directories(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string directory; std::getline(directories, directory, ':');) {
    const std::string candidate = (directory.empty() ? "." : directory) + "/" + name;
    if (is_executable_file(candidate)) return candidate;
  }
  return std::nullopt;
}

// Why the file cannot be used in this way (X_OK: executed, R_OK: read); nullopt if it can.
std::optional<std::string> trouble_with(const std::string& path, int way) {
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? "no such file" : system_error("", errno).cause;
  }
  if (S_ISDIR(info.st_mode)) return "it is a directory";
  if (access(path.c_str(), way) == 0) return std::nullopt;
  if (way == X_OK && errno == EACCES) return "it is not executable; chmod +x " + path;
  return "it cannot be read: " + system_error("", errno).cause;
}

Result<std::string> find_executable(const std::string& name) {
  if (name.empty()) return unusable("''", "the program's name is empty");
  if (name.find('/') != std::string::npos) {
    if (const auto trouble = trouble_with(name, X_OK)) return unusable(name, *trouble);
    return name;
  }
  if (const auto found = find_in_path(name)) return *found;
  std::string cause = "no such program in PATH";
  if (is_executable_file("./" + name)) cause += "; did you mean ./" + name + "?";
  return unusable(name, std::move(cause));
}

Result<std::string> find_python() {
  if (const char* chosen = std::getenv("PYTHON_EXEC"); chosen && *chosen) {
    Result<std::string> found = find_executable(chosen);
    if (!found) return std::move(found).error().within("PYTHON_EXEC");
    return found;
  }
  for (const char* name : {"python", "python3"}) {
    if (const auto found = find_in_path(name)) return *found;
  }
  return unusable("python", "no such program in PATH; set PYTHON_EXEC to the interpreter");
}

}  // namespace

Result<WorkerCommand> find_program(const LaunchOptions& options) {
  const bool script = options.run_path || (options.program.ends_with(".py") && !options.no_python);
  WorkerCommand command;
  if (options.module || script) {
    Result<std::string> python = find_python();
    if (!python) return std::move(python).error();
    if (script && !options.module) {
      if (const auto trouble = trouble_with(options.program, R_OK)) {
        return unusable(options.program, *trouble);
      }
    }
    command.executable = *python;
    command.arguments = {"-u"};
    if (options.module) command.arguments.push_back("-m");
    command.arguments.push_back(options.program);
  } else {
    Result<std::string> executable = find_executable(options.program);
    if (!executable) return std::move(executable).error();
    command.executable = *executable;
  }
  command.arguments.insert(command.arguments.end(), options.args.begin(), options.args.end());
  return command;
}

}  // namespace ddprun
