#include "launcher/command_line.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <functional>
#include <sstream>
#include <utility>

#include "base/exit_codes.h"
#include "base/parse_number.h"
#include "base/seconds.h"

namespace ddprun {
namespace {

using Setter = std::function<Result<void>(LaunchOptions&, const std::string& text)>;

struct OptionSpec {
  std::string group;
  std::string name;         // long, with dashes
  std::string short_name;   // one letter, or empty
  std::string placeholder;  // of its value; empty: a switch
  std::string help;
  std::string example;
  Setter set;                 // a switch without =VALUE gets "true"
  std::string fallback = {};  // what it is where it is not given, where that is worth a word
};

// A setter for an option whose text is parsed by `parse` into a member.
template <class T>
Setter parsed(T LaunchOptions::*member, Result<T> (*parse)(std::string_view)) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    Result<T> value = parse(text);
    if (!value) return std::move(value).error();
    options.*member = std::move(*value);
    return {};
  };
}

template <class T>
Setter lease_time_into(T LeaseTimes::*member, Result<Duration> (*parse)(std::string_view)) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    const Result<Duration> value = parse(text);
    if (!value) return value.error();
    options.times.*member = *value;
    return {};
  };
}

template <class T>
Setter text_into(T LaunchOptions::*member) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    options.*member = text;
    return {};
  };
}

// torchrun reads its switches from the environment as integers; --switch=false is what one would
// try to take back what a script has given.
Setter switch_into(bool LaunchOptions::*member) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
    if (!number && text != "true" && text != "false") {
      return invalid_argument("'" + text + "' is neither true (1) nor false (0)");
    }
    options.*member =
        text == "true" || (number && text.find_first_not_of('0') != std::string::npos);
    return {};
  };
}

template <class T>
Setter integer_into(T LaunchOptions::*member, int min, int max) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    const std::optional<int> value = parse_number<int>(text);
    if (!value || *value < min || *value > max) {
      return invalid_argument("'" + text + "' is no integer from " + std::to_string(min) + " to " +
                              std::to_string(max));
    }
    options.*member = *value;
    return {};
  };
}

// Accepted because torchrun has it, checked by `check`, and without effect: the user is told why.
Setter without_effect(const char* name, const char* why,
                      std::function<Result<void>(const std::string&)> check) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    if (Result<void> good = check(text); !good) return good;
    options.remarks.push_back("--" + std::string(name) + " does nothing here: " + why);
    return {};
  };
}

Result<void> check_seconds(const std::string& text) {
  const Result<Duration> value = parse_seconds(text);
  if (!value) return value.error();
  return {};
}

// One of the words that torchrun knows; `instead`: what to do where it is another one.
std::function<Result<void>(const std::string&)> check_word(std::vector<std::string> words,
                                                           const char* instead) {
  return [words = std::move(words), instead](const std::string& text) -> Result<void> {
    if (std::find(words.begin(), words.end(), text) != words.end()) return {};
    return invalid_argument("'" + text + "' is not available here; " + instead);
  };
}

