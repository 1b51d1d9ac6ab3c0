#include "launcher/main/print_config.h"

#include <vector>

#include "base/joined.h"
#include "launcher/options/core/table_text.h"

namespace ddprun {
namespace {

std::string value_of(const OptionSetting& setting) {
  const OptionSpec& option = *setting.option;
  if (setting.texts.empty()) {
    if (option.is_switch()) return "false";
    return option.fallback.empty() ? "-" : option.fallback;
  }
  if (!option.repeats) return setting.texts.back().empty() ? "''" : setting.texts.back();
  return joined(setting.texts, " ");
}

std::string program_of(const LaunchOptions& options) {
  std::string text = options.program.empty() ? "-" : options.program;
  for (const std::string& argument : options.args) text += " " + argument;
  return text;
}

}  // namespace

std::string format_config(const CommandLine& line) {
  std::vector<std::vector<std::string>> rows;
  for (const OptionSetting& setting : line.settings) {
    if (setting.option->where == OptionSpec::Where::kCommandLineOnly) continue;
    rows.push_back({setting.option->name, value_of(setting), setting.source});
  }
  rows.push_back({"program", program_of(line.options), line.program_source});
  return table_text(rows);
}

}  // namespace ddprun
