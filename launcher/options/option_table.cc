#include "launcher/options/option_table.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "base/parse_number.h"
#include "base/seconds.h"
#include "base/signal_names.h"

namespace ddprun {
namespace {

using Setter = OptionSpec::Setter;

template <class Enum, std::size_t N>
std::vector<std::string> words(const EnumNames<Enum, N>& table) {
  std::vector<std::string> texts;
  for (const auto& [value, word] : table) texts.emplace_back(word);
  return texts;
}

// Makes a setter for an option whose text is parsed by `parse` into a member.
template <class Member, class T>
Setter parsed(Member LaunchOptions::*member, Result<T> (*parse)(std::string_view)) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    Result<T> value = parse(text);
    if (!value) return std::move(value).error();
    options.*member = std::move(*value);
    return {};
  };
}

// As parsed(), for a member of a member.
template <class Part, class T, class Parsed>
Setter part_into(Part LaunchOptions::*part, T Part::*member,
                 Result<Parsed> (*parse)(std::string_view)) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    Result<Parsed> value = parse(text);
    if (!value) return std::move(value).error();
    options.*part.*member = std::move(*value);
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

// As text_into(), but refuses an empty text, which an unset variable of a script leaves. An
// empty text must not mean that the option was not given, for example for a key file.
Setter needed_into(std::string LaunchOptions::*member) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    if (text.empty()) return invalid_argument("empty value (give one, or leave the option out)");
    options.*member = text;
    return {};
  };
}

// Reads the value of a switch. torchrun reads its switches from the environment as integers.
// Users may also write --switch=false to revoke a switch that a script has given.
Result<void> read_switch(bool& value, const std::string& text) {
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (!number && text != "true" && text != "false") {
    return invalid_value(text, "expected true, false, 1 or 0");
  }
  value = text == "true" || (number && text.find_first_not_of('0') != std::string::npos);
  return {};
}

Setter switch_into(bool LaunchOptions::*member) {
  return [=](LaunchOptions& options, const std::string& text) {
    return read_switch(options.*member, text);
  };
}

template <class T>
Setter integer_into(T LaunchOptions::*member, int min, int max) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    const std::optional<int> value = parse_number<int>(text);
    if (!value || *value < min || *value > max) {
      return invalid_value(
          text, "expected an integer from " + std::to_string(min) + " to " + std::to_string(max));
    }
    options.*member = *value;
    return {};
  };
}

// Makes a setter for an option that is accepted because torchrun has it, and has no effect.
// `check` checks its text. No remark is made at the start: with any text that `check` accepts,
// the job runs as it would under torchrun.
Setter without_effect(std::function<Result<void>(const std::string&)> check) {
  return
      [check = std::move(check)](LaunchOptions&, const std::string& text) { return check(text); };
}

// Makes an option that asks for something instead of running a job.
OptionSpec wish(const char* name, const char* short_name, const char* help, const char* example,
                LaunchCommand what) {
  return {.group = "General",
          .name = name,
          .short_name = short_name,
          .help = help,
          .example = example,
          .set = [what](LaunchOptions& options, const std::string& text) -> Result<void> {
            bool wanted = false;
            if (Result<void> read = read_switch(wanted, text); !read) return read;
            if (wanted) options.command = what;
            return {};
          },
          .where = OptionSpec::Where::kCommandLineOnly};
}

Result<void> check_seconds(const std::string& text) {
  const Result<Duration> value = parse_seconds(text);
  if (!value) return value.error();
  return {};
}

// Checks a list of signals, each of which must end a job here, too.
Result<void> check_signals(const std::string& text) {
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    const std::string name = text.substr(begin, end - begin);
    const std::optional<int> signal = signal_by_name(name);
    if (!signal) return invalid_value(name, "expected signals, such as SIGTERM,SIGINT");
    if (std::ranges::count(kPassedSignals, *signal) == 0) {
      return invalid_argument(
          signal_name(*signal) +
          " does not end a job; with --checkpoint-signal workers save and exit");
    }
    begin = end + 1;
  }
  return {};
}