const std::vector<OptionSpec>& option_table() {
  constexpr int kMaxInt = 1 << 30;
  const LaunchOptions standard;
  static const std::vector<OptionSpec> table{
      {"Workers", "nproc-per-node", "", "N", "workers on this node: a number, cpu, gpu or auto",
       "--nproc-per-node=8", parsed(&LaunchOptions::slots, parse_slots),
       std::to_string(standard.slots.number)},
      {"Workers", "max-restarts", "", "N",
       "restarts the whole job may use; each begins all workers anew", "--max-restarts=3",
       integer_into(&LaunchOptions::max_restarts, 0, kMaxInt),
       std::to_string(standard.max_restarts)},
      {"Workers", "module", "m", "", "the program is a Python module", "-m package.train",
       switch_into(&LaunchOptions::module)},
      {"Workers", "no-python", "", "", "execute the program directly, also when it is a .py file",
       "--no-python ./train.py", switch_into(&LaunchOptions::no_python)},
      {"Workers", "role", "", "NAME",
       "name of the workers' role, for ROLE_NAME and torchrun's prefix", "--role=trainer",
       text_into(&LaunchOptions::role), standard.role},
      {"Workers", "shutdown-grace", "", "SECONDS",
       "between the first signal to workers and SIGKILL", "--shutdown-grace=10",
       parsed(&LaunchOptions::grace, parse_seconds), in_seconds(standard.grace)},
      {"Workers", "monitor-interval", "", "SECONDS",
       "accepted; the kernel reports ends at once, nothing is polled", "--monitor-interval=0.1",
       without_effect("monitor-interval", "the kernel reports ends at once, nothing is polled",
                      check_seconds)},
      {"Workers", "start-method", "", "METHOD",
       "accepted; workers are programs that are executed, not forks of an interpreter",
       "--start-method=spawn",
       without_effect("start-method", "workers are executed, not forked from an interpreter",
                      check_word({"spawn", "fork", "forkserver"},
                                 "torchrun knows spawn, fork and forkserver"))},
      {"Workers", "run-path", "", "", "the program is a Python script, whatever its name ends with",
       "--run-path train", switch_into(&LaunchOptions::run_path)},
      {"Workers", "virtual-local-rank", "", "",
       "each worker has LOCAL_RANK 0 and sees one GPU, its own of CUDA_VISIBLE_DEVICES",
       "--virtual-local-rank", switch_into(&LaunchOptions::virtual_local_rank)},

      {"Nodes", "standalone", "", "",
       "a job of one node (also the default without the options below)", "--standalone",
       switch_into(&LaunchOptions::standalone)},
      {"Nodes", "nnodes", "", "N|MIN:MAX",
       "nodes of the job; with MIN:MAX it goes on while MIN are there", "--nnodes=2:4",
       parsed(&LaunchOptions::nodes, parse_nodes), std::to_string(standard.nodes.max)},
      {"Nodes", "rdzv-endpoint", "", "HOST[:PORT]",
       "where the nodes meet: this host starts the service, or ddp-rendezvous runs there",
       "--rdzv-endpoint=node0:29400", text_into(&LaunchOptions::rdzv_endpoint),
       "port " + std::to_string(kDefaultRdzvPort)},
      {"Nodes", "rdzv-id", "", "ID", "name of the job at the service", "--rdzv-id=$SLURM_JOB_ID",
       text_into(&LaunchOptions::rdzv_id), standard.rdzv_id},
      {"Nodes", "rdzv-backend", "", "NAME",
       "c10d (meet at --rdzv-endpoint) or static (at --master-addr)", "--rdzv-backend=c10d",
       text_into(&LaunchOptions::rdzv_backend)},
      {"Nodes", "rdzv-conf", "", "K=V,...",
       "join_timeout, last_call_timeout: seconds to wait for MIN, then for MAX nodes",
       "--rdzv-conf=join_timeout=600", parsed(&LaunchOptions::rdzv_conf, parse_rdzv_conf)},
      {"Nodes", "on-join", "", "WHEN",
       "a node that comes to a running job with room joins now (everything is formed again), at "
       "the "
       "next checkpoint that workers announce, or with the next restart",
       "--on-join=checkpoint", parsed(&LaunchOptions::on_join, parse_on_join),
       std::string(word_of(kOnJoinWords, standard.on_join))},
      {"Nodes", "node-failures", "", "N",
       "a node whose workers were the first to fail N times gives its place to a spare, where "
       "there is one",
       "--node-failures=2", integer_into(&LaunchOptions::node_failures, 1, kMaxInt),
       std::to_string(standard.node_failures)},
      {"Nodes", "lease", "", "SECONDS",
       "a node that is silent for so long is lost, and its workers have been ended a fifth "
       "earlier; counts where this host starts the service, ddp-rendezvous has its own",
       "--lease=20", lease_time_into(&LeaseTimes::lease, parse_lease),
       in_seconds(standard.times.lease)},
      {"Nodes", "heartbeat-interval", "", "SECONDS",
       "between two heartbeats of a node, from a fiftieth to a quarter of the lease; without it a "
       "fifth; counts where --lease does",
       "--heartbeat-interval=0.5", lease_time_into(&LeaseTimes::given_heartbeat, parse_seconds)},
      {"Nodes", "node-rank", "", "N", "rank of this node; without it nodes are ordered by name",
       "--node-rank=0", integer_into(&LaunchOptions::node_rank, 0, kMaxInt)},
      {"Nodes", "local-addr", "", "ADDR",
       "how the others reach this node, if not by the address that reaches the service: an "
       "address, a network or an interface",
       "--local-addr=10.1.0.0/16", text_into(&LaunchOptions::local_addr)},
      {"Nodes", "port-range", "", "FIRST-LAST",
       "ports to listen on, for firewalls: one for the store, one for each worker of ddprun's "
       "library",
       "--port-range=29500-29599", parsed(&LaunchOptions::ports, parse_port_range)},
      {"Nodes", "rdzv-key-file", "", "FILE",
       "file with the key that all nodes and the service must have, a line of 16 characters or "
       "more; else DDPRUN_RDZV_KEY",
       "--rdzv-key-file=$HOME/.ddprun-key", text_into(&LaunchOptions::rdzv_key_file)},
      {"Nodes", "munge-socket", "", "PATH|none",
       "socket of munged, which says who agents are where there is no key, if not where munge "
       "looks for it; none: not used",
       "--munge-socket=/run/munge/munge.socket.2", text_into(&LaunchOptions::munge_socket)},
      {"Nodes", "rdzv-tls-cert", "", "FILE",
       "certificate of this node, in PEM with those between it and its authority: needed where "
       "this "
       "host starts the service, and where the service asks for one",
       "--rdzv-tls-cert=/etc/ddprun/tls/tls.crt", text_into(&LaunchOptions::rdzv_tls_cert)},
      {"Nodes", "rdzv-tls-key", "", "FILE", "its private key, in PEM without a passphrase",
       "--rdzv-tls-key=/etc/ddprun/tls/tls.key", text_into(&LaunchOptions::rdzv_tls_key)},
      {"Nodes", "rdzv-tls-ca", "", "FILE",
       "meet over TLS, with a service whose certificate comes from this authority; 'system' for "
       "those that this host trusts. A service that this host starts asks the others for such a "
       "certificate, too",
       "--rdzv-tls-ca=/etc/ddprun/tls/ca.crt", text_into(&LaunchOptions::rdzv_tls_ca)},
      {"Nodes", "require-auth", "", "",
       "do not meet other nodes without a key, munge, or certificates on both sides",
       "--require-auth", switch_into(&LaunchOptions::require_auth)},
      {"Nodes", "store-allow", "", "NET,...",
       "who may reach the store, beside the nodes of the job: addresses and networks",
       "--store-allow=10.1.0.0/16", text_into(&LaunchOptions::store_allow)},
      {"Nodes", "master-addr", "", "ADDR", "static: where node rank 0 serves everything",
       "--master-addr=10.0.0.1", text_into(&LaunchOptions::master_addr)},
      {"Nodes", "master-port", "", "PORT", "static: its port", "--master-port=29500",
       integer_into(&LaunchOptions::master_port, 0, 65535), std::to_string(kDefaultMasterPort)},

      {"Output", "log-dir", "", "DIR",
       "keep log and error files in DIR/<id>_<random>/attempt_N/<local rank>/", "--log-dir=logs",
       text_into(&LaunchOptions::log_dir)},
      {"Output", "local-ranks-filter", "", "RANKS",
       "the console gets the output of these local ranks only; log files are not affected",
       "--local-ranks-filter=0", parsed(&LaunchOptions::shown_ranks, parse_local_ranks)},
      {"Output", "event-log-handler", "", "NAME",
       "accepted where it is null; /status.json and /metrics of the service say what happens",
       "--event-log-handler=null",
       without_effect("event-log-handler", "there is nothing to be turned off",
                      check_word({"null"},
                                 "/status.json and /metrics of the service say what "
                                 "happens (docs/monitoring.md)"))},
      {"Output", "logs-specs", "", "NAME",
       "accepted where it is default; -r, -t and --log-dir say where logs go",
       "--logs-specs=default",
       without_effect("logs-specs", "there are no others",
                      check_word({"default"}, "-r, -t and --log-dir say where logs go"))},
      {"Output", "redirects", "r", "STREAMS",
       "into log files only: 1 stdout, 2 stderr, 3 both, or RANK:N,...", "-r 3",
       parsed(&LaunchOptions::redirects, parse_streams)},
      {"Output", "tee", "t", "STREAMS", "into log files and to the console, with torchrun's prefix",
       "-t 0:3,1:2", parsed(&LaunchOptions::tee, parse_streams)},
  };
  return table;
}

