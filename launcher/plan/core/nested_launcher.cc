#include "launcher/plan/core/nested_launcher.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "launcher/process/core/shell_words.h"

namespace ddprun {
namespace {

using Arguments = std::vector<std::string>;

constexpr std::array<std::string_view, 3> kModules{
    "torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run"};

std::string_view file_name(std::string_view path) { return path.substr(path.rfind('/') + 1); }

bool is_module(std::string_view name) { return std::ranges::count(kModules, name) > 0; }

// Returns whether the path ends as "torch/distributed/run.py", in any directory.
bool is_file_of_module(std::string_view path) {
  return path.ends_with("/torch/distributed/run.py") ||
         path.ends_with("/torch/distributed/launch.py");
}

bool is_program(std::string_view path) {
  const std::string_view name = file_name(path);
  return name == "torchrun" || name == "ddprun" || is_file_of_module(path);
}

// Returns whether an option of Python has its value in the next word. All others are one word.
bool takes_value(std::string_view option) { return option == "-W" || option == "-X"; }

// Returns the index of the launcher's own first argument in the arguments of python. Returns
// nullopt if python runs something else.
std::optional<std::size_t> after_launcher(const Arguments& args) {
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i] == "-m") {
      return i + 1 < args.size() && is_module(args[i + 1]) ? std::optional(i + 2) : std::nullopt;
    }
    if (args[i].starts_with("-m") && is_module(std::string_view(args[i]).substr(2))) return i + 1;
    if (!args[i].starts_with('-')) return is_program(args[i]) ? std::optional(i + 1) : std::nullopt;
    if (takes_value(args[i])) ++i;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::string> explain_nested_launcher(const LaunchOptions& options) {
  std::optional<std::size_t> rest;
  std::string launcher = options.program;
  if (options.module ? is_module(options.program) : is_program(options.program)) {
    rest = 0;
  } else if (!options.module && file_name(options.program).starts_with("python")) {
    rest = after_launcher(options.args);
    if (rest) launcher = options.args[*rest - 1];
  }
  if (!rest) return std::nullopt;
  std::string command = "ddprun";
  for (std::size_t i = *rest; i < options.args.size(); ++i)
    command += " " + in_shell_words(options.args[i]);
  return std::string(file_name(launcher)) +
         " starts workers itself, and ddprun replaces it; type: " + command +
         " (to run a launcher in each worker: sh -c '...')";
}

}  // namespace ddprun