// Returns a check for one of the words that torchrun knows. `instead`: what to do if it is
// another one.
std::function<Result<void>(const std::string&)> check_word(std::vector<std::string> words,
                                                           const char* instead) {
  return [words = std::move(words), instead](const std::string& text) -> Result<void> {
    if (std::find(words.begin(), words.end(), text) != words.end()) return {};
    return invalid_value(text, instead);
  };
}

}  // namespace

const std::vector<OptionSpec>& option_table() {
  constexpr int kMaxInt = 1 << 30;
  const LaunchOptions standard;
  static const std::vector<OptionSpec> table{
      {"Workers", "nproc-per-node", "", "N", "workers on this node: a number, cpu, gpu or auto",
       "--nproc-per-node=8", parsed(&LaunchOptions::slots, parse_slots),
       std::to_string(standard.slots.number)},
      {"Workers", "max-restarts", "", "N",
       "restarts of the whole job; each starts all workers again", "--max-restarts=3",
       integer_into(&LaunchOptions::max_restarts, 0, kMaxInt),
       std::to_string(standard.max_restarts)},
      {.group = "Workers",
       .name = "restart-window",
       .placeholder = "SECONDS",
       .help = "--max-restarts counts only the restarts of the last SECONDS",
       .example = "--restart-window=3600",
       .set = part_into(&LaunchOptions::restart_rules, &RestartRules::window, parse_seconds)},
      {.group = "Workers",
       .name = "no-restart-on",
       .placeholder = "CODES",
       .help = "exit codes of the first failed worker (128+n for signal n) that end the job, even "
               "if restarts are left",
       .example = "--no-restart-on=2,64-78",
       .set =
           part_into(&LaunchOptions::restart_rules, &RestartRules::final_codes, parse_code_ranges)},
      {.group = "Workers",
       .name = "restart-on-progress",
       .help = "when workers report a later step than that of the last failure, all restarts are "
               "available again; the third failure in a row at one step ends the job",
       .example = "--max-restarts=3 --restart-on-progress",
       .set =
           [](LaunchOptions& options, const std::string& text) {
             return read_switch(options.restart_rules.on_progress, text);
           }},
      {"Workers", "module", "m", "", "the program is a Python module", "-m package.train",
       switch_into(&LaunchOptions::module)},
      {"Workers", "no-python", "", "", "execute the program directly, also when it is a .py file",
       "--no-python ./train.py", switch_into(&LaunchOptions::no_python)},
      {"Workers", "role", "", "NAME",
       "name of the workers' role, for ROLE_NAME and torchrun's prefix", "--role=trainer",
       text_into(&LaunchOptions::role), standard.role},
      {.group = "Workers",
       .name = "shutdown-grace",
       .placeholder = "SECONDS",
       .help = "time between the first signal to workers and SIGKILL",
       .example = "--shutdown-grace=10",
       .set = parsed(&LaunchOptions::grace, parse_seconds),
       .fallback =
           in_seconds(kDefaultGrace) + ", under srun " + in_seconds(kDefaultGraceUnderSlurm)},
      {"Workers", "shutdown-timeout", "", "SECONDS", "torchrun's name for --shutdown-grace",
       "--shutdown-timeout=120", parsed(&LaunchOptions::shutdown_timeout, parse_seconds)},
      {.group = "Workers",
       .name = "hang-timeout",
       .placeholder = "SECONDS",
       .help = "workers fail if, after a step was reported, they do nothing or stay in one "
               "collective for this time (default: no check)",
       .example = "--hang-timeout=600",
       .set = parsed(&LaunchOptions::hang_timeout, parse_seconds)},
      {.group = "Workers",
       .name = "checkpoint-signal",
       .placeholder = "SIGNAL",
       .help = "signal at which workers of ddprun's library save and exit, as Slurm and preemptors "
               "send before the end; the exit code then says: start the job again",
       .example = "--checkpoint-signal=USR1",
       .set = parsed(&LaunchOptions::checkpoint_signal, parse_checkpoint_signal),
       .choices = {"USR1", "USR2", "TERM"}},
      {"Workers", "monitor-interval", "", "SECONDS",
       "accepted, no effect: the kernel reports the end of a worker at once",
       "--monitor-interval=0.1", without_effect(check_seconds)},
      {"Workers", "signals-to-handle", "", "SIGNALS",
       "accepted, no effect: SIGTERM, SIGINT, SIGHUP and SIGQUIT always end the job, SIGUSR1 and "
       "SIGUSR2 are passed on",
       "--signals-to-handle=SIGTERM,SIGINT", without_effect(check_signals)},
      {"Workers", "start-method", "", "METHOD",
       "accepted, no effect: workers are executed programs, not forks of an interpreter",
       "--start-method=spawn",
       without_effect(
           check_word({"spawn", "fork", "forkserver"}, "expected spawn, fork or forkserver"))},
      {"Workers", "run-path", "", "", "the program is a Python script, whatever its file name",
       "--run-path train", switch_into(&LaunchOptions::run_path)},
      {"Workers", "virtual-local-rank", "", "",
       "each worker has LOCAL_RANK 0 and sees one GPU, its own of CUDA_VISIBLE_DEVICES",
       "--virtual-local-rank", switch_into(&LaunchOptions::virtual_local_rank)},
      {"Workers", "chdir", "", "DIR",
       "the working directory of workers; a relative path of the program or script is resolved "
       "there, as after cd",
       "--chdir=/scratch/run7", needed_into(&LaunchOptions::directory)},
      {.group = "Workers",
       .name = "env",
       .placeholder = "NAME=VALUE",
       .help = "a variable for workers; overrides inherited ones and ddprun's own, except those "
               "that give a worker its place; may be repeated",
       .example = "--env=NCCL_DEBUG=INFO",
       .set = [](LaunchOptions& options, const std::string& text) -> Result<void> {
         auto variable = parse_variable(text);
         if (!variable) return std::move(variable).error();
         options.variables.push_back(std::move(*variable));
         return {};
       },
       .repeats = true},
      {"Workers", "umask", "", "OCTAL", "the file mode mask of workers", "--umask=027",
       parsed(&LaunchOptions::file_mask, parse_umask)},
      {.group = "Workers",
       .name = "bind",
       .placeholder = "POLICY",
       .help =
           "CPUs of each worker, without overlap: core (equal parts of the cores), numa (within a "
           "NUMA node), gpu (next to its GPU), auto (gpu, numa or core, whichever fits) or none",
       .example = "--bind=auto",
       .set = parsed(&LaunchOptions::bind, parse_bind),
       .fallback = std::string(enum_name(kBindWords, BindPolicy::kNone)),
       .choices = words(kBindWords)},
      {.group = "Workers",
       .name = "numa-binding",
       .placeholder = "POLICY",
       .help = "torchrun's values for --bind: node and socket (shared by the workers there), "
               "exclusive (as --bind=auto), core-complex (a last-level cache)",
       .example = "--numa-binding=node",
       .set = parsed(&LaunchOptions::numa_binding, parse_numa_binding),
       .choices = words(kNumaBindingWords)},
      {.group = "Workers",
       .name = "gpu-visibility",
       .placeholder = "WHICH",
       .help = "GPUs that each worker sees: all (its own is LOCAL_RANK), or own (it is device 0)",
       .example = "--gpu-visibility=own",
       .set = parsed(&LaunchOptions::gpu_visibility, parse_gpu_visibility),
       .fallback = std::string(enum_name(kGpuVisibilityWords, standard.gpu_visibility)),
       .choices = words(kGpuVisibilityWords)},

      {"Nodes", "standalone", "", "",
       "a job of one node (also the default without the options below)", "--standalone",
       switch_into(&LaunchOptions::standalone)},
      {"Nodes", "nnodes", "", "N|MIN:MAX",
       "nodes of the job; with MIN:MAX it continues while MIN nodes are there", "--nnodes=2:4",
       parsed(&LaunchOptions::nodes, parse_nodes), std::to_string(standard.nodes.max)},
      {"Nodes", "rdzv-endpoint", "", "HOST[:PORT]",
       "address of the rendezvous service: the node with this address starts it, unless "
       "ddp-rendezvous runs there",
       "--rdzv-endpoint=node0:29400", text_into(&LaunchOptions::rdzv_endpoint),
       "port " + std::to_string(kDefaultRdzvPort)},
      {"Nodes", "rdzv-id", "", "ID", "name of the job at the service", "--rdzv-id=$SLURM_JOB_ID",
       needed_into(&LaunchOptions::rdzv_id), standard.rdzv_id},
      {.group = "Nodes",
       .name = "rdzv-backend",
       .placeholder = "NAME",
       .help = "c10d (uses --rdzv-endpoint) or static (uses --master-addr)",
       .example = "--rdzv-backend=c10d",
       .set = text_into(&LaunchOptions::rdzv_backend),
       .choices = {"c10d", "static"}},
      {"Nodes", "rdzv-conf", "", "K=V,...",
       "join_timeout, last_call_timeout: seconds to wait for MIN, then for MAX nodes",
       "--rdzv-conf=join_timeout=600", parsed(&LaunchOptions::rdzv_conf, parse_rdzv_conf)},
      {"Nodes",
       "on-join",
       "",
       "WHEN",
       "when a new node joins a running job with room for it: now (with a new generation), at the "
       "next checkpoint that workers announce, or with the next restart",
       "--on-join=checkpoint",
       parsed(&LaunchOptions::on_join, parse_on_join),
       std::string(enum_name(kOnJoinWords, standard.on_join)),
       OptionSpec::Where::kAnywhere,
       false,
       {"now", "checkpoint", "restart"}},
      {"Nodes", "node-failures", "", "N",
       "a node whose workers failed first N times is replaced by a spare, if there is one",
       "--node-failures=2", integer_into(&LaunchOptions::node_failures, 1, kMaxInt),
       std::to_string(standard.node_failures)},
      {"Nodes", "lease", "", "SECONDS",
       "a node that is silent for this time is lost; it ends its workers a fifth earlier. Used if "
       "this host starts the service; ddp-rendezvous has its own",
       "--lease=20", part_into(&LaunchOptions::times, &LeaseTimes::lease, parse_lease),
       in_seconds(standard.times.lease)},
      {"Nodes", "heartbeat-interval", "", "SECONDS",
       "time between heartbeats of a node, from a fiftieth to a quarter of the lease (default: a "
       "fifth). Used where --lease is",
       "--heartbeat-interval=0.5",
       part_into(&LaunchOptions::times, &LeaseTimes::given_heartbeat, parse_seconds)},
      {"Nodes", "node-rank", "", "N", "rank of this node; without it nodes are ordered by name",
       "--node-rank=0", integer_into(&LaunchOptions::node_rank, 0, kMaxInt)},
      {"Nodes", "local-addr", "", "ADDR",
       "an address, network or interface at which other nodes reach this node (default: the "
       "address from which it reaches the service)",
       "--local-addr=10.1.0.0/16", text_into(&LaunchOptions::local_addr)},
      {"Nodes", "port-range", "", "FIRST-LAST",
       "ports to listen on, for firewalls: one for the store, one for each worker of ddprun's "
       "library",
       "--port-range=29500-29599", parsed(&LaunchOptions::ports, parse_port_range)},
      {"Nodes", "rdzv-key-file", "", "FILE",
       "file with the key that all nodes and the service must have, a line of 16 characters or "
       "more (default: DDPRUN_RDZV_KEY)",
       "--rdzv-key-file=$HOME/.ddprun-key", needed_into(&LaunchOptions::rdzv_key_file)},
      {"Nodes", "munge-socket", "", "PATH|none",
       "socket of munged, which authenticates agents if there is no key (default: munge's own); "
       "none: do not use munge",
       "--munge-socket=/run/munge/munge.socket.2", needed_into(&LaunchOptions::munge_socket)},
      {"Nodes", "rdzv-tls-cert", "", "FILE",
       "certificate of this node, in PEM, with its intermediate certificates: needed if this host "
       "starts the service, or if the service asks for one",
       "--rdzv-tls-cert=/etc/ddprun/tls/tls.crt", needed_into(&LaunchOptions::rdzv_tls_cert)},
      {"Nodes", "rdzv-tls-key", "", "FILE", "its private key, in PEM without a passphrase",
       "--rdzv-tls-key=/etc/ddprun/tls/tls.key", needed_into(&LaunchOptions::rdzv_tls_key)},
      {"Nodes", "rdzv-tls-ca", "", "FILE",
       "use TLS, and accept a service whose certificate comes from this authority; 'system' for "
       "those that this host trusts. A service that this host starts also asks the other nodes for "
       "such a certificate",
       "--rdzv-tls-ca=/etc/ddprun/tls/ca.crt", needed_into(&LaunchOptions::rdzv_tls_ca)},
      {"Nodes", "require-auth", "", "",
       "refuse to join other nodes without a key, munge, or certificates on both sides",
       "--require-auth", switch_into(&LaunchOptions::require_auth)},
      {"Nodes", "store-allow", "", "NET,...",
       "addresses and networks that may use the store, besides the nodes of the job",
       "--store-allow=10.1.0.0/16", needed_into(&LaunchOptions::store_allow)},
      {.group = "Nodes",
       .name = "worker-store",
       .placeholder = "WHO",
       .help = "who serves the workers' store: the agent of rank 0's node, or rank0 itself (needed "
               "for a PyTorch without libuv)",
       .example = "--worker-store=rank0",
       .set = parsed(&LaunchOptions::worker_store, parse_worker_store),
       .fallback = "agent",
       .choices = {"agent", "rank0"}},
      {"Nodes", "master-addr", "", "ADDR",
       "static: address of node rank 0, which serves everything", "--master-addr=10.0.0.1",
       text_into(&LaunchOptions::master_addr)},
      {"Nodes", "master-port", "", "PORT", "static: port of node rank 0", "--master-port=29500",
       integer_into(&LaunchOptions::master_port, 0, 65535), std::to_string(kDefaultMasterPort)},

      {"Output", "log-dir", "", "DIR",
       "keep log and error files in DIR/<id>_<random>/attempt_N/<local rank>/", "--log-dir=logs",
       text_into(&LaunchOptions::log_dir)},
      {"Output", "local-ranks-filter", "", "RANKS",
       "the console gets the output of these local ranks only; log files are not affected",
       "--local-ranks-filter=0", parsed(&LaunchOptions::shown_ranks, parse_local_ranks)},
      {"Output", "log-max-bytes", "", "N[K|M|G]",
       "size at which a log file is renamed to <name>.1, in place of the previous one, and a new "
       "one is begun; at least 4096 bytes",
       "--log-max-bytes=100M", parsed(&LaunchOptions::log_max_bytes, parse_log_bytes),
       "0, no limit"},
      {"Output", "pty", "", "",
       "each worker writes to its own terminal, and its programs behave as on one", "--pty",
       switch_into(&LaunchOptions::pty)},
      {"Output", "stdin", "", "",
       "rank 0 reads ddprun's standard input (default: every worker's is /dev/null)", "--stdin",
       switch_into(&LaunchOptions::passes_stdin)},
      {"Output", "quiet", "", "",
       "ddprun itself prints only warnings and errors; workers' output is not affected", "--quiet",
       switch_into(&LaunchOptions::quiet)},
      {"Output", "verbose", "", "",
       "ddprun also prints what it starts, what the service orders, and which signals it sends",
       "--verbose", switch_into(&LaunchOptions::verbose)},
      {.group = "Output",
       .name = "log-format",
       .placeholder = "FORMAT",
       .help =
           "text, or json: each line on the console, of ddprun or of a worker, is a JSON object",
       .example = "--log-format=json",
       .set = parsed(&LaunchOptions::log_format, parse_log_format),
       .fallback = std::string(enum_name(kLogFormatWords, standard.log_format)),
       .choices = {"text", "json"}},
      {"Output", "event-log-handler", "", "NAME",
       "accepted with the value null; for events see /status.json and /metrics of the service",
       "--event-log-handler=null",
       without_effect(check_word({"null"},
                                 "expected null; for events see /status.json and /metrics of the "
                                 "service, docs/how-to/monitoring.md"))},
      {"Output", "logs-specs", "", "NAME",
       "accepted with the value default; see -r, -t and --log-dir", "--logs-specs=default",
       without_effect(check_word({"default"}, "expected default; see -r, -t and --log-dir"))},
      {"Output", "redirects", "r", "STREAMS",
       "into log files only: 1 stdout, 2 stderr, 3 both, or RANK:N,...", "-r 3",
       parsed(&LaunchOptions::redirects, parse_streams)},
      {"Output", "tee", "t", "STREAMS", "into log files and to the console, with torchrun's prefix",
       "-t 0:3,1:2", parsed(&LaunchOptions::tee, parse_streams)},
      {"Output", "log-line-prefix-template", "", "TEXT",
       "prefix of each line of -t, with ${role_name}, ${rank}, ${local_rank} and ${hostname}; else "
       "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
       "--log-line-prefix-template='${hostname}:${rank}: '", text_into(&LaunchOptions::line_prefix),
       "[${role_name}${local_rank}]:"},
      {.group = "Output",
       .name = "report-file",
       .placeholder = "FILE",
       .help = "write the verdict of the job and of each failed generation as JSON "
               "(docs/reference/verdicts.md)",
       .example = "--report-file=report.json",
       .set = needed_into(&LaunchOptions::report_file)},

      {.group = "General",
       .name = "config",
       .placeholder = "FILE",
       .help = "JSON object with any option by its name, and 'program' and 'args'; the command "
               "line and PET_ variables override it",
       .example = "--config=job.json",
       .set = needed_into(&LaunchOptions::config_file),
       .where = OptionSpec::Where::kNotInFile},
      wish("print-config", "",
           "show the value of each option and where it comes from; start nothing", "--print-config",
           LaunchCommand::kPrintConfig),
      wish("dry-run", "", "print the plan and the environment of each worker; start nothing",
           "--dry-run", LaunchCommand::kDryRun),
      wish("show-binding", "", "draw this machine and where --bind puts each worker; start nothing",
           "--show-binding", LaunchCommand::kShowBinding),
      wish("version", "", "versions of ddprun and its protocol", "--version",
           LaunchCommand::kVersion),
      wish("help", "h", "this text", "-h", LaunchCommand::kHelp),
  };
  return table;
}