// torchrun 2.11 has these, too; what to do instead.
constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kRefused{{
    {"duplicate-stdout-filters", "give -t 1 and search its files"},
    {"duplicate-stderr-filters", "give -t 2 and search its files"},
    {"signals-to-handle", "SIGTERM, SIGINT, SIGHUP and SIGQUIT are always passed on"},
    {"numa-binding", "start the program through numactl: ddprun ... --no-python numactl ..."},
}};

std::string with_underscores(std::string name) {
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

std::string with_dashes(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  return name;
}

std::string environment_name(const std::string& name) {
  std::string upper = with_underscores(name);
  std::transform(upper.begin(), upper.end(), upper.begin(),
                 [](unsigned char c) { return std::toupper(c); });
  return "PET_" + upper;
}

// Edits that make one word of the other: what a typing error is measured in.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = std::exchange(row[0], i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, substitute});
    }
  }
  return row.back();
}

Error unknown_option(const std::string& given) {
  const std::string name = with_dashes(given.substr(0, given.find('=')));
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  for (const auto& [refused, instead] : kRefused) {
    if (bare != refused) continue;
    return invalid_argument("--" + bare +
                            " is torchrun's, and not available here: " + std::string(instead));
  }
  const OptionSpec* nearest = nullptr;
  std::size_t best = 4;
  for (const OptionSpec& spec : option_table()) {
    const std::size_t distance = edit_distance(bare, spec.name);
    const bool begins_it = bare.size() >= 3 && spec.name.starts_with(bare);
    if (distance < best || (begins_it && best > 1)) {
      nearest = &spec;
      best = std::min<std::size_t>(distance, begins_it ? 1 : distance);
    }
  }
  std::string text = "unknown option " + name;
  text += nearest ? ": did you mean --" + nearest->name + "?" : "; ddprun --help lists them";
  return invalid_argument(std::move(text));
}

