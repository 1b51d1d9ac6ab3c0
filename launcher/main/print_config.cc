#include "launcher/main/print_config.h"

#include <algorithm>
#include <array>
#include <vector>

namespace ddprun {
namespace {

std::string value_of(const OptionSetting& setting) {
  const OptionSpec& option = *setting.option;
  if (setting.texts.empty()) {
    if (option.is_switch()) return "false";
    return option.fallback.empty() ? "-" : option.fallback;
  }
  if (!option.repeats) return setting.texts.back().empty() ? "''" : setting.texts.back();
  std::string text;
  for (const std::string& one : setting.texts) text += (text.empty() ? "" : " ") + one;
  return text;
}

std::string program_of(const LaunchOptions& options) {
  std::string text = options.program.empty() ? "-" : options.program;
  for (const std::string& argument : options.args) text += " " + argument;
  return text;
}

}  // namespace

std::string format_config(const CommandLine& line) {
  std::vector<std::array<std::string, 3>> rows;
  for (const OptionSetting& setting : line.settings) {
    if (setting.option->where == OptionSpec::Where::kCommandLineOnly) continue;
    rows.push_back({setting.option->name, value_of(setting), setting.source});
  }
  rows.push_back({"program", program_of(line.options), line.program_source});
  std::array<std::size_t, 2> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) {
      text += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    }
    text += row[2] + "\n";
  }
  return text;
}

}  // namespace ddprun