std::span<const std::string_view> torchrun_options() {
  static constexpr std::array kNames = std::to_array<std::string_view>({"nnodes",
                                                                        "nproc-per-node",
                                                                        "rdzv-backend",
                                                                        "rdzv-endpoint",
                                                                        "rdzv-id",
                                                                        "rdzv-conf",
                                                                        "standalone",
                                                                        "max-restarts",
                                                                        "monitor-interval",
                                                                        "start-method",
                                                                        "event-log-handler",
                                                                        "role",
                                                                        "module",
                                                                        "no-python",
                                                                        "run-path",
                                                                        "log-dir",
                                                                        "redirects",
                                                                        "tee",
                                                                        "local-ranks-filter",
                                                                        "duplicate-stdout-filters",
                                                                        "duplicate-stderr-filters",
                                                                        "node-rank",
                                                                        "master-addr",
                                                                        "master-port",
                                                                        "local-addr",
                                                                        "logs-specs",
                                                                        "numa-binding",
                                                                        "signals-to-handle",
                                                                        "virtual-local-rank",
                                                                        "shutdown-timeout",
                                                                        "log-line-prefix-template",
                                                                        "print-completion"});
  return kNames;
}

const RefusedOption* find_refused(const std::string& name) {
  static const std::vector<RefusedOption> table{
      {"duplicate-stdout-filters", "give -t 1 and search its files"},
      {"duplicate-stderr-filters", "give -t 2 and search its files"},
      {"print-completion", "use ddprun completion bash, or zsh"},
  };
  const auto found = std::find_if(table.begin(), table.end(),
                                  [&](const RefusedOption& one) { return one.name == name; });
  return found == table.end() ? nullptr : &*found;
}

const std::vector<std::string>& option_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const OptionSpec& spec : option_table()) all.push_back(spec.name);
    return all;
  }();
  return names;
}

const OptionSpec* find_option(const std::string& given) {
  for (const OptionSpec& spec : option_table()) {
    const bool is_short = !spec.short_name.empty() && given == "-" + spec.short_name;
    if (is_short || with_dashes(given) == "--" + spec.name) return &spec;
  }
  return nullptr;
}

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

}  // namespace ddprun