std::string flag_names(const OptionSpec& spec) {
  std::string names = spec.short_name.empty() ? "" : "-" + spec.short_name + ",";
  names += "--" + spec.name;
  const std::string underscored = with_underscores(spec.name);
  if (underscored != spec.name) names += ",--" + underscored;
  return names;
}

// The option of this name, as it is written before '='; null where there is none.
const OptionSpec* find_option(const std::string& given) {
  for (const OptionSpec& spec : option_table()) {
    const bool is_short = !spec.short_name.empty() && given == "-" + spec.short_name;
    if (is_short || with_dashes(given) == "--" + spec.name) return &spec;
  }
  return nullptr;
}

// "--name=", which an unset variable leaves in a script, has a value that is empty. CLI11 would take
// the next argument for it, be it the program.
std::vector<std::string> with_empty_values(const std::vector<std::string>& arguments) {
  std::vector<std::string> plain;
  std::size_t i = 0;
  for (; i < arguments.size() && arguments[i].starts_with('-'); ++i) {
    const std::size_t equals = arguments[i].find('=');
    const OptionSpec* option = find_option(arguments[i].substr(0, equals));
    const bool has_value = option && !option->placeholder.empty();
    if (has_value && equals == arguments[i].size() - 1) {
      plain.insert(plain.end(), {arguments[i].substr(0, equals), ""});
      continue;
    }
    plain.push_back(arguments[i]);
    if (has_value && equals == std::string::npos && i + 1 < arguments.size()) {
      plain.push_back(arguments[++i]);
    }
  }
  plain.insert(plain.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return plain;
}

// What was found for each option, in the order of the table.
struct Found {
  std::vector<std::optional<std::string>> values;
  bool help = false;
  bool version = false;
  std::vector<std::string> rest;
};

Result<Found> scan(const std::vector<std::string>& given) {
  const std::vector<std::string> arguments = with_empty_values(given);
  const std::vector<OptionSpec>& table = option_table();
  Found found;
  found.values.resize(table.size());
  std::vector<std::string> texts(table.size());
  std::vector<CLI::Option*> options(table.size());
  CLI::App app;
  app.set_help_flag();
  app.prefix_command();
  for (std::size_t i = 0; i < table.size(); ++i) {
    const OptionSpec& spec = table[i];
    if (spec.placeholder.empty()) {
      options[i] = app.add_flag(flag_names(spec));
    } else {
      options[i] = app.add_option(flag_names(spec), texts[i])
                       ->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    }
  }
  app.add_flag("-h,--help", found.help);
  app.add_flag("--version", found.version);

  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ArgumentMismatch& mismatch) {
    const std::string text = mismatch.what();
    return invalid_argument(with_dashes(text.substr(0, text.find(':'))) + " needs a value");
  } catch (const CLI::ParseError& error) {
    return invalid_argument(error.what());
  }
  found.rest = app.remaining();
  if (!found.rest.empty() && found.rest.front().starts_with('-') && found.rest.front().size() > 1) {
    if (found.rest.front() != "--") return unknown_option(found.rest.front());
    found.rest.erase(found.rest.begin());
  }
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (options[i]->count() > 0) {
      found.values[i] = table[i].placeholder.empty() ? options[i]->results().back() : texts[i];
    } else if (const char* text = std::getenv(environment_name(table[i].name).c_str())) {
      found.values[i] = text;
    }
  }
  return found;
}

