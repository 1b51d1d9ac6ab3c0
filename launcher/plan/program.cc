#include "launcher/plan/program.h"

#include <sys/auxv.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "base/nearest_word.h"
#include "launcher/options/core/command_names.h"
#include "launcher/plan/core/nested_launcher.h"
#include "launcher/plan/exec_diagnosis.h"

namespace ddprun {
namespace {

Error unusable(const std::string& name, std::string cause) {
  return Error{.kind = ErrorKind::kNotFound, .doing = name, .cause = std::move(cause)};
}

bool is_executable_file(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && access(path.c_str(), X_OK) == 0;
}

// Suggests a command for a misspelled one: "; did you mean ddprun status?". Empty: none is
// similar.
std::string command_like(const std::string& name) {
  std::vector<std::string> words{"help", "version"};
  for (const CommandName& command : command_names()) words.emplace_back(command.name);
  const std::string nearest = nearest_word(name, words);
  if (nearest.empty()) return "";
  const bool is_option = nearest == words[0] || nearest == words[1];
  return std::string("; did you mean ddprun ") + (is_option ? "--" : "") + nearest + "?";
}

Result<std::string> find_executable(const std::string& name, const std::string& directory) {
  std::string found = name;
  if (name.find('/') == std::string::npos) {
    const auto in_path = find_in_path(name, directory);
    if (!in_path) {
      std::string meant = did_you_mean(name, directory, X_OK);
      if (meant.empty()) meant = command_like(name);
      return unusable("exec " + name, "no such program in PATH" + meant);
    }
    found = *in_path;
  }
  if (const auto trouble = trouble_with(found, directory, X_OK)) {
    return unusable("exec " + found, *trouble);
  }
  return found;
}

// Returns the python of the virtual or conda environment that ddprun is installed in, active or
// not, as torchrun does. Does not follow a link from elsewhere: the environment that pipx or uv
// makes for a tool contains only the tool.
std::optional<std::string> python_of_our_environment() {
  const auto* started_as = reinterpret_cast<const char*>(getauxval(AT_EXECFN));
  if (!started_as) return std::nullopt;
  std::error_code error;
  const std::filesystem::path bin =
      std::filesystem::absolute(std::filesystem::path(started_as), error).parent_path();
  const auto is_there = [&](const char* name) {
    return !error && std::filesystem::exists(bin / ".." / name, error);
  };
  if (!is_there("pyvenv.cfg") && !is_there("conda-meta")) return std::nullopt;
  const std::string python = bin / "python";
  return is_executable_file(python) ? std::optional(python) : std::nullopt;
}

}  // namespace

std::optional<std::string> find_in_path(const std::string& name, const std::string& directory) {
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "/usr/local/bin:/usr/bin:/bin");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string candidate = (folder.empty() ? "." : folder) + "/" + name;
    if (is_executable_file(path_from(directory, candidate))) return candidate;
  }
  return std::nullopt;
}

Result<std::string> find_python(const std::string& directory) {
  if (const char* chosen = std::getenv("PYTHON_EXEC"); chosen && *chosen) {
    Result<std::string> found = find_executable(chosen, directory);
    if (!found) return std::move(found).error().within("PYTHON_EXEC");
    return found;
  }
  if (const auto ours = python_of_our_environment()) return *ours;
  for (const char* name : {"python", "python3"}) {
    if (const auto found = find_in_path(name, directory)) return *found;
  }
  return unusable("python", "no such program in PATH; set PYTHON_EXEC to the interpreter");
}

Result<WorkerCommand> find_program(const LaunchOptions& options) {
  if (options.program.empty()) {
    return unusable(
        "''", std::string(options.module ? "the module's" : "the program's") + " name is empty");
  }
  if (auto instead = explain_nested_launcher(options)) return invalid_argument(std::move(*instead));
  const bool script = options.run_path || (options.program.ends_with(".py") && !options.no_python);
  WorkerCommand command;
  if (options.module || script) {
    Result<std::string> python = find_python(options.directory);
    if (!python) return python.error();
    if (script && !options.module) {
      if (const auto trouble = trouble_with(options.program, options.directory, R_OK)) {
        return unusable(options.program, *trouble);
      }
    }
    command.executable = *python;
    command.arguments = {"-u"};
    if (options.module) command.arguments.push_back("-m");
    command.arguments.push_back(options.program);
  } else {
    Result<std::string> executable = find_executable(options.program, options.directory);
    if (!executable) return executable.error();
    command.executable = *executable;
  }
  command.arguments.insert(command.arguments.end(), options.args.begin(), options.args.end());
  return command;
}

}  // namespace ddprun
