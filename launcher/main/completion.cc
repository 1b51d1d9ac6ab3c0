#include "launcher/main/completion.h"

#include <cstdio>

#include "base/concat.h"
#include "base/fail.h"
#include "base/joined.h"
#include "launcher/options/core/command_names.h"
#include "launcher/options/option_table.h"

namespace ddprun {
namespace {

bool takes_file(const OptionSpec& spec) {
  return spec.placeholder.starts_with("FILE") || spec.placeholder.starts_with("PATH");
}
bool takes_directory(const OptionSpec& spec) { return spec.placeholder == "DIR"; }

std::vector<std::string> words_of_commands() {
  std::vector<std::string> names;
  for (const CommandName& command : command_names()) names.emplace_back(command.name);
  return names;
}

// Returns the names of an option as a pattern for the shell's `case`.
std::string pattern_of(const OptionSpec& spec) {
  const std::string dashed = "--" + spec.name;
  const std::string underscored = "--" + with_underscores(spec.name);
  std::string pattern = spec.short_name.empty() ? "" : "-" + spec.short_name + "|";
  pattern += dashed;
  if (underscored != dashed) pattern += "|" + underscored;
  return pattern;
}

// Escapes `text` for single quotes and for the brackets of zsh's _arguments.
std::string in_zsh(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'') {
      out += "'\\''";
    } else if (c == '[' || c == ']' || c == ':' || c == '\\') {
      out += std::string("\\") + c;
    } else {
      out += c;
    }
  }
  return out;
}

// Returns the action by which _arguments completes a value of the option.
std::string zsh_action(const OptionSpec& spec) {
  if (!spec.choices.empty()) return "(" + joined(spec.choices, " ") + ")";
  if (takes_file(spec)) return "_files";
  if (takes_directory(spec)) return "_files -/";
  return " ";
}

}  // namespace

std::string bash_completion() {
  std::vector<std::string> names;
  std::vector<std::string> with_value;
  std::string values;
  for (const OptionSpec& spec : option_table()) {
    names.push_back("--" + spec.name);
    if (!spec.short_name.empty()) names.push_back("-" + spec.short_name);
    if (spec.is_switch()) continue;
    with_value.push_back(pattern_of(spec));
    std::string reply;
    if (!spec.choices.empty()) {
      reply = "COMPREPLY=($(compgen -W '" + joined(spec.choices, " ") + "' -- \"$word\"))";
    } else if (takes_file(spec)) {
      reply = "COMPREPLY=($(compgen -f -- \"$word\"))";
    } else if (takes_directory(spec)) {
      reply = "COMPREPLY=($(compgen -d -- \"$word\"))";
    }
    if (!reply.empty()) values += "    " + pattern_of(spec) + ") " + reply + "; return ;;\n";
  }
  return R"(# bash completion of ddprun: source <(ddprun completion bash)
_ddprun() {
  local word=${COMP_WORDS[COMP_CWORD]} option= i one
  COMPREPLY=()
  for ((i = 1; i < COMP_CWORD; ++i)); do
    one=${COMP_WORDS[i]}
    if [[ -n $option ]]; then
      # bash gives '=' as a word of its own.
      [[ $one == '=' ]] || option=
    elif [[ $one == -* ]]; then
      case $one in
    )" + joined(with_value, "|") +
         R"() option=$one ;;
      esac
    elif [[ $one != '=' && ${COMP_WORDS[i - 1]} != '=' ]]; then
      # The program is there: what follows is its own.
      compopt -o default
      return
    fi
  done
  [[ $word == '=' ]] && word=
  case $option in
)" + values +
         R"(    ?*) return ;;
  esac
  if [[ $word == -* ]]; then
    COMPREPLY=($(compgen -W ')" +
         joined(names, " ") + R"(' -- "$word"))
    return
  fi
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W ')" +
         joined(words_of_commands(), " ") + R"(' -- "$word"))
  fi
  compopt -o filenames
  COMPREPLY+=($(compgen -f -- "$word") $(compgen -c -- "${word:-/}"))
}
complete -F _ddprun ddprun
)";
}

std::string zsh_completion() {
  std::string script =
      "#compdef ddprun\n"
      "# zsh completion of ddprun: ddprun completion zsh > \"${fpath[1]}/_ddprun\"\n"
      "_ddprun() {\n"
      "  _arguments -S \\\n";
  for (const OptionSpec& spec : option_table()) {
    const std::string help = "[" + in_zsh(spec.help) + "]";
    const std::string value =
        spec.is_switch() ? "" : ":" + in_zsh(spec.placeholder) + ":" + zsh_action(spec);
    const std::string any_number = spec.repeats ? "*" : "";
    script += "    '" + any_number + "--" + spec.name + (spec.is_switch() ? "" : "=") + help +
              value + "' \\\n";
    if (!spec.short_name.empty()) {
      script += "    '" + any_number + "-" + spec.short_name + (spec.is_switch() ? "" : "+") +
                help + value + "' \\\n";
    }
  }
  script += "    '1:program or command:{ _alternative \"commands:command:(" +
            joined(words_of_commands(), " ") +
            ")\" \"files:program:_files\" \"programs:program:_command_names -e\" }' \\\n"
            "    '*::argument:_normal'\n"
            "}\n"
            "if [[ ${funcstack[1]} == _ddprun ]]; then\n"
            "  _ddprun \"$@\"\n"
            "else\n"
            "  compdef _ddprun ddprun\n"
            "fi\n";
  return script;
}

int run_completion(const std::vector<std::string>& arguments) {
  constexpr const char* kExpected = "expected bash or zsh";
  if (arguments.empty()) {
    return fail("ddprun", invalid_argument(concat("the shell is missing (", kExpected, ")")),
                ExitCode::kUsage);
  }
  const std::string shell = joined(arguments, " ");
  if (shell != "bash" && shell != "zsh") {
    return fail("ddprun", invalid_value(shell, kExpected).within("completion"), ExitCode::kUsage);
  }
  std::fputs((shell == "bash" ? bash_completion() : zsh_completion()).c_str(), stdout);
  return 0;
}

}  // namespace ddprun