void append_wrapped(std::string& text, const std::string& words, std::size_t indent) {
  constexpr std::size_t kWidth = 100;
  std::size_t column = indent;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    if (column > indent && column + 1 + word.size() > kWidth) {
      text += "\n" + std::string(indent, ' ');
      column = indent;
    }
    if (column > indent) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  text += '\n';
}

}  // namespace

std::vector<OptionExample> option_examples() {
  std::vector<OptionExample> examples;
  for (const OptionSpec& spec : option_table()) examples.push_back({spec.name, spec.example});
  return examples;
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments) {
  Result<Found> found = scan(arguments);
  if (!found) return std::move(found).error();
  CommandLine line;
  if (found->help || found->version) {
    line.wish = found->help ? CommandLine::Wish::kHelp : CommandLine::Wish::kVersion;
    return line;
  }
  const std::vector<OptionSpec>& table = option_table();
  for (std::size_t i = 0; i < table.size(); ++i) {
    if (!found->values[i]) continue;
    if (Result<void> set = table[i].set(line.options, *found->values[i]); !set) {
      return std::move(set).error().within("--" + table[i].name);
    }
  }
  if (found->rest.empty()) {
    return invalid_argument(
        "which program? ddprun [options] program [arguments]; ddprun --help tells more");
  }
  line.options.program = found->rest.front();
  line.options.args.assign(found->rest.begin() + 1, found->rest.end());
  return line;
}

std::string help_text() {
  std::string text =
      "Usage: ddprun [options] program [arguments...]\n\n"
      "Starts a program several times, on one or several nodes, as the workers of one "
      "data-parallel job:\n"
      "gives each its rank, serves the store they meet at, passes their output on, and restarts "
      "all when\n"
      "one fails. A .py file or -m goes through python; anything else is executed.\n\n"
      "  ddprun --nproc-per-node=2 ./train\n"
      "  ddprun --nproc-per-node=gpu --max-restarts=3 train.py --epochs 10\n"
      "  ddprun --nnodes=2 --rdzv-endpoint=node0:29400 --rdzv-id=job1 --nproc-per-node=8 ./train\n";
  constexpr std::size_t kIndent = 34;
  std::string group;
  for (const OptionSpec& spec : option_table()) {
    if (spec.group != group) {
      group = spec.group;
      text += "\n" + group + "\n";
    }
    std::string head = "  ";
    if (!spec.short_name.empty()) head += "-" + spec.short_name + ", ";
    head += "--" + spec.name + (spec.placeholder.empty() ? "" : " " + spec.placeholder);
    if (head.size() + 2 > kIndent) {
      text += head + "\n" + std::string(kIndent, ' ');
    } else {
      text += head + std::string(kIndent - head.size(), ' ');
    }
    const std::string fallback = spec.fallback.empty() ? "" : " [" + spec.fallback + "]";
    append_wrapped(text, spec.help + fallback + "; e.g. " + spec.example, kIndent);
  }
  text +=
      "\nGeneral\n  -h, --help                      this text\n"
      "  --version                       versions of ddprun and its protocol\n"
      "\nIn brackets: what counts where an option is not given.\n"
      "Options may be written with - or _, and as PET_<NAME> in the environment.\n"
      "\nExit codes: the first failed worker's own, 128+n for signal n, or\n";
  for (const ExitCodeText& row : kExitCodes) {
    const std::string code = std::to_string(to_int(row.code));
    text +=
        "  " + std::string(4 - code.size(), ' ') + code + "  " + std::string(row.meaning) + "\n";
  }
  return text;
}

}  // namespace ddprun
