#include "launcher/control/options.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <functional>

#include "base/concat.h"
#include "base/missing_value.h"
#include "base/nearest_word.h"
#include "base/parse_number.h"
#include "base/seconds.h"
#include "base/signal_names.h"
#include "base/split.h"
#include "base/worker_page.h"
#include "launcher/options/option_table.h"

namespace ddprun {
namespace {

using Command = ControlCommand;
using What = UserRequest::What;
using Setter = std::function<Result<void>(ControlOptions&, const std::string& text)>;

struct Option {
  std::string name;
  std::string placeholder;  // empty: takes no value
  std::string help;
  std::vector<Command> commands;  // empty: all commands
  Setter set;
  std::string short_name = {};
};

// Options that say how to reach and authenticate to a service. They have the names of a job's
// options.
constexpr std::array<std::string_view, 9> kServiceOptions{
    "rdzv-endpoint", "rdzv-backend", "rdzv-conf",   "rdzv-key-file", "munge-socket",
    "rdzv-tls-cert", "rdzv-tls-key", "rdzv-tls-ca", "require-auth"};

template <class... Commands>
std::vector<Command> only(Commands... commands) {
  return {commands...};
}
const std::vector<Command> kAll;

Setter flag(bool ControlOptions::*member) {
  return setter(member, [](const std::string&) -> Result<bool> { return true; });
}

Result<Rank> parse_rank(const std::string& text) {
  const auto rank = parse_number<int>(text);
  if (!rank || *rank < 0) return invalid_value(text, "expected a rank: 0, 1, 2, ...");
  return Rank(*rank);
}

// Makes a setter for a number from 0 to `most`.
template <class Member>
Setter number(Member member, int most) {
  return setter(member, [most](const std::string& text) -> Result<int> {
    const auto given = parse_number<int>(text);
    if (given && *given >= 0 && *given <= most) return *given;
    return invalid_value(text, "expected a number from 0 to " + std::to_string(most));
  });
}

// Parses one or more process ids, separated by commas as `pgrep -d,` prints them.
Result<void> set_processes(ControlOptions& options, const std::string& text) {
  for (const std::string_view word : split(text, ',')) {
    const auto process = parse_number<pid_t>(word);
    if (!process || *process <= 0) {
      return invalid_value(text, "expected process ids, such as 4711 or 4711,4712");
    }
    options.processes.push_back(*process);
  }
  return {};
}

Result<void> set_elected(ControlOptions& options, const std::string& text) {
  const std::optional<RdzvBackend> backend = parse_enum(kRdzvBackendWords, text);
  if (!is_etcd(backend)) {
    return invalid_value(text,
                         "expected etcd or etcd-v2; other services need only --rdzv-endpoint");
  }
  options.service.rdzv_backend = backend;
  return {};
}

Result<std::string> parse_trace_name(const std::string& text) {
  if (text.ends_with(".json") || text.ends_with(".json.gz")) return text;
  return invalid_value(text, "expected a name that ends with .json or .json.gz");
}

std::vector<Option> own_options() {
  return {
      {"json", "", "print JSON", kAll, flag(&ControlOptions::json)},
      {"rank", "N", "only this rank",
       only(Command::kLogs, Command::kSignal, Command::kFlight, Command::kStacks),
       setter(&ControlOptions::rank, parse_rank)},
      {"last", "N", "the last N calls of each rank (default: 10; with --json all)",
       only(Command::kFlight), number(&ControlOptions::last, static_cast<int>(kFlightRecords))},
      {"follow", "", "continue with new output until the job ends", only(Command::kLogs),
       flag(&ControlOptions::follow), "f"},
      {"lines", "N",
       "the last N lines of each stream (default: " + std::to_string(kDefaultLogLines) + ")",
       only(Command::kLogs), number(&ControlOptions::lines, kMaxLogLines), "n"},
      {"now", "", "kill the workers at once, without --shutdown-grace", only(Command::kStop),
       flag(&ControlOptions::at_once)},
      {"compare", "", "show only where ranks differ, and what is in progress",
       only(Command::kFlight), flag(&ControlOptions::only_compares)},
      {"chrome-trace", "FILE", "write a trace for ui.perfetto.dev or chrome://tracing instead",
       only(Command::kFlight), setter(&ControlOptions::trace_file, text_as_given)},
      {"output", "FILE", "the file to write: .json, or .json.gz (compressed)",
       only(Command::kTrace), setter(&ControlOptions::trace_file, parse_trace_name), "o"},
      {"pid", "PID,...", "read ranks that run without ddprun, in these processes of this host",
       only(Command::kFlight), set_processes},
      {"timeout", "SECONDS",
       "how long to wait for the end (default: --shutdown-grace and a minute)",
       only(Command::kStop), setter(&ControlOptions::timeout, parse_seconds)},
      {"once", "", "print a table once, also on a terminal", only(Command::kTop),
       flag(&ControlOptions::once)},
      {"open", "", "open the page in the browser of this desktop (xdg-open)",
       only(Command::kDashboard), flag(&ControlOptions::opens)},
      {"help", "", "this text", kAll, flag(&ControlOptions::wants_help), "h"},
  };
}

std::string_view name_of(Command command) { return enum_name(kControlCommandWords, command); }

// Returns whether the command shows the job to people, not as JSON.
bool is_shown(Command command) {
  return command == Command::kTop || command == Command::kDashboard;
}

std::vector<Option> options_of(Command command) {
  std::vector<Option> all = own_options();
  std::erase_if(all, [command](const Option& one) {
    return (is_shown(command) && one.name == "json") ||
           (!one.commands.empty() && std::ranges::count(one.commands, command) == 0);
  });
  for (const std::string_view name : kServiceOptions) {
    const OptionSpec* spec = find_option("--" + std::string(name));
    std::string help = spec->help;
    if (name == "rdzv-endpoint")
      help = "ask the rendezvous service at this address, wherever the job runs";
    if (name == "rdzv-backend")
      help = "etcd: ask the node that the job has elected at the etcd of --rdzv-endpoint";
    if (name == "rdzv-conf") help = "protocol, cacert, cert, key, etcd_prefix: as the job's";
    all.push_back({spec->name, spec->placeholder, help, kAll,
                   [spec](ControlOptions& options, const std::string& text) {
                     return spec->set(options.service, text);
                   }});
    if (name == "rdzv-backend") all.back().set = set_elected;
  }
  return all;
}

Error unknown_option(Command command, const std::vector<Option>& options,
                     const std::string& given) {
  std::vector<std::string> names;
  for (const Option& one : options) names.push_back(one.name);
  const std::string help = concat("; ddprun ", name_of(command), " --help lists them");
  return invalid_argument("unknown option " + given +
                          guess_at_option(with_dashes(given), names, help));
}

// Returns whether the word names a saved flight record. Job ids look different.
bool names_file(const std::string& word) {
  return word.find('/') != std::string::npos || word.ends_with(".json");
}

// only_words: `--` was given, so no word is a file.
Result<void> take_words(Command command, ControlOptions& options, std::vector<std::string> words,
                        bool only_words) {
  if (options.what == What::kSignal) {
    if (words.empty()) return invalid_argument("the signal is missing: ddprun signal USR1 [JOB]");
    std::string name = words.front();
    std::ranges::transform(name, name.begin(),
                           [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    const std::optional<int> signal = signal_by_name(name);
    if (!signal) {
      return invalid_value(words.front(), "expected USR1, SIGTERM, 10, ...").within("signal");
    }
    options.signal = *signal;
    words.erase(words.begin());
  }
  const bool takes_files = options.what == What::kFlight && !only_words;
  if (takes_files && std::ranges::any_of(words, names_file)) {
    const auto job = std::ranges::find_if_not(words, names_file);
    if (job != words.end()) {
      return invalid_argument("give files or a job, not both: '" + *job + "' is not a file");
    }
    options.files = std::move(words);
    return {};
  }
  if (words.size() > 1) {
    return invalid_argument(concat("'ddprun ", name_of(command), "' takes one job, not '", words[0],
                                   "' and '", words[1], "'"));
  }
  if (!words.empty()) options.job = words.front();
  return {};
}

}  // namespace

Result<ControlOptions> parse_control_options(Command command,
                                             const std::vector<std::string>& arguments) {
  const std::vector<Option> known = options_of(command);
  ControlOptions options;
  options.is_trace = command == Command::kTrace;
  options.what = options.is_trace
                     ? What::kFlight
                     : parse_enum(kUserRequestWords, name_of(command)).value_or(What::kStatus);
  std::vector<std::string> words;
  bool only_words = false;
  std::string of_service;  // the last option given that says how to ask a service
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& given = arguments[i];
    if (only_words || given.size() < 2 || given[0] != '-') {
      words.push_back(given);
      continue;
    }
    if (given == "--") {
      only_words = true;
      continue;
    }
    const std::size_t equals = given.starts_with("--") ? given.find('=') : std::string::npos;
    const std::string name = given.substr(0, equals);
    const Option* option = find_written(known, name);
    if (!option) return unknown_option(command, known, name);
    std::string text;
    if (option->placeholder.empty()) {
      if (equals != std::string::npos) return invalid_argument("takes no value").within(name);
      text = "true";
    } else if (equals != std::string::npos) {
      text = given.substr(equals + 1);
    } else if (i + 1 < arguments.size()) {
      text = arguments[++i];
    } else {
      return missing_value(name, option->placeholder);
    }
    // An empty variable in a script must not turn a request to a service into one to this host.
    if (text.empty()) {
      return invalid_argument("empty value (give one, or leave the option out)").within(name);
    }
    if (Result<void> set = option->set(options, text); !set) {
      return std::move(set).error().within(name);
    }
    if (std::ranges::count(kServiceOptions, option->name) > 0) {
      of_service = name;
      options.service_arguments.push_back(option->placeholder.empty() ? name : name + "=" + text);
    }
  }
  if (options.wants_help) return options;
  const bool asks_service = !options.service.rdzv_endpoint.empty();
  if (!asks_service && !of_service.empty()) {
    return invalid_argument("needs --rdzv-endpoint=HOST:PORT").within(of_service);
  }
  const Result<void> taken = take_words(command, options, std::move(words), only_words);
  if (!taken) return taken.error();
  if (asks_service && !options.files.empty()) {
    return invalid_argument("cannot be used with files, which are read on this host")
        .within("--rdzv-endpoint");
  }
  const bool has_other = asks_service || !options.files.empty() || !options.job.empty();
  if (!options.processes.empty() && has_other) {
    return invalid_argument("cannot be used with a job or files: it reads processes of this host")
        .within("--pid");
  }
  if (options.service.rdzv_backend && options.job.empty()) {
    return invalid_argument("give the id of a job: each job elects its service")
        .within("--rdzv-backend");
  }
  if (options.is_trace && options.trace_file.empty()) {
    return missing_value("-o", "FILE, such as trace.json.gz");
  }
  if (asks_service && options.job.empty() && options.what != What::kStatus) {
    return invalid_argument("give the id of a job: the service may have several")
        .within("--rdzv-endpoint");
  }
  return options;
}

std::string control_usage(Command command) {
  std::string text = command == Command::kSignal ? "SIGNAL " : "";
  for (const Option& one : options_of(command)) {
    if (one.commands.empty()) continue;
    text += "[" + (one.short_name.empty() ? "--" + one.name : "-" + one.short_name) +
            (one.placeholder.empty() ? "" : " " + one.placeholder) + "] ";
  }
  const bool takes_files = command == Command::kFlight || command == Command::kTrace;
  return text + (takes_files ? "[JOB | FILE...]" : "[JOB]");
}

std::string control_help(Command command) {
  constexpr std::size_t kColumn = 28;
  std::string text =
      concat("ddprun ", name_of(command), " ", control_usage(command),
             "\n\nJOB: the job's id, or the process id of its ddprun (default: the only job of "
             "this\nuser on this host). See docs/how-to/",
             is_shown(command) ? "see-your-job" : "control", ".md.\n\n");
  for (const Option& one : options_of(command)) {
    std::string line = "  ";
    if (!one.short_name.empty()) line += "-" + one.short_name + ", ";
    line += "--" + one.name + (one.placeholder.empty() ? "" : " " + one.placeholder);
    line.resize(std::max(line.size() + 1, kColumn), ' ');
    text += line + one.help + "\n";
  }
  return text;
}

}  // namespace ddprun
