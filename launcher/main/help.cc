#include "launcher/main/help.h"

#include <cstdio>

#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/version.h"
#include "launcher/options/core/command_names.h"
#include "launcher/options/core/wrapped_text.h"
#include "launcher/options/option_table.h"

namespace ddprun {
namespace {

constexpr const char* kWhatItIs =
    "Starts a program several times, on one or several nodes, as the workers of one data-parallel "
    "job: gives each its rank, serves their store, passes their output on, and restarts all when "
    "one fails. python runs a .py file or a module (-m); any other program is executed.";
constexpr const char* kExitCodesAre =
    "The exit code of the first failed worker, 128+n for signal n, or one of these.";
constexpr const char* kSources =
    "Order of precedence: the command line, PET_<NAME> in the environment, the file of --config, "
    "the default. Names may be written with - or _.";

constexpr std::size_t kIndent = 34;

void append_wrapped(std::string& text, const std::string& words, std::size_t indent) {
  constexpr std::size_t kWidth = 100;
  text += wrapped(words, indent, kWidth) + '\n';
}

// Appends `head` and its explanation: on the same line, or below a long `head`.
void append_entry(std::string& text, const std::string& head, const std::string& words) {
  text += "  " + head;
  if (head.size() + 4 > kIndent) {
    text += "\n" + std::string(kIndent, ' ');
  } else {
    text += std::string(kIndent - 2 - head.size(), ' ');
  }
  append_wrapped(text, words, kIndent);
}

std::string head_of(const OptionSpec& spec) {
  return (spec.short_name.empty() ? "" : "-" + spec.short_name + ", ") + "--" + spec.name +
         (spec.is_switch() ? "" : " " + spec.placeholder);
}

std::string head_of(const CommandName& command) {
  const std::string arguments(command.arguments);
  return std::string(command.name) + (arguments.empty() ? "" : " " + arguments);
}

std::string explanation_of(const OptionSpec& spec) {
  return spec.help + (spec.fallback.empty() ? "" : " [" + spec.fallback + "]") + "; e.g. " +
         spec.example;
}

// Escapes `text`, so that roff prints it literally.
std::string in_roff(std::string_view text) {
  std::string out;
  if (text.starts_with('.') || text.starts_with('\'')) out += "\\&";
  for (const char c : text) {
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

std::string help_text() {
  std::string text =
      "Usage: ddprun [options] program [arguments...]\n"
      "       ddprun command [arguments...]\n\n";
  append_wrapped(text, kWhatItIs, 0);
  text +=
      "\n"
      "  ddprun --nproc-per-node=2 ./train\n"
      "  ddprun --nproc-per-node=gpu --max-restarts=3 train.py --epochs 10\n"
      "  ddprun --nnodes=2 --rdzv-endpoint=node0:29400 --rdzv-id=job1 --nproc-per-node=8 ./train\n";
  std::string group;
  for (const OptionSpec& spec : option_table()) {
    if (spec.group != group) text += "\n" + (group = spec.group) + "\n";
    append_entry(text, head_of(spec), explanation_of(spec));
  }
  text += "\nIn brackets: the default.\n";
  append_wrapped(text, kSources, 0);
  text += "\nCommands (./NAME runs a program of that name)\n";
  for (const CommandName& command : command_names()) {
    append_entry(text, head_of(command), std::string(command.summary));
  }
  text += "\nExit codes: ";
  append_wrapped(text, kExitCodesAre, 0);
  for (const ExitCodeText& row : kExitCodes) {
    const std::string code = std::to_string(to_int(row.code));
    text +=
        "  " + std::string(4 - code.size(), ' ') + code + "  " + std::string(row.meaning) + "\n";
  }
  return text;
}

std::string man_page() {
  std::string page =
      ".TH DDPRUN 1 \"\" \"ddprun " + std::string(kVersion) +
      "\" \"User Commands\"\n.SH NAME\nddprun \\- start and supervise the workers of "
      "a data\\-parallel job\n";
  page +=
      ".SH SYNOPSIS\n.B ddprun\n[options] program [arguments...]\n.br\n.B ddprun\ncommand "
      "[arguments...]\n.SH DESCRIPTION\n" +
      in_roff(kWhatItIs) + "\n.PP\n" + in_roff(kSources) + "\n";
  page += ".SH OPTIONS\nIn brackets: the default.\n";
  const auto entry = [&](const std::string& head, const std::string& words) {
    page += ".TP\n.B " + in_roff(head) + "\n" + in_roff(words) + "\n";
  };
  std::string group;
  for (const OptionSpec& spec : option_table()) {
    if (spec.group != group) page += ".SS " + in_roff(group = spec.group) + "\n";
    entry(head_of(spec), explanation_of(spec));
  }
  page +=
      ".SH COMMANDS\nA first word that is one of these is a command; ./NAME runs a program of "
      "that name.\n";
  for (const CommandName& command : command_names()) {
    entry(head_of(command), std::string(command.summary));
  }
  page += ".SH EXIT STATUS\n" + in_roff(kExitCodesAre) + "\n";
  for (const ExitCodeText& row : kExitCodes) {
    entry(std::to_string(to_int(row.code)), std::string(row.meaning));
  }
  page += ".SH SEE ALSO\n.BR torchrun (1),\n.BR srun (1)\n";
  return page;
}

int run_man_page(const std::vector<std::string>& arguments) {
  if (!arguments.empty()) {
    return fail("ddprun", invalid_argument("takes no argument").within("man-page"),
                ExitCode::kUsage);
  }
  std::fputs(man_page().c_str(), stdout);
  return 0;
}

}  // namespace ddprun
